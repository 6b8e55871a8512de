"""Copies of a Postgres against pgcopydb, pg_dump with pg_restore, and DuckDB, on the same server."""

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.errors import LakeforkError
from lakefork.model.params import PostgresCopyParams
from lakefork.quality.suites import expectations_directory
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.transfer.postgres_copy.archive import find_tool, libpq_environment
from lakefork.transfer.postgres_copy.commands import look_at_source
from lakefork.transfer.postgres_copy.lake_run import LakeDestination
from lakefork.transfer.postgres_copy.postgres_run import PostgresDestination
from lakefork.transfer.postgres_copy.run import run_copy
from lakefork.upkeep.flush.audit import FlushAudit

AREA = "copy"
ROWS = 3_600_000  # of the large table: about 360 MB of 600
SMALL_TABLES = 11
MANY_TABLES = int(os.environ.get("BENCH_COPY_TABLES", "5000"))
MANY_FILES = 10_000
BIG_ROWS = 10_000_000  # about 1 GB
MEMORY_MB = 300
PARTS = os.environ.get("BENCH_COPY", "database,big,lake,many_tables,many_files").split(",")
ROUNDS = 2
JOBS = 4
LARGE = [
    "CREATE TABLE large (id bigint PRIMARY KEY, a int, b double precision, at timestamptz, v text)",
    "INSERT INTO large SELECT n, n % 1000, n / 3.0, '2024-01-01'::timestamptz + n * interval '1 s', md5(n::text) "
    f"FROM generate_series(1, {ROWS}) n",
]
INDEXES = ["CREATE INDEX ON large (a)", "CREATE INDEX ON large (at)", "CREATE INDEX ON large (v)"]
SMALL = [
    statement
    for number in range(SMALL_TABLES)
    for statement in (
        f"CREATE TABLE small_{number} (id int PRIMARY KEY, v text)",
        f"INSERT INTO small_{number} SELECT n, md5(n::text) || md5((n + 1)::text) FROM generate_series(1, 230000) n",
        *([f"CREATE INDEX ON small_{number} (v)"] if number < 5 else []),
    )
]


def measure() -> list[Figure]:
    """Copies find the Spark that is up; how long it takes to start is not measured here."""
    measured = {
        "database": _database, "big": _big_table, "lake": _lake, "many_tables": _many_tables, "many_files": _many_files,
    }  # fmt: skip
    with benchmark_spark() as spark, benchmark_database(max_locks_per_transaction="1024") as dsn:
        spark.parallelize(range(2), 2).map(lambda n: n).collect()
        return [figure for part in PARTS for figure in measured[part](dsn)]


def _database(dsn: str) -> list[Figure]:
    with _named(dsn, "bench_source", "SRC") as source:
        _run_all(source, [*LARGE, *INDEXES, *SMALL, "VACUUM ANALYZE"])
        as_pgcopydb = [_timed_copy(dsn, source, lambda _: _copy(dsn, target="dst")) for _ in range(ROUNDS)]
        # pg_restore leaves VACUUM to others.
        as_restore = [
            _timed_copy(dsn, source, lambda _: _copy(dsn, target="dst", skip=["vacuum"])) for _ in range(ROUNDS)
        ]
        figures = [
            Figure(AREA, "600 MB, 12 tables, 20 indexes, with VACUUM", statistics.median(as_pgcopydb), "s"),
            Figure(AREA, "600 MB, 12 tables, 20 indexes, without VACUUM", statistics.median(as_restore), "s"),
        ]
        peers = {"pg_dump -j | pg_restore -j": lambda target: _dump_restore(source, target)}
        if shutil.which("pgcopydb"):
            peers["pgcopydb clone"] = lambda target: _pgcopydb(source, target)
        else:
            print("    pgcopydb is not installed (Debian: apt install pgcopydb): left out")
        for name, peer in peers.items():
            theirs = statistics.median([_timed_copy(dsn, source, peer) for _ in range(ROUNDS)])
            ours = statistics.median(as_pgcopydb if name.startswith("pgcopydb") else as_restore)
            figures.append(Figure(AREA, f"600 MB: Lakefork / {name}", ours / theirs, "×", at_most=1.0))
        return figures


def _big_table(dsn: str) -> list[Figure]:
    """One table in parts, against pgcopydb with the same split; how much of it a resumed copy does; what workers need."""
    with _named(dsn, "bench_big", "SRC") as source:
        _run_all(
            source,
            [
                "CREATE TABLE large (id bigint PRIMARY KEY, v text)",
                f"INSERT INTO large SELECT n, md5(n::text) || md5(n::text) FROM generate_series(1, {BIG_ROWS}) n",
                "VACUUM ANALYZE",
            ],
        )
        with _worker_memory() as peak:
            ours = _timed_copy(dsn, source, lambda _: _copy(dsn, target="dst"))
        figures = [
            Figure(AREA, "1 GB in one table, in parts", ours, "s"),
            Figure(AREA, "… the largest Python worker", peak(), "MB", at_most=MEMORY_MB),
        ]
        if shutil.which("pgcopydb"):
            theirs = _timed_copy(dsn, source, lambda target: _pgcopydb(source, target))
            figures.append(
                Figure(AREA, "1 GB in one table: Lakefork / pgcopydb clone", ours / theirs, "×", at_most=1.0)
            )
        resumed = _timed_copy(dsn, source, lambda _: _copy_until_half(dsn))
        figures.append(
            Figure(AREA, "resumed at half, against a full copy", resumed_seconds[0] / ours, "×", at_most=0.6)
        )
        assert resumed
        return figures


resumed_seconds = [0.0]


def _copy_until_half(dsn: str) -> None:
    """A copy that is stopped when half of it is done, and what it takes to resume it."""
    over = threading.Event()

    def stop() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.wait(0.05):
                connection.execute(
                    "UPDATE lakefork.copy c SET status = 'failed', error = 'stopped at half' "
                    "WHERE copy_id = 'half' AND status = 'running' AND error IS NULL AND 2 * (SELECT count(*) "
                    "FROM lakefork.copy_step s WHERE s.copy_id = c.copy_id AND kind = 'part' AND status = 'done') >= "
                    "(SELECT count(*) FROM lakefork.copy_step s WHERE s.copy_id = c.copy_id AND kind = 'part')"
                    "AND EXISTS (SELECT FROM lakefork.copy_step s WHERE s.copy_id = c.copy_id)"
                )

    thread = threading.Thread(target=stop)
    thread.start()
    with contextlib.suppress(LakeforkError):
        _copy(dsn, target="dst", copy_id="half", split_larger_than="100MB")
    over.set()
    thread.join()
    started = time.monotonic()
    _copy(dsn, target="dst", copy_id="half", split_larger_than="100MB", resume=True)
    resumed_seconds[0] = time.monotonic() - started


@contextmanager
def _worker_memory() -> Iterator[Callable[[], float]]:
    """The peak of the largest Python process below this one, in MB."""
    peak, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "python" in process.name():
                        peak[0] = max(peak[0], process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: peak[0] / 2**20
    finally:
        over.set()
        thread.join()


def _many_files(dsn: str) -> list[Figure]:
    """A USER table with so many users: a file each, and one commit."""
    with _named(dsn, "bench_files", "SRC") as source, tempfile.TemporaryDirectory() as directory:
        _run_all(
            source,
            [
                "CREATE TABLE t (id int PRIMARY KEY, who text NOT NULL)",
                f"INSERT INTO t SELECT n, 'user' || n FROM generate_series(1, {MANY_FILES}) n",
                "VACUUM ANALYZE",
            ],
        )
        with connect(dsn) as connection:
            create_catalog(connection, "files", f"{directory}/data")
        seconds: list[float] = []
        commit = LakeDestination._commit

        def timed(*arguments: Any) -> int:
            started = time.monotonic()
            found = commit(*arguments)
            seconds.append(time.monotonic() - started)
            return found

        LakeDestination._commit = timed  # type: ignore[method-assign]
        _copy(dsn, into="files", owner_columns={"public.t": "who"})
        LakeDestination._commit = commit  # type: ignore[method-assign]
        return [Figure(AREA, f"{MANY_FILES:,} files in one commit", seconds[0], "s", at_most=1)]


def _lake(dsn: str) -> list[Figure]:
    with _named(dsn, "bench_lake", "SRC") as source, tempfile.TemporaryDirectory() as directory:
        _run_all(source, [*LARGE, "VACUUM ANALYZE"])
        with connect(dsn) as connection:
            create_catalog(connection, "bench", f"{directory}/data")
        started = time.monotonic()
        found = _copy(dsn, into="bench")
        ours = time.monotonic() - started
        theirs = _duckdb(source, Path(directory) / "large.parquet")
        assert found["rows"] == ROWS
        return [
            Figure(AREA, f"{ROWS:,} rows into the lake, compared and published", ours, "s"),
            Figure(AREA, "into the lake: Lakefork / DuckDB COPY TO parquet", ours / theirs, "×", at_most=1.3),
        ]


def _many_tables(dsn: str) -> list[Figure]:
    with _named(dsn, "bench_many", "SRC") as source:
        with psycopg.connect(source, autocommit=True) as connection:
            for start in range(0, MANY_TABLES, 500):
                names = range(start, start + 500)
                connection.execute("; ".join(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in names).encode())
        started = time.monotonic()
        look_at_source(PostgresCopyParams(source="src", target="src"))
        listed = time.monotonic() - started
        figures = [Figure(AREA, f"inventory of {MANY_TABLES:,} tables", listed, "s", at_most=5)]
        ours = _timed(dsn, lambda _: _copy(dsn, target="dst"))
        figures.append(Figure(AREA, f"{MANY_TABLES:,} empty tables", ours, "s"))
        peer = (
            ("pgcopydb clone", _pgcopydb) if shutil.which("pgcopydb") else ("pg_dump -j | pg_restore -j", _dump_restore)
        )
        theirs = _timed(dsn, lambda target: peer[1](source, target))
        return [
            *figures,
            Figure(AREA, f"{MANY_TABLES:,} tables: Lakefork / {peer[0]}", ours / theirs, "×", at_most=1.2),
        ]


def _copy(dsn: str, **params: Any) -> dict[str, Any]:
    """Into a Postgres without the comparison, which peers do not make; into the lake with it."""
    settings = Settings.model_construct(**{**dict(Settings()), "dsn": dsn})
    run = JobRun(f"postgres_copy/bench/{uuid.uuid4().hex}", "postgres_copy", uuid.uuid4().hex, "cli", "bench")
    given = PostgresCopyParams(source="src", table_jobs=JOBS, index_jobs=JOBS, compare="into" in params, **params)
    with connect(dsn) as connection:
        context = JobContext(run, settings, dsn, connection, Leases(run.job_id, 600))
        context.progress = lambda line: None  # type: ignore[method-assign]
        audit = FlushAudit(context.storage, expectations_directory(settings))
        destination: Any = LakeDestination(given.into, audit) if given.into else PostgresDestination("dst")
        found = run_copy(context, given, destination)
        context.leases.release(connection)
        return found


def _timed(dsn: str, copy: Callable[[str], object]) -> float:
    with _named(dsn, "bench_target", "DST") as target:
        started = time.monotonic()
        copy(target)
        return time.monotonic() - started


def _timed_copy(dsn: str, source: str, copy: Callable[[str], object]) -> float:
    with _named(dsn, "bench_target", "DST") as target:
        started = time.monotonic()
        copy(target)
        seconds = time.monotonic() - started
        for query in (
            "SELECT count(*), sum(id) FROM large",
            "SELECT count(*) FROM pg_indexes WHERE schemaname = 'public'",
        ):
            assert _rows(target, query) == _rows(source, query)
        return seconds


def _dump_restore(source: str, target: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        dump = [find_tool("pg_dump").path, "-Fd", "-j", str(JOBS), "-Z", "0", "-f", f"{directory}/dump"]
        subprocess.run(dump, env=libpq_environment(source), check=True)
        name = target.rpartition("/")[2]
        restore = [find_tool("pg_restore").path, "-j", str(JOBS), "-d", name, f"{directory}/dump"]
        subprocess.run(restore, env=libpq_environment(target), check=True)


def _pgcopydb(source: str, target: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tools = str(Path(find_tool("pg_dump").path).parent)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PGCOPYDB_SOURCE_PGURI": source,
            "PGCOPYDB_TARGET_PGURI": target,
        }
        command = [
            "pgcopydb",
            "clone",
            "--table-jobs",
            str(JOBS),
            "--index-jobs",
            str(JOBS),
            "--dir",
            f"{directory}/work",
        ]
        subprocess.run(
            [*command, "--split-tables-larger-than", "250 MB"], env=environment, check=True, capture_output=True
        )


def _duckdb(source: str, path: Path) -> float:
    import duckdb
    import duckdb_extensions

    duckdb_extensions.import_extension("postgres_scanner")
    with duckdb.connect() as connection:
        connection.execute("LOAD postgres_scanner; SET threads = 2")
        connection.execute(f"ATTACH '{source}' AS src (TYPE postgres, READ_ONLY)")
        started = time.monotonic()
        connection.execute(f"COPY (SELECT * FROM src.public.large) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        return time.monotonic() - started


@contextmanager
def _named(dsn: str, name: str, connection: str) -> Iterator[str]:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        os.environ[f"LAKEFORK_CONNECTIONS__{connection}"] = f"{dsn.rpartition('/')[0]}/{name}"
        try:
            yield os.environ[f"LAKEFORK_CONNECTIONS__{connection}"]
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _run_all(dsn: str, statements: list[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()
