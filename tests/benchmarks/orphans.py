"""The speed of comparing 200,000 real files with 1,000,000 in catalogs, half of them by the paths of a fork."""

import datetime
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pyspark import SparkConf, SparkContext
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.catalog.roots import installation_id
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.spark.submit import CONF
from lakefork.storage import StorageOptions
from lakefork.storage.markers import RootOwner, claim_root
from lakefork.upkeep.cleanup.orphans import find_orphans

AREA = "orphans"
FILES = int(os.environ.get("BENCH_ORPHAN_FILES", "200000"))  # real ones; the catalogs have five times as many
TABLES, USERS = 50, 20
NEEDED_BY_FORK = 100  # every so many files are ended in the parent and forgotten there: only a fork refers to them
ORPHANS = 1_000  # every so many files nobody refers to
# Written directly, as no benchmark waits for a million commits.
FILL = [
    """INSERT INTO ducklake_schema (catalog_id, schema_id, begin_snapshot, schema_name, path, path_is_relative)
       SELECT c, 2, 1, 'app', 'app', true FROM generate_series(1, 2) c""",
    """INSERT INTO ducklake_table (catalog_id, table_id, begin_snapshot, schema_id, table_name, path, path_is_relative)
       SELECT c, 3 + i, 1, 2, 't' || i, 't' || i, true FROM generate_series(0, {tables} - 1) i, generate_series(1, 2) c""",
    """INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative, record_count,
                                       file_size_bytes)
       SELECT 1, i, 3 + i % {tables}, (i < {files})::int, format('user_%s/batch-%s.parquet', i / {tables} % {users}, i), true, 1000, 4
       FROM generate_series(0, {files} * 5 / 2 - 1) i WHERE i % {orphans} <> 0 AND i % {forks} <> 1""",
    """INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative, record_count,
                                       file_size_bytes)
       SELECT 2, i, 3 + i % {tables}, 1, format('{root}/app/t%s/user_%s/batch-%s.parquet', i % {tables}, i / {tables} % {users}, i),
              false, 1000, 4
       FROM generate_series(0, {files} * 5 / 2 - 1) i WHERE i % {orphans} <> 0""",
    """INSERT INTO lakefork.batch_number (directory, next_number)
       SELECT format('{root}/app/t%s/user_%s', t, u), {files} FROM generate_series(0, {tables} - 1) t, generate_series(0, {users} - 1) u""",
    "ANALYZE",
]


class _Quiet(JobContext):
    def progress(self, line: str) -> None:
        print(f"    {line}", flush=True)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory, benchmark_database() as dsn:
        root = f"{directory}/main"
        with connect(dsn) as connection:
            create_catalog(connection, "main", root)
            create_catalog(connection, "fork", f"{directory}/fork")
            _claim_tables(connection, root)
            _write_files(root)
            for statement in FILL:
                values = {"tables": TABLES, "users": USERS, "files": FILES, "orphans": ORPHANS, "forks": NEEDED_BY_FORK}
                connection.execute(statement.format(**values, root=root))
            return _measure(dsn, connection)


def _claim_tables(connection: Connection, root: str) -> None:
    """As the first flush of each table does."""
    installation = installation_id(connection)
    for number in range(TABLES):
        claim_root(f"{root}/app/t{number}", RootOwner(installation, 1, 3 + number), StorageOptions(), lambda: [])


def _write_files(root: str) -> None:
    for number in range(FILES):
        path = f"{root}/app/t{number % TABLES}/user_{number // TABLES % USERS}/batch-{number}.parquet"
        if number < TABLES * USERS:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(handle, b"PAR1")
        os.close(handle)


def _measure(dsn: str, connection: Connection) -> list[Figure]:
    conf = SparkConf().setMaster("local[2]").setAppName(AREA).setAll(list(CONF.items()))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkContext(conf=conf)
    run = JobRun(f"file_cleanup/{uuid.uuid4().hex}", "file_cleanup", uuid.uuid4().hex, "cli", "bench")
    context = _Quiet(run, Settings(), dsn, connection, Leases(run.job_id, 600))
    try:
        assert list(find_orphans(context, "fork", datetime.timedelta(0))) == []  # the workers are there
        with _peak_memory() as peak:
            started = time.perf_counter()
            found = sum(1 for _ in find_orphans(context, None, datetime.timedelta(0)))
            seconds = time.perf_counter() - started
    finally:
        spark.stop()
    assert found == FILES // ORPHANS
    return [
        Figure(AREA, f"{FILES:,} files held against {FILES * 5:,} of two catalogs", seconds, "s", at_most=30),
        Figure(AREA, "the largest worker of that grew by", max(peak), "MB", at_most=100),
    ]


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """By how many megabytes each Python process below this one grew, at most."""
    first: dict[int, int] = {}
    peak = [0.0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "python" in process.name():
                        now = process.memory_info().rss
                        peak[0] = max(peak[0], (now - first.setdefault(process.pid, now)) / 2**20)
                except psutil.NoSuchProcess:
                    continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
