"""Expiry of very many snapshots, and cleanup of very many files that forks share."""

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.model.params import FileCleanupParams, RetentionGcParams
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.upkeep.cleanup.run import run_file_cleanup
from lakefork.upkeep.retention.run import run_retention_gc

AREA = "retention"
CATALOGS, COMMITS = 1_000, 1_000
SCHEDULED, SHARED_FORKS = 100_000, 1_000
# Written directly: each commit of a catalog replaces its one file, so that all but the last are only there for old snapshots.
HISTORY_RUNS = [
    "INSERT INTO ducklake_catalog (catalog_id, catalog_name, begin_snapshot) SELECT c, 'c' || c, 1 FROM generate_series(1, {catalogs}) c",
    "INSERT INTO ducklake_metadata (key, value, scope, scope_id) SELECT 'data_path', '/lake/c' || c, 'catalog', c FROM generate_series(1, {catalogs}) c",
    "INSERT INTO ducklake_schema (catalog_id, schema_id, begin_snapshot, schema_name, path, path_is_relative) SELECT c, 100000, 1, 's', 's', true FROM generate_series(1, {catalogs}) c",
    "INSERT INTO ducklake_table (catalog_id, table_id, begin_snapshot, schema_id, table_name, path, path_is_relative) SELECT c, 100001, 1, 100000, 't', 't', true FROM generate_series(1, {catalogs}) c",
    "INSERT INTO ducklake_schema_versions SELECT c, 1, 1, 100001 FROM generate_series(1, {catalogs}) c",
    "INSERT INTO ducklake_table_stats SELECT c, 100001, 10, 10 * {commits}, 1000 FROM generate_series(1, {catalogs}) c",
    "INSERT INTO ducklake_snapshot SELECT i, now() - interval '30 days' + i * interval '1 second', 1, 100002, 0 FROM generate_series(1, {catalogs} * {commits}) i",
    "INSERT INTO ducklake_snapshot_changes (snapshot_id, catalog_id, changes_made) SELECT i, 1 + (i - 1) % {catalogs}, 'compacted_table:100001' FROM generate_series(1, {catalogs} * {commits}) i",
    "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, end_snapshot, file_order, path, path_is_relative, file_format, record_count, file_size_bytes, footer_size, row_id_start) "
    "SELECT 1 + (i - 1) % {catalogs}, i, 100001, i, CASE WHEN i + {catalogs} <= {catalogs} * {commits} THEN i + {catalogs} END, i, 'shared/batch-' || i || '.parquet', true, 'parquet', 10, 1000, 100, 0 "
    "FROM generate_series(1, {catalogs} * {commits}) i",
    "INSERT INTO ducklake_file_column_stats (catalog_id, data_file_id, table_id, column_id, value_count, null_count, min_value, max_value) "
    "SELECT 1 + (i - 1) % {catalogs}, i, 100001, c, 10, 0, '1', '9' FROM generate_series(1, {catalogs} * {commits}) i, generate_series(1, 3) c",
    "UPDATE ducklake_snapshot SET next_file_id = {catalogs} * {commits} + 1",
    "ANALYZE",
]


def measure() -> list[Figure]:
    return _expiry() + _cleanup()


class _Quiet(JobContext):
    def progress(self, line: str) -> None:
        """Only the figures are printed."""


def _job(dsn: str, job: str, connection: Any) -> JobContext:
    run = JobRun(f"{job}/bench/1", job, "bench", "cli", "node")
    context = _Quiet(run, Settings(), dsn, connection, Leases(run.job_id, 600))
    context.leases.take(connection, job)
    return context


def _expiry() -> list[Figure]:
    with benchmark_database() as dsn, connect(dsn) as connection:
        for statement in HISTORY_RUNS:
            connection.execute(statement.format(catalogs=CATALOGS, commits=COMMITS))
        idle = _latencies(dsn, seconds=5)
        stop, latencies = threading.Event(), []
        others = threading.Thread(target=lambda: latencies.extend(_latencies(dsn, until=stop)))
        longest = _Longest(dsn, connection.info.backend_pid)
        others.start()
        longest.start()
        started = time.perf_counter()
        result = run_retention_gc(_job(dsn, "retention_gc", connection), RetentionGcParams(retain_snapshots=1))
        seconds = time.perf_counter() - started
        stop.set()
        others.join()
        longest.finish()
    assert result["files_released"] >= CATALOGS * (COMMITS - 1)
    return [
        Figure(AREA, "1,000,000 snapshots of 1,000 catalogs: rows removed", result["rows_removed"] / seconds, "/s", at_least=50_000),
        Figure(AREA, "the same, in all", seconds, "s"),
        Figure(AREA, "longest transaction", longest.seconds, "s", at_most=2),
        Figure(AREA, "commits of others during it / idle, p99", _p99(latencies) / _p99(idle), "×", at_most=3),
    ]  # fmt: skip


class _Longest(threading.Thread):
    """The age of the job's transaction, whatever it does, looked for many times a second."""

    def __init__(self, dsn: str, pid: int) -> None:
        super().__init__()
        self._dsn, self._pid, self._stop_asked = dsn, pid, threading.Event()
        self.seconds = 0.0

    def run(self) -> None:
        with connect(self._dsn) as connection:
            while not self._stop_asked.wait(0.02):
                row = connection.execute(
                    "SELECT extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS s "
                    "FROM pg_stat_activity a WHERE a.pid = %s AND a.xact_start IS NOT NULL",
                    (self._pid,),
                ).fetchone()
                if row:
                    self.seconds = max(self.seconds, row["s"])

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()


def _latencies(dsn: str, seconds: float | None = None, until: threading.Event | None = None) -> list[float]:
    """Of commits of one file, in one of the catalogs, a hundred a second."""
    times: list[float] = []
    started = time.perf_counter()
    with connect(dsn) as connection:
        while not (until.is_set() if until else time.perf_counter() - started > (seconds or 0)):
            changes = Changes()
            changes.add("ducklake_data_file", data_file_id=changes.new_file_id(), table_id=100001, path=f"x{time.time_ns()}.parquet", path_is_relative=True, record_count=1, file_size_bytes=1, footer_size=1)  # fmt: skip
            before = time.perf_counter()
            commit(connection, 1, newest_snapshot(connection), changes)
            times.append(time.perf_counter() - before)
            time.sleep(0.01)
    return times


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


def _cleanup() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory, benchmark_database() as dsn:
        _schedule(dsn, Path(directory))
        with benchmark_spark(), connect(dsn) as connection:
            process = psutil.Process()
            before = process.memory_info().rss
            started = time.perf_counter()
            result = run_file_cleanup(_job(dsn, "file_cleanup", connection), FileCleanupParams())
            seconds = time.perf_counter() - started
            grown = (process.memory_info().rss - before) / 1e6
        decided = _decision_rate(dsn)
        left = sum(len(files) for _, _, files in os.walk(directory))
    assert result["files_deleted"] == left == SCHEDULED // 2, (result, left)
    return [
        Figure(
            AREA, "100,000 scheduled files, half still in some of 1,000 forks: decided", decided, "/s", at_least=20_000
        ),
        Figure(AREA, "the same with local removal", SCHEDULED / seconds, "/s", at_least=5_000),
        Figure(AREA, "the driver's memory grew by", grown, "MB", at_most=100),
    ]


def _schedule(dsn: str, root: Path) -> None:
    for number in range(SCHEDULED):
        if number % 1_000 == 0:
            (root / str(number // 1_000)).mkdir()
        (root / str(number // 1_000) / f"batch-{number}.parquet").touch()
    with connect(dsn) as connection:
        connection.execute(
            "INSERT INTO ducklake_files_scheduled_for_deletion SELECT 1, i, %s || '/' || i / 1000 || '/batch-' || i || '.parquet', false, now() - interval '3 days' "
            "FROM generate_series(0, %s - 1) i",
            (str(root), SCHEDULED),
        )
        connection.execute(
            "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative, record_count, file_size_bytes) "
            "SELECT 10 + i %% %s, i, 1, 1, 'p', false, 1, 1 FROM generate_series(0, %s - 1, 2) i",
            (SHARED_FORKS, SCHEDULED),
        )
        connection.execute("ANALYZE")


def _decision_rate(dsn: str) -> float:
    """Only the look-ups and the ledger, without removal."""
    with connect(dsn) as connection:
        connection.execute(
            "INSERT INTO ducklake_files_scheduled_for_deletion SELECT 1, i, '/gone/' || i, false, now() - interval '3 days' FROM generate_series(0, %s - 1) i",
            (SCHEDULED,),
        )
        connection.execute("ANALYZE")
        job = _job(dsn, "file_cleanup", connection)
        started = time.perf_counter()
        looked_at = 0
        while True:
            row = connection.execute(
                "SELECT looked_at FROM lakefork.take_for_deletion(%s, 'bench', NULL, NULL, now(), 5000)",
                (job.run.job_id,),
            ).fetchone()
            if row is None or not row["looked_at"]:
                return looked_at / (time.perf_counter() - started)
            looked_at += row["looked_at"]
