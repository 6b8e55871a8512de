"""file_cleanup: removes files that no catalog needs, batch by batch: looked up and written down first, removed then.

Whoever is in doubt removes nothing: a look-up that fails or takes too long, a lost lease, a plan that is not true
any more end the run. What was written down and not removed is removed by the next one.
"""

import contextlib
import datetime
import hashlib
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from lakefork.catalog.cleanup import (
    begin_cleanup_plan,
    cleanup_plan,
    count_to_clean,
    digest_of,
    finish_cleanup_plan,
    finish_deletions,
    finish_restore,
    finish_trash,
    open_deletions,
    require_same,
    save_cleanup_plan,
    take_for_deletion,
    take_for_restore,
    take_old_trash,
    take_orphans,
)
from lakefork.catalog.connection import Connection
from lakefork.catalog.jobs import Leases
from lakefork.catalog.roots import data_paths, installation_id
from lakefork.durations import seconds_of
from lakefork.errors import JobFailedError
from lakefork.maintenance.orphans import Orphan
from lakefork.params import FileCleanupParams
from lakefork.spark.job import JobContext
from lakefork.spark.orphans import find_orphans, known_paths
from lakefork.spark.root_guard import RootGuard
from lakefork.storage import StorageOptions
from lakefork.storage.listing import list_directories, list_tree
from lakefork.storage.markers import is_marker
from lakefork.storage.paths import is_below, place
from lakefork.storage.removal import (
    KEPT,
    MOVED,
    TRASH,
    Removed,
    move_to_trash,
    remove_many,
    restore_from_trash,
    trash_path,
)

FILES_AT_ONCE = 5_000
FILES_PER_TASK = 500
RESTORED_AT_ONCE = 500
UNDELETE_SECONDS = 300  # for one batch of them
SHOWN = 50
GONE = ("removed", "missing", "trashed")


@dataclass
class Done:
    looked_at: int = 0
    still_needed: int = 0
    files_deleted: int = 0
    files_missing: int = 0
    orphans: int = 0
    failed: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Scope:
    """What a run looks at: of which catalog, scheduled until when, and whether storage is searched for orphans."""

    catalog: str | None
    scheduled_until: datetime.datetime
    orphans: bool


def run_file_cleanup(context: JobContext, params: FileCleanupParams) -> dict[str, Any]:
    scope, plan_id = _scope(context, params)
    if params.dry_run:
        return _plan(context, scope)
    cleanup = _Cleanup(context, plan_id)
    orphans = _approved(context, scope, plan_id) if plan_id else _orphans(context, scope)
    cleanup.finish_earlier()
    cleanup.clean(scope)
    if scope.orphans:
        cleanup.clean_orphans(orphans)
        cleanup.forget_empty_roots()
    cleanup.empty_trash()
    if plan_id:
        finish_cleanup_plan(context.connection, plan_id)
    return cleanup.result()


def _scope(context: JobContext, params: FileCleanupParams) -> tuple[Scope, str | None]:
    if params.plan_id is None:
        age = seconds_of(params.older_than or context.settings.cleanup.older_than, "older_than")
        until = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        return Scope(params.catalog, until, params.orphans), None
    planned = cleanup_plan(context.connection, params.plan_id)["params"]
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
    size = sum(row["bytes"] for row in counts) + sum(orphan.size_bytes for orphan in orphans)
    return {
        "plan_id": plan_id, "files_planned": sum(row["files"] for row in counts), "orphans": len(orphans),
        "bytes_planned": size, "plan": "\n".join(lines),
    }  # fmt: skip


def plan_lines(plan_id: str, counts: Sequence[dict[str, Any]], orphans: Sequence[Orphan]) -> list[str]:
    """The plan as people read it: totals, then each catalog with its tables, up to SHOWN lines of each kind."""
    files, size = sum(row["files"] for row in counts), sum(row["bytes"] for row in counts)
    lines = [f"plan {plan_id}: {files:,} scheduled file(s) ({size:,} bytes), {len(orphans):,} orphan(s)"]
    tables: list[str] = []
    for name, group in groupby(counts, lambda row: (row["catalog_name"], row["parent_name"])):
        of_catalog = list(group)
        files, size = sum(row["files"] for row in of_catalog), sum(row["bytes"] for row in of_catalog)
        fork = f" (fork of {name[1]})" if name[1] else ""
        tables.append(f"  {name[0]}{fork}: {files:,} file(s), {size:,} bytes")
        tables += [
            f"    {row['table_name']}: {row['files']:,} file(s), {row['bytes']:,} bytes: {row['reason']}"
            for row in of_catalog
        ]
    listed = [f"  no catalog knows {orphan.path} ({orphan.size_bytes:,} bytes)" for orphan in orphans]
    return lines + _first(tables) + _first(listed)


def _first(lines: Sequence[str]) -> list[str]:
    return [*lines[:SHOWN], *([f"  … and {len(lines) - SHOWN:,} more line(s)"] if len(lines) > SHOWN else [])]


def _approved(context: JobContext, scope: Scope, plan_id: str) -> Iterator[Orphan]:
    """The orphans of a plan that is still true. They are listed once: what was compared is what goes."""
    plan = cleanup_plan(context.connection, plan_id)
    orphans = list(_orphans(context, scope))
    if plan["begun_at"] is None or scope.orphans:  # of scheduled files, one that was begun is gone on with
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
        self._run = (context.run.job_id, context.run.run_id, plan_id)
        self._done = Done()
        self._started = time.monotonic()

    def finish_earlier(self) -> None:
        """What a run before wrote down and was cut off before it removed."""
        tried: set[int] = set()
        while left := [
            row
            for row in open_deletions(self._context.connection, FILES_AT_ONCE + len(tried))
            if row["deletion_id"] not in tried
        ]:
            self._context.progress(f"{len(left):,} file(s) that an earlier run did not come to remove")
            needed = known_paths(self._context.connection, [row["path"] for row in left if row["is_orphan"]])
            kept = [(row["deletion_id"], "needed", None) for row in left if row["path"] in needed]
            finish_deletions(self._context.connection, kept)
            self._remove({row["deletion_id"]: row["path"] for row in left if row["path"] not in needed})
            tried |= {row["deletion_id"] for row in left}

    def clean(self, scope: Scope) -> None:
        context = self._context
        counts = count_to_clean(context.connection, scope.catalog, scope.scheduled_until)
        bar = context.bar(sum(row["files"] for row in counts))
        while True:
            context.check_leases()
            taken = take_for_deletion(
                context.connection, self._run, scope.catalog, scope.scheduled_until, FILES_AT_ONCE
            )
            if not taken.looked_at:
                return
            self._done.looked_at += taken.looked_at
            self._done.still_needed += taken.still_needed
            self._remove(taken.paths)
            bar.reach(self._done.looked_at, self._said())

    def clean_orphans(self, orphans: Iterator[Orphan]) -> None:
        while some := list(islice(orphans, FILES_AT_ONCE)):
            self._context.check_leases()
            sizes = {one.path: one.size_bytes for one in some}
            taken = take_orphans(self._context.connection, self._run, sizes, known_paths)
            self._done.orphans += len(taken.paths)
            self._done.looked_at += taken.looked_at
            self._done.still_needed += taken.still_needed
            self._remove(taken.paths)
            self._context.progress(self._said())

    def forget_empty_roots(self) -> None:
        """Of catalogs that are forgotten, once nothing is left there."""
        connection, storage = self._context.connection, self._context.storage
        rows = connection.execute("SELECT * FROM lakefork.forgotten_data_paths()").fetchall()
        empty = [row for row in rows if _is_empty(row["data_path"], storage, row["was_written"])]
        for row in empty:
            _remove_markers(row["data_path"], storage)
        connection.execute("SELECT lakefork.forget_data_paths(%s)", ([row["catalog_id"] for row in empty],))

    def empty_trash(self) -> None:
        """What fails stays in the trash, is said, and is tried again by the next run."""
        context, last = self._context, 0
        age = datetime.timedelta(seconds=seconds_of(context.settings.cleanup.trash_for, "trash_for"))
        while old := take_old_trash(context.connection, context.run.job_id, age, last, FILES_AT_ONCE):
            context.check_leases()
            removed = dict(zip(old, _remove_all(context, list(old.values()), trash=False), strict=True))
            finish_trash(context.connection, {number: one.outcome for number, one in removed.items()})
            self._note_problems(removed.values())
            last = max(old)

    def _remove(self, paths: Mapping[int, str]) -> None:
        if not paths:
            return
        context = self._context
        context.check_leases()
        removed = _remove_all(context, list(paths.values()), trash=context.settings.cleanup.trash)
        outcomes = [(number, one.outcome, one.trash) for number, one in zip(paths, removed, strict=True)]
        finish_deletions(context.connection, outcomes)
        self._done.files_deleted += sum(one.outcome in ("removed", "trashed") for one in removed)
        self._done.files_missing += sum(one.outcome == "missing" for one in removed)
        self._note_problems(removed)

    def _note_problems(self, removed: Iterable["Gone"]) -> None:
        for one in removed:
            if one.outcome not in GONE:
                self._done.failed += 1
                self._done.problem = self._done.problem or f"{one.path}: {one.outcome}"

    def _said(self) -> str:
        done, seconds = self._done, max(time.monotonic() - self._started, 0.001)
        return (
            f"{done.looked_at:,} file(s) looked at, {done.still_needed:,} still needed, "
            f"{done.files_deleted:,} removed, {done.looked_at / seconds:,.0f}/s"
        )

    def result(self) -> dict[str, Any]:
        done, context = self._done, self._context
        row = context.connection.execute(
            "SELECT coalesce(sum(size_bytes), 0)::bigint AS bytes FROM lakefork.deletion "
            "WHERE run_id = %s AND outcome IN ('removed', 'trashed')",
            (context.run.run_id,),
        ).fetchone()
        result = {
            "files_looked_at": done.looked_at, "files_still_needed": done.still_needed,
            "files_deleted": done.files_deleted, "files_missing": done.files_missing, "orphans": done.orphans,
            "bytes_freed": row["bytes"] if row else 0, "files_failed": done.failed,
        }  # fmt: skip
        if done.problem:
            raise JobFailedError(
                f"{done.failed:,} file(s) could not be removed, the next run tries again; the first: {done.problem}",
                result,
            )
        return result


@dataclass(frozen=True)
class Gone:
    """What became of a file: 'removed', 'missing', 'trashed' (and where to), or what went wrong."""

    path: str
    outcome: str
    trash: str | None = None


def _remove_all(context: JobContext, paths: Sequence[str], *, trash: bool) -> list[Gone]:
    """In the order of the paths. Few are removed here, many by Spark's tasks. Other installations' files stay."""
    storage = context.storage
    guard = _guard(context)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()

    def remove(some: Sequence[str]) -> list[Gone]:
        refused = guard.refused(some, storage)
        ours = [path for path in some if path not in refused]
        gone = (
            _move_to_trash(ours, guard.data_paths, today, storage)
            if trash
            else [Gone(one.path, one.outcome) for one in remove_many(ours, storage)]
        )
        outcomes = {one.path: one for one in gone} | {path: Gone(path, why) for path, why in refused.items()}
        return [outcomes[path] for path in some]

    if len(paths) <= FILES_PER_TASK:
        return remove(paths)
    from pyspark import SparkContext

    tasks = [paths[start : start + FILES_PER_TASK] for start in range(0, len(paths), FILES_PER_TASK)]
    spark = SparkContext.getOrCreate()
    return [one for found in spark.parallelize(tasks, len(tasks)).map(remove).collect() for one in found]


def _move_to_trash(paths: Sequence[str], roots: Collection[str], today: str, storage: StorageOptions) -> list[Gone]:
    by_root: dict[str, list[str]] = {}
    for path in paths:
        by_root.setdefault(_root_of(path, roots), []).append(path)
    found = {
        one.path: _trashed(one, root, today)
        for root, some in by_root.items()
        for one in move_to_trash(some, root, today, storage)
    }
    return [found[path] for path in paths]


def _root_of(path: str, roots: Collection[str]) -> str:
    """The data path above a file; for tables with a LOCATION, and where the catalog is forgotten, its directory."""
    above = [root for root in roots if is_below(path, root)]
    return max(above, key=len, default=path.rpartition("/")[0])


def _trashed(one: Removed, root: str, today: str) -> Gone:
    if one.outcome == MOVED:
        return Gone(one.path, "trashed", trash_path(one.path, root, today))
    return Gone(one.path, "trashed", one.path) if one.outcome == KEPT else Gone(one.path, one.outcome)


def _is_empty(root: str, storage: StorageOptions, was_written: bool) -> bool:
    """But for markers. Cleanup leaves directories behind: without any, where something was written, it may not be the
    right storage.
    """
    try:
        if any(not is_marker(file.path) for file in list_tree(root, storage)):
            return False
        return not was_written or not root.startswith("/") or any(list_directories(root, storage))
    except FileNotFoundError:
        return not was_written


def _remove_markers(root: str, storage: StorageOptions) -> None:
    """From directories in which nothing else is left, of a catalog that is forgotten."""
    with contextlib.suppress(FileNotFoundError):
        remove_many([file.path for file in list_tree(root, storage) if is_marker(file.path)], storage)


def _guard(context: JobContext) -> RootGuard:
    paths = (place(path) for _, path in data_paths(context.connection))
    rows = context.connection.execute(
        "SELECT DISTINCT lakefork.place(t.path) AS path FROM public.ducklake_table t WHERE NOT t.path_is_relative"
    )
    return RootGuard(installation_id(context.connection), frozenset(paths), frozenset(row["path"] for row in rows))


def undelete(connection: Connection, run_id: str, storage: StorageOptions) -> tuple[int, list[str]]:
    """Brings back what a run put into the trash; how many files, and what went wrong with others.

    Under the lease of cleanup, so that nothing is emptied meanwhile. A file is marked before it is moved and after: one
    whose move was cut off is neither emptied nor swept, and is brought back by asking again.
    """
    leases = Leases(f"undelete/{run_id}/{uuid.uuid4().hex[:8]}", UNDELETE_SECONDS)
    leases.take(connection, FileCleanupParams.job)
    try:
        restored, problems, last = 0, [], 0
        while files := take_for_restore(connection, leases.holder, run_id, last, RESTORED_AT_ONCE):
            leases.renew(connection)
            outcomes = {row["deletion_id"]: _restore(row, storage) for row in files}
            back = [number for number, one in outcomes.items() if one.outcome in (MOVED, KEPT)]
            finish_restore(connection, back, list(outcomes.keys() - set(back)))
            restored += len(back)
            problems += [f"{one.path}: {one.outcome}" for number, one in outcomes.items() if number not in set(back)]
            last = max(outcomes)
        return restored, problems
    finally:
        leases.release(connection)


def _restore(row: dict[str, Any], storage: StorageOptions) -> Removed:
    root, _, rest = row["trash_path"].partition(f"/{TRASH}/")
    (one,) = restore_from_trash([row["path"]], root, rest.partition("/")[0], storage)
    return one
