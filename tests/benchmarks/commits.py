"""Commits per second: 16 writers in 16 catalogs, against stock DuckLake and a bare locked function on the same Postgres."""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import duckdb
import duckdb_extensions
import psycopg
from psycopg.conninfo import conninfo_to_dict
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database
from tests.support.lake import resolved_id

from lakefork.catalog.catalogs import create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect

WRITERS = 16
SECONDS = 5.0
ROUNDS = 5
COLUMNS = (("id", "int64"), ("name", "varchar"), ("amount", "float64"), ("level", "int32"), ("day", "date"))
SPAWN = multiprocessing.get_context("fork")
BARE = """
CREATE FUNCTION public.bare_commit() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    newest public.ducklake_snapshot;
BEGIN
    LOCK TABLE lakefork_locks.commits IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT * INTO newest FROM public.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1;
    INSERT INTO public.ducklake_snapshot
    VALUES (newest.snapshot_id + 1, clock_timestamp(), newest.schema_version, newest.next_catalog_id, newest.next_file_id);
    RETURN newest.snapshot_id + 1;
END $$
"""
Step = Callable[[], None]


def measure() -> list[Figure]:
    with benchmark_database() as dsn:
        tables = _create_tables(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(BARE)
        rounds = [
            {
                "ours 16": _rate(_ours, dsn, tables),
                "bare 16": _rate(_bare, dsn, tables),
                "ours 1": _rate(_ours, dsn, tables[:1]),
                "bare 1": _rate(_bare, dsn, tables[:1]),
            }
            for _ in range(ROUNDS)
        ]
        ours = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        half = statistics.median(one["ours 16"] / one["bare 16"] for one in rounds)
        scaling = statistics.median(one["ours 16"] / one["ours 1"] for one in rounds)
        peers = _ducklake_rates(dsn)
    shared = [rate for name, rate in peers.items() if name.endswith("one lake")]
    apart = [rate for name, rate in peers.items() if not name.endswith("one lake")]
    area = "commits"
    return [
        *(Figure(area, f"Lakefork and bare function: {name} writers", value, "/s") for name, value in ours.items()),
        *(Figure(area, f"stock DuckLake, {WRITERS} writers: {name}", value, "/s") for name, value in peers.items()),
        Figure(
            area, "Lakefork / better of stock DuckLake's, one lake", ours["ours 16"] / max(shared), "×", at_least=10
        ),
        Figure(area, "Lakefork / stock DuckLake as 16 lakes that share nothing", ours["ours 16"] / max(apart), "×"),
        Figure(area, "Lakefork / bare locked function, 16 writers", half, "×", at_least=0.5),
        Figure(area, "Lakefork: 16 writers / 1 writer", scaling, "×", at_least=1.0),
    ]


def _create_tables(dsn: str) -> list[tuple[int, int]]:
    tables = []
    with connect(dsn) as connection:
        for number in range(WRITERS):
            catalog = create_catalog(connection, f"c{number}", f"/lake/c{number}")
            changes = Changes()
            schema_id, table_id = changes.new_id(), changes.new_id()
            changes.add("ducklake_schema", schema_id=schema_id, schema_name="s", path="s", path_is_relative=True)
            changes.add(
                "ducklake_table",
                table_id=table_id,
                schema_id=schema_id,
                table_name="t",
                path="t",
                path_is_relative=True,
            )
            for column_id, (name, kind) in enumerate(COLUMNS, 1):
                changes.add(
                    "ducklake_column", table_id=table_id, column_id=column_id, column_order=column_id, column_name=name,
                    column_type=kind, nulls_allowed=True,
                )  # fmt: skip
            done = commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
            tables.append((catalog.catalog_id, resolved_id(done, table_id)))
    return tables


def _rate(make_step: Callable[..., Step], dsn: str, targets: list[Any]) -> float:
    """Steps per second of all writers together, each a process with a connection of its own."""
    barrier, counts = SPAWN.Barrier(len(targets)), SPAWN.Queue()
    writers = [SPAWN.Process(target=_write, args=(make_step, dsn, target, barrier, counts)) for target in targets]
    for writer in writers:
        writer.start()
    total = sum(counts.get(timeout=SECONDS + 120) for _ in writers)
    for writer in writers:
        writer.join()
    return total / SECONDS


def _write(make_step: Callable[..., Step], dsn: str, target: Any, barrier: Any, counts: Any) -> None:
    step = make_step(dsn, target)
    for _ in range(10):
        step()
    barrier.wait()
    deadline, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        step()
        count += 1
    counts.put(count)


def _ours(dsn: str, target: tuple[int, int]) -> Step:
    catalog_id, table_id = target
    connection = connect(dsn)
    state = {"base": newest_snapshot(connection), "number": time.time_ns()}

    def step() -> None:
        changes = Changes()
        file_id = changes.new_file_id()
        changes.add(
            "ducklake_data_file", data_file_id=file_id, table_id=table_id, path=f"shared/batch-{state['number']}.parquet",
            path_is_relative=True, record_count=1000, file_size_bytes=40_000, footer_size=900,
            statistics=[(column_id, 1000, 0, "1", "9", None) for column_id in range(1, len(COLUMNS) + 1)],
        )  # fmt: skip
        state["base"] = commit(connection, catalog_id, state["base"], changes).snapshot_id
        state["number"] += 1

    return step


def _bare(dsn: str, _: Any) -> Step:
    connection = connect(dsn)
    return lambda: connection.execute("SELECT public.bare_commit()", prepare=True).fetchone() and None


def _ducklake_rates(dsn: str) -> dict[str, float]:
    """Stock DuckLake on the same server: rows inlined or written to a file, in one lake or in one lake per writer."""
    with (
        tempfile.TemporaryDirectory(prefix="lakefork-bench-lake-") as directory,
        psycopg.connect(dsn, autocommit=True) as admin,
    ):
        rates = {}
        for kind, rows in (("inlined", 1), ("file", 1000)):
            for lakes in (1, WRITERS):
                name = f"peer_{kind}_{lakes}"
                targets = []
                for number in range(WRITERS):
                    database = f"{name}_{number % lakes}"
                    if number < lakes:
                        admin.execute(f"CREATE DATABASE {database}")
                    targets.append((database, f"{directory}/{database}", f"t{number}", rows))
                for target in targets:
                    _create_ducklake_table(dsn, target)
                rates[f"{kind}, {lakes} lakes" if lakes > 1 else f"{kind}, one lake"] = _rate(_ducklake, dsn, targets)
        return rates


def _attach(dsn: str, target: tuple[str, str, str, int]) -> Any:
    database, data_path, _, _ = target
    for extension in ("ducklake", "postgres_scanner"):
        duckdb_extensions.import_extension(extension)
    parts = conninfo_to_dict(dsn)
    duck = duckdb.connect(config={"threads": 1})
    duck.execute("LOAD ducklake; LOAD postgres_scanner")
    libpq = (
        f"dbname={database} host={parts['host']} port={parts['port']} user={parts['user']} password={parts['password']}"
    )
    duck.execute(f"ATTACH 'ducklake:postgres:{libpq}' AS lake (DATA_PATH '{data_path}')")
    duck.execute("SET ducklake_max_retry_count = 1000")
    return duck


def _create_ducklake_table(dsn: str, target: tuple[str, str, str, int]) -> None:
    with _attach(dsn, target) as duck:
        duck.execute(f"CREATE TABLE lake.{target[2]} (id BIGINT, name VARCHAR, amount DOUBLE, level INTEGER, day DATE)")


def _ducklake(dsn: str, target: tuple[str, str, str, int]) -> Step:
    duck = _attach(dsn, target)
    table, rows = target[2], target[3]
    insert = f"INSERT INTO lake.{table} SELECT i, 'n' || i, i / 3, i % 10, DATE '2026-01-01' FROM range({rows}) r(i)"
    return lambda: duck.execute(insert) and None
