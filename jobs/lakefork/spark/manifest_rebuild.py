"""Runs manifest_rebuild: what directories hold is compared with the catalog on Spark, manifests are written anew."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.flushes import Table, find_definitions, table_lease, work_lease
from lakefork.catalog.roots import never_given_out
from lakefork.cold.layout import batch_directory
from lakefork.errors import JobFailedError, NotFoundError, StorageError
from lakefork.maintenance.manifests import (
    LASTING,
    CheckTask,
    ManifestFinding,
    Owner,
    TableDirectories,
    plan_rounds,
    plan_tasks,
)
from lakefork.params import ManifestRebuildParams
from lakefork.queries import load
from lakefork.spark.batch_files import WHY_TAKEN
from lakefork.spark.job import JobContext
from lakefork.spark.manifest_check import CheckReport, check_directories
from lakefork.spark.manifests import write_pending
from lakefork.spark.tasks import good
from lakefork.tables import TableDefinition

_UNKNOWN = "no catalog knows it; file_cleanup with orphans removes such files"


@dataclass
class Totals:
    tables: int = 0
    directories: int = 0
    files: int = 0
    manifests_written: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    unwritten: list[str] = field(default_factory=list)

    def as_result(self) -> dict[str, Any]:
        return {
            "tables": self.tables, "directories": self.directories, "files": self.files,
            "findings": self.kinds.total(), "manifests_written": self.manifests_written,
        }  # fmt: skip


def run_manifest_rebuild(context: JobContext, params: ManifestRebuildParams) -> dict[str, Any]:
    """Replaces manifests and nothing else; with check_only not even those. Batches are only read."""
    totals = Totals()
    found = _find_directories(context, params)
    held = _look_at_all(context, found, totals, heal=not params.check_only)
    while held and params.is_targeted:
        context.wait_for_leases({lease: one.name for one in held for lease in (_flush_lease(one), _dedup_lease(one))})
        held = _look_at_all(context, held, totals, heal=not params.check_only)
    for one in held:
        context.progress(f"{one.name} is being worked on by another run: left to it")
    if not totals.tables:
        context.progress("there is nothing to look at")
    _judge(totals, check_only=params.check_only)
    return totals.as_result()


def _judge(totals: Totals, *, check_only: bool) -> None:
    lasting = Counter({kind: count for kind, count in totals.kinds.items() if kind in LASTING})
    if check_only and totals.kinds:
        raise JobFailedError(
            f"{_counted(totals.kinds)}; each is listed above; without check_only the manifests are written anew",
            totals.as_result(),
        )
    if lasting:
        raise JobFailedError(
            f"{_counted(lasting)}; each is listed above; no manifest can mend that: restore the files from a backup",
            totals.as_result(),
        )
    if totals.unwritten:
        raise StorageError("; ".join(totals.unwritten))


def _counted(kinds: Counter[str]) -> str:
    return f"{kinds.total()} finding(s): {', '.join(f'{count}× {kind}' for kind, count in sorted(kinds.items()))}"


def _find_directories(context: JobContext, params: ManifestRebuildParams) -> list[TableDirectories]:
    """The tables that have, or had, batches or manifests."""
    if params.catalog:
        find_catalog(context.connection, params.catalog)  # says so if there is none
    sql = load("lakefork.catalog")
    rows = context.connection.execute(
        sql["manifest_tables"], {"catalog": params.catalog, "namespace": params.namespace, "table": params.table}
    )
    found = [(row["catalog_id"], row["table_id"]) for row in rows]
    if not found and (params.namespace or params.table):
        raise NotFoundError(f"there is no table {params.namespace or '*'}.{params.table or '*'}")
    definitions = {table: one.definition for table, one in find_definitions(context.connection, found).items()}
    owners = context.connection.execute(
        sql["manifest_owners"],
        {
            "catalogs": [one for one, _ in definitions], "tables": [one for _, one in definitions],
            "per_user": [one.per_user for one in definitions.values()], "user": params.user_id,
        },
    ).fetchall()  # fmt: skip
    return [
        _with_owners(definitions[table], group)
        for table, group in groupby(owners, lambda row: (row["catalog_id"], row["table_id"]))
    ]


def _with_owners(definition: TableDefinition, rows: Iterable[dict[str, Any]]) -> TableDirectories:
    owners = tuple(
        Owner(
            row["user_id"], batch_directory(definition, row["user_id"] if definition.per_user else None), row["files"]
        )
        for row in rows
    )
    name = f"{definition.catalog}.{definition}"
    return TableDirectories(definition.catalog_id, definition.table_id, name, definition.per_user, owners)


def _look_at_all(
    context: JobContext, found: Sequence[TableDirectories], totals: Totals, *, heal: bool
) -> list[TableDirectories]:
    """In rounds; returns the tables on which others are at work."""
    bar, looked_at = context.bar(len(found)), 0
    held: list[TableDirectories] = []
    for tables in plan_rounds(found):
        held += _look_at(context, tables, totals, heal=heal)
        looked_at += len(tables)
        bar.reach(looked_at, f"{looked_at:,} of {len(found):,} table(s), {totals.directories:,} directories looked at")
    return held


def _look_at(
    context: JobContext, tables: Sequence[TableDirectories], totals: Totals, *, heal: bool
) -> list[TableDirectories]:
    """One round: leased, so that nobody publishes or writes manifests meanwhile; returns the tables of others."""
    leased = _lease(context, tables)
    if leased:
        _look_at_leased(context, leased, totals, heal=heal)
    context.leases.release(context.connection)
    return [table for table in tables if table not in leased]


def _look_at_leased(context: JobContext, leased: Sequence[TableDirectories], totals: Totals, *, heal: bool) -> None:
    started = time.monotonic()
    reports = _run_tasks(context, [task for table in leased for task in plan_tasks(table)])
    context.check_leases()
    reports = _still_there(context, reports)
    _count(context, leased, reports, totals)
    files = sum(report.files for report in reports)
    seconds = time.monotonic() - started
    context.progress(
        f"{files:,} file(s) in {sum(report.directories for report in reports):,} directories of {len(leased):,} "
        f"table(s) looked at in {seconds:.1f} s ({files / seconds:,.0f}/s)"
    )
    if heal:
        _heal(context, leased, reports, totals)


def _lease(context: JobContext, tables: Sequence[TableDirectories]) -> list[TableDirectories]:
    """The tables on which neither flush nor dedup is at work."""
    found = list(tables)
    for lease_of in (_flush_lease, _dedup_lease):
        taken = context.leases.take_free(context.connection, [lease_of(table) for table in found])
        found = [table for table in found if lease_of(table) in taken]
    return found


def _flush_lease(table: TableDirectories) -> str:
    return table_lease(*_key(table))


def _dedup_lease(table: TableDirectories) -> str:
    return work_lease("snapshot_dedup", _key(table))


def _key(table: TableDirectories) -> Table:
    return table.catalog_id, table.table_id


def _run_tasks(context: JobContext, tasks: Sequence[CheckTask]) -> list[CheckReport]:
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    dsn, storage = context.dsn, context.storage
    found = spark.parallelize(tasks, len(tasks)).map(lambda task: check_directories(dsn, storage, task)).collect()
    return [good(report) for report in found]


def _still_there(context: JobContext, reports: Sequence[CheckReport]) -> list[CheckReport]:
    """A table that was dropped meanwhile is nobody's business any more."""
    tables = sorted({_key(report.task.table) for report in reports})
    defined = find_definitions(context.connection, tables)
    return [report for report in reports if _key(report.task.table) in defined]


def _count(
    context: JobContext, tables: Sequence[TableDirectories], reports: Sequence[CheckReport], totals: Totals
) -> None:
    totals.tables += len(tables)
    for report in reports:
        totals.directories += report.directories
        totals.files += report.files
        totals.kinds += report.kinds
        for finding in report.findings:
            context.progress(str(finding))
    for finding in _extra_files(context, reports):
        totals.kinds[finding.kind] += 1
        context.progress(str(finding))


def _extra_files(context: JobContext, reports: Sequence[CheckReport]) -> list[ManifestFinding]:
    """Files that lie there and are no batch, less those that an older snapshot, a fork or a run needs."""
    unknown = {path: report.task.table.name for report in reports for path in report.unknown}
    if not unknown:
        return []
    known = context.connection.execute(load("lakefork.catalog")["known_files"], {"paths": list(unknown)})
    needed = {row["path"] for row in known}
    extra = {path: table for path, table in unknown.items() if path not in needed}
    foreign = never_given_out(context.connection, list(extra))
    return [
        ManifestFinding("extra file", table, path, WHY_TAKEN if path in foreign else _UNKNOWN)
        for path, table in extra.items()
    ]


def _heal(
    context: JobContext, tables: Sequence[TableDirectories], reports: Sequence[CheckReport], totals: Totals
) -> None:
    """By way of what is pending, so that a crash leaves it to the next run of flush or of this."""
    for report in reports:
        if report.to_heal:
            users, directories = zip(*report.to_heal, strict=True)
            context.connection.execute(
                load("lakefork.catalog")["request_manifests"],
                {
                    "catalog_id": report.task.table.catalog_id, "table_id": report.task.table.table_id,
                    "run_id": context.run.run_id, "users": list(users), "directories": list(directories),
                },
            )  # fmt: skip
    written, problems = write_pending(context, [_key(table) for table in tables])
    totals.manifests_written += written
    totals.unwritten += problems
