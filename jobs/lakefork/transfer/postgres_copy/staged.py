"""Files that a copy into the lake staged: kept until the copy is published, or given up."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from lakefork.catalog.connection import Connection
from lakefork.catalog.staging import forget_staged
from lakefork.cold.batch import mark_of, read_mark
from lakefork.storage import StorageOptions
from lakefork.storage.removal import remove_many

READ_AT_ONCE = 16


def staged_job(copy_id: str) -> str:
    """Under this name all runs of a copy stage files; no other job ever looks for them."""
    return f"postgres_copy/{copy_id}"


def remove_staged_files(
    connection: Connection, copy_id: str, storage: StorageOptions, keep: Collection[str] = ()
) -> int:
    """Removes files that the copy staged and no step has; returns how many. Files without its mark are left alone.

    What cannot be removed stays noted as staged: the next run or `abandon` tries again.
    """
    kept = set(keep)
    rows = connection.execute("SELECT path FROM lakefork.staged_file WHERE job_id = %s", (staged_job(copy_id),))
    paths = [row["path"] for row in rows if row["path"] not in kept]
    mark = mark_of(staged_job(copy_id))

    def is_own(path: str) -> bool:
        try:
            return read_mark(path, storage) == mark
        except FileNotFoundError:
            return True
        except OSError:
            return False

    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        own = [path for path, mine in zip(paths, pool.map(is_own, paths), strict=True) if mine]
    outcomes = remove_many(own, storage)
    gone = [one.path for one in outcomes if one.ok]
    forget_staged(connection, gone)
    return len(gone)
