"""Publishes what a flush staged: audits and commits each table, then writes the manifests."""

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from psycopg.types.json import Jsonb

from lakefork.catalog.commits import Changes
from lakefork.catalog.flushes import Publication, paused_flushes, publish
from lakefork.catalog.staging import StagedPath
from lakefork.cold.layout import batch_directory, below_table
from lakefork.errors import NotFoundError
from lakefork.model.tables import TableRef
from lakefork.queries import load
from lakefork.read.slices import HotSource
from lakefork.spark.job import JobContext
from lakefork.upkeep.flush.facts import Work
from lakefork.upkeep.flush.plan import Share
from lakefork.upkeep.flush.quarantine import move_to_quarantine, quarantine_of
from lakefork.upkeep.flush.task import StagedFile, TaskReport
from lakefork.upkeep.manifests import write_pending
from lakefork.upkeep.staging import remove_staged, remove_unpublished


@dataclass(frozen=True)
class Verdict:
    """The audit's result for a table."""

    success: bool
    summary: str
    results: list[dict[str, Any]]


@dataclass(frozen=True)
class Discrepancy:
    """Discrepancies. versions: waiting versions that were not read; rows: kept rows that are in no file, or in two."""

    versions: int
    rows: int


class Audit(Protocol):
    """Checks what was staged."""

    def judge(
        self, tables: Sequence[HotSource], files: Sequence[Sequence[StagedFile]], lost: Sequence[Discrepancy]
    ) -> list[Verdict]:
        """Returns a verdict per table. lost: discrepancies between hot rows and files."""


@dataclass
class Totals:
    tables: int = 0
    users: int = 0
    rows_in: int = 0
    rows_out: int = 0
    files_written: int = 0
    bytes_written: int = 0
    snapshot_id: int | None = None
    failed: list[str] = field(default_factory=list)  # by the audit
    unwritten: list[str] = field(default_factory=list)  # because of the storage

    def add(self, counts: dict[str, Any], snapshot_id: int | None) -> None:
        self.tables += 1
        for name in ("users", "rows_in", "rows_out", "files_written", "bytes_written"):
            setattr(self, name, getattr(self, name) + counts[name])
        self.snapshot_id = max((one for one in (self.snapshot_id, snapshot_id) if one is not None), default=None)

    def as_result(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("failed", "unwritten")}


@dataclass
class Staged:
    """What the tasks wrote for one table."""

    files: list[StagedFile] = field(default_factory=list)
    read: int = 0
    kept: int = 0
    problem: str | None = None

    def lost(self, shares: Sequence[Share]) -> Discrepancy:
        waiting = sum(share.versions for share in shares)
        written = sum(file.facts.record_count for file in self.files)
        return Discrepancy(max(0, waiting - self.read), abs(self.kept - written))


def publish_all(context: JobContext, work: Work, reports: Sequence[TaskReport], audit: Audit, totals: Totals) -> None:
    """TableRef by table; one that fails its audit, cannot be written or was dropped does not keep the others."""
    staged = _by_table(work, reports)
    started = time.monotonic()
    lost = [one.lost(shares) for shares, one in zip(work.shares, staged, strict=True)]
    verdicts = audit.judge(work.tables, [one.files for one in staged], lost)
    files = sum(len(one.files) for one in staged)
    context.progress(f"{files:,} file(s) audited in {time.monotonic() - started:.1f} s")
    for table_index, (one, verdict) in enumerate(zip(staged, verdicts, strict=True)):
        context.check_leases()
        if one.problem:
            totals.unwritten.append(f"{_name(work.tables[table_index])} was not published: {one.problem}")
            continue
        _record_audit(context, work.tables[table_index], one.files, verdict)
        if verdict.success:
            _publish(context, work, table_index, one, totals)
        else:
            totals.failed.append(_reject(context, work.tables[table_index], one.files, verdict))
    remove_unpublished(context, [table.definition.ref for table in work.tables])


def _reject(context: JobContext, table: HotSource, files: Sequence[StagedFile], verdict: Verdict) -> str:
    where = move_to_quarantine(context, table.definition, files)
    return f"{_name(table)} was not published: {verdict.summary}; {_next_try(context, table)}; {where}"


def _by_table(work: Work, reports: Sequence[TaskReport]) -> list[Staged]:
    staged = [Staged() for _ in work.tables]
    for report in reports:
        for file in report.files:
            staged[file.table].files.append(file)
        for table_index, versions in report.read.items():
            staged[table_index].read += versions
        for table_index, rows in report.kept.items():
            staged[table_index].kept += rows
        for table_index, problem in report.failed.items():
            staged[table_index].problem = problem
    return staged


def _publish(context: JobContext, work: Work, table_index: int, staged: Staged, totals: Totals) -> None:
    table, shares, files, read = work.tables[table_index], work.shares[table_index], staged.files, staged.read
    publication = _publication(table, shares, files, read, work.requested_before)
    try:
        snapshot_id = context.commit_idempotently(
            lambda: publish(context.connection, context.run.job_id, context.run.run_id, work.read, publication)
        )
    except NotFoundError:
        job_id = context.run.job_id
        remove_staged(context, [StagedPath(path, *table.definition.ref, job_id) for path in publication.paths])
        context.progress(f"{_name(table)} was dropped during the flush: its {len(files)} staged file(s) were removed")
        return
    totals.add(publication.counts, snapshot_id)
    context.progress(
        f"{_name(table)}: {read:,} versions of {len(shares):,} user(s) published as {publication.counts['rows_out']:,} "
        f"rows in {len(files):,} file(s), snapshot {snapshot_id}"
    )


def _publication(
    table: HotSource,
    shares: Sequence[Share],
    files: Sequence[StagedFile],
    read: int,
    requested_before: datetime.datetime | None,
) -> Publication:
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
        requested_before=requested_before,
    )


def _record_audit(context: JobContext, table: HotSource, files: Sequence[StagedFile], verdict: Verdict) -> None:
    found = {
        "job_id": context.run.job_id, "run_id": context.run.run_id, "catalog_id": table.definition.catalog_id,
        "table_id": table.definition.table_id, "success": verdict.success, "files": len(files),
        "results": Jsonb(verdict.results),
        "quarantine": None if verdict.success else quarantine_of(context, table.definition),
    }  # fmt: skip
    sql = load(__package__)["record_audit"]
    context.with_reconnect("recording the audit", lambda: context.connection.execute(sql, found))


def _next_try(context: JobContext, table: HotSource) -> str:
    """Describes when a table whose audit failed is retried."""
    found = [one for one in paused_flushes(context.connection) if one.table == table.definition.ref]
    return f"the next try is {found[0].next_try}" if found else "it was dropped"


def sync_manifests(context: JobContext, tables: Sequence[TableRef], totals: Totals) -> None:
    """Writes pending manifests, also those of earlier runs."""
    _, problems = write_pending(context, tables)
    totals.unwritten += [f"{problem}; the next run will write it" for problem in problems]


def _name(table: HotSource) -> str:
    return f"{table.definition.catalog}.{table.definition}"
