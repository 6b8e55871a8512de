"""What single statements cost that people wait for: changes of flushed rows, definitions, locations, records of jobs."""

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks import points
from tests.benchmarks.cold import ADMIN, Bench, open_bench, rows_of
from tests.benchmarks.report import Figure

from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun, Usage, finish_job, start_job
from lakefork.catalog.roots import add_root
from lakefork.errors import ConflictError, InvalidInputError
from lakefork.model.tables import definition_from_json
from lakefork.settings import Settings
from lakefork.spark.job import SAMPLE_SECONDS
from lakefork.spark.usage import UsageMeter
from lakefork.sql.engine import Engine

AREA = "statements"
LOCATIONS = 1_000
GB_IN_FILES = 10_000  # of 100 kB
RUNS = 100_000
PAIRS = 30


def measure() -> list[Figure]:
    with open_bench() as bench:
        return [
            *points.cold(bench, AREA),
            *_flushed_rows(bench),
            *_locations(bench),
            *_definitions(bench),
            *_projection(bench),
            *_jobs(bench),
        ]


def _p50(action: Callable[[], Any], count: int) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def _refused(bench: Bench, statement: str) -> None:
    with suppress(ConflictError, InvalidInputError):
        bench.engine.execute(ADMIN, statement)
        raise AssertionError(statement)


def _flushed_rows(bench: Bench) -> list[Figure]:
    """200,000 rows in 20 batches whose key ranges overlap."""
    table = bench.table("flushed")
    for number in range(20):
        bench.publish(table, rows_of(f"i * 20 + {number}", 10_000))
    keys = iter(range(1, 200_000, 37))
    update = _p50(lambda: bench.engine.execute(ADMIN, f"UPDATE app.flushed SET amount = 1 WHERE id = {next(keys)}"), 60)
    twice = _p50(lambda: _refused(bench, f"INSERT INTO app.flushed (id) VALUES ({next(keys)})"), 60)
    return [
        Figure(AREA, "UPDATE of one flushed row in 20 batches, p50", update, "ms", at_most=10),
        Figure(AREA, "INSERT of a key that a batch has, refused, p50", twice, "ms", at_most=10),
    ]


def _locations(bench: Bench) -> list[Figure]:
    root = Path(bench.definition("flushed").path).parents[2] / "elsewhere"
    root.mkdir()
    with connect(bench.dsn) as connection:
        add_root(connection, str(root))
    for number in range(LOCATIONS):
        bench.engine.execute(
            ADMIN,
            "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES (?, 'filesystem', ?)",
            (f"place{number}", f"{root}/place{number}"),
        )
    query = "SELECT path FROM system.storage_locations WHERE location_name = 'place500'"
    assert bench.rows(query) == [(f"{root}/place500",)]
    numbers = iter(range(1, LOCATIONS))

    def create(location: str) -> None:
        number = next(numbers)
        where = location.format(number=number)
        bench.engine.execute(ADMIN, f"CREATE SHARED TABLE app.located{number} (id BIGINT PRIMARY KEY) {where}")

    by_name = _p50(lambda: create("LOCATION REFERENCE 'place{number}'"), 30)
    by_path = _p50(lambda: create(f"LOCATION '{root}/direct{{number}}'"), 30)
    return [
        Figure(AREA, "a storage location among 1,000, p50", _p50(lambda: bench.rows(query), 30), "ms", at_most=5),
        Figure(AREA, "LOCATION REFERENCE: what CREATE TABLE takes longer, p50", by_name - by_path, "ms", at_most=10),
    ]


def _definitions(bench: Bench) -> list[Figure]:
    columns = ", ".join(f"c{number} INT" for number in range(100))
    bench.engine.execute(ADMIN, f"CREATE SHARED TABLE app.wide (id BIGINT PRIMARY KEY, {columns})")
    names = iter(range(100))
    drop = [
        _p50(lambda: bench.engine.execute(ADMIN, f"ALTER TABLE app.wide DROP COLUMN c{next(names)}"), 1)
        for _ in range(40)
    ]
    refused = _p50(lambda: _refused(bench, "ALTER TABLE app.wide MODIFY COLUMN c90 SMALLINT"), 30)
    return [
        Figure(AREA, "ALTER TABLE DROP COLUMN, slowest of 40", max(drop), "ms", at_most=1000),
        Figure(AREA, "ALTER TABLE that does not fit the column's type, refused, p50", refused, "ms", at_most=50),
        Figure(AREA, "a definition of 60 columns from the catalog to Arrow, p50", _to_arrow(bench), "ms", at_most=10),
        Figure(AREA, "until another process sees a new column, slowest of 20", _until_seen(bench), "ms", at_most=100),
        Figure(AREA, "DROP TABLE of 1 GB in 10,000 files", _drop(bench), "s", at_most=5),
    ]


def _to_arrow(bench: Bench) -> float:
    found = bench.definition("wide")
    with connect(bench.dsn) as connection:

        def load() -> None:
            row = connection.execute(
                "SELECT lakefork.table_definition(%s, %s, %s) AS definition",
                (found.catalog_id, found.table_id, found.definition_snapshot),
            ).fetchone()
            assert row is not None
            read = definition_from_json(found.catalog_id, "main", found.definition_snapshot, row["definition"])
            assert len(read.arrow_schema) == len(found.arrow_schema)

        return _p50(load, 30)


def _until_seen(bench: Bench) -> float:
    """With an engine of its own, which has the old definition in its cache."""
    with Engine(Settings(), bench.dsn) as other:
        other.execute(ADMIN, "SELECT * FROM app.wide")
        times = []
        for number in range(20):
            bench.engine.execute(ADMIN, f"ALTER TABLE app.wide ADD COLUMN new{number} INT")
            started = time.perf_counter()
            found: Any = other.execute(ADMIN, "SELECT * FROM app.wide")[0]
            times.append(1000 * (time.perf_counter() - started))
            assert f"new{number}" in found.columns
    return max(times)


def _drop(bench: Bench) -> float:
    table = bench.table("large")
    with connect(bench.dsn) as connection:
        connection.execute(
            "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, "
            "file_format, record_count, file_size_bytes, footer_size) SELECT %s, 10000000 + i, %s, lakefork.newest_snapshot(), i, "
            "'shared/batch-' || i || '.parquet', true, 'parquet', 1000, 100000, 900 FROM generate_series(1, %s) i",
            (table.catalog_id, table.table_id, GB_IN_FILES),
        )
        connection.execute("ANALYZE ducklake_data_file")
    started = time.perf_counter()
    bench.engine.execute(ADMIN, "DROP TABLE app.large")
    return time.perf_counter() - started


def _projection(bench: Bench) -> list[Figure]:
    """Files from before a column was added, beside the same ones of a table that has had no other definition."""
    query = "SELECT category, sum(amount), count(*) FROM app.{t} GROUP BY category"
    for name in ("as_written", "projected"):
        table = bench.table(name)
        for number in range(10):
            bench.publish(table, rows_of(f"{number} * 50000 + i", 50_000))
    bench.engine.execute(ADMIN, "ALTER TABLE app.projected ADD COLUMN more INT DEFAULT 1")
    times = {"as_written": list[float](), "projected": list[float]()}
    for turn in range(2 * PAIRS):  # some milliseconds each: in turns, and either one first
        for name in sorted(times, reverse=turn % 2 == 0):
            times[name].append(_p50(partial(bench.rows, query.format(t=name)), 1))
    ratio = statistics.median(times["projected"]) / statistics.median(times["as_written"])
    return [Figure(AREA, "files from before ADD COLUMN: time / the same without it", ratio, "×", at_most=1.05)]


def _jobs(bench: Bench) -> list[Figure]:
    """What is recorded of a job: a sample each second, two rows in Postgres; and forgetting old ones."""
    meter = UsageMeter()
    sample = _p50(meter.sample, 50) / 1000
    with connect(bench.dsn) as connection:
        numbers = iter(range(1_000))

        def record() -> None:
            run = JobRun(f"flush/{(number := next(numbers))}", "flush", "r", f"cli/{number}", "node")
            start_job(connection, run, {})
            finish_job(connection, run, Usage(1, 1), result={"rows_in": 1})

        recorded = _p50(record, 50)
        connection.execute(
            "INSERT INTO lakefork.job_run (job_id, job, run_id, trace, params, status, started_at, heartbeat_at, node_id) "
            "SELECT 'old/' || i, 'flush', 'r' || i, 'cli/old/' || i, '{}', 'completed', t, t, 'n' "
            "FROM generate_series(1, %s) i, (SELECT now() - interval '60 days') s (t)",
            (RUNS,),
        )
        connection.execute(
            "INSERT INTO lakefork.job_table SELECT 'old/' || i, 1, 1, 'app', 't', '{}' FROM generate_series(1, %s) i",
            (RUNS,),
        )
        started = time.perf_counter()
        connection.execute("SELECT lakefork.forget_jobs('30 days')")
        forgotten = time.perf_counter() - started
    return [
        Figure(AREA, "memory and CPU of a job, sampled: share of its time", sample / SAMPLE_SECONDS, "×", at_most=0.05),
        Figure(AREA, "a job's rows in Postgres, p50", recorded, "ms", at_most=50),
        Figure(AREA, "forgetting 100,000 runs", forgotten, "s", at_most=60),
    ]
