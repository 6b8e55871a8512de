"""Files that a restore stages, and those that a dead one left.

What guards a removal: the file is in the list of a restore whose leases have run out, that list is locked so that it
cannot be published meanwhile, and the file holds what that restore was to bring there: a name that somebody else took
is left alone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakefork.catalog.connection import Connection
from lakefork.catalog.restores import dead_restores, forget_staged, lock_staged
from lakefork.catalog.staging import reserve_batches
from lakefork.errors import StorageError
from lakefork.hot.connections import ArrowConnection
from lakefork.spark.job import JobContext
from lakefork.storage import StorageOptions
from lakefork.storage.copying import Content, read_content
from lakefork.storage.removal import Removal, remove_many
from lakefork.transfer.backup.restore_plan import RestorePlan, StagedFile, files_per_directory, place_files

FILES_AT_ONCE = 500
READ_AT_ONCE = 8


def stage_plan(
    context: JobContext, plan: RestorePlan, catalog_id: int, data_path: str, *, by_reference: bool
) -> list[StagedFile]:
    """Reserves names, and writes down what will be there before any of it is."""
    counts = files_per_directory(plan, data_path, by_reference=by_reference)
    numbers = reserve_batches(
        context.connection, context.run.job_id, catalog_id, 0, list(counts), list(counts.values())
    )
    staged = place_files(plan, data_path, dict(zip(counts, numbers, strict=True)), by_reference=by_reference)
    writer = ArrowConnection(context.dsn, read_only=False, timeout_seconds=0, max_bytes=0)
    try:
        with writer.transaction():
            if staged:
                writer.copy_in("lakefork", "restore_file", _rows(context.run.job_id, plan, staged))
    finally:
        writer.close()
    return staged


def _rows(job_id: str, plan: RestorePlan, staged: Sequence[StagedFile]) -> pa.Table:
    files = [one.file for one in staged]
    return pa.table(
        {
            "job_id": [job_id] * len(staged),
            "file_number": pa.array([one.number for one in staged], pa.int64()),
            "table_ref": pa.array([one.table.ref for one in staged], pa.int64()),
            "source_file_id": pa.array([file.data_file_id for file in files], pa.int64()),
            "path": pa.array([one.path for one in staged], pa.string()),
            "full_path": pa.array([one.full_path for one in staged], pa.string()),
            "user_id": pa.array([file.user_id for file in files], pa.string()),
            "record_count": pa.array([file.rows for file in files], pa.int64()),
            "file_size_bytes": pa.array([file.size for file in files], pa.int64()),
            "footer_size": pa.array([file.footer_size for file in files], pa.int64()),
            "order_rank": pa.array([plan.ranks[file.snapshot] for file in files], pa.int64()),
            "statistics": [file.statistics for file in files],
            "digest": [file.digest for file in files],
        }
    )


def discard_dead_restores(context: JobContext) -> None:
    """What restores that were cut off had staged; none of it was ever visible."""
    for job_id in dead_restores(context.connection, context.run.job_id):
        removed = discard_staged(context, job_id)
        context.progress(f"{removed:,} file(s) that {job_id} staged and did not publish were discarded")


def discard_staged(context: JobContext, job_id: str) -> int:
    """How many files are gone."""
    removed = 0
    while True:
        context.check_leases()
        with context.connection.transaction():
            files = lock_staged(context.connection, job_id, FILES_AT_ONCE)
            if not files:
                forget_staged(context.connection, job_id, None)
                return removed
            removed += _remove(context.connection, job_id, files, context.storage)


def _remove(connection: Connection, job_id: str, files: Sequence[tuple[str, str, int]], storage: StorageOptions) -> int:
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        mine = list(pool.map(lambda one: _is_ours(one[0], Content(one[1], one[2]), storage), files))
    outcomes = remove_many([path for (path, *_), is_mine in zip(files, mine, strict=True) if is_mine], storage)
    if problems := [f"{one.path}: {one.outcome}" for one in outcomes if not one.ok]:
        raise StorageError(f"what a restore before left cannot be removed: {problems[0]}")
    forget_staged(connection, job_id, [path for path, *_ in files])
    return sum(one.outcome != Removal.MISSING for one in outcomes)


def _is_ours(path: str, expected: Content, storage: StorageOptions) -> bool:
    try:
        return read_content(path, storage) == expected
    except FileNotFoundError:
        return False
