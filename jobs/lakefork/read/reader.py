"""A DuckDB that reads batches, and runs only SQL that Lakefork wrote."""

from typing import Any

import duckdb

from lakefork.storage import StorageOptions
from lakefork.storage.for_duckdb import S3FileSystem

COMMON = {"arrow_lossless_conversion": "true", "python_enable_replacements": "false"}


def open_reader(storage: StorageOptions, *, memory_mb: int, threads: int) -> Any:
    limits = {"memory_limit": f"{memory_mb}MB", "threads": str(threads)}
    reader = duckdb.connect(":memory:", config={**COMMON, **limits})
    reader.register_filesystem(S3FileSystem(storage))
    reader.execute("SET TimeZone = 'UTC'")
    reader.execute("SET disabled_optimizers = 'top_n_window_elimination'")  # it turns -0.0 into 0.0
    reader.execute("SET parquet_metadata_cache = true")  # batches never change
    reader.execute("SET autoinstall_known_extensions = false")
    reader.execute("SET autoload_known_extensions = false")
    reader.execute("SET lock_configuration = true")
    return reader
