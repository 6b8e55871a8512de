"""Markers: a directory is ours by one small file in it, which names the installation and the table that came first.

What removes or replaces files looks for it first. Readers do not see it: its name begins with a dot.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from lakefork.errors import ForeignFilesError, StorageError
from lakefork.storage import StorageOptions, read_file
from lakefork.storage.creation import create_file
from lakefork.storage.listing import is_there, list_tree
from lakefork.storage.paths import place

MARKER = ".lakefork-root.json"
_OUR_TRACES = (".lakefork-", f".{MARKER}.")  # markers and probes, and markers that are being written
_MOST_REMEMBERED = 100_000

KnownFiles = Callable[[], Sequence[str]]  # some files that the catalog has in a directory


@dataclass(frozen=True)
class RootOwner:
    """table_id: 0 for what a catalog keeps besides its tables."""

    installation: str
    catalog_id: int
    table_id: int


def is_ours(root: str, installation: str, storage: StorageOptions) -> bool:
    return _marked_by(root, storage) == installation


def belongs_to_others(root: str, installation: str, storage: StorageOptions) -> bool:
    return _marked_by(root, storage) not in (None, installation)


def require_usable(root: str, installation: str, storage: StorageOptions, known: KnownFiles) -> bool:
    """Whether a directory has our marker; raises unless it has, is empty, or has files that the catalog knows."""
    marked_by = _marked_by(root, storage)
    if marked_by is None and (found := _first_file(root, storage)) is not None:
        marked_by = _marked_by(root, storage)  # somebody may have claimed it in this moment
        if marked_by is None and not any(is_there(path, storage) for path in known()):
            raise ForeignFilesError(
                f"{place(root)} holds files that Lakefork did not write ({found}): give the table an empty directory, "
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
    """Makes a directory ours for good. Whoever else of this installation does so at the same time is fine."""
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
    """The same; a process looks once for each run, however many files it writes."""
    if (run, root) not in _claimed:
        claim_root(root, owner, storage, known)
        if len(_claimed) >= _MOST_REMEMBERED:
            _claimed.clear()
        _claimed.add((run, root))


def is_marker(path: str) -> bool:
    return path.rpartition("/")[2] == MARKER


def _marker_of(root: str) -> str:
    return f"{root.rstrip('/')}/{MARKER}"


def _marked_by(root: str, storage: StorageOptions) -> str | None:
    """The installation whose marker a directory has; '' if nobody can tell, None if it has none."""
    content = read_file(_marker_of(root), storage)
    if content is None:
        return None
    try:
        return str(json.loads(content)["installation"])
    except (ValueError, TypeError, KeyError):
        return ""


def _first_file(root: str, storage: StorageOptions) -> str | None:
    """A file or link anywhere in a directory that is not a trace of somebody who claims it."""
    paths = (file.path for file in list_tree(root, storage)) if root.startswith("s3://") else _files_and_links(root)
    return next((path for path in paths if not path.rpartition("/")[2].startswith(_OUR_TRACES)), None)


def _files_and_links(root: str) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        yield from (f"{directory}/{name}" for name in files)
        yield from (path for name in names if os.path.islink(path := f"{directory}/{name}"))  # noqa: PTH114
