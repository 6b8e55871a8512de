"""file_cleanup: deletes files that no catalog needs, in batches: checked and recorded first, then deleted.

In doubt nothing is removed: a look-up that fails or takes too long, a lost lease or a plan that is no longer valid
ends the run. Files that were recorded but not removed are removed by the next one.
"""

import contextlib
import datetime
import hashlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from lakefork.errors import JobFailedError
from lakefork.model.durations import seconds_of
from lakefork.model.params import FileCleanupParams
from lakefork.removal.batches import FILES_AT_ONCE, Removal
from lakefork.removal.ledger import RemovalRun, take_for_deletion, take_orphans
from lakefork.removal.plans import (
    FilesToClean,
    begin_cleanup_plan,
    cleanup_plan,
    count_to_clean,
    digest_of,
    finish_cleanup_plan,
    require_same,
    save_cleanup_plan,
)
from lakefork.spark.job import JobContext
from lakefork.storage import StorageOptions
from lakefork.storage.listing import list_directories, list_tree
from lakefork.storage.markers import is_marker
from lakefork.storage.removal import remove_many
from lakefork.upkeep.cleanup.orphan_plan import Orphan
from lakefork.upkeep.cleanup.orphans import find_orphans, known_paths
from lakefork.upkeep.cleanup.sidecars import forgotten_schema_files, manifests_beside

SHOWN = 50


@dataclass(frozen=True)
class Scope:
    """What a run covers: which catalog, scheduled until when, and whether storage is searched for orphans."""

    catalog: str | None
    scheduled_until: datetime.datetime
    orphans: bool


def run_file_cleanup(context: JobContext, params: FileCleanupParams) -> dict[str, Any]:
    scope, plan_id = _scope(context, params)
    if params.dry_run:
        return _plan(context, scope)
    cleanup = _Cleanup(context, plan_id)
    orphans = _approved(context, scope, plan_id) if plan_id else _orphans(context, scope)
    cleanup.removal.finish_earlier()
    cleanup.clean(scope)
    if scope.catalog is None:
        cleanup.clean_forgotten_schemas()
    if scope.orphans:
        cleanup.clean_orphans(orphans)
        cleanup.forget_empty_roots()
    trash_for = seconds_of(context.settings.cleanup.trash_for, "trash_for")
    cleanup.removal.empty_trash(datetime.timedelta(seconds=trash_for))
    if plan_id:
        finish_cleanup_plan(context.connection, plan_id)
    return cleanup.result()


def _scope(context: JobContext, params: FileCleanupParams) -> tuple[Scope, str | None]:
    if params.plan_id is None:
        age = seconds_of(params.older_than or context.settings.cleanup.older_than, "older_than")
        until = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        return Scope(params.catalog, until, params.orphans), None
    planned = cleanup_plan(context.connection, params.plan_id).params
    until = datetime.datetime.fromisoformat(planned["scheduled_until"])
    return Scope(planned["catalog"], until, planned["orphans"]), params.plan_id


def _plan(context: JobContext, scope: Scope) -> dict[str, Any]:
    counts = count_to_clean(context.connection, scope.catalog, scope.scheduled_until)
    orphans = list(_orphans(context, scope))
    plan_id = f"cleanup_{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{uuid.uuid4().hex[:6]}"
    kept = {"catalog": scope.catalog, "scheduled_until": scope.scheduled_until.isoformat(), "orphans": scope.orphans}
    save_cleanup_plan(context.connection, plan_id, context.run.run_id, kept, _digest(context, scope, orphans))
    lines = plan_lines(plan_id, counts, orphans)
    for line in lines:
        context.progress(line)
    size = sum(one.bytes for one in counts) + sum(orphan.size_bytes for orphan in orphans)
    return {
        "plan_id": plan_id, "files_planned": sum(one.files for one in counts), "orphans": len(orphans),
        "bytes_planned": size, "plan": "\n".join(lines),
    }  # fmt: skip


def plan_lines(plan_id: str, counts: Sequence[FilesToClean], orphans: Sequence[Orphan]) -> list[str]:
    """Renders the plan: totals, then each catalog with its tables, up to SHOWN lines of each kind."""
    files, size = sum(one.files for one in counts), sum(one.bytes for one in counts)
    lines = [f"plan {plan_id}: {files:,} scheduled file(s) ({size:,} bytes), {len(orphans):,} orphan(s)"]
    tables: list[str] = []
    for (name, parent), group in groupby(counts, lambda one: (one.catalog_name, one.parent_name)):
        of_catalog = list(group)
        files, size = sum(one.files for one in of_catalog), sum(one.bytes for one in of_catalog)
        fork = f" (fork of {parent})" if parent else ""
        tables.append(f"  {name}{fork}: {files:,} file(s), {size:,} bytes")
        tables += [
            f"    {one.table_name}: {one.files:,} file(s), {one.bytes:,} bytes: {one.reason}" for one in of_catalog
        ]
    listed = [f"  orphan {orphan.path} ({orphan.size_bytes:,} bytes)" for orphan in orphans]
    return lines + _first(tables) + _first(listed)


def _first(lines: Sequence[str]) -> list[str]:
    return [*lines[:SHOWN], *([f"  … and {len(lines) - SHOWN:,} more line(s)"] if len(lines) > SHOWN else [])]


def _approved(context: JobContext, scope: Scope, plan_id: str) -> Iterator[Orphan]:
    """Returns the orphans of a plan that is still valid. They are listed once: exactly what was compared is deleted."""
    plan = cleanup_plan(context.connection, plan_id)
    orphans = list(_orphans(context, scope))
    if plan.begun_at is None or scope.orphans:  # a started plan of scheduled files is resumed
        require_same(plan, _digest(context, scope, orphans))
    begin_cleanup_plan(context.connection, plan_id)
    return iter(orphans)


def _digest(context: JobContext, scope: Scope, orphans: Sequence[Orphan]) -> str:
    digest = digest_of(context.connection, scope.catalog, scope.scheduled_until)
    if not scope.orphans:
        return digest
    listed = "\n".join(sorted(orphan.path for orphan in orphans))
    return hashlib.sha256(f"{digest}\n{listed}".encode()).hexdigest()


def _orphans(context: JobContext, scope: Scope) -> Iterator[Orphan]:
    if not scope.orphans:
        return iter(())
    age = datetime.datetime.now(datetime.UTC) - scope.scheduled_until
    return find_orphans(context, scope.catalog, age)


class _Cleanup:
    def __init__(self, context: JobContext, plan_id: str | None) -> None:
        self._context = context
        run = RemovalRun(context.run.job_id, context.run.run_id, plan_id)
        self.removal = Removal(context, run, known_paths, trash=context.settings.cleanup.trash)
        self._orphans = 0

    def clean(self, scope: Scope) -> None:
        connection, run = self._context.connection, self.removal.run
        counts = count_to_clean(connection, scope.catalog, scope.scheduled_until)
        bar = self._context.bar(sum(one.files for one in counts))
        while True:
            self._context.check_leases()
            taken = take_for_deletion(connection, run, scope.catalog, scope.scheduled_until, FILES_AT_ONCE)
            if not taken.looked_at:
                return
            self.removal.remove(taken)
            self._remove_unclaimed(dict.fromkeys(manifests_beside(taken.paths.values()), 0))
            bar.reach(self.removal.totals.looked_at, self.removal.status())

    def clean_forgotten_schemas(self) -> None:
        for catalog_id, sizes in forgotten_schema_files(self._context.connection, self._context.storage):
            self._context.check_leases()
            if self._remove_unclaimed(sizes):
                self._context.connection.execute("SELECT lakefork.mark_configs_removed(%s)", (catalog_id,))

    def _remove_unclaimed(self, sizes: Mapping[str, int]) -> bool:
        """What no catalog claims; these are not counted as files of tables. Returns whether all that could go did."""
        if not sizes:
            return True
        taken = take_orphans(self._context.connection, self.removal.run, sizes, known_paths)
        return self.removal.remove_uncounted(taken)

    def clean_orphans(self, orphans: Iterator[Orphan]) -> None:
        while some := list(islice(orphans, FILES_AT_ONCE)):
            self._context.check_leases()
            sizes = {one.path: one.size_bytes for one in some}
            taken = take_orphans(self._context.connection, self.removal.run, sizes, known_paths)
            self._orphans += len(taken.paths)
            self.removal.remove(taken)
            self._context.progress(self.removal.status())

    def forget_empty_roots(self) -> None:
        """Forgets the data paths of expired catalogs once they are empty."""
        connection, storage = self._context.connection, self._context.storage
        rows = connection.execute("SELECT * FROM lakefork.forgotten_data_paths()").fetchall()
        empty = [row for row in rows if _is_empty(row["data_path"], storage, row["was_written"])]
        for row in empty:
            _remove_markers(row["data_path"], storage)
        connection.execute("SELECT lakefork.forget_data_paths(%s)", ([row["catalog_id"] for row in empty],))

    def result(self) -> dict[str, Any]:
        totals = self.removal.totals
        result = {
            "files_looked_at": totals.looked_at, "files_still_needed": totals.still_needed,
            "files_deleted": totals.deleted, "files_missing": totals.missing, "orphans": self._orphans,
            "bytes_freed": self.removal.bytes_freed(), "files_failed": totals.failed,
        }  # fmt: skip
        if totals.problem:
            raise JobFailedError(
                f"{totals.failed:,} file(s) could not be removed; the next run retries; the first: {totals.problem}",
                result,
            )
        return result


def _is_empty(root: str, storage: StorageOptions, was_written: bool) -> bool:
    """Tells whether a directory has only markers. A missing directory does not count as empty, because the wrong
    storage may be mounted.
    """
    try:
        if any(not is_marker(file.path) for file in list_tree(root, storage)):
            return False
        return not was_written or not root.startswith("/") or any(list_directories(root, storage))
    except FileNotFoundError:
        return not was_written


def _remove_markers(root: str, storage: StorageOptions) -> None:
    """Removes the markers of an expired catalog from directories in which nothing else is left."""
    with contextlib.suppress(FileNotFoundError):
        remove_many([file.path for file in list_tree(root, storage) if is_marker(file.path)], storage)
