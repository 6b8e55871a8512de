"""The cost of a flush, compared with DuckDB and Spark's JDBC reader on the same rows in the same run."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
from pyspark import SparkContext
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.flushes import find_due
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.model.params import FlushParams
from lakefork.quality.suites import expectations_directory
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.upkeep.flush.audit import FlushAudit
from lakefork.upkeep.flush.run import run_flush

AREA = "flush"
ROUNDS = 3
VERSIONS, KEYS, USERS = 2_000_000, 1_000_000, 1_000
LAKEFORK = Path(sys.executable).parent / "lakefork"
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")  # Debian: libpostgresql-jdbc-java
TABLE = """CREATE USER TABLE app.{name} (id BIGINT PRIMARY KEY, title TEXT, body TEXT, amount DOUBLE, quantity INT,
    created TIMESTAMP, flag BOOLEAN, category TEXT) FLUSH POLICY ROWS 10000000"""
FILL = """INSERT INTO hot.{hot} (catalog_id, _user_id, _seq, _deleted, c4, c5, c6, c7, c8, c9, c10, c11)
    SELECT {catalog}, 'user' || lpad((abs(hashint8(key)) % {users})::text, 6, '0'), 1000000 + i, i % 50 = 0, key, 'title ' || i,
           md5(i::text) || md5(key::text), i * 0.37, i % 1000, timestamp '2025-01-01' + i * interval '1 second', i % 2 = 0, 'category ' || i % 20
    FROM (SELECT i, {key} AS key FROM generate_series(1, {versions}) i) k"""
COUNT = """INSERT INTO lakefork.hot_delta
    SELECT catalog_id, {table}, _user_id, count(*), now() FROM hot.{hot} GROUP BY catalog_id, _user_id"""


@dataclass
class Bench:
    """A lake, and a Spark that stays up."""

    dsn: str
    data: Path
    spark: SparkContext
    lines: list[str] = field(default_factory=list)

    def fill(self, name: str, versions: int, users: int, key: str) -> str:
        """A table with so many hot versions; returns the name of its hot table."""
        with Engine(Settings(), self.dsn) as engine:
            session = Session("main", "somebody", Role.ADMIN)
            engine.execute(session, TABLE.format(name=name))
            engine.execute(session, f"INSERT INTO app.{name} (id) VALUES (1)")
        with connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT t.table_id, t.catalog_id, i.table_name AS hot FROM ducklake_table t "
                "JOIN ducklake_inlined_data_tables i USING (catalog_id, table_id) WHERE t.table_name = %s", (name,)
            ).fetchone()  # fmt: skip
            assert row is not None
            connection.execute(f"TRUNCATE hot.{row['hot']}")
            # Indexes last: that is how a table is filled quickly.
            connection.execute(f"ALTER TABLE hot.{row['hot']} DROP CONSTRAINT {row['hot']}_pkey")
            connection.execute(f"DROP INDEX hot.{row['hot']}_key")
            connection.execute("SELECT setseed(0.5); SET maintenance_work_mem = '1GB'")
            connection.execute(
                FILL.format(hot=row["hot"], catalog=row["catalog_id"], users=users, key=key, versions=versions)
            )
            connection.execute(f"ALTER TABLE hot.{row['hot']} ADD PRIMARY KEY (catalog_id, _user_id, _seq)")
            connection.execute(f"CREATE INDEX {row['hot']}_key ON hot.{row['hot']} (catalog_id, _user_id, c4, _seq)")
            connection.execute(f"ANALYZE hot.{row['hot']}")
        return str(row["hot"])

    def rewind(self, hot: str) -> None:
        """Everything waits again, as if nothing had been published."""
        with connect(self.dsn) as connection:
            connection.execute(
                "TRUNCATE lakefork.watermark, lakefork.hot_delta, lakefork.hot_count, ducklake_data_file, "
                "ducklake_file_column_stats, ducklake_file_partition_value"  # DELETE would leave autovacuum work to do
            )
            connection.execute(COUNT.format(table=hot[1:].partition("_")[0], hot=hot))
            connection.execute("CHECKPOINT")

    def flush(self) -> tuple[dict[str, Any], float]:
        """In this process, on the Spark that is up."""
        run = JobRun(f"flush/{uuid.uuid4().hex}", "flush", uuid.uuid4().hex, "cli", "bench")
        with connect(self.dsn) as connection:
            context = _Quiet(run, Settings(), self.dsn, connection, Leases(run.job_id, 600))
            context.lines = self.lines = []
            started = time.perf_counter()
            result = run_flush(
                context, FlushParams(force=True), FlushAudit(context.storage, expectations_directory(context.settings))
            )
            seconds = time.perf_counter() - started
            context.leases.release(connection)
        return result, seconds

    def submit(self, **environment: str) -> dict[str, float]:
        """In a fresh spark-submit: seconds from Spark being up to the result, until it was up, until its first task; memory."""
        started = time.perf_counter()
        process = subprocess.Popen(
            [LAKEFORK, "run", "flush", "--params", '{"force": true}'],
            env={**os.environ, "LAKEFORK_DSN": self.dsn, **environment}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        up, first_task, done, last = started, started, started, ""
        assert process.stdout is not None
        for line in process.stdout:
            if " is up after " in line:
                up = time.perf_counter()
            if " to flush: " in line:
                first_task = time.perf_counter()
            done, last = time.perf_counter(), line
        if process.wait() != 0:
            raise RuntimeError(last)
        result = json.loads(last)
        return {
            "start": up - started,
            "first_task": first_task - started,
            "work": done - up,
            "memory": result["peak_memory_mb"],
        }

    def duckdb(self, hot: str) -> float:
        """The same rows: newest version per key, one directory per user."""
        target = self.data / f"duckdb-{uuid.uuid4().hex}"
        with duckdb.connect() as duck:
            duck.execute("LOAD postgres_scanner")
            duck.execute(f"ATTACH '{self.dsn}' AS pg (TYPE postgres, READ_ONLY)")
            started = time.perf_counter()
            duck.execute(
                f"COPY (SELECT * EXCLUDE (catalog_id, _xid) FROM pg.hot.{hot} "
                "QUALIFY row_number() OVER (PARTITION BY _user_id, c4 ORDER BY _seq DESC) = 1) "
                f"TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (_user_id))"
            )
            return time.perf_counter() - started  # what was written stays: ext4 is slow after many removals


class _Quiet(JobContext):
    lines: list[str]

    def progress(self, line: str) -> None:
        self.lines.append(line)


@contextmanager
def _bench() -> Iterator[Bench]:
    duckdb_extensions.import_extension("postgres_scanner")
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-") as data:
        with connect(dsn) as connection:
            create_catalog(connection, "main", str(Path(data) / "main"))
        with Engine(Settings(), dsn) as engine:
            engine.execute(Session("main", None, Role.ADMIN), "CREATE NAMESPACE app")
        with benchmark_spark() as spark:
            yield Bench(dsn, Path(data), spark)


def measure() -> list[Figure]:
    with _bench() as bench:
        return [figure for part in PARTS for figure in part(bench)]


def _say(line: str) -> None:
    print(f"    {line}", flush=True)


def _main_work(bench: Bench) -> list[Figure]:
    hot = bench.fill("events", VERSIONS, USERS, f"floor(random() * {KEYS})::bigint")
    warm, fresh, peer, starts, first_tasks = [], [], [], [], []
    bench.rewind(hot)
    bench.flush()  # imports, Python workers
    for _ in range(ROUNDS):
        peer.append(bench.duckdb(hot))
        bench.rewind(hot)
        seconds = bench.flush()[1]
        warm.append(seconds)
        bench.rewind(hot)
        submitted = bench.submit()
        fresh.append(submitted["work"])
        starts.append(submitted["start"])
        first_tasks.append(submitted["first_task"])
        _say(
            f"DuckDB {peer[-1]:.2f} s, warm {seconds:.2f} s, fresh {fresh[-1]:.2f} s after {starts[-1]:.2f} s of start"
        )
    for line in bench.lines:
        _say(line)
    duck = statistics.median(peer)
    audit = _seconds_in(bench.lines, "audited in")
    figures = [
        Figure(
            AREA,
            f"{VERSIONS:,} versions of {USERS:,} users, warm: time / DuckDB",
            statistics.median(warm) / duck,
            "×",
            at_most=1.2,
        ),
        Figure(
            AREA,
            "the same in a fresh spark-submit, from Spark being up: time / DuckDB",
            statistics.median(fresh) / duck,
            "×",
            at_most=2,
        ),
        Figure(AREA, "until Spark is up, from spark-submit", statistics.median(starts), "s"),
        Figure(AREA, "until the first task is handed out, from spark-submit", statistics.median(first_tasks), "s"),
        Figure(AREA, "the built-in audit, warm", audit, "s", at_most=3),
    ]
    return figures + _jdbc(bench, hot, statistics.median(fresh))


def _seconds_in(lines: list[str], words: str) -> float:
    return next(float(line.rpartition(words)[2].split()[0]) for line in lines if words in line)


def _jdbc(bench: Bench, hot: str, fresh: float) -> list[Figure]:
    """What one would write with Spark alone."""
    if not JDBC_DRIVER.is_file():
        _say(f"no comparison with Spark's JDBC reader: {JDBC_DRIVER} is not installed")
        return []
    script = bench.data / "jdbc.py"
    script.write_text(JDBC_SCRIPT)
    times = []
    for number in range(ROUNDS):
        done = subprocess.run(
            [LAKEFORK.with_name("spark-submit"), "--master", "local[*]", "--driver-memory", "4g", "--jars", JDBC_DRIVER, script, hot,
             str(bench.data / f"jdbc-{number}")],
            env={**os.environ, "BENCH_DSN": bench.dsn}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        times.append(float(done.stdout.split()[-1]))
    _say(f"Spark JDBC: {', '.join(f'{seconds:.1f}' for seconds in times)} s")
    ratio = statistics.median(times) / fresh
    return [Figure(AREA, "fresh: time of Spark JDBC + window + partitionBy / ours", ratio, "×", at_least=4)]


JDBC_SCRIPT = """
import os, sys, time
from urllib.parse import urlsplit
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
spark = SparkSession.builder.getOrCreate()
spark.range(1).count()
dsn = urlsplit(os.environ["BENCH_DSN"])
started = time.perf_counter()
rows = (spark.read.format("jdbc").option("url", f"jdbc:postgresql://{dsn.hostname}:{dsn.port}{dsn.path}")
    .option("user", dsn.username).option("password", dsn.password).option("driver", "org.postgresql.Driver")
    .option("dbtable", f"(SELECT _user_id, _seq, _deleted, c4, c5, c6, c7, c8, c9, c10, c11 FROM hot.{sys.argv[1]}) t")
    .option("partitionColumn", "c4").option("lowerBound", 0).option("upperBound", 1000000).option("numPartitions", 4)
    .option("fetchsize", 10000).load())
newest = Window.partitionBy("_user_id", "c4").orderBy(F.desc("_seq"))
(rows.withColumn("n", F.row_number().over(newest)).where("n = 1").drop("n")
    .repartition("_user_id").write.partitionBy("_user_id").option("compression", "zstd").parquet(sys.argv[2]))
print(time.perf_counter() - started)
"""


def _many_small_users(bench: Bench) -> list[Figure]:
    """Each round into directories that are new, as DuckDB's are."""
    users = 10_000
    ours, peer = [], []
    for number in range(ROUNDS):
        hot = bench.fill(f"small_{number}", 10 * users, users, "i")
        peer.append(bench.duckdb(hot))
        bench.rewind(hot)
        result, seconds = bench.flush()
        ours.append(seconds)
        _say(f"{users:,} users of 10 rows: DuckDB {peer[-1]:.2f} s, ours {seconds:.2f} s")
    for line in bench.lines:
        _say(line)
    files = result["files_written"]
    return [
        Figure(
            AREA,
            f"{users:,} users of 10 rows: files written and published",
            files / statistics.median(ours),
            "/s",
            at_least=500,
        ),
        Figure(AREA, "the same: time / DuckDB", statistics.median(ours) / statistics.median(peer), "×", at_most=1),
    ]


def _wide_rows(bench: Bench) -> list[Figure]:
    """Rows that hardly compress: how fast Parquet gets to the disk."""
    hot = bench.fill("wide", 200_000, 100, "i")
    with connect(bench.dsn) as connection:
        many = " || ".join(f"md5((c4 * {number})::text)" for number in range(1, 33))
        connection.execute(f"UPDATE hot.{hot} SET c6 = {many}")
        connection.execute(f"VACUUM FULL ANALYZE hot.{hot}")
    rates = []
    for _ in range(ROUNDS):
        bench.rewind(hot)
        result, seconds = bench.flush()
        rates.append(result["bytes_written"] / 1e6 / seconds)
    _say(f"rows of 1 KB that hardly compress: {', '.join(f'{rate:.0f}' for rate in rates)} MB/s")
    _drop(bench, "wide", hot)
    return [
        Figure(
            AREA, "Parquet written, rows of 1 KB that hardly compress", statistics.median(rates), "MB/s", at_least=50
        )
    ]


def _growth(bench: Bench) -> list[Figure]:
    times = {}
    for versions in (2_000_000, 8_000_000):
        hot = bench.fill(f"growth_{versions}", versions, USERS, f"floor(random() * {versions // 2})::bigint")
        seconds = []
        for _ in range(2):
            bench.rewind(hot)
            seconds.append(bench.flush()[1])
        times[versions] = min(seconds)
        _say(f"{versions:,} versions: {seconds}")
        _drop(bench, f"growth_{versions}", hot)
    return [Figure(AREA, "8,000,000 versions: time / 2,000,000", times[8_000_000] / times[2_000_000], "×", at_most=4.4)]


def _one_large_user(bench: Bench) -> list[Figure]:
    versions = 20_000_000
    hot = bench.fill("large", versions, 1, f"floor(random() * {versions // 2})::bigint")
    bench.rewind(hot)
    bench.spark.stop()
    submitted = bench.submit()
    _drop(bench, "large", hot)
    return [
        Figure(
            AREA,
            f"{versions:,} versions of one user: peak memory of driver and executors",
            submitted["memory"] / 1024,
            "GB",
            at_most=4,
        ),
        Figure(AREA, "the same: time", submitted["work"], "s"),
    ]


def _due(bench: Bench) -> list[Figure]:
    """10,000 users of 100 tables have rows that wait; none of them is due, then one user of each table."""
    with connect(bench.dsn) as connection:
        connection.execute("DELETE FROM lakefork.hot_delta; DELETE FROM lakefork.hot_count")
        with Engine(Settings(), bench.dsn) as engine:
            for number in range(100):
                engine.execute(Session("main", None, Role.ADMIN), TABLE.format(name=f"due_{number}"))
        connection.execute(
            "INSERT INTO lakefork.hot_count SELECT catalog_id, table_id, 'user' || u, 100, now(), NULL, false "
            "FROM ducklake_table, generate_series(1, 10000) u WHERE table_name LIKE 'due_%'"
        )
        connection.execute("ANALYZE lakefork.hot_count")
        nothing = statistics.median(_timed(lambda: _find_due(connection, 0)) for _ in range(9))
        connection.execute("UPDATE lakefork.hot_count SET versions = 10000000 WHERE user_id = 'user7'")
        some = statistics.median(_timed(lambda: _find_due(connection, 100)) for _ in range(9))
        connection.execute("DELETE FROM lakefork.hot_count")
    return [
        Figure(AREA, "is anything due, 10,000 users of 100 tables: no", nothing * 1000, "ms", at_most=50),
        Figure(AREA, "the same with 100 users that are", some * 1000, "ms", at_most=50),
    ]


def _find_due(connection: Any, expected: int) -> None:
    found = find_due(
        connection, catalog=None, namespace=None, table=None, user_id=None, force=False, default_rows=100_000,
        default_seconds=3600,
    )  # fmt: skip
    assert len(found) == expected


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _drop(bench: Bench, name: str, hot: str) -> None:
    with Engine(Settings(), bench.dsn) as engine:
        engine.execute(Session("main", None, Role.ADMIN), f"DROP TABLE app.{name}")
    with connect(bench.dsn) as connection:
        connection.execute(f"DROP TABLE hot.{hot}")
        connection.execute(
            "DELETE FROM lakefork.hot_delta; DELETE FROM lakefork.hot_count; DELETE FROM lakefork.watermark"
        )
    shutil.rmtree(bench.data / "main" / "app" / name, ignore_errors=True)


PARTS: list[Callable[[Bench], list[Figure]]] = [
    _due,
    _main_work,
    _many_small_users,
    _wide_rows,
    _growth,
    _one_large_user,
]
