"""Removes files that were staged and will not be published.

Only files whose footer has the mark of the job that staged them: others may have taken a name that it reserved.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

from lakefork.catalog.leases import require_leases, work_lease
from lakefork.catalog.roots import note_foreign
from lakefork.catalog.staging import StagedPath, forget_staged, staged_files
from lakefork.cold.batch import mark_of, read_mark
from lakefork.cold.batch_files import WHY_TAKEN
from lakefork.model.tables import TableRef
from lakefork.spark.job import JobContext
from lakefork.storage import StorageOptions
from lakefork.storage.removal import remove_many

Item = TypeVar("Item")
FILES_AT_ONCE = 100  # bounded, because the leases cannot be renewed during a batch
READ_AT_ONCE = 16


def discard_leftovers(context: JobContext, tables: Sequence[TableRef]) -> None:
    """Discards what earlier runs of the job staged and never published; their input still exists and is read again."""
    leftovers = staged_files(context.connection, context.run.job, tables)
    for job_id, group in groupby(sorted(leftovers, key=lambda file: file.job_id), lambda file: file.job_id):
        if removed := remove_staged(context, list(group)):
            context.progress(f"{removed} file(s) that {job_id} staged and did not publish were discarded")


def remove_unpublished(context: JobContext, tables: Sequence[TableRef]) -> None:
    """Removes files of repeated task attempts of this run, and of tables that could not be published."""
    staged = staged_files(context.connection, context.run.job, tables)
    if removed := remove_staged(context, [file for file in staged if file.job_id == context.run.job_id]):
        context.progress(f"{removed} file(s) of task attempts that did not count were removed")


def remove_staged(context: JobContext, files: Sequence[StagedPath]) -> int:
    """Removes staged files and returns their number; what cannot be removed is left to the next run.

    It requires the tables' leases: a file that another run has staged must not be removed.
    """
    problems: list[str] = []
    left: list[str] = []
    for some in in_parts(sorted(files, key=lambda file: file.table)):
        with under_leases(context, {file.table for file in some}):
            own, foreign = split_by_mark({file.path: file.job_id for file in some}, context.storage)
            outcomes = remove_many(own, context.storage)
            forget_staged(context.connection, [one.path for one in outcomes if one.ok])
            note_foreign(context.connection, context.run.job_id, foreign)
            problems += [f"{one.path}: {one.outcome}" for one in outcomes if not one.ok]
            left += foreign
    if problems:
        context.progress(f"{len(problems)} staged file(s) cannot be removed; the next run retries: {problems[0]}")
    if left:
        context.progress(f"{len(left)} file(s) are left alone, for example {left[0]}: {WHY_TAKEN}")
    return len(files) - len(problems) - len(left)


def split_by_mark(job_of: Mapping[str, str], storage: StorageOptions) -> tuple[list[str], list[str]]:
    """Splits paths of batches: files with the mark of their job or missing ones, and files of others."""

    def is_own(path: str) -> bool:
        try:
            return read_mark(path, storage) == mark_of(job_of[path])
        except OSError:  # its removal reports the error
            return True

    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        own = dict(zip(job_of, pool.map(is_own, job_of), strict=True))
    return [path for path, mine in own.items() if mine], [path for path, mine in own.items() if not mine]


def in_parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), FILES_AT_ONCE):
        yield items[start : start + FILES_AT_ONCE]


@contextmanager
def under_leases(context: JobContext, tables: Collection[TableRef]) -> Iterator[None]:
    """Opens a transaction in which no other run can lease the tables. Keep it short: the heartbeat waits for it."""
    context.check_leases()
    leases = [work_lease(context.run.job, table) for table in sorted(tables)]
    with context.connection.transaction():
        require_leases(context.connection, context.run.job_id, leases)
        yield
