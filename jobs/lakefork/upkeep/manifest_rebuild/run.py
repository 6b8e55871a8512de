"""Runs manifest_rebuild: compares directories with the catalog on Spark, and rewrites wrong manifests."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.leases import table_lease, work_lease
from lakefork.catalog.roots import never_given_out
from lakefork.cold.batch_files import WHY_TAKEN
from lakefork.cold.layout import batch_directory
from lakefork.cold.schema_writer import SchemaWriter
from lakefork.errors import JobFailedError, NotFoundError, StorageError
from lakefork.manifests.cache_table import request_manifests
from lakefork.model.params import ManifestRebuildParams
from lakefork.model.tables import TableDefinition, TableRef
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import unwrap
from lakefork.upkeep.manifest_rebuild.plan import (
    LASTING,
    CheckTask,
    ManifestFinding,
    Owner,
    TableDirectories,
    plan_rounds,
    plan_tasks,
)
from lakefork.upkeep.manifest_rebuild.task import CheckReport, check_directories
from lakefork.upkeep.manifests import write_pending

_UNKNOWN = "no catalog knows it; file_cleanup with orphans removes such files"


@dataclass
class Totals:
    tables: int = 0
    directories: int = 0
    files: int = 0
    manifests_written: int = 0
    schemas_written: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    unwritten: list[str] = field(default_factory=list)

    def as_result(self) -> dict[str, Any]:
        return {
            "tables": self.tables, "directories": self.directories, "files": self.files,
            "findings": self.kinds.total(), "manifests_written": self.manifests_written,
            "schemas_written": self.schemas_written,
        }  # fmt: skip


def run_manifest_rebuild(context: JobContext, params: ManifestRebuildParams) -> dict[str, Any]:
    """Replaces wrong manifests, or with check_only only reports them. Batches are only read."""
    totals = Totals()
    if not (params.check_only or params.namespace or params.table):
        schemas = SchemaWriter(context.storage)
        totals.schemas_written, totals.unwritten = schemas.repair_all(context.connection, params.catalog)
    found = _find_directories(context, params)
    held = _check_all_tables(context, found, totals, heal=not params.check_only)
    while held and params.is_targeted:
        context.wait_for_leases({lease: one.name for one in held for lease in (_flush_lease(one), _dedup_lease(one))})
        held = _check_all_tables(context, held, totals, heal=not params.check_only)
    for one in held:
        context.progress(f"{one.name} is being worked on by another run: skipped")
    if not totals.tables:
        context.progress("there is nothing to check")
    _judge(totals, check_only=params.check_only)
    return totals.as_result()


def _judge(totals: Totals, *, check_only: bool) -> None:
    lasting = Counter({kind: count for kind, count in totals.kinds.items() if kind in LASTING})
    if check_only and totals.kinds:
        raise JobFailedError(
            f"{_counted(totals.kinds)}; each is listed above; run it without check_only to rewrite the manifests",
            totals.as_result(),
        )
    if lasting:
        raise JobFailedError(
            f"{_counted(lasting)}; each is listed above; restore the files from a backup",
            totals.as_result(),
        )
    if totals.unwritten:
        raise StorageError("; ".join(totals.unwritten))


def _counted(kinds: Counter[str]) -> str:
    return f"{kinds.total()} finding(s): {', '.join(f'{count}× {kind}' for kind, count in sorted(kinds.items()))}"


def _find_directories(context: JobContext, params: ManifestRebuildParams) -> list[TableDirectories]:
    """Returns the tables that have, or had, batches or manifests."""
    if params.catalog:
        find_catalog(context.connection, params.catalog)  # raises if it does not exist
    sql = load(__package__)
    rows = context.connection.execute(
        sql["manifest_tables"], {"catalog": params.catalog, "namespace": params.namespace, "table": params.table}
    )
    found = list(map(TableRef.of, rows))
    if not found and (params.namespace or params.table):
        raise NotFoundError(f"table {params.namespace or '*'}.{params.table or '*'} does not exist")
    definitions = {table: one.definition for table, one in find_definitions(context.connection, found).items()}
    owners = context.connection.execute(
        sql["manifest_owners"],
        {
            "catalogs": [one for one, _ in definitions], "tables": [one for _, one in definitions],
            "per_user": [one.per_user for one in definitions.values()], "user": params.user_id,
        },
    ).fetchall()  # fmt: skip
    return [_with_owners(definitions[table], group) for table, group in groupby(owners, TableRef.of)]


def _with_owners(definition: TableDefinition, rows: Iterable[dict[str, Any]]) -> TableDirectories:
    owners = tuple(
        Owner(
            row["user_id"], batch_directory(definition, row["user_id"] if definition.per_user else None), row["files"]
        )
        for row in rows
    )
    name = f"{definition.catalog}.{definition}"
    return TableDirectories(definition.catalog_id, definition.table_id, name, definition.per_user, owners)


def _check_all_tables(
    context: JobContext, found: Sequence[TableDirectories], totals: Totals, *, heal: bool
) -> list[TableDirectories]:
    """Checks all tables in rounds; returns the tables that other runs work on."""
    bar, looked_at = context.bar(len(found)), 0
    held: list[TableDirectories] = []
    for tables in plan_rounds(found):
        held += _check_round(context, tables, totals, heal=heal)
        looked_at += len(tables)
        bar.reach(looked_at, f"{looked_at:,} of {len(found):,} table(s), {totals.directories:,} directories checked")
    return held


def _check_round(
    context: JobContext, tables: Sequence[TableDirectories], totals: Totals, *, heal: bool
) -> list[TableDirectories]:
    """Checks one round of tables under their leases; returns the tables that other runs work on."""
    leased = _lease(context, tables)
    if leased:
        _check_leased(context, leased, totals, heal=heal)
    context.leases.release(context.connection)
    return [table for table in tables if table not in leased]


def _check_leased(context: JobContext, leased: Sequence[TableDirectories], totals: Totals, *, heal: bool) -> None:
    started = time.monotonic()
    reports = _run_tasks(context, [task for table in leased for task in plan_tasks(table)])
    context.check_leases()
    reports = _existing(context, reports)
    _count(context, leased, reports, totals)
    files = sum(report.files for report in reports)
    seconds = time.monotonic() - started
    context.progress(
        f"{files:,} file(s) in {sum(report.directories for report in reports):,} directories of {len(leased):,} "
        f"table(s) checked in {seconds:.1f} s ({files / seconds:,.0f}/s)"
    )
    if heal:
        _heal(context, leased, reports, totals)


def _lease(context: JobContext, tables: Sequence[TableDirectories]) -> list[TableDirectories]:
    """Leases the tables that neither flush nor dedup works on."""
    found = list(tables)
    for lease_of in (_flush_lease, _dedup_lease):
        taken = context.leases.acquire_available(context.connection, [lease_of(table) for table in found])
        found = [table for table in found if lease_of(table) in taken]
    return found


def _flush_lease(table: TableDirectories) -> str:
    return table_lease(*_key(table))


def _dedup_lease(table: TableDirectories) -> str:
    return work_lease("snapshot_dedup", _key(table))


def _key(table: TableDirectories) -> TableRef:
    return TableRef(table.catalog_id, table.table_id)


def _run_tasks(context: JobContext, tasks: Sequence[CheckTask]) -> list[CheckReport]:
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    installation = context.installation
    found = spark.parallelize(tasks, len(tasks)).map(lambda task: check_directories(installation, task)).collect()
    return [unwrap(report) for report in found]


def _existing(context: JobContext, reports: Sequence[CheckReport]) -> list[CheckReport]:
    """Removes tables that were dropped concurrently."""
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
    """Returns files that are not current batches, except those that an older snapshot, a fork or a run needs."""
    unknown = {path: report.task.table.name for report in reports for path in report.unknown}
    if not unknown:
        return []
    known = context.connection.execute(load(__package__)["known_files"], {"paths": list(unknown)})
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
    """Rewrites manifests by marking them as pending, so that after a crash the next run writes them."""
    for report in reports:
        if report.to_heal:
            request_manifests(
                context.connection, _key(report.task.table), dict(report.to_heal), run_id=context.run.run_id
            )
    written, problems = write_pending(context, [_key(table) for table in tables])
    totals.manifests_written += written
    totals.unwritten += problems
