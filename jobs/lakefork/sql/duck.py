"""The two DuckDBs of an engine: one reads batches for our own SQL, the other runs users' SQL and can reach nothing."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from lakefork.errors import InvalidInputError, LakeforkError, LimitError

_COMMON = {"arrow_lossless_conversion": "true", "python_enable_replacements": "false"}


class Duck:
    """threads and memory hold for each of the two; all statements share them."""

    def __init__(self, *, memory_mb: int, threads: int, timeout_seconds: float) -> None:
        limits = {"memory_limit": f"{memory_mb}MB", "threads": str(threads)}
        self._reader = duckdb.connect(":memory:", config={**_COMMON, **limits})
        self._reader.execute("SET TimeZone = 'UTC'")
        self._reader.execute("SET disabled_optimizers = 'top_n_window_elimination'")  # it turns -0.0 into 0.0
        self._locked = duckdb.connect(":memory:", config={**_COMMON, **limits})
        for name, value in _LOCKED.items():
            self._locked.execute(f"SET {name} = {value}")
        self._timeout = timeout_seconds

    @contextmanager
    def reader(self) -> Iterator["Cursor"]:
        """For SQL that Lakefork wrote."""
        with self._cursor(self._reader) as cursor:
            yield cursor

    @contextmanager
    def locked(self) -> Iterator["Cursor"]:
        """For SQL that somebody else wrote: no files, no extensions, no settings, only what is registered."""
        with self._cursor(self._locked) as cursor:
            yield cursor

    @contextmanager
    def _cursor(self, database: duckdb.DuckDBPyConnection) -> Iterator["Cursor"]:
        connection = database.cursor()
        try:
            yield Cursor(connection, self._timeout)
        finally:
            connection.close()

    def close(self) -> None:
        self._reader.close()
        self._locked.close()


class Cursor:
    """A connection of its own: what is registered here is seen here only."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, timeout_seconds: float) -> None:
        self._connection = connection
        self._timeout = timeout_seconds

    def register(self, relations: Mapping[str, Any]) -> None:
        for name, relation in relations.items():
            self._connection.register(name, relation)

    def query(self, sql: str, *, max_rows: int | None = None) -> pa.Table:
        timer = threading.Timer(self._timeout, self._connection.interrupt)
        timer.start()
        try:
            found = self._connection.execute(sql)
            return found.to_arrow_table() if max_rows is None else _limited(found, max_rows)
        except duckdb.Error as error:
            raise domain_error(error) from error
        finally:
            timer.cancel()


def _limited(found: duckdb.DuckDBPyConnection, max_rows: int) -> pa.Table:
    reader = found.to_arrow_reader(10_000)
    batches = []
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > max_rows:
            raise LimitError(f"the answer has more than {max_rows} rows: add LIMIT, or raise the setting sql.max_rows")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=reader.schema)


def domain_error(error: duckdb.Error) -> LakeforkError:
    """DuckDB's first line is made for people; the rest is an excerpt of SQL that the user did not write."""
    line = str(error).split("\n", 1)[0]
    said = line.split("Error: ", 1)[-1]
    if isinstance(error, duckdb.InterruptException):
        return LimitError("the statement took too long and was stopped (setting sql.statement_timeout_seconds)")
    if isinstance(error, duckdb.OutOfMemoryException):
        return LimitError("the statement needs more memory than it may have (setting sql.memory_mb)")
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return LakeforkError(f"the query engine failed: {said}")
    return InvalidInputError(said)


_LOCKED = {
    "TimeZone": "'UTC'",
    "temp_directory": "''",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
