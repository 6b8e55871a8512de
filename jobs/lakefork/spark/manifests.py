"""Writes the manifests that show the last publish of a table, and puts them into the cache."""

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.catalog.flushes import Table, find_definitions, note_clean
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.spark.manifest_task import PendingManifests, write_manifests
from lakefork.storage import StorageOptions
from lakefork.tables import TableDefinition

CHUNK = 2_500
MANIFESTS_FOR_SPARK = 1_000

logger = logging.getLogger(__name__)


def write_pending(context: JobContext, tables: Sequence[Table]) -> tuple[int, list[str]]:
    """All that is pending of these tables, whose leases the job has: how many, and what the storage refused."""
    context.check_leases()
    defined = find_definitions(context.connection, tables)
    _forget_dropped(context.connection, [table for table in tables if table not in defined])
    pending = find_pending(context, [one.definition for one in defined.values()])
    count = sum(len(one.users) for one in pending)
    if not count:
        return 0, []
    if count >= MANIFESTS_FOR_SPARK:
        # Postgres takes tables that were just filled for empty ones, and would look through them for each row.
        context.connection.execute(
            "ANALYZE lakefork.manifest_pending, ducklake_data_file, ducklake_file_partition_value, "
            "ducklake_file_column_stats"
        )
    note_clean(context.connection, sorted({(one.catalog_id, one.table_id) for one in pending}))
    started = time.monotonic()
    dsn, storage = context.dsn, context.storage
    if count < MANIFESTS_FOR_SPARK:
        problems = [write_manifests(dsn, storage, one) for one in pending]
    else:
        problems = _write_on_spark(dsn, storage, pending)
    written = count - sum(len(one.users) for one, problem in zip(pending, problems, strict=True) if problem)
    context.progress(f"{written:,} manifest(s) written in {time.monotonic() - started:.1f} s")
    failed = [problem for problem in problems if problem]
    if written:
        logger.info("manifest_cache_sync_success: %d manifest(s)", written)
    for problem in failed:
        logger.warning("manifest_cache_sync_failure: %s", problem)
    return written, failed


def _write_on_spark(dsn: str, storage: StorageOptions, pending: Sequence[PendingManifests]) -> list[str | None]:
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    problems: list[str | None] = (
        spark.parallelize(pending, len(pending)).map(lambda one: write_manifests(dsn, storage, one)).collect()
    )
    return problems


def _forget_dropped(connection: Connection, tables: Sequence[Table]) -> None:
    for catalog_id, table_id in tables:
        connection.execute(
            "DELETE FROM lakefork.manifest_pending WHERE catalog_id = %s AND table_id = %s", (catalog_id, table_id)
        )


def find_pending(context: JobContext, definitions: Sequence[TableDefinition]) -> list[PendingManifests]:
    """In chunks that one task can write."""
    by_table = {(one.catalog_id, one.table_id): one for one in definitions}
    rows = context.connection.execute(
        load("lakefork.catalog")["pending_manifests"],
        {"catalogs": [one for one, _ in by_table], "tables": [one for _, one in by_table]},
    ).fetchall()
    pending = []
    for table, group in groupby(rows, lambda row: (row["catalog_id"], row["table_id"])):
        for chunk in _chunks(list(group)):
            rows_of = zip(*((row["user_id"], row["directory"], row["run_id"]) for row in chunk), strict=True)
            users, directories, run_ids = rows_of
            pending.append(
                PendingManifests(
                    context.run.job_id, *table, by_table[table].path, users, directories, run_ids,
                    by_table[table].per_user,
                )
            )  # fmt: skip
    return pending


def _chunks(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]
