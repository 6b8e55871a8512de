"""Following a Postgres against a native subscription that catches up with the same changes, in the same run."""

import contextlib
import os
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.model.params import PostgresCopyParams, PostgresFollowParams
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.transfer.follow.run import run_postgres_follow
from lakefork.transfer.follow.targets import open_target
from lakefork.transfer.postgres_copy.postgres_run import PostgresDestination
from lakefork.transfer.postgres_copy.run import run_copy

AREA = "follow"
TRANSACTIONS, CHANGES = 2_000, 100
ROWS = TRANSACTIONS * CHANGES
LARGE = 1_000_000
PACE, SECONDS = 2_000, 8  # changes per second
TABLES = (
    "CREATE TABLE t (id bigint PRIMARY KEY, n int, v text)",
    "CREATE TABLE big (id bigint PRIMARY KEY, v text)",
    "CREATE TABLE beats (id bigint PRIMARY KEY, at timestamptz NOT NULL)",
)


def measure() -> list[Figure]:
    with (
        benchmark_spark(),
        benchmark_database() as catalog,
        benchmark_database(wal_level="logical") as other,
        _named(other, "bench_source") as source,
        _named(catalog, "bench_target") as target,
        _named(catalog, "bench_peer") as peer,
    ):
        os.environ |= {"LAKEFORK_CONNECTIONS__SRC": source, "LAKEFORK_CONNECTIONS__DST": target}
        for dsn in (source, peer):
            _run(dsn, *TABLES)
        _copy(catalog)
        ((publication,),) = _rows(source, "SELECT pubname::text FROM pg_publication")
        _run(
            peer,
            f"CREATE SUBSCRIPTION s CONNECTION '{source}' PUBLICATION {publication} WITH (enabled = false, copy_data = false)",
        )
        try:
            return [
                *_rates(catalog, source, peer),
                *_large_transaction(catalog, source),
                *_lag(catalog, source, target),
            ]
        finally:
            _run(peer, "DROP SUBSCRIPTION s")


def _rates(catalog: str, source: str, peer: str) -> list[Figure]:
    figures = []
    for name, statement in (
        (
            "inserts",
            f"INSERT INTO t SELECT n, 0, md5(n::text) FROM generate_series(%s * {CHANGES} + 1, (%s + 1) * {CHANGES}) n",
        ),
        ("updates by key", f"UPDATE t SET n = n + 1 WHERE id BETWEEN %s * {CHANGES} + 1 AND (%s + 1) * {CHANGES}"),
    ):
        with psycopg.connect(source, autocommit=True) as connection:
            for number in range(TRANSACTIONS):
                connection.execute(statement.encode(), (number, number), prepare=True)
        started = time.monotonic()
        assert _follow(catalog)["changes"] == ROWS
        ours = time.monotonic() - started
        started = time.monotonic()
        _run(peer, "ALTER SUBSCRIPTION s ENABLE")
        wanted = (ROWS, 0 if name == "inserts" else ROWS)
        while _rows(peer, "SELECT count(*), coalesce(sum(n), 0) FROM t")[0] != wanted:
            time.sleep(0.1)
        theirs = time.monotonic() - started
        _run(peer, "ALTER SUBSCRIPTION s DISABLE")
        figures += [
            Figure(AREA, f"{name}, {CHANGES} in a transaction", ROWS / ours, "/s"),
            Figure(AREA, f"{name}: rate against a native subscription", theirs / ours, "×", at_least=0.5),
        ]
    return figures


def _large_transaction(catalog: str, source: str) -> list[Figure]:
    _run(source, f"INSERT INTO big SELECT n, md5(n::text) FROM generate_series(1, {LARGE}) n")
    peak, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], psutil.Process().memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    started = time.monotonic()
    assert _follow(catalog)["changes"] == LARGE
    seconds = time.monotonic() - started
    over.set()
    thread.join()
    return [
        Figure(AREA, f"one transaction of {LARGE:,} rows", LARGE / seconds, "/s"),
        Figure(AREA, "… memory of the driver", peak[0] / 2**20, "MB", at_most=500),
    ]


def _lag(catalog: str, source: str, target: str) -> list[Figure]:
    """From the commit on the source until the target shows it, while one run drains."""
    over, committed, lags = threading.Event(), {}, []

    def write() -> None:
        with psycopg.connect(source, autocommit=True) as connection:
            due, number = time.monotonic(), 0
            while not over.is_set():
                number += 1
                connection.execute(
                    "INSERT INTO beats SELECT n, clock_timestamp() FROM generate_series(%s::bigint, %s) n",
                    (number * CHANGES + 1, (number + 1) * CHANGES),
                )
                committed[(number + 1) * CHANGES] = time.monotonic()
                due += CHANGES / PACE
                time.sleep(max(0.0, due - time.monotonic()))

    def look() -> None:
        seen: set[int] = set()
        with psycopg.connect(target, autocommit=True) as connection:
            while not over.is_set():
                row = connection.execute("SELECT coalesce(max(id), 0) FROM beats").fetchone()
                now, newest = time.monotonic(), row[0] if row else 0
                for last, at in list(committed.items()):
                    if last <= newest and last not in seen:
                        seen.add(last)
                        lags.append(now - at)
                time.sleep(0.02)

    threads = [threading.Thread(target=one) for one in (write, look)]
    for thread in threads:
        thread.start()
    _follow(catalog, until="FFFFFFFF/0", max_seconds=SECONDS)
    over.set()
    for thread in threads:
        thread.join()
    return [
        Figure(AREA, f"lag p95 at {PACE:,} changes per second", statistics.quantiles(lags, n=20)[-1], "s", at_most=2)
    ]


def _copy(dsn: str) -> None:
    params = PostgresCopyParams(source="src", target="dst", follow=True, copy_id="bench")
    with _context(dsn, "postgres_copy") as context:
        run_copy(context, params, PostgresDestination("dst"))


def _follow(dsn: str, **params: Any) -> dict[str, Any]:
    with _context(dsn, "postgres_follow") as context:
        return run_postgres_follow(context, PostgresFollowParams(copy_id="bench", **params), open_target)


@contextmanager
def _context(dsn: str, job: str) -> Iterator[JobContext]:
    settings = Settings.model_construct(**{**dict(Settings()), "dsn": dsn})
    run = JobRun(f"{job}/bench/{uuid.uuid4().hex}", job, uuid.uuid4().hex, "cli", "bench")
    with connect(dsn) as connection:
        context = JobContext(run, settings, dsn, connection, Leases(run.job_id, 600))
        context.progress = lambda line: None  # type: ignore[method-assign]
        yield context
        context.leases.release(connection)


@contextmanager
def _named(dsn: str, name: str) -> Iterator[str]:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        yield f"{dsn.rpartition('/')[0]}/{name}"
        with contextlib.suppress(psycopg.Error):
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()
