"""Writes pending manifests and their cache entries."""

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from lakefork.catalog.commits import note_clean
from lakefork.catalog.connection import Connection
from lakefork.catalog.definitions import find_definitions
from lakefork.manifests.write import PendingManifests, write_manifests
from lakefork.model.tables import TableDefinition, TableRef
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.storage.installation import Installation

CHUNK = 2_500
MANIFESTS_FOR_SPARK = 1_000

logger = logging.getLogger(__name__)


def write_pending(context: JobContext, tables: Sequence[TableRef]) -> tuple[int, list[str]]:
    """Writes all pending manifests of these leased tables; returns their number and the errors of storage."""
    context.check_leases()
    defined = find_definitions(context.connection, tables)
    _forget_dropped(context.connection, [table for table in tables if table not in defined])
    pending = find_pending(context, [one.definition for one in defined.values()])
    count = sum(len(one.users) for one in pending)
    if not count:
        return 0, []
    if count >= MANIFESTS_FOR_SPARK:
        context.connection.execute("SELECT lakefork.analyze_files()")
    note_clean(context.connection, sorted({TableRef(one.catalog_id, one.table_id) for one in pending}))
    started = time.monotonic()
    installation = context.installation
    if count < MANIFESTS_FOR_SPARK:
        problems = [write_manifests(installation, one) for one in pending]
    else:
        problems = _write_on_spark(installation, pending)
    written = count - sum(len(one.users) for one, problem in zip(pending, problems, strict=True) if problem)
    context.progress(f"{written:,} manifest(s) written in {time.monotonic() - started:.1f} s")
    failed = [problem for problem in problems if problem]
    if written:
        logger.info("manifest_cache_sync_success: %d manifest(s)", written)
    for problem in failed:
        logger.warning("manifest_cache_sync_failure: %s", problem)
    return written, failed


def _write_on_spark(installation: Installation, pending: Sequence[PendingManifests]) -> list[str | None]:
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    problems: list[str | None] = (
        spark.parallelize(pending, len(pending)).map(lambda one: write_manifests(installation, one)).collect()
    )
    return problems


def _forget_dropped(connection: Connection, tables: Sequence[TableRef]) -> None:
    for catalog_id, table_id in tables:
        connection.execute(
            "DELETE FROM lakefork.manifest_pending WHERE catalog_id = %s AND table_id = %s", (catalog_id, table_id)
        )


def find_pending(context: JobContext, definitions: Sequence[TableDefinition]) -> list[PendingManifests]:
    """Returns pending manifests, in chunks that one task can write."""
    by_table = {one.ref: one for one in definitions}
    rows = context.connection.execute(
        load(__package__)["pending_manifests"],
        {"catalogs": [one for one, _ in by_table], "tables": [one for _, one in by_table]},
    ).fetchall()
    pending = []
    for table, group in groupby(rows, TableRef.of):
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
