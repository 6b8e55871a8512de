"""Forks: latency, rate, and their effect on commits."""

import contextlib
import itertools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark
from tests.support.lake import resolved_id

from lakefork.catalog.catalogs import create_catalog, find_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.embedded.postgres import binaries
from lakefork.model.params import ForkProvisionParams
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.upkeep.forks.run import run_fork_provision

AREA = "forks"
TABLES, COLUMNS = 10, 10
FORKS = 1_000
SECONDS = 6.0
SPAWN = multiprocessing.get_context("fork")
_names = itertools.count()


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with benchmark_database() as dsn:
        _parent(dsn, "parent", 1_000)
        figures += _single(dsn)
        figures += _hot(dsn)
        figures += _sizes(dsn)
        figures += _at_once(dsn, "parent")
        figures += _provision(dsn)
        figures += _among_forks(dsn)
    with benchmark_database() as dsn:
        _parent(dsn, "parent", 1_000)
        figures += _peers(dsn)
    return figures


def _parent(dsn: str, name: str, files: int) -> int:
    """A catalog with so many files in ten tables of ten columns, written directly."""
    with connect(dsn) as connection:
        catalog = create_catalog(connection, name, f"/lake/{name}")
        changes = Changes()
        schema_id = changes.new_id()
        changes.add("ducklake_schema", schema_id=schema_id, schema_name="app", path="app", path_is_relative=True)
        tables = [changes.new_id() for _ in range(TABLES)]
        for place, table_id in enumerate(tables):
            changes.add("ducklake_table", table_id=table_id, schema_id=schema_id, table_name=f"t{place}", path=f"t{place}", path_is_relative=True)  # fmt: skip
            for column in range(1, COLUMNS + 1):
                changes.add("ducklake_column", table_id=table_id, column_id=column, column_order=column, column_name=f"c{column}", column_type="int64", nulls_allowed=True)  # fmt: skip
        done = commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
        ids = [resolved_id(done, table_id) for table_id in tables]
        _fill(connection, catalog.catalog_id, ids, files)
    return catalog.catalog_id


def _fill(connection: Any, catalog_id: int, tables: list[int], files: int) -> None:
    wanted = {"catalog": catalog_id, "tables": tables, "files": files, "columns": COLUMNS}
    with connection.transaction():
        connection.execute("SELECT lakefork.begin_commit()")
        connection.execute(
            "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format, "
            "record_count, file_size_bytes, footer_size, row_id_start) "
            "SELECT %(catalog)s, s.next_file_id + i, (%(tables)s::bigint[])[1 + i %% cardinality(%(tables)s::bigint[])], s.snapshot_id, s.snapshot_id, "
            "'shared/batch-' || i || '.parquet', true, 'parquet', 1000, 40000, 500, 0 "
            "FROM generate_series(0, %(files)s - 1) i, (SELECT * FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1) s",
            wanted,
        )
        connection.execute(
            "INSERT INTO ducklake_file_column_stats (catalog_id, data_file_id, table_id, column_id, value_count, null_count, min_value, max_value) "
            "SELECT f.catalog_id, f.data_file_id, f.table_id, c, 1000, 0, '1', '999999' FROM ducklake_data_file f, generate_series(1, %(columns)s) c "
            "WHERE f.catalog_id = %(catalog)s",
            wanted,
        )
        connection.execute(
            "UPDATE ducklake_table_stats t SET record_count = f.records, file_size_bytes = f.bytes FROM (SELECT table_id, sum(record_count) AS records, "
            "sum(file_size_bytes) AS bytes FROM ducklake_data_file WHERE catalog_id = %(catalog)s GROUP BY 1) f "
            "WHERE t.catalog_id = %(catalog)s AND t.table_id = f.table_id",
            wanted,
        )
        connection.execute(
            "UPDATE ducklake_snapshot SET next_file_id = next_file_id + %(files)s WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)",
            wanted,
        )
    connection.execute("ANALYZE")


def _forks(dsn: str, parent: str, count: int) -> list[float]:
    """Seconds of each."""
    times = []
    with connect(dsn) as connection:
        for _ in range(count):
            name = f"{parent}_{next(_names)}"
            started = time.perf_counter()
            connection.execute(f"CALL ducklake_fork_catalog('{parent}', '{name}', '/lake/{name}')")
            times.append(time.perf_counter() - started)
    return times


def _single(dsn: str) -> list[Figure]:
    with connect(dsn) as connection:
        connection.execute("CHECKPOINT")
        before = _size(connection)
        times = _forks(dsn, "parent", 40)
        bytes_each = (_size(connection) - before) / len(times)
    return [
        Figure(AREA, "1,000 files × 10 columns in 10 tables, p50", 1000 * statistics.median(times), "ms", at_most=100),
        Figure(AREA, "the same, p95", 1000 * statistics.quantiles(times, n=20)[-1], "ms"),
        Figure(AREA, "catalog rows of one fork", bytes_each / 1e6, "MB"),
    ]


def _size(connection: Any) -> int:
    row = connection.execute("SELECT pg_database_size(current_database()) AS size").fetchone()
    return int(row["size"])


def _hot(dsn: str) -> list[Figure]:
    _parent(dsn, "warm", 1_000)
    with Engine(Settings(), dsn) as engine:
        admin = Session("warm", role=Role.ADMIN)
        engine.execute(
            admin, "CREATE NAMESPACE hot; CREATE SHARED TABLE hot.t (id BIGINT PRIMARY KEY, a TEXT, b INT, c DOUBLE)"
        )
        engine.execute(admin, "INSERT INTO hot.t SELECT i, 'row ' || i, i % 100, i / 3 FROM range(10000) r(i)")
    times = _forks(dsn, "warm", 20)
    return [Figure(AREA, "the same with 10,000 hot rows, p50", 1000 * statistics.median(times), "ms", at_most=200)]


def _sizes(dsn: str) -> list[Figure]:
    figures = []
    for files in (10_000, 100_000):
        _parent(dsn, f"large{files}", files)
        times = _forks(dsn, f"large{files}", 3)
        figures.append(Figure(AREA, f"{files:,} files, median of 3", statistics.median(times), "s"))
    return figures


def _at_once(dsn: str, parent: str) -> list[Figure]:
    """Total rates of 1 and 8 forkers, each alone, and how many commits others manage beside them."""
    one, eight = (_forks_made(dsn, parent, forkers) for forkers in (1, 8))
    idle = _commits(dsn)
    with _forking(dsn, parent, 1):
        beside_one = _commits(dsn)
    with _forking(dsn, parent, 8):
        beside_eight = _commits(dsn)
    return [
        Figure(AREA, "one forker", one / SECONDS, "/s"),
        Figure(AREA, "8 forkers / 1, in total", eight / max(one, 1), "×", at_least=1),
        Figure(AREA, "commits of others beside one forker / idle", beside_one / idle, "×", at_least=0.5),
        Figure(AREA, "commits of others beside 8 forkers / idle", beside_eight / idle, "×", at_least=0.5),
    ]


def _forks_made(dsn: str, parent: str, forkers: int) -> int:
    """In SECONDS, without other load."""
    with _forking(dsn, parent, forkers) as made:
        time.sleep(SECONDS)
        return made()


@contextlib.contextmanager
def _forking(dsn: str, parent: str, forkers: int) -> Iterator[Callable[[], int]]:
    """Forks as fast as it goes; how many so far."""
    stop, made = SPAWN.Event(), SPAWN.Value("i", 0)
    processes = [
        SPAWN.Process(target=_fork_until, args=(dsn, parent, stop, made, f"x{next(_names)}")) for _ in range(forkers)
    ]
    for process in processes:
        process.start()
    try:
        yield lambda: int(made.value)
    finally:
        stop.set()
        for process in processes:
            process.join()


def _fork_until(dsn: str, parent: str, stop: Event, made: Any, prefix: str) -> None:
    with connect(dsn) as connection:
        for number in itertools.count():
            if stop.is_set():
                return
            connection.execute(
                f"CALL ducklake_fork_catalog('{parent}', '{prefix}_{number}', '/lake/{prefix}_{number}')"
            )
            with made.get_lock():
                made.value += 1


def _commits(dsn: str) -> float:
    """A second."""
    return 1 / _commit_seconds(dsn, f"commits{next(_names)}", SECONDS)


def _commit_seconds(dsn: str, name: str, seconds: float = 3.0) -> float:
    """Seconds of a commit of one file, one after the other, in a catalog of its own."""
    with connect(dsn) as connection:
        catalog = create_catalog(connection, f"c_{name}", f"/lake/c_{name}")
        changes = Changes()
        schema_id, table_id = changes.new_id(), changes.new_id()
        changes.add("ducklake_schema", schema_id=schema_id, schema_name="app", path="app", path_is_relative=True)
        changes.add(
            "ducklake_table", table_id=table_id, schema_id=schema_id, table_name="t", path="t", path_is_relative=True
        )
        changes.add("ducklake_column", table_id=table_id, column_id=1, column_order=1, column_name="id", column_type="int64", nulls_allowed=True)  # fmt: skip
        made = commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
        table = resolved_id(made, table_id)
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            files = Changes()
            files.add("ducklake_data_file", data_file_id=files.new_file_id(), table_id=table, path=f"b-{done}.parquet", path_is_relative=True, record_count=1, file_size_bytes=1, footer_size=1)  # fmt: skip
            commit(connection, catalog.catalog_id, newest_snapshot(connection), files)
            done += 1
        return (time.perf_counter() - started) / done


def _read_seconds(dsn: str, catalog_id: int) -> float:
    """The files of one table with bounds of a column, as a reader asks for them."""
    with connect(dsn) as connection:
        table = connection.execute(
            "SELECT min(table_id) AS id FROM ducklake_table WHERE catalog_id = %s", (catalog_id,)
        ).fetchone()
        times = []
        for _ in range(60):
            started = time.perf_counter()
            found = connection.execute(
                "SELECT * FROM lakefork.table_files(%s, %s, NULL, '{1}')", (catalog_id, table["id"])
            ).fetchall()  # type: ignore[index]
            times.append(time.perf_counter() - started)
            assert len(found) == 100
    return statistics.median(times)


def _among_forks(dsn: str) -> list[Figure]:
    """One of the forks, in turns with a lake that has none, so that both see the same machine; after what autovacuum would do."""
    with connect(dsn) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
        fork = find_catalog(connection, f"agent_{FORKS // 2}").catalog_id
    commits: tuple[list[float], list[float]] = [], []
    reads: tuple[list[float], list[float]] = [], []
    with benchmark_database() as alone:
        lakes = ((dsn, fork), (alone, _parent(alone, "parent", 1_000)))
        for number in range(5):
            for place, (lake, catalog_id) in enumerate(lakes):
                commits[place].append(_commit_seconds(lake, f"turn{number}"))
                reads[place].append(_read_seconds(lake, catalog_id))
    commit_ratio, read_ratio = (statistics.median(among) / statistics.median(one) for among, one in (commits, reads))
    return [
        Figure(AREA, f"commit among {FORKS:,} forks / alone", commit_ratio, "×", at_most=1.2),
        Figure(AREA, f"a fork's files among {FORKS:,} forks / one catalog alone", read_ratio, "×", at_most=1.2),
    ]


def _provision(dsn: str) -> list[Figure]:
    run = JobRun("fork_provision/bench/1", "fork_provision", "bench", "cli", "node")
    with benchmark_spark(), connect(dsn) as connection:
        job = JobContext(run, Settings(), dsn, connection, Leases(run.job_id, 60))
        job.progress = lambda _: None  # type: ignore[method-assign]
        started = time.perf_counter()
        result = run_fork_provision(job, ForkProvisionParams(parent="parent", name_prefix="agent_", count=FORKS))
        seconds = time.perf_counter() - started
    assert result["forks_created"] == FORKS
    return [Figure(AREA, f"{FORKS:,} forks by fork_provision, after Spark is up", FORKS / seconds, "/s", at_least=10)]


def _peers(dsn: str) -> list[Figure]:
    """The same catalog, 1,000 files, copied as a database."""
    parts = urlsplit(dsn)
    other = urlunsplit(parts._replace(path="/copied"))
    admin = urlunsplit(parts._replace(path="/template1"))
    database = parts.path.lstrip("/")
    fork_time = statistics.median(_forks(dsn, "parent", 9))
    with psycopg.connect(admin, autocommit=True) as connection:
        started = time.perf_counter()
        connection.execute(f'CREATE DATABASE "templated" TEMPLATE "{database}"')
        template = time.perf_counter() - started
        connection.execute('CREATE DATABASE "copied"')
    figures = [
        Figure(AREA, "CREATE DATABASE … TEMPLATE of that catalog / a fork", template / fork_time, "×"),
    ]
    if shutil.which("pgcopydb"):
        label = "pgcopydb clone of that catalog / a fork"
        figures.append(Figure(AREA, label, _pgcopydb(dsn, other) / fork_time, "×"))
    return figures


def _pgcopydb(source: str, target: str) -> float:
    """It needs the pg_dump of the server's version, and signals its whole process group when something fails."""
    path = f"{binaries()}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as work:
        command = ["pgcopydb", "clone", "--dir", f"{work}/copy", "--source", source, "--target", target]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--skip-extensions", "--no-owner"],
            env={**os.environ, "PATH": path},
            capture_output=True,
            check=True,
            start_new_session=True,
        )
        return time.perf_counter() - started
