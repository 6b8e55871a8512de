"""What a Spark task of a restore does: brings files of a backup to where a catalog has its files, and checks them."""

from lakefork.backups.format import DamagedBackupError, file_path
from lakefork.errors import StorageError, os_reason
from lakefork.storage.copying import Content, fetch_file, read_content
from lakefork.transfer.backup.restore_plan import FetchTask
from lakefork.transfer.backup.task import Destination


def fetch_files(source: Destination, task: FetchTask) -> int:
    """How many bytes came. To do it again changes nothing; a file that is damaged goes nowhere."""
    for digest, size, target in task.files:
        _fetch(source, Content(digest, size), target)
    return task.size


def _fetch(source: Destination, expected: Content, target: str) -> None:
    path = file_path(source.place, expected.digest)
    try:
        found = fetch_file(path, target, expected, source.storage)
    except FileExistsError:
        found = _of_first_attempt(target, expected, source)
    except FileNotFoundError:
        raise DamagedBackupError(f"{path} is missing: nothing was restored") from None
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {os_reason(error)}") from error
    if found != expected:
        raise DamagedBackupError(f"{path} is damaged, it is not what was written: nothing was restored")


def _of_first_attempt(target: str, expected: Content, source: Destination) -> Content:
    """A task that is tried again finds what it wrote before."""
    found = read_content(target, source.storage)
    if found != expected:
        raise StorageError(
            f"{target} already exists and was written by somebody else: Postgres may have been restored to an "
            "earlier time. Run it again, and other names are used"
        )
    return found
