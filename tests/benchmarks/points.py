"""Statements about one row by key, beside what they come down to: a statement of Postgres, or DuckDB on the right file."""

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
from tests.benchmarks.cold import ADMIN, Bench, rows_of
from tests.benchmarks.report import Figure

from lakefork.sql.engine import Engine
from lakefork.sql.session import Session

ROUNDS, EACH = 6, 50
HOT_ROWS = 1_000_000
BATCHES, BATCH_ROWS = 100, 10_000
ALICE = Session("main", "alice")
PLAIN = """CREATE TABLE plain_points (catalog_id bigint, _user_id text COLLATE "C", _seq bigint, _deleted boolean NOT NULL,
    _xid xid8 NOT NULL DEFAULT pg_current_xact_id(), id bigint NOT NULL, content text, n integer, PRIMARY KEY (catalog_id, _user_id, _seq));
    CREATE INDEX ON plain_points (catalog_id, _user_id, id, _seq);
    INSERT INTO plain_points SELECT 1, 'alice', i, false, pg_current_xact_id(), i, 'some text', 0 FROM generate_series(0, {rows} - 1) i;
    VACUUM ANALYZE plain_points"""
OF_ALICE = "catalog_id = 1 AND _user_id = 'alice' AND id = %s"


def hot(engine: Engine, dsn: str, area: str) -> list[Figure]:
    """Rows of one user that are all hot, beside a plain table with the same rows and indexes."""
    admin = Session("main", None, ADMIN.role)
    engine.execute(admin, "CREATE USER TABLE app.points (id BIGINT PRIMARY KEY, content TEXT, n INT)")
    rows = {"id": np.arange(HOT_ROWS), "content": ["some text"] * HOT_ROWS, "n": np.zeros(HOT_ROWS, np.int32)}
    engine.load(ALICE, "app.points", pa.table(rows))
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in PLAIN.format(rows=HOT_ROWS).split(";"):
            connection.execute(statement)
        connection.execute("ANALYZE")
        keys, new, peers_new = count(100, 7), count(HOT_ROWS), count(HOT_ROWS)

        def plain(sql: str, *given: Any) -> list[Any]:
            cursor = connection.execute(sql, given, prepare=True)
            return cursor.fetchall() if cursor.description else []

        def ours(sql: str) -> list[Any]:
            return engine.execute(ALICE, sql)

        insert = "INSERT INTO plain_points (catalog_id, _user_id, _seq, _deleted, id, content, n) VALUES (1, 'alice', %s, false, %s, 'x', 1)"
        works: dict[str, tuple[Callable[[], Any], Callable[[], Any], float]] = {
            f"SELECT by key among {HOT_ROWS:,} hot rows": (
                lambda: ours(f"SELECT id, content, n FROM app.points WHERE id = {next(keys)}"),
                lambda: plain(f"SELECT id, content, n FROM plain_points WHERE {OF_ALICE} ORDER BY _seq DESC LIMIT 1", next(keys)),
                8,
            ),
            "UPDATE of a hot row by key": (
                lambda: ours(f"UPDATE app.points SET n = n + 1 WHERE id = {next(keys)}"),
                lambda: plain(f"UPDATE plain_points SET n = n + 1 WHERE {OF_ALICE}", next(keys)),
                3,
            ),
            "INSERT with its own key, no batches": (
                lambda: ours(f"INSERT INTO app.points (id, content, n) VALUES ({next(new)}, 'x', 1)"),
                lambda: plain(insert, number := next(peers_new), number),
                3,
            ),
        }  # fmt: skip
        return [
            figure
            for name, (ours_, peer, most) in works.items()
            for figure in _compared(area, name, {"ours": ours_, "plain psycopg": peer}, most)
        ]


def cold(bench: Bench, area: str) -> list[Figure]:
    """Rows that are all in batches, beside DuckDB in this process that knows the right file."""
    table = bench.table("keyed")
    paths = [bench.publish(table, rows_of("i * 2", BATCH_ROWS, number * BATCH_ROWS)) for number in range(BATCHES)]
    keys, odd = count(1_000, 7_919), count(1_001, 7_918)
    span = 2 * BATCHES * BATCH_ROWS
    with duckdb.connect(config={"threads": 2}) as duck:
        duck.execute("SET parquet_metadata_cache = true")

        def peer() -> list[Any]:
            key = next(keys) * 2 % span
            path = paths[key // (2 * BATCH_ROWS)]
            return duck.execute(f"SELECT id, category, amount FROM read_parquet('{path}') WHERE id = {key}").fetchall()

        def ours(sql: str) -> Any:
            return bench.engine.execute(ADMIN, sql.format(key=next(keys) * 2 % span))

        def insert() -> Any:
            key = next(odd) * 2 % span + 1
            return bench.engine.execute(ADMIN, f"INSERT INTO app.keyed (id, category) VALUES ({key}, 'x')")

        assert len(peer()) == 1
        works: dict[str, tuple[Callable[[], Any], float]] = {
            "SELECT by key": (lambda: ours("SELECT id, category, amount FROM app.keyed WHERE id = {key}"), 1.5),
            "UPDATE of a flushed row by key": (
                lambda: ours("UPDATE app.keyed SET amount = 1 WHERE id = {key}"), 2,
            ),
            "INSERT with its own key": (insert, 2),
        }  # fmt: skip
        return [
            figure
            for name, (work, most) in works.items()
            for figure in _compared(
                area, f"{name}, {BATCHES} batches", {"ours": work, "DuckDB on the right file": peer}, most
            )
        ]


def _compared(area: str, name: str, works: Mapping[str, Callable[[], Any]], most: float) -> list[Figure]:
    """Median times, in turns, so that both see the same machine."""
    times: dict[str, list[float]] = {one: [] for one in works}
    for turn in range(ROUNDS + 1):
        for one, work in works.items():
            for _ in range(EACH):
                started = time.perf_counter()
                work()
                if turn:
                    times[one].append(1000 * (time.perf_counter() - started))
    (_, ours), (peer, theirs) = ((one, statistics.median(found)) for one, found in times.items())
    return [
        Figure(area, f"{name}, p50", ours, "ms"),
        Figure(area, f"{name} / {peer} ({theirs:.2f} ms)", ours / theirs, "×", at_most=most),
    ]
