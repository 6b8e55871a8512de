"""Backups against cp and sha256sum of the same files, restores against backups, and writers beside a backup."""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.catalog.roots import add_root
from lakefork.model.params import NamespaceBackupParams, NamespaceRestoreParams
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.spark.submit import CONF
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.transfer.backup.restore_run import run_namespace_restore
from lakefork.transfer.backup.run import run_namespace_backup

AREA = "backup"
LARGE_FILES, LARGE_BYTES = 60, 16 << 20
SMALL_FILES, SMALL_BYTES = int(os.environ.get("BENCH_BACKUP_FILES", "100000")), 4_000
SHARED_FILES = 10_000
WRITERS, SECONDS = 2, 6
# Written directly, as no benchmark waits for so many commits; the content of files matters to nobody here.
FILL = [
    """INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format,
                                       record_count, file_size_bytes, footer_size, row_id_start)
       SELECT t.catalog_id, s.next_file_id + i, t.table_id, s.snapshot_id, s.snapshot_id, 'shared/batch-' || i || '.parquet', true, 'parquet', 10, {size}, 100, i * 10
       FROM ducklake_table t, (SELECT * FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1) s, generate_series(0, {files} - 1) i
       WHERE t.table_name = '{table}' AND t.end_snapshot IS NULL""",
    """INSERT INTO ducklake_file_column_stats (catalog_id, data_file_id, table_id, column_id, value_count, null_count, min_value, max_value)
       SELECT f.catalog_id, f.data_file_id, f.table_id, c, 10, 0, '0', '9' FROM ducklake_data_file f JOIN ducklake_table t USING (table_id),
              unnest(ARRAY[1, 2, 4, 5]) c WHERE t.table_name = '{table}'""",
    "UPDATE ducklake_snapshot SET next_file_id = next_file_id + {files} WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)",
    "ANALYZE",
]


class _Quiet(JobContext):
    def progress(self, line: str) -> None:
        print(f"    {line}", flush=True)


@dataclass
class Bench:
    dsn: str
    root: Path
    figures: list[Figure] = field(default_factory=list)

    def note(self, name: str, value: float, unit: str, **wanted: float) -> None:
        self.figures.append(Figure(AREA, name, value, unit, **wanted))

    def fill(self, namespace: str, files: int, size: int) -> Path:
        """A namespace with one table that has so many files."""
        with Engine(Settings(), self.dsn) as engine:
            engine.execute(
                Session("main", role=Role.ADMIN),
                f"CREATE NAMESPACE {namespace}; CREATE TABLE {namespace}.{namespace} (id BIGINT PRIMARY KEY, v TEXT)",
            )
        directory = self.root / "main" / namespace / namespace / "shared"
        directory.mkdir(parents=True, exist_ok=True)
        content = os.urandom(size)
        for number in range(files):
            (directory / f"batch-{number}.parquet").write_bytes(number.to_bytes(8, "little") + content[8:])
        with connect(self.dsn) as connection:
            for statement in FILL:
                connection.execute(statement.format(table=namespace, files=files, size=size))
        return directory

    @contextmanager
    def context(self, job: str) -> Iterator[JobContext]:
        run = JobRun(f"{job}/{uuid.uuid4().hex}", job, uuid.uuid4().hex, "cli", "bench")
        with connect(self.dsn) as connection:
            context = _Quiet(run, Settings(), self.dsn, connection, Leases(run.job_id, 600))
            yield context
            context.leases.release(context.connection)

    def backup(self, namespace: str, **params: Any) -> tuple[float, dict[str, Any]]:
        with self.context("namespace_backup") as context:
            given = NamespaceBackupParams(namespace=namespace, to=str(self.root / f"{namespace}-backups"), **params)
            return _timed(lambda: run_namespace_backup(context, given))

    def restore(self, namespace: str, name: str, **params: Any) -> tuple[float, dict[str, Any]]:
        with self.context("namespace_restore") as context:
            given = NamespaceRestoreParams(
                **{"from": str(self.root / f"{namespace}-backups"), "namespace": name, **params}
            )
            return _timed(lambda: run_namespace_restore(context, given))


def _give_way() -> None:
    """As jobs of Airflow do. On Linux it holds for the thread, and for processes that the thread starts."""
    os.nice(10)


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def measure() -> list[Figure]:
    conf = SparkConf().setMaster("local[2]").setAppName(AREA).setAll(list(CONF.items()))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with ThreadPoolExecutor(1, initializer=_give_way) as starter:
        spark = starter.submit(SparkContext, conf=conf).result()
    spark.parallelize(range(2), 2).map(_warm).collect()
    try:
        with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory, benchmark_database() as dsn:
            bench = Bench(dsn, Path(directory))
            with connect(dsn) as connection:
                create_catalog(connection, "main", f"{directory}/main")
                create_catalog(connection, "other", f"{directory}/other")
                add_root(connection, directory)
            _large_files(bench)
            _small_files(bench)
            _by_reference(bench)
            _writers(bench)
            return bench.figures
    finally:
        spark.stop()


def _warm(_: int) -> int:
    """The modules that tasks need."""
    from lakefork.transfer.backup import restore_task, task

    return len((restore_task.__name__, task.__name__))


def _large_files(bench: Bench) -> None:
    source = bench.fill("large", LARGE_FILES, LARGE_BYTES)
    size = LARGE_FILES * LARGE_BYTES / 1e6
    target = bench.root / "copy"
    peer = _cp(source, target) + _timed(lambda: _run(f"find {target} -type f -exec sha256sum {{}} + > /dev/null"))[0]
    _run(f"rm -r {target}")
    seconds, _ = bench.backup("large")
    bench.note("a full backup of large files", size / seconds, "MB/s", at_least=50)
    bench.note("… against cp and sha256sum of the same files", peer / seconds, "x", at_least=0.8)
    again, _ = bench.restore("large", "large_again")
    bench.note("… restored and verified, against the backup", seconds / again, "x", at_least=0.6)


def _cp(source: Path, target: Path) -> float:
    return _timed(lambda: _run(f"cp -r {source} {target}"))[0]


def _run(command: str) -> None:
    subprocess.run(command, shell=True, check=True)  # noqa: S602 - paths of ours


def _small_files(bench: Bench) -> None:
    source = bench.fill("small", SMALL_FILES, SMALL_BYTES)
    target = bench.root / "copy"
    peer = _cp(source, target)
    _run(f"rm -r {target}")
    seconds, _ = bench.backup("small")
    bench.note(f"{SMALL_FILES:,} small files, against cp -r", peer / seconds, "x", at_least=0.6)
    place = bench.root / "small-backups"
    before = _size(place)
    unchanged, _ = bench.backup("small", incremental=True)
    bench.note(f"incremental of {SMALL_FILES:,} unchanged files", unchanged, "s", at_most=2)
    bench.note("… adds", (_size(place) - before) / 1024, "KB", at_most=64)
    again, _ = bench.restore("small", "small_again")
    bench.note(f"{SMALL_FILES:,} small files restored, against the backup", seconds / again, "x", at_least=0.6)


def _size(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def _by_reference(bench: Bench) -> None:
    bench.fill("shared", SHARED_FILES, 100)
    bench.backup("shared")
    unchanged, _ = bench.backup("shared", incremental=True)
    bench.note(f"incremental of {SHARED_FILES:,} unchanged files", unchanged, "s", at_most=2)
    seconds, _ = bench.restore("shared", "shared", catalog="other", by_reference=True)
    bench.note(f"{SHARED_FILES:,} files restored by reference", seconds, "s", at_most=1)


def _writers(bench: Bench) -> None:
    """Paced at half of their maximum, alone and beside a full backup of the large files."""
    with Engine(Settings(), bench.dsn) as engine:
        session = Session("main", role=Role.ADMIN)
        engine.execute(session, "CREATE NAMESPACE w; CREATE TABLE w.w (id BIGINT PRIMARY KEY, v TEXT)")
        fastest, _ = _write(engine, session, None, SECONDS)
        pace = fastest / 2
        alone, quiet = _write(engine, session, pace, SECONDS)
        stop = threading.Event()
        thread = threading.Thread(target=lambda: (_give_way(), bench.backup("large"), stop.set()))
        thread.start()
        beside, busy = _write(engine, session, pace, 120, stop)
        thread.join()
    bench.note("writers beside a backup keep of their pace", 100 * beside / alone, "%", at_least=95)
    bench.note("… p95 against that without a backup", busy / quiet, "x", at_most=2)


def _write(
    engine: Engine, session: Session, pace: float | None, seconds: float, stop: threading.Event | None = None
) -> tuple[float, float]:
    """Rows per second of all writers, and the 95th percentile of their waits in seconds."""
    waits: list[float] = []
    stop = stop or threading.Event()
    started = time.perf_counter()

    def write() -> None:
        gap = WRITERS / pace if pace else 0.0
        due = time.perf_counter()
        while not stop.is_set() and time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            engine.execute(session, "INSERT INTO w.w (v) VALUES (?)", ["x"])
            waits.append(time.perf_counter() - begun)
            due += gap
            time.sleep(max(0.0, due - time.perf_counter()))

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(waits) / (time.perf_counter() - started), statistics.quantiles(waits, n=20)[-1]
