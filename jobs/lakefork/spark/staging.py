"""Files that were staged and will not be published."""

from collections.abc import Sequence
from itertools import groupby

from lakefork.catalog.flushes import Table, forget_staged, require_leases, staged_files, work_lease
from lakefork.spark.job import JobContext
from lakefork.storage import remove_files


def discard_leftovers(context: JobContext, tables: Sequence[Table]) -> None:
    """What earlier runs of the job staged and never published: what they read is still there, and is read again."""
    leftovers = staged_files(context.connection, context.run.job, tables)
    for job_id, group in groupby(sorted(leftovers, key=lambda row: row["job_id"]), lambda row: row["job_id"]):
        paths = [row["path"] for row in group]
        if remove_staged(context, tables, paths):
            context.progress(f"{len(paths)} file(s) that {job_id} staged and did not publish were discarded")


def remove_what_did_not_count(context: JobContext, tables: Sequence[Table]) -> None:
    """Files of this run's task attempts that were tried again, and of what could not be written or published."""
    staged = staged_files(context.connection, context.run.job, tables)
    paths = [row["path"] for row in staged if row["job_id"] == context.run.job_id]
    if paths and remove_staged(context, tables, paths):
        context.progress(f"{len(paths)} file(s) of task attempts that did not count were removed")


def remove_staged(context: JobContext, tables: Sequence[Table], paths: Sequence[str]) -> bool:
    """Only under the tables' leases: a file that another run has staged meanwhile is not ours to remove."""
    try:
        with context.connection.transaction():
            leases = [work_lease(context.run.job, table) for table in tables]
            require_leases(context.connection, context.run.job_id, leases)
            remove_files(paths, context.storage)
            forget_staged(context.connection, paths)
    except OSError as error:
        said = str(error).splitlines()[0]
        context.progress(f"{len(paths)} staged file(s) cannot be removed, the next run tries again: {said}")
        return False
    return True
