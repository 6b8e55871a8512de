"""Lists all files of a tree, a few at a time, so that memory stays bounded."""

import datetime
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pyarrow import fs

from lakefork.storage import StorageOptions, open_path
from lakefork.storage.paths import normal_path, place
from lakefork.storage.s3_requests import S3Object, S3Requests, bucket_and_key, requests_for


@dataclass(frozen=True)
class StoredFile:
    """A listed file. path: normalized, as by lakefork.place. modified: for a local file also the time of a move."""

    path: str
    size_bytes: int
    modified: datetime.datetime


@dataclass(frozen=True)
class Span:
    """A part of a directory: its entries (directories with a slash) from `first` up to but excluding `until`."""

    first: str = ""
    until: str = ""

    def holds(self, name: str) -> bool:
        found = name.encode()
        return found >= self.first.encode() and not (self.until and found >= self.until.encode())


EVERYTHING = Span()


def list_tree(
    root: str, options: StorageOptions, *, skip: Collection[str] = (), span: Span = EVERYTHING
) -> Iterator[StoredFile]:
    """All files below a directory; links are neither listed nor followed, and so it never leaves the root.

    skip: places of directories to leave out. Names that the catalog could not have written down (not UTF-8; on S3 keys
    with empty or dotted parts) are left out: no path leads to them alone.
    A local root that does not exist is a FileNotFoundError; S3 has no directories, so there it is empty.
    """
    if not root.startswith("s3"):
        yield from _local_tree(normal_path(root), frozenset(skip), span)
    elif requests := requests_for(normal_path(root), options):
        yield from _s3_tree(requests, normal_path(root), options, frozenset(skip), span)
    else:
        yield from _arrow_tree(normal_path(root), options, frozenset(skip), span)


def list_directories(root: str, options: StorageOptions) -> Iterator[str]:
    """Returns the names of the subdirectories, unordered; empty if the directory does not exist."""
    root = normal_path(root)
    if not root.startswith("s3://"):
        yield from (name for name, _ in _local_entries(root, lambda entry: entry.is_dir(follow_symlinks=False)))
    elif requests := requests_for(root, options):
        bucket, key = bucket_and_key(root, options)
        prefix = _prefix(key)
        for found in requests.list_objects(bucket, prefix, delimiter="/"):
            if isinstance(found, str) and _is_normal(name := found.removeprefix(prefix).removesuffix("/")):
                yield name
    else:
        filesystem, inner = open_path(root, options)
        found = filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
        yield from (info.base_name for info in found if info.type == fs.FileType.Directory)


def path_exists(path: str, options: StorageOptions) -> bool:
    filesystem, inner = open_path(normal_path(path), options)
    return bool(filesystem.get_file_info(inner).is_file)


def _local_tree(root: str, skip: frozenset[str], span: Span) -> Iterator[StoredFile]:
    os.stat(root)  # noqa: PTH116 - it must be there
    directories = [root]
    while directories:
        directory = directories.pop()
        for name, entry in _local_entries(directory):
            path = f"{directory.rstrip('/')}/{name}"
            is_directory = entry.is_dir(follow_symlinks=False)
            if directory == root and not span.holds(f"{name}/" if is_directory else name):
                continue
            if is_directory and path not in skip:
                directories.append(path)
            elif entry.is_file(follow_symlinks=False) and (found := _stored(path, entry)):
                yield found


def _local_entries(
    directory: str, wanted: Callable[["os.DirEntry[str]"], bool] = lambda _: True
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    try:
        with os.scandir(directory) as entries:
            yield from ((entry.name, entry) for entry in entries if _is_text(entry.name) and wanted(entry))
    except FileNotFoundError:  # removed concurrently
        return


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stored(path: str, entry: "os.DirEntry[str]") -> StoredFile | None:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    latest = max(found.st_mtime, found.st_ctime)  # a file restored from a backup has an old mtime
    return StoredFile(path, found.st_size, datetime.datetime.fromtimestamp(latest, datetime.UTC))


def _s3_tree(
    requests: S3Requests, root: str, options: StorageOptions, skip: frozenset[str], span: Span
) -> Iterator[StoredFile]:
    bucket, key = bucket_and_key(root, options)
    prefix, above = _prefix(key), place(root)
    after = prefix + span.first if span.first else ""
    for found in requests.list_objects(bucket, prefix, after=after):
        if not isinstance(found, S3Object):
            continue
        name = found.key.removeprefix(prefix)
        if span.until and name.encode() >= span.until.encode():
            return
        path = f"{above}/{name}"
        if _is_normal(name) and not _is_within(path, skip):
            yield StoredFile(path, found.size_bytes, found.modified)


def _arrow_tree(root: str, options: StorageOptions, skip: frozenset[str], span: Span) -> Iterator[StoredFile]:
    """Lists with pyarrow, one directory in memory at a time."""
    filesystem, inner = open_path(root, options)
    directories = [inner]
    above = place(root)
    while directories:
        directory = directories.pop()
        for info in filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True)):
            is_directory = info.type == fs.FileType.Directory
            if directory == inner and not span.holds(f"{info.base_name}/" if is_directory else info.base_name):
                continue
            path = f"{above}/{info.path.removeprefix(f'{inner}/')}"
            if is_directory and path not in skip:
                directories.append(info.path)
            elif info.is_file:
                yield StoredFile(path, info.size, info.mtime)


def _prefix(key: str) -> str:
    return f"{key}/" if key else ""


def _is_normal(name: str) -> bool:
    """Tells whether key and path correspond one to one; directory markers and odd keys do not."""
    return not {"", ".", ".."} & set(name.split("/")) and min(name) >= " "  # XML cannot represent control characters


def _is_within(path: str, directories: frozenset[str]) -> bool:
    return any(path.startswith(f"{directory}/") for directory in directories)
