"""File systems behind the smallest protocol that works: a path becomes a pyarrow file system and a path in it."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from pyarrow import fs


@dataclass(frozen=True)
class StorageOptions:
    """What is not secret about storage; it travels to Spark tasks. Credentials come from the environment there."""

    s3_endpoint: str = ""
    s3_region: str = ""


def open_path(path: str, options: StorageOptions) -> tuple[Any, str]:
    """The file system that holds a path (absolute, or s3://bucket/key), and the path as that file system names it."""
    if path.startswith("s3://"):
        return _s3(options), path.removeprefix("s3://")
    return _local(), path


@cache
def _local() -> Any:
    return fs.LocalFileSystem()


@cache
def _s3(options: StorageOptions) -> Any:
    arguments: dict[str, Any] = {}
    if options.s3_endpoint:
        scheme, _, host = options.s3_endpoint.rpartition("://")
        arguments = {"endpoint_override": host, "scheme": scheme or "https"}
    if options.s3_region:
        arguments["region"] = options.s3_region
    return fs.S3FileSystem(**arguments)
