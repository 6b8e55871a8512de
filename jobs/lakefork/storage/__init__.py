"""File systems behind the smallest protocol that works: local files and S3, through pyarrow."""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from lakefork.errors import InvalidInputError
from lakefork.storage.credentials import named_credentials
from lakefork.storage.paths import credentials_of

PUTS_AT_ONCE = 8


@dataclass(frozen=True)
class StorageOptions:
    """Storage options without secrets, which are sent to Spark tasks. Credentials come from the environment there: the
    usual AWS variables, or for s3://REF@bucket/key those that the reference names.
    """

    s3_endpoint: str = ""
    s3_region: str = ""


def open_path(path: str, options: StorageOptions) -> tuple[Any, str]:
    """Returns the file system of a path (absolute, or s3://[REF@]bucket/key), and the path within it."""
    if path.startswith("s3://"):
        inner = path.removeprefix("s3://")
        reference = credentials_of(path)
        return _s3(options, reference), inner.partition("@")[2] if reference else inner
    return _local(), path


@cache
def _local() -> Any:
    return fs.LocalFileSystem()


@cache
def _s3(options: StorageOptions, reference: str | None) -> Any:
    arguments: dict[str, Any] = {"allow_delayed_open": True}  # a small file is one request, not three
    if reference:
        arguments |= named_credentials(reference)
    if options.s3_endpoint:
        scheme, _, host = options.s3_endpoint.rpartition("://")
        arguments |= {"endpoint_override": host, "scheme": scheme or "https"}
    if options.s3_region:
        arguments["region"] = options.s3_region
    return fs.S3FileSystem(**arguments)


def write_files(files: Sequence[tuple[str, Any]], write: Callable[[str, Any], None]) -> None:
    """Writes files, several at a time on S3; local files one by one, which is faster."""
    remote = [file for file in files if file[0].startswith("s3://")]
    if remote:
        with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
            list(pool.map(lambda file: write(*file), remote))
    for path, content in files:
        if not path.startswith("s3://"):
            write(path, content)


def replace_file(path: str, content: bytes, options: StorageOptions) -> None:
    """Replaces a file atomically: by rename, or on S3 by one put."""
    if path.startswith("s3://"):
        put_object(path, content, options)
    else:
        write_local(path, content, os.rename)


def read_file(path: str, options: StorageOptions) -> bytes | None:
    """Returns the content of a small file; None if it does not exist."""
    filesystem, inner = open_path(path, options)
    try:
        with filesystem.open_input_stream(inner) as stream:
            content: bytes = stream.read()
    except FileNotFoundError:
        return None
    return content


def file_version(path: str, options: StorageOptions) -> str | None:
    """Returns what changes with the file: S3's ETag, or time and size of a local file; None if it does not exist."""
    filesystem, inner = open_path(path, options)
    try:
        if path.startswith("s3://"):
            with filesystem.open_input_stream(inner) as stream:
                return str(stream.metadata()["ETag"].decode().strip('"'))
        found = os.stat(inner)  # noqa: PTH116
    except FileNotFoundError:
        return None
    return f"{found.st_mtime_ns}-{found.st_size}-{found.st_ino}"


def list_files(directory: str, options: StorageOptions) -> dict[str, int]:
    """Returns the files of a directory with their sizes; empty if it does not exist."""
    filesystem, inner = open_path(directory, options)
    if not directory.startswith("s3://"):
        try:
            with os.scandir(inner) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}
    found = filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
    return {info.base_name: info.size for info in found if info.is_file}


def put_object(path: str, content: bytes | pa.Buffer, options: StorageOptions) -> None:
    filesystem, inner = open_path(path, options)
    with filesystem.open_output_stream(inner) as stream:
        stream.write(content)


def write_local(path: str, content: bytes | pa.Buffer, publish: Callable[[str, str], None]) -> None:
    """Writes a temporary file, which publish moves to its path. Plain system calls, as a flush may write 10,000
    files.
    """
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.{uuid4().hex}"
    try:
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError:
            _make_directory(directory)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
        publish(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise


def _make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
    except FileExistsError as error:  # a dangling link; callers take FileExistsError to be about the file
        raise NotADirectoryError(f"{directory} is not a directory") from error


def make_durable(path: str) -> None:
    """Makes all files on the path's file system survive a power failure; S3 guarantees that by itself."""
    if path.startswith("s3://"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        if _libc().syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed", path)
    except AttributeError:  # not Linux
        os.sync()
    finally:
        os.close(handle)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def move_file(path: str, target: str, options: StorageOptions) -> None:
    filesystem, inner = open_path(path, options)
    _, inner_target = open_path(target, options)
    if not path.startswith("s3://"):
        filesystem.create_dir(inner_target.rpartition("/")[0], recursive=True)
    filesystem.move(inner, inner_target)


def require_access(path: str, options: StorageOptions) -> None:
    """Writes and removes a small file there; raises if that fails."""
    filesystem, inner = open_path(path, options)
    probe = f"{inner.rstrip('/')}/.lakefork-{uuid4().hex}"
    try:
        if not path.startswith("s3://"):
            filesystem.create_dir(inner, recursive=True)
        with filesystem.open_output_stream(probe) as stream:
            stream.write(b"")
        filesystem.delete_file(probe)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written to: {str(error).splitlines()[0]}") from None
