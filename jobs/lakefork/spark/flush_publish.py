"""Publishes what a flush staged: audited, table by table, then the manifests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
from psycopg.types.json import Jsonb

from lakefork.catalog.commits import Changes
from lakefork.catalog.connection import Connection
from lakefork.catalog.flushes import (
    Publication,
    ReadSnapshot,
    Table,
    find_definitions,
    forget_staged,
    publish,
    staged_files,
)
from lakefork.cold.layout import batch_directory, below_table
from lakefork.errors import DatabaseError, NotFoundError
from lakefork.maintenance.flush import Share
from lakefork.queries import load
from lakefork.spark.flush_plan import Work
from lakefork.spark.flush_task import StagedFile, TableToFlush, TaskReport
from lakefork.spark.job import JobContext
from lakefork.spark.manifests import PendingManifests, find_pending, write_manifests
from lakefork.storage import StorageOptions, move_file, remove_files
from lakefork.storage.paths import path_part

COMMIT_ATTEMPTS = 6
MANIFESTS_FOR_SPARK = 1_000


@dataclass(frozen=True)
class Verdict:
    """What the audit says of a table's files."""

    success: bool
    summary: str
    results: list[dict[str, Any]]


class Audit(Protocol):
    """Looks at what was staged; quality/ has it."""

    def judge(self, tables: Sequence[TableToFlush], files: Sequence[Sequence[StagedFile]]) -> list[Verdict]: ...


@dataclass
class Totals:
    tables: int = 0
    users: int = 0
    rows_in: int = 0
    rows_out: int = 0
    files_written: int = 0
    bytes_written: int = 0
    snapshot_id: int | None = None
    failed: list[str] = field(default_factory=list)

    def add(self, counts: dict[str, Any], snapshot_id: int | None) -> None:
        self.tables += 1
        for name in ("users", "rows_in", "rows_out", "files_written", "bytes_written"):
            setattr(self, name, getattr(self, name) + counts[name])
        self.snapshot_id = max((one for one in (self.snapshot_id, snapshot_id) if one is not None), default=None)

    def as_result(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "failed"}


def remove_staged(context: JobContext, paths: Sequence[str]) -> None:
    remove_files(paths, context.storage)
    forget_staged(context.connection, paths)


def publish_all(context: JobContext, work: Work, reports: Sequence[TaskReport], audit: Audit, totals: Totals) -> None:
    """Table by table; a table that fails its audit or was dropped does not keep the others."""
    files: list[list[StagedFile]] = [[] for _ in work.tables]
    read = [0] * len(work.tables)
    for report in reports:
        for file in report.files:
            files[file.table].append(file)
        for place, versions in report.read.items():
            read[place] += versions
    started = time.monotonic()
    verdicts = audit.judge(work.tables, files)
    context.progress(f"{sum(map(len, files)):,} file(s) audited in {time.monotonic() - started:.1f} s")
    for place, verdict in enumerate(verdicts):
        context.check_leases()
        _record_audit(context, work.tables[place], files[place], verdict)
        if verdict.success:
            _publish(context, work, place, files[place], read[place], totals)
        else:
            where = _quarantine(context, work.tables[place], files[place])
            totals.failed.append(
                f"{_name(work.tables[place])} was not published: {verdict.summary}; its {len(files[place])} staged "
                f"file(s) are in {where}"
            )
    lost = [row["path"] for row in staged_files(context.connection, [_key(table) for table in work.tables])]
    if lost:
        remove_staged(context, lost)
        context.progress(f"{len(lost)} file(s) of task attempts that did not count were removed")


def _publish(
    context: JobContext, work: Work, place: int, files: Sequence[StagedFile], read: int, totals: Totals
) -> None:
    table, shares = work.tables[place], work.shares[place]
    publication = _publication(table, shares, files, read)
    try:
        snapshot_id = _publish_surely(context, work.read, publication)
    except NotFoundError:
        remove_staged(context, publication.paths)
        context.progress(f"{_name(table)} was dropped meanwhile: its {len(files)} staged file(s) were removed")
        return
    totals.add(publication.counts, snapshot_id)
    context.progress(
        f"{_name(table)}: {read:,} versions of {len(shares):,} user(s) published as {publication.counts['rows_out']:,} "
        f"rows in {len(files):,} file(s), snapshot {snapshot_id}"
    )


def _publication(table: TableToFlush, shares: Sequence[Share], files: Sequence[StagedFile], read: int) -> Publication:
    changes = Changes()
    definition = table.definition
    for file in files:
        changes.add_batch(definition.table_id, below_table(definition, file.path), file.facts, user_id=file.user_id)
    with_files = {file.user_id for file in files}
    return Publication(
        definition,
        [hot.definition.definition_snapshot for hot in table.hot],
        changes,
        users=[share.user_id or "" for share in shares],
        versions=[share.versions for share in shares],
        directories=[
            batch_directory(definition, share.user_id) if share.user_id in with_files else None for share in shares
        ],
        paths=[file.path for file in files],
        counts={
            "users": len(shares) if definition.per_user else 0,
            "rows_in": read,
            "rows_out": sum(file.facts.record_count for file in files),
            "files_written": len(files),
            "bytes_written": sum(file.facts.size_bytes for file in files),
        },
    )


def _publish_surely(context: JobContext, read: ReadSnapshot, publication: Publication) -> int | None:
    """A connection that breaks at COMMIT leaves open whether it happened: asking again tells, and does it if not."""
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            return publish(context.connection, context.run.job_id, context.run.run_id, read, publication)
        except psycopg.OperationalError as error:
            if attempt == COMMIT_ATTEMPTS - 1:
                raise DatabaseError(f"Postgres: {str(error).splitlines()[0]}") from error
            context.progress(f"the connection broke while publishing; asking again ({str(error).splitlines()[0]})")
            context.reconnect()
    raise AssertionError("unreachable")


def _record_audit(context: JobContext, table: TableToFlush, files: Sequence[StagedFile], verdict: Verdict) -> None:
    context.connection.execute(
        load("lakefork.catalog")["record_audit"],
        {
            "job_id": context.run.job_id, "run_id": context.run.run_id, "catalog_id": table.definition.catalog_id,
            "table_id": table.definition.table_id, "success": verdict.success, "files": len(files),
            "results": Jsonb(verdict.results),
            "quarantine": None if verdict.success else _quarantine_of(context, table),
        },
    )  # fmt: skip


def _quarantine_of(context: JobContext, table: TableToFlush) -> str:
    return f"{table.definition.path}/.quarantine/{path_part(context.run.job_id)}"


def _quarantine(context: JobContext, table: TableToFlush, files: Sequence[StagedFile]) -> str:
    """Keeps what failed its audit, out of the way of readers."""
    where = _quarantine_of(context, table)
    for file in files:
        move_file(file.path, f"{where}/{below_table(table.definition, file.path)}", context.storage)
    forget_staged(context.connection, [file.path for file in files])
    return where


def bring_manifests_up(context: JobContext, tables: Sequence[Table]) -> None:
    """Also those that an earlier run left behind."""
    defined = find_definitions(context.connection, tables)
    _forget_pending_of_dropped(context.connection, [table for table in tables if table not in defined])
    pending = find_pending(
        context.connection, list(defined), {table: one.definition.per_user for table, one in defined.items()}
    )
    count = sum(len(one.users) for one in pending)
    if not count:
        return
    started = time.monotonic()
    dsn, storage = context.dsn, context.storage
    if count < MANIFESTS_FOR_SPARK:
        for one in pending:
            write_manifests(dsn, storage, one)
    else:
        _write_on_spark(dsn, storage, pending)
    context.progress(f"{count:,} manifest(s) written in {time.monotonic() - started:.1f} s")


def _write_on_spark(dsn: str, storage: StorageOptions, pending: Sequence[PendingManifests]) -> None:
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    spark.parallelize(pending, len(pending)).foreach(lambda one: write_manifests(dsn, storage, one))


def _forget_pending_of_dropped(connection: Connection, tables: Sequence[Table]) -> None:
    for catalog_id, table_id in tables:
        connection.execute(
            "DELETE FROM lakefork.manifest_pending WHERE catalog_id = %s AND table_id = %s", (catalog_id, table_id)
        )


def _name(table: TableToFlush) -> str:
    return f"{table.definition.catalog}.{table.definition}"


def _key(table: TableToFlush) -> Table:
    return table.definition.catalog_id, table.definition.table_id
