"""Writes the manifests that show the last publish of a table, and puts them into the cache."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.connection import Connection
from lakefork.catalog.flushes import Table, find_definitions, note_clean
from lakefork.cold.manifest import Manifest, RecordedDirectory, build_manifest
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.storage import StorageOptions, replace_file

CHUNK = 500
MANIFESTS_FOR_SPARK = 1_000
PUTS_AT_ONCE = 8  # a storage that answers slowly is not waited for one by one; a local one would only be disturbed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingManifests:
    """Some directories of one table; users are '' for a shared one."""

    catalog_id: int
    table_id: int
    users: tuple[str, ...]
    directories: tuple[str, ...]
    run_ids: tuple[str, ...]  # who published what they lack
    per_user: bool


def write_pending(context: JobContext, tables: Sequence[Table]) -> tuple[int, list[str]]:
    """All that is pending of these tables, whose leases the job has: how many, and what the storage refused."""
    context.check_leases()
    defined = find_definitions(context.connection, tables)
    _forget_dropped(context.connection, [table for table in tables if table not in defined])
    pending = find_pending(
        context.connection, list(defined), {table: one.definition.per_user for table, one in defined.items()}
    )
    count = sum(len(one.users) for one in pending)
    if not count:
        return 0, []
    note_clean(context.connection, sorted({(one.catalog_id, one.table_id) for one in pending}))
    started = time.monotonic()
    dsn, storage = context.dsn, context.storage
    if count < MANIFESTS_FOR_SPARK:
        problems = [write_manifests(dsn, storage, one) for one in pending]
    else:
        # Postgres takes tables that were just filled for empty ones, and would look through them for each row.
        context.connection.execute(
            "ANALYZE lakefork.manifest_pending, ducklake_data_file, ducklake_file_partition_value, "
            "ducklake_file_column_stats"
        )
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


def find_pending(
    connection: Connection, tables: Sequence[Table], per_user: dict[Table, bool]
) -> list[PendingManifests]:
    """In chunks that one task can write."""
    rows = connection.execute(
        load("lakefork.catalog")["pending_manifests"],
        {"catalogs": [one for one, _ in tables], "tables": [one for _, one in tables]},
    ).fetchall()
    pending = []
    for table, group in groupby(rows, lambda row: (row["catalog_id"], row["table_id"])):
        for chunk in _chunks(list(group)):
            rows_of = zip(*((row["user_id"], row["directory"], row["run_id"]) for row in chunk), strict=True)
            users, directories, run_ids = rows_of
            pending.append(PendingManifests(*table, users, directories, run_ids, per_user[table]))
    return pending


def _chunks(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def write_manifests(dsn: str, storage: StorageOptions, pending: PendingManifests) -> str | None:
    """Replaces each file atomically; a crash leaves the rest pending. Returns what went wrong, if the storage did."""
    try:
        _write(dsn, storage, pending)
    except OSError as error:
        return f"a manifest below {pending.directories[0]} cannot be written: {str(error).splitlines()[0]}"
    return None


def _write(dsn: str, storage: StorageOptions, pending: PendingManifests) -> None:
    sql = load("lakefork.catalog")
    owner = {"catalog_id": pending.catalog_id, "table_id": pending.table_id}
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        found = connection.execute(
            sql["manifest_batches"], {**owner, "users": list(pending.users), "per_user": pending.per_user}
        )
        manifests = dict(_build(pending, found))
        _replace(list(manifests.values()), storage)
        directory_of = dict(zip(pending.users, pending.directories, strict=True))
        run_of = dict(zip(pending.users, pending.run_ids, strict=True))
        connection.execute(
            sql["cache_manifests"],
            {
                **owner, "users": list(manifests), "directories": [directory_of[user] for user in manifests],
                "run_ids": [run_of[user] for user in manifests],
                "contents": [one.content for one in manifests.values()],
                "etags": [one.etag for one in manifests.values()],
            },
        )  # fmt: skip


def _replace(manifests: Sequence[Manifest], storage: StorageOptions) -> None:
    def replace(one: Manifest) -> None:
        replace_file(one.path, one.content.encode(), storage)

    remote = [one for one in manifests if one.path.startswith("s3://")]
    with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
        list(pool.map(replace, remote))
    for one in manifests:
        if not one.path.startswith("s3://"):
            replace(one)


def _build(pending: PendingManifests, found: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Manifest]]:
    """One per user, also where the catalog has no batch (any more)."""
    rows = {row["user_id"]: row for row in found}
    for user, directory in zip(pending.users, pending.directories, strict=True):
        row = rows.get(user, {"snapshot_id": 0, "batches": []})
        owner = user if pending.per_user else None
        recorded = RecordedDirectory(directory, pending.table_id, owner, row["snapshot_id"], row["batches"])
        yield user, build_manifest(recorded)
