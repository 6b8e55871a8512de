"""Copies files and computes their SHA-256 on the way; what is read once is hashed once."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import uuid4

from lakefork.storage import StorageOptions, open_path, put_object, replace_file
from lakefork.storage.creation import create_file, create_local

PART = 1 << 20
WHOLE = 8 << 20  # smaller files are read at once
LARGEST_IN_MEMORY = 256 << 20  # on their way to S3; larger ones are read twice


@dataclass(frozen=True)
class Content:
    """What a file holds, without its name."""

    digest: str
    size: int


def content_of(data: bytes) -> Content:
    return Content(hashlib.sha256(data).hexdigest(), len(data))


def read_content(path: str, options: StorageOptions) -> Content:
    """Reads a file to its end; FileNotFoundError if there is none."""
    hashing = _Hashing()
    with _parts(path, options) as parts:
        for part in parts:
            hashing.add(part)
    return hashing.content


def store_file(source: str, path_of: Callable[[Content], str], scratch: str, options: StorageOptions) -> Content:
    """Copies a file to the path that its content decides, replacing what was there. scratch: a directory beside it."""
    if path_of(Content("0" * 64, 0)).startswith("s3://"):
        return _store_on_s3(source, path_of, options)
    with _parts(source, options) as parts:
        first = next(parts, b"")
        if len(first) < WHOLE:
            content = content_of(bytes(first))
            replace_file(path_of(content), bytes(first), options)
            return content
        temporary = f"{scratch}/.{uuid4().hex}"
        with _removed_on_error(temporary):
            content = _write_parts(temporary, first, parts)
            os.replace(temporary, path_of(content))  # noqa: PTH105
            return content


def fetch_file(source: str, target: str, expected: Content, options: StorageOptions) -> Content:
    """Copies a file to a name that must be free, if its content is what is expected; otherwise nothing is there.

    Returns what was found. FileExistsError: the name is taken.
    """
    if target.startswith("s3://"):
        return _fetch_to_s3(source, target, expected, options)
    with _parts(source, options) as parts:
        first = next(parts, b"")
        if len(first) < WHOLE:
            content = content_of(bytes(first))
            if content == expected:
                create_file(target, bytes(first), options)
            return content
        directory, _, name = target.rpartition("/")
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
        temporary = f"{directory}/.{name}.{uuid4().hex}"
        with _removed_on_error(temporary):
            content = _write_parts(temporary, first, parts)
            if content == expected:
                create_local(temporary, target)
            else:
                os.unlink(temporary)  # noqa: PTH108
            return content


def _store_on_s3(source: str, path_of: Callable[[Content], str], options: StorageOptions) -> Content:
    data = _whole(source, options)
    content = read_content(source, options) if data is None else content_of(data)
    if data is None:
        _upload_parts(source, path_of(content), content, options)
    else:
        put_object(path_of(content), data, options)
    return content


def _fetch_to_s3(source: str, target: str, expected: Content, options: StorageOptions) -> Content:
    data = _whole(source, options)
    content = read_content(source, options) if data is None else content_of(data)
    if content == expected:
        if data is None:
            _upload_parts(source, target, content, options)
        else:
            create_file(target, data, options)
    return content


def _whole(source: str, options: StorageOptions) -> bytes | None:
    """None if it is too large to be kept in memory."""
    data = bytearray()
    with _parts(source, options) as parts:
        for part in parts:
            data += part
            if len(data) > LARGEST_IN_MEMORY:
                return None
    return bytes(data)


def _upload_parts(source: str, target: str, expected: Content, options: StorageOptions) -> None:
    """A file that changed between two readings leaves no object behind."""
    filesystem, inner = open_path(target, options)
    hashing = _Hashing()
    try:
        with _parts(source, options) as parts, filesystem.open_output_stream(inner) as stream:
            for part in parts:
                hashing.add(part)
                stream.write(part)
        if hashing.content != expected:
            raise OSError(f"{source} changed while it was read")
    except BaseException:
        with suppress(OSError):
            filesystem.delete_file(inner)
        raise


class _Hashing:
    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def add(self, part: Any) -> None:
        self._digest.update(part)
        self._size += len(part)

    @property
    def content(self) -> Content:
        return Content(self._digest.hexdigest(), self._size)


@contextmanager
def _parts(path: str, options: StorageOptions) -> Iterator[Iterator[Any]]:
    """The content in pieces; the first has all of a small file. A piece is good until the next one is asked for."""
    if path.startswith("s3://"):
        filesystem, inner = open_path(path, options)
        with filesystem.open_input_stream(inner) as stream:
            yield _pieces(lambda size: stream.read(size))
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        yield _pieces(lambda size: os.read(handle, size))
    finally:
        os.close(handle)


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    first = read(WHOLE)
    while 0 < len(first) < WHOLE and (more := read(WHOLE - len(first))):
        first += more
    yield first
    while len(first) == WHOLE and (piece := read(PART)):
        yield piece


def _write_parts(path: str, first: bytes, rest: Iterator[bytes]) -> Content:
    hashing = _Hashing()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for part in chain([first], rest):
            _write(handle, hashing, part)
    finally:
        os.close(handle)
    return hashing.content


def _write(handle: int, hashing: _Hashing, part: bytes) -> None:
    hashing.add(part)
    left = memoryview(part)
    while left:
        left = left[os.write(handle, left) :]


@contextmanager
def _removed_on_error(temporary: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
