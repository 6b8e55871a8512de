"""Brings files back from the trash."""

import uuid

from lakefork.catalog.connection import Connection
from lakefork.catalog.leases import Leases
from lakefork.model.params import FileCleanupParams
from lakefork.removal.ledger import TrashedFile, finish_restore, take_for_restore
from lakefork.storage import StorageOptions
from lakefork.storage.removal import TRASH, Removal, Removed, restore_from_trash

RESTORED_AT_ONCE = 500
UNDELETE_SECONDS = 300  # for one batch of files


def undelete(connection: Connection, run_id: str, storage: StorageOptions) -> tuple[int, list[str]]:
    """Restores files that a run moved to the trash; returns their number, and the errors of others.

    It holds the lease of cleanup, so that the trash is not emptied at the same time. A file is marked before and after
    its move: one whose move was interrupted is neither deleted nor an orphan, and is restored by the next call.
    """
    leases = Leases(f"undelete/{run_id}/{uuid.uuid4().hex[:8]}", UNDELETE_SECONDS)
    leases.take(connection, FileCleanupParams.job)
    try:
        restored, problems, last = 0, [], 0
        while files := take_for_restore(connection, leases.holder, run_id, last, RESTORED_AT_ONCE):
            leases.renew(connection)
            outcomes = {one.deletion_id: _restore(one, storage) for one in files}
            back = [number for number, one in outcomes.items() if one.outcome in (Removal.MOVED, Removal.KEPT)]
            finish_restore(connection, back, list(outcomes.keys() - set(back)))
            restored += len(back)
            problems += [f"{one.path}: {one.outcome}" for number, one in outcomes.items() if number not in set(back)]
            last = max(outcomes)
        return restored, problems
    finally:
        leases.release(connection)


def _restore(file: TrashedFile, storage: StorageOptions) -> Removed:
    root, _, rest = file.trash_path.partition(f"/{TRASH}/")
    (one,) = restore_from_trash([file.path], root, rest.partition("/")[0], storage)
    return one
