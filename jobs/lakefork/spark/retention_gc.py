"""retention_gc: first a plan of what every catalog gives up, then exactly that, in transactions of bounded size."""

import datetime
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.forks import drop_in_chunks
from lakefork.catalog.retention import (
    begin_plan,
    drop_unused_hot_tables,
    finish_plan,
    plan_items,
    plan_tables,
    remove_definitions,
    remove_files,
    remove_rest,
    retention_facts,
    save_plan,
    unfinished_plans,
)
from lakefork.durations import seconds_of
from lakefork.maintenance.retention import RetentionFacts, plan_retention
from lakefork.params import RetentionGcParams
from lakefork.spark.job import JobContext

FILES_AT_ONCE = 5_000  # and their statistics, in a transaction of well under two seconds
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
            context.progress(f"plan {plan_id} was begun by an earlier run: going on with it")
            _carry_out(context, plan_id, removed)
    plan_id = params.plan_id or _make_plan(context, params, removed)
    items = plan_items(context.connection, plan_id)
    lines = plan_lines(plan_id, items, plan_tables(context.connection, plan_id, SHOWN))
    for line in lines:
        context.progress(line)
    if params.dry_run:
        return {"plan_id": plan_id, **_planned(items), "plan": "\n".join(lines)}
    _carry_out(context, plan_id, removed)
    records = _remove_records(context)
    return {
        "plan_id": plan_id, "catalogs": removed.catalogs, "snapshots_expired": removed.snapshots,
        "files_released": removed.files, "rows_removed": removed.rows, "hot_rows_removed": removed.hot_rows,
        "files_scheduled": removed.scheduled, "bytes_scheduled": removed.bytes_scheduled,
        "forks_dropped": removed.forks_dropped, "records_removed": records,
    }  # fmt: skip


def _make_plan(context: JobContext, params: RetentionGcParams, removed: Removed) -> str:
    if not params.dry_run:
        removed.forks_dropped = _drop_expired_forks(context, params.catalog)
    settings = context.settings.retention
    facts = retention_facts(
        context.connection,
        params.catalog,
        asked=(params.retain_snapshots, _time(params.retain_for)),
        default=(settings.retain_snapshots or None, _time(settings.retain_for)),
    )
    items = plan_retention((RetentionFacts(**row) for row in facts), datetime.datetime.now(datetime.UTC))
    plan_id = f"gc_{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{uuid.uuid4().hex[:6]}"
    save_plan(
        context.connection, plan_id, context.run.run_id, params.model_dump(mode="json"), [vars(item) for item in items]
    )
    return plan_id


def _time(text: str | None) -> datetime.timedelta | None:
    return None if text is None else datetime.timedelta(seconds=seconds_of(text, "retain_for"))


def _drop_expired_forks(context: JobContext, catalog: str | None) -> int:
    expired = context.connection.execute("SELECT * FROM lakefork.expired_forks(%s)", (catalog,)).fetchall()
    dropped = 0
    bar = context.bar(len(expired))
    for dropped in drop_in_chunks(context.connection, [row["catalog_id"] for row in expired], context.run.job):
        bar.reach(dropped, f"{dropped:,} of {len(expired):,} fork(s) past their time were dropped")
    return dropped


def plan_lines(plan_id: str, items: Sequence[dict[str, Any]], tables: Sequence[dict[str, Any]]) -> list[str]:
    """The plan as people read it in the log, and before they approve it."""
    total = _planned(items)
    lines = [
        f"plan {plan_id}: {total['catalogs']:,} catalog(s) give up {total['snapshots_expired']:,} snapshot(s) and "
        f"{total['files_released']:,} file(s), of which {total['files_scheduled']:,} "
        f"({total['bytes_scheduled']:,} bytes) are needed by nobody else"
    ]
    for item in items[:SHOWN]:
        what = "was dropped and goes altogether" if item["is_whole"] else f"keeps snapshots from {item['floor']} on"
        lines.append(
            f"  {item['catalog_name']}: {what}; {item['snapshots']:,} snapshot(s), {item['files']:,} file(s), "
            f"{item['freed_files']:,} of them ({item['freed_bytes']:,} bytes) freed"
        )
        lines += [
            f"    {table['table_name']}: {table['files']:,} file(s), {table['bytes']:,} bytes"
            for table in tables
            if table["catalog_id"] == item["catalog_id"]
        ]
    return lines + ([f"  … and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else [])


def _planned(items: Sequence[dict[str, Any]]) -> dict[str, int]:
    names = {
        "snapshots_expired": "snapshots", "files_released": "files", "files_scheduled": "freed_files",
        "bytes_scheduled": "freed_bytes",
    }  # fmt: skip
    totals = {name: int(sum(item[column] for item in items)) for name, column in names.items()}
    return {"catalogs": len(items), **totals}


def _carry_out(context: JobContext, plan_id: str, removed: Removed) -> None:
    context.check_leases()
    begin_plan(context.connection, plan_id, context.run.job_id)
    items = plan_items(context.connection, plan_id)
    work = _Work(context, plan_id, removed)
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
    finish_plan(context.connection, plan_id)


@dataclass
class _Work:
    context: JobContext
    plan_id: str
    removed: Removed

    def carry_out(self, catalog_ids: Sequence[int]) -> None:
        """Readers are kept out already; what is cut off in the middle is gone on with by the next run."""
        connection, job_id = self.context.connection, self.context.run.job_id
        for removed in remove_rest(connection, "hot rows", self.plan_id, job_id, catalog_ids, ROWS_AT_ONCE):
            self.removed.hot_rows += removed
            self.context.check_leases()
        while (batch := remove_files(connection, self.plan_id, job_id, catalog_ids, FILES_AT_ONCE))["files"]:
            self.removed.files += batch["files"]
            self.removed.rows += batch["rows"]
            self.removed.scheduled += batch["scheduled"]
            self.removed.bytes_scheduled += batch["bytes"]
            self.context.check_leases()
        for removed in remove_rest(connection, "snapshots", self.plan_id, job_id, catalog_ids, ROWS_AT_ONCE):
            self.removed.snapshots += removed
            self.removed.rows += 2 * removed
            self.context.check_leases()
        self.removed.rows += remove_definitions(connection, self.plan_id, job_id, catalog_ids)


def _chunks(items: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Catalogs with little to give up go together."""
    chunks: list[list[int]] = []
    size = 0
    for item in items:
        weight = item["files"] + item["snapshots"]
        if not chunks or len(chunks[-1]) >= CATALOGS_AT_ONCE or size + weight > ROWS_AT_ONCE:
            chunks.append([])
            size = 0
        chunks[-1].append(item["catalog_id"])
        size += weight
    return chunks


def _remove_records(context: JobContext) -> int:
    settings = context.settings.retention
    row = context.connection.execute(
        "SELECT lakefork.remove_records(%s, %s, %s) AS removed",
        tuple(_time(text) for text in (settings.jobs_for, settings.audits_for, settings.commit_keys_for)),
    ).fetchone()
    return int(row["removed"]) if row else 0
