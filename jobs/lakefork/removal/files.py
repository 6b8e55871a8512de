"""Removes files that the ledger names, here or by Spark's tasks; those of other installations stay."""

import datetime
from collections.abc import Collection, Sequence

from lakefork.catalog.roots import data_paths, installation_id
from lakefork.removal.ledger import FileOutcome, Outcome
from lakefork.spark.job import JobContext
from lakefork.storage import StorageOptions
from lakefork.storage.paths import is_below, place
from lakefork.storage.removal import Removal, Removed, move_to_trash, remove_many, trash_path
from lakefork.storage.root_guard import RootGuard

FILES_PER_TASK = 500


def remove_files(context: JobContext, paths: Sequence[str], *, trash: bool) -> list[FileOutcome]:
    """Deletes files in the order of the paths: few here, many in Spark tasks. Other installations' files stay."""
    storage = context.storage
    guard = _guard(context)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()

    def remove(some: Sequence[str]) -> list[FileOutcome]:
        refused = guard.refused(some, storage)
        ours = [path for path in some if path not in refused]
        gone = (
            _move_to_trash(ours, guard.data_paths, today, storage)
            if trash
            else [FileOutcome(one.path, one.outcome) for one in remove_many(ours, storage)]
        )
        outcomes = {one.path: one for one in gone} | {path: FileOutcome(path, why) for path, why in refused.items()}
        return [outcomes[path] for path in some]

    if len(paths) <= FILES_PER_TASK:
        return remove(paths)
    from pyspark import SparkContext

    tasks = [paths[start : start + FILES_PER_TASK] for start in range(0, len(paths), FILES_PER_TASK)]
    spark = SparkContext.getOrCreate()
    return [one for found in spark.parallelize(tasks, len(tasks)).map(remove).collect() for one in found]


def _move_to_trash(
    paths: Sequence[str], roots: Collection[str], today: str, storage: StorageOptions
) -> list[FileOutcome]:
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
    """Returns the data path above a file; its directory for a LOCATION or an expired catalog."""
    above = [root for root in roots if is_below(path, root)]
    return max(above, key=len, default=path.rpartition("/")[0])


def _trashed(one: Removed, root: str, today: str) -> FileOutcome:
    if one.outcome == Removal.MOVED:
        return FileOutcome(one.path, Outcome.TRASHED, trash_path(one.path, root, today))
    if one.outcome == Removal.KEPT:
        return FileOutcome(one.path, Outcome.TRASHED, one.path)
    return FileOutcome(one.path, one.outcome)


def _guard(context: JobContext) -> RootGuard:
    paths = (place(path) for _, path in data_paths(context.connection))
    rows = context.connection.execute(
        "SELECT DISTINCT lakefork.place(t.path) AS path FROM lakefork.retained_table t WHERE NOT t.path_is_relative"
    )
    return RootGuard(installation_id(context.connection), frozenset(paths), frozenset(row["path"] for row in rows))
