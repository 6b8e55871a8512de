"""Runs retention_gc: plans what every catalog gives up, then carries out exactly that, in bounded transactions."""

import datetime
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.retention import (
    CatalogToGc,
    ForkToDrop,
    TableToGc,
    begin_plan,
    drop_planned,
    drop_unused_hot_tables,
    expired_forks,
    find_plan,
    finish_plan,
    plan_drops,
    plan_floors,
    plan_items,
    plan_tables,
    remove_definitions,
    remove_files,
    remove_records,
    remove_rest,
    retention_facts,
    save_plan,
    unfinished_plans,
)
from lakefork.catalog.streams import drop_unused_streams
from lakefork.errors import InvalidInputError
from lakefork.model.durations import seconds_of
from lakefork.model.params import RetentionGcParams
from lakefork.spark.job import JobContext
from lakefork.upkeep.retention.plan import GcItem, RetentionFacts, plan_retention, taken_despite_policy

FILES_AT_ONCE = 5_000  # with their statistics; a transaction stays well below two seconds
ROWS_AT_ONCE = 20_000
CATALOGS_AT_ONCE = 100
SHOWN = 50


@dataclass
class Removed:
    catalogs: int = 0
    snapshots: int = 0
    files: int = 0
    rows: int = 0
    hot_rows: int = 0
    scheduled: int = 0
    bytes_scheduled: int = 0
    forks_dropped: int = 0


def run_retention_gc(context: JobContext, params: RetentionGcParams) -> dict[str, Any]:
    removed = Removed()
    for plan_id in unfinished_plans(context.connection):
        if not params.dry_run and plan_id != params.plan_id:
            context.progress(f"plan {plan_id} was started by an earlier run: resuming it")
            _carry_out(context, plan_id, removed)
    plan_id = params.plan_id or _make_plan(context, params)
    if params.plan_id:
        _require_current_policies(context, plan_id)
    items, drops = plan_items(context.connection, plan_id), plan_drops(context.connection, plan_id)
    lines = plan_lines(plan_id, items, plan_tables(context.connection, plan_id, SHOWN + 1), drops)
    for line in lines:
        context.progress(line)
    if params.dry_run:
        return {"plan_id": plan_id, **_planned(items), "forks_dropped": len(drops), "plan": "\n".join(lines)}
    _carry_out(context, plan_id, removed, count_again=params.plan_id is not None)
    return {
        "plan_id": plan_id, "catalogs": removed.catalogs, "snapshots_expired": removed.snapshots,
        "files_released": removed.files, "rows_removed": removed.rows, "hot_rows_removed": removed.hot_rows,
        "files_scheduled": removed.scheduled, "bytes_scheduled": removed.bytes_scheduled,
        "forks_dropped": removed.forks_dropped, "records_removed": _remove_records(context),
    }  # fmt: skip


def _make_plan(context: JobContext, params: RetentionGcParams) -> str:
    """Makes a plan that drops expired forks; a later plan takes what only they needed."""
    expired = expired_forks(context.connection, params.catalog)
    items = [item for item in _wanted(context, params) if item.catalog_id not in set(expired)]
    plan_id = f"gc_{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{uuid.uuid4().hex[:6]}"
    asked = params.model_dump(mode="json")
    save_plan(context.connection, plan_id, context.run.run_id, asked, [vars(item) for item in items], expired)
    return plan_id


def _wanted(context: JobContext, params: RetentionGcParams) -> list[GcItem]:
    settings = context.settings.retention
    facts = retention_facts(
        context.connection,
        params.catalog,
        asked=(params.retain_snapshots, _time(params.retain_for)),
        default=(settings.retain_snapshots or None, _time(settings.retain_for)),
    )
    return plan_retention((RetentionFacts(**row) for row in facts), datetime.datetime.now(datetime.UTC))


def _require_current_policies(context: JobContext, plan_id: str) -> None:
    """Raises if policies have been changed to keep more since the plan was made."""
    plan = find_plan(context.connection, plan_id)
    if plan.begun_at is not None:
        return
    planned = [GcItem(**row) for row in plan_floors(context.connection, plan_id)]
    wanted = _wanted(context, RetentionGcParams(**plan.params))
    if taken_despite_policy(planned, wanted):
        raise InvalidInputError(
            f"what plan {plan_id!r} was made from has changed since {plan.created_at}: make a new one"
        )


def _time(text: str | None) -> datetime.timedelta | None:
    return None if text is None else datetime.timedelta(seconds=seconds_of(text, "retain_for"))


def plan_lines(
    plan_id: str,
    items: Sequence[CatalogToGc],
    tables: Sequence[TableToGc],
    drops: Sequence[ForkToDrop] = (),
) -> list[str]:
    """Renders the plan for the log and for approval, up to SHOWN lines of each kind."""
    total = _planned(items)
    lines = [
        f"plan {plan_id}: {total['catalogs']:,} catalog(s) give up {total['snapshots_expired']:,} snapshot(s) and "
        f"{total['files_released']:,} file(s), of which {total['files_scheduled']:,} "
        f"({total['bytes_scheduled']:,} bytes) are needed by no other catalog"
    ]
    lines += [
        f"  {one.catalog_name}: is dropped, as a fork that expired at {one.expires_at:%Y-%m-%d %H:%M} UTC"
        for one in drops[:SHOWN]
    ]
    lines += [f"  … and {len(drops) - SHOWN:,} more fork(s) are dropped"] if len(drops) > SHOWN else []
    for item in items[:SHOWN]:
        what = "was dropped and is removed entirely" if item.is_whole else f"keeps snapshots from {item.floor} on"
        name = item.catalog_name + (f" (fork of {item.parent_name})" if item.parent_name else "")
        lines.append(
            f"  {name}: {what}; {item.snapshots:,} snapshot(s), {item.files:,} file(s), "
            f"{item.freed_files:,} of them ({item.freed_bytes:,} bytes) freed"
        )
        lines += [
            f"    {table.table_name}: {table.files:,} file(s), {table.bytes:,} bytes"
            for table in tables[:SHOWN]
            if table.catalog_id == item.catalog_id
        ]
    lines += [f"  … and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
    return lines + ([f"  only the {SHOWN} tables that give up most are listed"] if len(tables) > SHOWN else [])


def _planned(items: Sequence[CatalogToGc]) -> dict[str, int]:
    return {
        "catalogs": len(items),
        "snapshots_expired": sum(item.snapshots for item in items),
        "files_released": sum(item.files for item in items),
        "files_scheduled": sum(item.freed_files for item in items),
        "bytes_scheduled": sum(item.freed_bytes for item in items),
    }


def _carry_out(context: JobContext, plan_id: str, removed: Removed, *, count_again: bool = False) -> None:
    context.check_leases()
    begin_plan(context.connection, plan_id, context.run.job_id, count_again=count_again)
    items = plan_items(context.connection, plan_id)
    work = _Work(context, plan_id, removed)
    work.drop_forks()
    bar = context.bar(len(items))
    for chunk in _chunks(items):
        work.carry_out(chunk)
        removed.catalogs += len(chunk)
        bar.reach(
            removed.catalogs,
            f"{removed.catalogs:,} of {len(items):,} catalog(s): {removed.snapshots:,} snapshot(s), "
            f"{removed.files:,} file(s), {bar.per_second(removed.rows):,.0f} rows/s",
        )
    drop_unused_hot_tables(context.connection, context.run.job_id)
    drop_unused_streams(context.connection)
    finish_plan(context.connection, plan_id)


@dataclass
class _Work:
    context: JobContext
    plan_id: str
    removed: Removed

    def drop_forks(self) -> None:
        connection, job_id = self.context.connection, self.context.run.job_id
        for dropped in drop_planned(connection, self.plan_id, job_id, CATALOGS_AT_ONCE):
            self.removed.forks_dropped += dropped
            self.context.progress(f"{self.removed.forks_dropped:,} expired fork(s) were dropped")
            self.context.check_leases()

    def carry_out(self, catalog_ids: Sequence[int]) -> None:
        """Carries out the plan. Readers are already refused; the next run resumes an interrupted one."""
        connection, job_id = self.context.connection, self.context.run.job_id
        for removed in remove_rest(connection, "hot rows", self.plan_id, job_id, catalog_ids, ROWS_AT_ONCE):
            self.removed.hot_rows += removed
            self.context.check_leases()
        while (batch := remove_files(connection, self.plan_id, job_id, catalog_ids, FILES_AT_ONCE)).files:
            self.removed.files += batch.files
            self.removed.rows += batch.rows
            self.removed.scheduled += batch.scheduled
            self.removed.bytes_scheduled += batch.bytes
            self.context.check_leases()
        for removed in remove_rest(connection, "snapshots", self.plan_id, job_id, catalog_ids, ROWS_AT_ONCE):
            self.removed.snapshots += removed
            self.removed.rows += 2 * removed
            self.context.check_leases()
        self.removed.rows += remove_definitions(connection, self.plan_id, job_id, catalog_ids)


def _chunks(items: Sequence[CatalogToGc]) -> list[list[int]]:
    """Groups catalogs with little to give up into one transaction."""
    chunks: list[list[int]] = []
    size = 0
    for item in items:
        weight = item.files + item.snapshots
        if not chunks or len(chunks[-1]) >= CATALOGS_AT_ONCE or size + weight > ROWS_AT_ONCE:
            chunks.append([])
            size = 0
        chunks[-1].append(item.catalog_id)
        size += weight
    return chunks


def _remove_records(context: JobContext) -> int:
    settings = context.settings.retention
    kept_for = [_time(text) for text in (settings.jobs_for, settings.audits_for, settings.commit_keys_for)]
    removed = 0
    for some in remove_records(context.connection, context.run.job_id, kept_for, ROWS_AT_ONCE):
        removed += some
        context.check_leases()
    return removed
