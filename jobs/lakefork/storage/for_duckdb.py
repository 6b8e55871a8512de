"""S3 for DuckDB, through the same pyarrow file system that all of Lakefork uses: no extension to download."""

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
        return open_path("s3://", self._options)[0]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("s3://")
