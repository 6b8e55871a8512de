"""The DuckDBs of an engine: one reads batches for our own SQL, others run users' SQL and can reach nothing else."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lakefork.cold.reader import COMMON, open_reader
from lakefork.errors import InvalidInputError, LakeforkError, LimitError
from lakefork.predicates import Predicate, duckdb_literal, quoted
from lakefork.storage import StorageOptions

ATTEMPTS = 5
KEPT_WITH_FILES = 4
MOST_KNOWN_FILES = 20_000


class InterruptedQueryError(LimitError):
    """DuckDB stopped a query: mostly because its time was over."""


class Duck:
    """threads and memory hold for each of the two; all statements share them."""

    def __init__(self, storage: StorageOptions, *, memory_mb: int, threads: int, timeout_seconds: float) -> None:
        limits = {"memory_limit": f"{memory_mb}MB", "threads": str(threads)}
        self._reader = open_reader(storage, memory_mb=memory_mb, threads=threads)
        self._limits = {**COMMON, **limits}
        self._locked = self._lock(frozenset())
        self._with_files: OrderedDict[frozenset[str], duckdb.DuckDBPyConnection] = OrderedDict()
        self._lock_of_those = threading.Lock()
        self._watchdog = Watchdog(timeout_seconds)
        self._max_bytes = memory_mb << 20
        self._columns: dict[str, dict[int, str]] = {}

    @contextmanager
    def reader(self) -> Iterator["Cursor"]:
        """For SQL that Lakefork wrote."""
        with self._cursor(self._reader) as cursor:
            yield cursor

    @contextmanager
    def locked(self, paths: frozenset[str] = frozenset()) -> Iterator["Cursor"]:
        """For SQL that somebody else wrote: no extensions, no settings, no files but these, what is registered."""
        with self._cursor(self._with(paths) if paths else self._locked) as cursor:
            yield cursor

    def _with(self, paths: frozenset[str]) -> duckdb.DuckDBPyConnection:
        """A DuckDB whose files cannot be changed once it is locked; the last few are kept for the next query."""
        with self._lock_of_those:
            found = self._with_files.pop(paths, None) or self._lock(paths)
            self._with_files[paths] = found
            while len(self._with_files) > KEPT_WITH_FILES:
                self._with_files.popitem(last=False)  # closed when its last cursor is
            return found

    def _lock(self, paths: frozenset[str]) -> duckdb.DuckDBPyConnection:
        database = duckdb.connect(":memory:", config=self._limits)
        if paths:
            database.execute("SET disabled_optimizers = 'top_n_window_elimination'")
            database.execute("SET parquet_metadata_cache = true")
            database.execute(f"SET allowed_paths = [{', '.join(quoted(path) for path in sorted(paths))}]")
        for name, value in _LOCKED.items():
            database.execute(f"SET {name} = {value}")
        return database

    @contextmanager
    def _cursor(self, database: duckdb.DuckDBPyConnection) -> Iterator["Cursor"]:
        connection = database.cursor()
        try:
            yield Cursor(connection, self._watchdog, self._max_bytes, self._columns)
        finally:
            connection.close()

    def close(self) -> None:
        self._watchdog.close()
        self._reader.close()
        self._locked.close()
        for database in self._with_files.values():
            database.close()


class Watchdog:
    """Interrupts what takes too long: one thread for all queries, as starting one for each costs more than most."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._running: OrderedDict[threading.Event, tuple[float, Callable[[], None]]] = OrderedDict()  # oldest first
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._watch, name="lakefork-watchdog", daemon=True).start()

    @contextmanager
    def watch(self, interrupt: Callable[[], None]) -> Iterator[threading.Event]:
        """Yields what is set once the time is over."""
        key = threading.Event()
        with self._changed:
            self._running[key] = time.monotonic() + self._timeout, interrupt
            if len(self._running) == 1:
                self._changed.notify()
        try:
            yield key
        finally:
            with self._changed:
                self._running.pop(key, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                deadline, interrupt = next(iter(self._running.values()), (None, None))
                left = None if deadline is None else deadline - time.monotonic()
                if interrupt is not None and left is not None and left <= 0:
                    self._running.popitem(last=False)[0].set()
                    interrupt()
                else:
                    self._changed.wait(left)


class Cursor:
    """A connection of its own: what is registered here is seen here only."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        watchdog: Watchdog,
        max_bytes: int,
        columns: dict[str, dict[int, str]],
    ) -> None:
        self._connection = connection
        self._columns = columns  # of files that were looked at, by id: files never change
        self._max_bytes = max_bytes
        self._watchdog = watchdog

    def register(self, relations: Mapping[str, Any]) -> None:
        for name, relation in relations.items():
            if isinstance(relation, pa.Table) and (_has_nan(relation) or _has_json(relation)):
                # Comparisons are pushed down into Arrow, for which NaN is not the greatest value and JSON no text.
                self._connection.register(f"{name}_arrow", relation)
                self._connection.execute(f"CREATE TEMP TABLE {name} AS FROM {name}_arrow")
            else:
                self._connection.register(name, relation)

    def create_views(self, views: Mapping[str, str]) -> None:
        for name, sql in views.items():
            self._connection.execute(f"CREATE TEMP VIEW {name} AS {sql}")

    def excluded_by_bloom_filter(self, paths: Sequence[str], predicate: Predicate) -> frozenset[str]:
        """The batches whose filters say that they have none of the values; none where they cannot tell.

        A file knows its columns by the names of when it was written; another one may have had this name then.
        """
        names = self._names_by_path(paths, predicate.column.column_id)
        excluded: set[str] = set()
        for name in set(names.values()):
            called_so = [path for path in paths if names.get(path) == name]
            excluded |= self._probe(called_so, name, predicate)
        return frozenset(excluded)

    def _names_by_path(self, paths: Sequence[str], column_id: int) -> dict[str, str]:
        unknown = [path for path in paths if path not in self._columns]
        if unknown:
            schemas = self._connection.execute(
                f"SELECT file_name, map(list(field_id), list(name)) FROM parquet_schema([{_list(unknown)}]) "
                "WHERE field_id IS NOT NULL GROUP BY file_name"
            ).fetchall()
            if len(self._columns) + len(unknown) > MOST_KNOWN_FILES:
                self._columns.clear()
            self._columns.update(schemas)
        known = {path: self._columns[path].get(column_id) for path in paths if path in self._columns}
        return {path: name for path, name in known.items() if name is not None}

    def _probe(self, paths: Sequence[str], name: str, predicate: Predicate) -> set[str]:
        out = set(paths)
        for value in predicate.values:
            literal = duckdb_literal(value, predicate.column.type)
            try:
                found = self._connection.execute(
                    f"SELECT file_name FROM parquet_bloom_probe([{_list(paths)}], {quoted(name)}, {literal}) "
                    "GROUP BY file_name HAVING bool_and(bloom_filter_excludes)"
                ).fetchall()
            except duckdb.Error:  # a type that was changed since
                return set()
            out &= {path for (path,) in found}
        return out

    def query(self, sql: str, *, max_rows: int | None = None, setting: str = "sql.max_rows") -> pa.Table:
        with self._watchdog.watch(self._connection.interrupt) as time_is_over:
            for _ in range(ATTEMPTS - 1):
                try:
                    return self._query(sql, max_rows, setting)
                except InterruptedQueryError:
                    # DuckDB also says so when another of its threads failed: asked again, it mostly says why.
                    if time_is_over.is_set():
                        raise
            return self._query(sql, max_rows, setting)

    def _query(self, sql: str, max_rows: int | None, setting: str) -> pa.Table:
        try:
            found = self._connection.execute(sql)
            if max_rows is None:
                return _plain(found.to_arrow_table())
            return _plain(_limited(found, max_rows, self._max_bytes, setting))
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # what goes wrong late comes through Arrow
            raise domain_error(error) from error
        except UnicodeEncodeError:
            raise InvalidInputError("the text has half of a surrogate pair") from None


def _list(paths: Sequence[str]) -> str:
    return ", ".join(quoted(path) for path in paths)


def _has_nan(rows: pa.Table) -> bool:
    return any(
        pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()  # None: there is no row
        for column in rows.columns
    )


def _has_json(rows: pa.Table) -> bool:
    return any(isinstance(field.type, pa.JsonType) for field in rows.schema)


def can_be_probed(predicate: Predicate) -> bool:
    """Whether DuckDB looks up values of the type in bloom filters as they were put in (decimals it does not)."""
    return predicate.op == "=" and len(predicate.values) <= MOST_PROBES and predicate.column.type.name in _PROBED_TYPES


MOST_PROBES = 8
_PROBED_TYPES = ("int16", "int32", "int64", "varchar", "date", "timestamp")


def _limited(found: duckdb.DuckDBPyConnection, max_rows: int, max_bytes: int, setting: str) -> pa.Table:
    reader = found.to_arrow_reader(10_000)
    batches = []
    rows = size = 0
    for batch in reader:
        rows += batch.num_rows
        size += batch.nbytes
        if size > max_bytes:
            raise LimitError("the answer needs more memory than it may have (setting sql.memory_mb)")
        if rows > max_rows:
            raise LimitError(f"there are more than {max_rows} rows: add LIMIT, or raise the setting {setting}")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=reader.schema)


def _plain(table: pa.Table) -> pa.Table:
    """DuckDB's own types as ones that everybody reads: booleans, and whole numbers of 128 bits (sums are)."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if isinstance(field.type, pa.Bool8Type):
            table = table.set_column(place, field.name, column.cast(pa.bool_()))
        elif isinstance(field.type, pa.OpaqueType) and field.type.type_name in ("hugeint", "uhugeint"):
            table = table.set_column(place, field.name, _whole_numbers(column, field.type.type_name))
        elif isinstance(field.type, pa.OpaqueType):
            table = table.set_column(place, field.name, as_text(column))
    return table


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that others cannot read, as DuckDB writes them."""
    with duckdb.connect(":memory:") as connection:
        connection.register("shown", pa.table({"value": column}))
        return connection.execute("SELECT CAST(value AS VARCHAR) AS value FROM shown").to_arrow_table()["value"]


def _whole_numbers(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    signed = kind == "hugeint"
    values = [
        None if value is None else int.from_bytes(value, "little", signed=signed)
        for value in column.cast(pa.binary(16)).to_pylist()
    ]
    try:
        return pa.chunked_array([pa.array(values, pa.int64())])
    except OverflowError:
        return pa.chunked_array([pa.array([None if one is None else str(one) for one in values], pa.string())])


def domain_error(error: Exception) -> LakeforkError:
    """DuckDB's first line is made for people; the rest is an excerpt of SQL that the user did not write."""
    line = str(error).split("\n", 1)[0]
    said = line.split("Error: ", 1)[-1]
    if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error:" in line:
        return InterruptedQueryError(
            "the statement took too long and was stopped (setting sql.statement_timeout_seconds)"
        )
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error:" in line:
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
