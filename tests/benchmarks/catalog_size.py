"""A catalog of 5,000 tables and 1,000,000 files: what readers and commands pay."""

import statistics
import time
from collections.abc import Callable

import psycopg
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect

TABLES = 5_000
FILES = 1_000_000
# Written directly, as no benchmark waits for a million files through Python; fsck proves that the result is sound.
FILL = [
    """INSERT INTO ducklake_schema (catalog_id, schema_id, begin_snapshot, schema_name, path, path_is_relative)
       VALUES (1, 2, 1, 's', 's', true)""",
    """INSERT INTO ducklake_table (catalog_id, table_id, begin_snapshot, schema_id, table_name, path, path_is_relative)
       SELECT 1, 2 + i, 1, 2, 't' || i, 't' || i, true FROM generate_series(1, {tables}) i""",
    """INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format,
                                       record_count, file_size_bytes, row_id_start)
       SELECT 1, i, 3 + i % {tables}, 1, 'shared/batch-' || i || '.parquet', true, 'parquet', 1000, 40000, 0
       FROM generate_series(0, {files} - 1) i""",
    """INSERT INTO ducklake_table_stats
       SELECT catalog_id, table_id, sum(record_count), sum(record_count), sum(file_size_bytes) FROM ducklake_data_file GROUP BY 1, 2""",
    "UPDATE ducklake_snapshot SET next_catalog_id = 10000, next_file_id = {files} WHERE snapshot_id = 1",
    "ANALYZE",
]


def measure() -> list[Figure]:
    with benchmark_database() as dsn:
        check_before = _milliseconds(lambda: connect(dsn).close())
        with connect(dsn) as connection:
            create_catalog(connection, "big", "/lake/big")
            for statement in FILL:
                connection.execute(statement.format(tables=TABLES, files=FILES))
            visible = "SELECT data_file_id, path FROM lakefork.visible_data_file(1, %s) WHERE table_id = %s"
            now = _milliseconds(lambda: connection.execute(visible, (None, 77)).fetchall())
            then = _milliseconds(lambda: connection.execute(visible, (1, 78)).fetchall())
            assert len(connection.execute(visible, (1, 77)).fetchall()) == FILES // TABLES
        check_after = _milliseconds(lambda: connect(dsn).close())
        init = _time_of_init(dsn)
    area = "catalog_size"
    return [
        Figure(area, "visible files of one table among 1,000,000, now", now, "ms", at_most=20),
        Figure(area, "visible files of one table among 1,000,000, at a snapshot", then, "ms", at_most=20),
        Figure(area, "connect and version check: big / empty catalog", check_after / check_before, "×", at_most=2),
        Figure(area, "init in a new database on the same server", init, "ms"),
    ]


def _milliseconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(25):
        started = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def _time_of_init(dsn: str) -> float:
    from lakefork.catalog.schema import init_catalog

    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE fresh")
    with connect(f"{dsn.rpartition('/')[0]}/fresh", check_version=False) as connection:
        started = time.perf_counter()
        init_catalog(connection)
        return 1000 * (time.perf_counter() - started)
