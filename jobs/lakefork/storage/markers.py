"""Markers: a small file that makes a directory ours, with the installation's id and that of the first table there.

Code that removes or replaces files checks it first. Readers ignore it, as its name begins with a dot.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from lakefork.errors import ForeignFilesError, StorageError
from lakefork.storage import StorageOptions, read_file
from lakefork.storage.creation import create_file
from lakefork.storage.listing import list_tree, path_exists
from lakefork.storage.paths import place

MARKER = ".lakefork-root.json"
_OUR_TRACES = (".lakefork-", f".{MARKER}.")  # markers, probes and unfinished markers
_MAX_REMEMBERED = 100_000

KnownFiles = Callable[[], Sequence[str]]  # some files that the catalog knows in a directory


@dataclass(frozen=True)
class RootOwner:
    """The owner named by a marker; table_id 0: files of the catalog itself."""

    installation: str
    catalog_id: int
    table_id: int


def is_ours(root: str, installation: str, storage: StorageOptions) -> bool:
    return _marked_by(root, storage) == installation


def belongs_to_others(root: str, installation: str, storage: StorageOptions) -> bool:
    return _marked_by(root, storage) not in (None, installation)


def require_usable(root: str, installation: str, storage: StorageOptions, known: KnownFiles) -> bool:
    """Returns whether a directory has our marker; raises unless it has, is empty, or has files that the catalog
    knows.
    """
    marked_by = _marked_by(root, storage)
    if marked_by is None and (found := _first_file(root, storage)) is not None:
        marked_by = _marked_by(root, storage)  # it may have been claimed concurrently
        if marked_by is None and not any(path_exists(path, storage) for path in known()):
            raise ForeignFilesError(
                f"{place(root)} holds files that Lakefork did not write ({found}): use an empty directory, "
                "or move them away"
            )
    elif marked_by is None and known():
        raise ForeignFilesError(
            f"{place(root)} has none of the files that the catalog has there: is the right storage mounted?"
        )
    if marked_by not in (None, installation):
        raise ForeignFilesError(
            f"{place(root)} belongs to another installation of Lakefork ({marked_by or 'its marker cannot be read'}; "
            f"this one is {installation}): two cannot share a directory"
        )
    return marked_by is not None


def claim_root(root: str, owner: RootOwner, storage: StorageOptions, known: KnownFiles) -> None:
    """Makes a directory ours permanently. Other processes of this installation may do so at the same time."""
    try:
        if not require_usable(root, owner.installation, storage, known):
            content = json.dumps({"format": 1, **asdict(owner)}).encode()
            try:
                create_file(_marker_of(root), content, storage)
            except FileExistsError:
                require_usable(root, owner.installation, storage, known)
    except OSError as error:
        raise StorageError(f"{place(root)} cannot be written to: {str(error).splitlines()[0]}") from error


_claimed: set[tuple[str, str]] = set()


def claim_once(run: str, root: str, owner: RootOwner, storage: StorageOptions, known: KnownFiles) -> None:
    """Claims a directory once per process and run, however many files are written."""
    if (run, root) not in _claimed:
        claim_root(root, owner, storage, known)
        if len(_claimed) >= _MAX_REMEMBERED:
            _claimed.clear()
        _claimed.add((run, root))


def is_marker(path: str) -> bool:
    return path.rpartition("/")[2] == MARKER


def _marker_of(root: str) -> str:
    return f"{root.rstrip('/')}/{MARKER}"


def _marked_by(root: str, storage: StorageOptions) -> str | None:
    """Returns the installation in a directory's marker; '' if it cannot be read, None without a marker."""
    content = read_file(_marker_of(root), storage)
    if content is None:
        return None
    try:
        return str(json.loads(content)["installation"])
    except (ValueError, TypeError, KeyError):
        return ""


def _first_file(root: str, storage: StorageOptions) -> str | None:
    """Returns a file or link anywhere in a directory, other than markers and probes."""
    paths = (file.path for file in list_tree(root, storage)) if root.startswith("s3://") else _files_and_links(root)
    return next((path for path in paths if not path.rpartition("/")[2].startswith(_OUR_TRACES)), None)


def _files_and_links(root: str) -> Iterator[str]:
    """However deep they lie; os.walk fails beyond a thousand directories."""
    directories = [root]
    while directories:
        try:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    else:
                        yield entry.path
        except FileNotFoundError:
            continue
