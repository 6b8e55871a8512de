"""S3 for DuckDB, through pyarrow's file system: no extension to download."""

from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper

from lakefork.storage import StorageOptions, open_path


class S3FileSystem(ArrowFSWrapper):  # type: ignore[misc]
    """Connects when the first path is opened, so that lakes without S3 need no credentials."""

    protocol = "s3"
    cachable = False

    def __init__(self, options: StorageOptions) -> None:
        AbstractFileSystem.__init__(self)
        self._options = options

    @property
    def fs(self) -> Any:
        return _ByReference(self._options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("s3://")


class _ByReference:
    """The methods that reading needs; each path names its credentials."""

    def __init__(self, options: StorageOptions) -> None:
        self._options = options

    def get_file_info(self, path: str | list[str]) -> Any:
        if isinstance(path, list):
            return [self.get_file_info(one) for one in path]
        filesystem, inner = open_path(f"s3://{path}", self._options)
        return filesystem.get_file_info(inner)

    def open_input_file(self, path: str) -> Any:
        filesystem, inner = open_path(f"s3://{path}", self._options)
        return filesystem.open_input_file(inner)
