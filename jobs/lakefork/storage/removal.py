"""Removes files, or moves them to the trash. The caller has made sure that nobody needs them."""

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from lakefork.errors import one_line
from lakefork.storage import StorageOptions, open_path
from lakefork.storage.paths import credentials_of, is_below, normal_path, place
from lakefork.storage.s3_requests import KEYS_PER_DELETE, S3Requests, bucket_and_key, requests_for

TRASH = ".trash"
AT_ONCE = 16  # concurrent requests to S3


class Removal(StrEnum):
    """What became of a file; any other text is an error, in one line."""

    REMOVED = "removed"
    MOVED = "moved"
    KEPT = "kept"  # in its place, tagged
    MISSING = "missing"


@dataclass(frozen=True)
class Removed:
    """The result for a file. outcome: see Removal."""

    path: str
    outcome: str

    @property
    def ok(self) -> bool:
        return self.outcome in set(Removal)


def remove_many(paths: Sequence[str], options: StorageOptions) -> list[Removed]:
    """Removes files; directories and links are refused. A failure does not affect the other files.

    On S3 a thousand per request; S3 calls 'removed' also what was not there. Where its keys are not in the environment
    (roles of machines), only pyarrow finds credentials, and it knows no such request: then one each, 16 at once.
    """
    once = dict.fromkeys(paths)
    outcomes = {path: _attempt(_unlink, path) for path in once if not _is_s3(path)}
    on_s3: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for path in once:
        if _is_s3(path):
            on_s3[credentials_of(normal_path(path)), _bucket(path)].append(path)
    for of_bucket in on_s3.values():
        requests = requests_for(normal_path(of_bucket[0]), options)
        outcomes |= _delete_in_bulk(requests, of_bucket, options) if requests else _delete_each(of_bucket, options)
    return [Removed(path, outcomes[path]) for path in paths]


def remove_empty_directories(directories: Iterable[str], root: str) -> None:
    """Removes the directories, those above them up to the root, and the root, unless something is in them.

    Looks for no others: one that is empty may be somebody else's, or about to be filled. S3 has no directories.
    """
    if _is_s3(root):
        return
    top = normal_path(root)
    found = {top}
    for given in directories:
        directory = normal_path(given)
        while is_below(directory, top) and directory not in found:
            found.add(directory)
            directory = os.path.dirname(directory)  # noqa: PTH120
    for directory in sorted(found, key=len, reverse=True):
        with suppress(OSError):  # not empty
            os.rmdir(directory)  # noqa: PTH106


def move_to_trash(paths: Sequence[str], root: str, date: str, options: StorageOptions) -> list[Removed]:
    """Local files go to <root>/.trash/<date>/<their path below the root>; date is YYYY-MM-DD. What was done is fine.

    On S3, where nothing can be moved without copying it, a file stays in its place ('kept') and gets the tag
    lakefork-trash=<date>, if the keys of S3 are in the environment: whoever remembers it removes it later.
    """
    if _is_s3(root):
        return _tag_each(paths, options, lambda requests, bucket, key: requests.tag(bucket, key, date))
    return [Removed(path, _attempt(lambda one: _move(one, trash_path(one, root, date)), path)) for path in paths]


def restore_from_trash(paths: Sequence[str], root: str, date: str, options: StorageOptions) -> list[Removed]:
    """Undoes move_to_trash; takes the original paths. A file that has since taken the name stays, and is reported."""
    if _is_s3(root):
        return _tag_each(paths, options, lambda requests, bucket, key: requests.untag(bucket, key))
    return [Removed(path, _attempt(lambda one: _move(trash_path(one, root, date), one), path)) for path in paths]


def trash_path(path: str, root: str, date: str) -> str:
    """Returns the path of a file in the trash of its root."""
    found, above = normal_path(path), normal_path(root)
    if not is_below(found, above) or {".", ".."} & set(found.split("/")):
        raise OSError(f"it is not in {above}")
    return f"{above}/{TRASH}/{date}/{found.removeprefix(f'{above}/')}"


def _attempt(action: Callable[[str], str], path: str) -> str:
    try:
        return action(path)
    except FileNotFoundError:
        return Removal.MISSING
    except OSError as error:
        return one_line((error.strerror or str(error)).splitlines()[0])


def _unlink(path: str) -> str:
    inner = normal_path(path)
    _require_file(inner)
    os.unlink(inner)  # noqa: PTH108 - half a million of these
    return Removal.REMOVED


def _require_file(path: str) -> None:
    if not path.startswith("/"):
        raise OSError("its path is not absolute")
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError("it is a link: only files are removed" if stat.S_ISLNK(mode) else "it is not a file")


def _move(path: str, target: str) -> str:
    source, target = normal_path(path), normal_path(target)
    if not os.path.lexists(source):
        return Removal.MOVED if os.path.lexists(target) else Removal.MISSING
    _require_file(source)
    if os.path.lexists(target):
        raise OSError(f"{target} is another file")
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    os.rename(source, target)  # noqa: PTH104
    return Removal.MOVED


def _delete_in_bulk(requests: S3Requests, paths: Sequence[str], options: StorageOptions) -> dict[str, str]:
    def delete(batch: Sequence[str]) -> dict[str, str]:
        keys = {path: bucket_and_key(normal_path(path), options)[1] for path in batch}
        try:
            failed = requests.delete_objects(_bucket(batch[0]), list(keys.values()))
        except OSError as error:
            return dict.fromkeys(batch, one_line(str(error).splitlines()[0]))
        return {path: one_line(failed.get(key, Removal.REMOVED)) for path, key in keys.items()}

    outcomes: dict[str, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in pool.map(delete, _batches(paths, KEYS_PER_DELETE)):
            outcomes |= done
    return outcomes


def _delete_each(paths: Sequence[str], options: StorageOptions) -> dict[str, str]:
    def delete(path: str) -> str:
        filesystem, inner = open_path(normal_path(path), options)
        filesystem.delete_file(inner)
        return Removal.REMOVED

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(paths, pool.map(lambda path: _attempt(delete, path), paths), strict=True))


def _tag_each(
    paths: Sequence[str], options: StorageOptions, change: Callable[[S3Requests, str, str], None]
) -> list[Removed]:
    def tag(path: str) -> str:
        if requests := requests_for(normal_path(path), options):
            change(requests, *bucket_and_key(normal_path(path), options))
        return Removal.KEPT

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [
            Removed(path, done)
            for path, done in zip(paths, pool.map(lambda path: _attempt(tag, path), paths), strict=True)
        ]


def _is_s3(path: str) -> bool:
    return normal_path(path).startswith("s3://")


def _bucket(path: str) -> str:
    return place(path).removeprefix("s3://").partition("/")[0]


def _batches(paths: Iterable[str], size: int) -> Iterable[list[str]]:
    rest = iter(paths)
    while batch := list(islice(rest, size)):
        yield batch
