"""The DuckDBs of a worker: one reads batches for our own SQL, others run users' SQL in isolation."""

import functools
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lakefork.errors import InvalidInputError, LakeforkError, LimitError, PermissionDeniedError, StorageError
from lakefork.model.predicates import quoted
from lakefork.read.reader import COMMON, open_reader
from lakefork.sql.workers.functions import check_tree, parse_error
from lakefork.storage import StorageOptions

CACHED_CONNECTIONS = 4
MAX_KNOWN_FILES = 20_000
CACHED_TEXTS = 1_000
BATCH_ROWS = 10_000
CHUNK_BYTES = 1 << 20


class Duck:
    """The DuckDBs of a worker. memory_mb: for users' SQL; reading batches may take half as much again."""

    def __init__(self, storage: StorageOptions, *, memory_mb: int, threads: int) -> None:
        self._limits = {**COMMON, "memory_limit": f"{memory_mb}MB", "threads": str(threads)}
        self._storage, self._memory_mb, self._threads = storage, memory_mb, threads
        self._locked = self._lock(())
        self._with_files: OrderedDict[tuple[str, ...], duckdb.DuckDBPyConnection] = OrderedDict()
        self._columns: dict[str, dict[int, str]] = {}  # of files, by id: files never change
        self._tree = functools.lru_cache(CACHED_TEXTS)(self._parse)

    @functools.cached_property
    def _reader(self) -> duckdb.DuckDBPyConnection:
        reader: duckdb.DuckDBPyConnection = open_reader(
            self._storage, memory_mb=reading_mb(self._memory_mb), threads=self._threads
        )
        return reader

    @functools.cached_property
    def _builtin_views(self) -> frozenset[str]:
        views = self._locked.execute("SELECT lower(view_name) FROM duckdb_views()").fetchall()
        return frozenset(name for (name,) in views)

    def read(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        """Reads rows with SQL that Lakefork wrote."""
        with _cursor(self._reader) as cursor:
            register(cursor, relations)
            with domain_errors():
                return plain(cursor.execute(sql).to_arrow_table())

    def stream(
        self,
        sql: str,
        relations: Mapping[str, pa.Table],
        views: Mapping[str, str],
        paths: Sequence[str],
        limits: "AnswerLimits",
    ) -> Iterator[pa.Table]:
        """Streams rows of a user's SQL: only these files, no settings, only allowed functions."""
        self._check(sql, {*relations, *views})
        with _cursor(self._with(tuple(paths)) if paths else self._locked) as cursor, domain_errors():
            register(cursor, relations)
            for name, view in views.items():
                cursor.execute(f"CREATE TEMP VIEW {name} AS {view}")
            with _own_error(cursor, sql):
                found = cursor.execute(sql).to_arrow_reader(BATCH_ROWS)
                yield from _chunks(found, limits, self._memory_mb)

    def is_sound(self) -> bool:
        """Whether it can be used after a failure: some make DuckDB refuse whatever comes next."""
        reader = [self._reader] if "_reader" in vars(self) else []
        try:
            for database in (self._locked, *reader, *self._with_files.values()):
                with _cursor(database) as cursor:
                    cursor.execute("SELECT 1").fetchall()
        except duckdb.Error:
            return False
        return True

    def _check(self, sql: str, relations: set[str]) -> None:
        with domain_errors():
            tree = self._tree(sql)
        check_tree(json.loads(tree), relations, lambda: self._builtin_views)

    def _parse(self, sql: str) -> str:
        with _cursor(self._locked) as cursor:
            (tree,) = cursor.execute("SELECT json_serialize_sql(?)", [sql]).fetchone() or ("",)
            return str(tree)

    def _with(self, paths: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
        """Returns a locked DuckDB that can open only these files; the last few are cached."""
        found = self._with_files.pop(paths, None) or self._lock(paths)
        self._with_files[paths] = found
        while len(self._with_files) > CACHED_CONNECTIONS:
            self._with_files.popitem(last=False)[1].close()
        return found

    def _lock(self, paths: Sequence[str]) -> duckdb.DuckDBPyConnection:
        database = duckdb.connect(":memory:", config=self._limits)
        if paths:
            database.execute("SET disabled_optimizers = 'top_n_window_elimination'")
            database.execute("SET parquet_metadata_cache = true")
            # Their caches would add up against the limit of the process.
            database.execute("SET enable_external_file_cache = false")
            database.execute(f"SET allowed_paths = [{_list(paths)}]")
        database.execute(_REFUSED_NAMES)
        for name, value in _LOCKED.items():
            database.execute(f"SET {name} = {value}")
        return database

    def excluded_by_bloom_filter(self, paths: Sequence[str], column_id: int, literals: Sequence[str]) -> list[str]:
        """The batches whose filters say that they have none of the values; none where they cannot tell.

        A file knows its columns by the names of when it was written; another one may have had this name then.
        """
        with _cursor(self._reader) as cursor, domain_errors():
            names = self._names_by_path(cursor, paths, column_id)
            excluded: set[str] = set()
            for name in set(names.values()):
                excluded |= _probe(cursor, [path for path in paths if names.get(path) == name], name, literals)
        return sorted(excluded)

    def _names_by_path(self, cursor: Any, paths: Sequence[str], column_id: int) -> dict[str, str]:
        unknown = [path for path in paths if path not in self._columns]
        if unknown:
            schemas = cursor.execute(
                f"SELECT file_name, map(list(field_id), list(name)) FROM parquet_schema([{_list(unknown)}]) "
                "WHERE field_id IS NOT NULL GROUP BY file_name"
            ).fetchall()
            if len(self._columns) + len(unknown) > MAX_KNOWN_FILES:
                self._columns.clear()
            self._columns.update(schemas)
        known = {path: self._columns[path].get(column_id) for path in paths if path in self._columns}
        return {path: name for path, name in known.items() if name is not None}


def reading_mb(memory_mb: int) -> int:
    return memory_mb // 2


@contextmanager
def _cursor(database: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    """Yields a new connection; relations registered on it are visible only there."""
    cursor = database.cursor()
    try:
        yield cursor
    finally:
        cursor.close()


def _probe(cursor: Any, paths: Sequence[str], name: str, literals: Sequence[str]) -> set[str]:
    out = set(paths)
    for literal in literals:
        try:
            found = cursor.execute(
                f"SELECT file_name FROM parquet_bloom_probe([{_list(paths)}], {quoted(name)}, {literal}) "
                "GROUP BY file_name HAVING bool_and(bloom_filter_excludes)"
            ).fetchall()
        except duckdb.Error:  # the type was changed since
            return set()
        out &= {path for (path,) in found}
    return out


def _list(paths: Sequence[str]) -> str:
    return ", ".join(quoted(path) for path in paths)


def register(cursor: Any, relations: Mapping[str, pa.Table]) -> None:
    for name, relation in relations.items():
        if _has_nan(relation) or _has_json(relation):
            # Comparisons are pushed down into Arrow, where NaN is not the largest value and JSON is not text.
            cursor.register(f"{name}_arrow", relation)
            cursor.execute(f"CREATE TEMP TABLE {name} AS FROM {name}_arrow")
        else:
            cursor.register(name, relation)


def _has_nan(rows: pa.Table) -> bool:
    return any(
        pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()  # None: no rows
        for column in rows.columns
    )


def _has_json(rows: pa.Table) -> bool:
    return any(isinstance(field.type, pa.JsonType) for field in rows.schema)


@dataclass(frozen=True)
class AnswerLimits:
    """What an answer may have; cut: rows beyond max_rows are left out, and the answer is never held as a whole."""

    max_rows: int | None
    setting: str
    cut: bool = False


@contextmanager
def _own_error(cursor: Any, sql: str) -> Iterator[None]:
    """A thread that fails stops the others, and a stream may report the stop: the query is run again for its error."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if "Interrupted!" in str(error):
            cursor.execute(f"EXPLAIN ANALYZE {sql}")
        raise


def _chunks(found: pa.RecordBatchReader, limits: AnswerLimits, memory_mb: int) -> Iterator[pa.Table]:
    """Yields at least one chunk, so that an empty result has its columns."""
    batches: list[pa.RecordBatch] = []
    rows = size = waiting = chunks = 0
    for batch in found:
        rows += batch.num_rows
        size += batch.nbytes
        is_last = limits.max_rows is not None and rows > limits.max_rows
        if size > memory_mb << 20 and not limits.cut:
            raise LimitError(f"the result needs more than {memory_mb} MB (setting sql.memory_mb)")
        if is_last and not limits.cut:
            raise LimitError(
                f"the result has more than {limits.max_rows} rows: add LIMIT, or raise the setting {limits.setting}"
            )
        kept = batch.slice(0, batch.num_rows - (rows - limits.max_rows)) if is_last else batch
        batches.append(kept)
        waiting += kept.nbytes
        if is_last:
            break
        if waiting >= CHUNK_BYTES:
            yield plain(pa.Table.from_batches(batches))
            batches, waiting, chunks = [], 0, chunks + 1
    if batches or not chunks:
        yield plain(pa.Table.from_batches(batches, schema=found.schema))


def plain(table: pa.Table) -> pa.Table:
    """Converts DuckDB's own types to common ones: booleans, 128-bit integers (sums), and times in UTC."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if isinstance(field.type, pa.Bool8Type):
            table = table.set_column(place, field.name, column.cast(pa.bool_()))
        elif isinstance(field.type, pa.OpaqueType) and field.type.type_name in ("hugeint", "uhugeint"):
            table = table.set_column(place, field.name, _whole_numbers(column, field.type.type_name))
        elif pa.types.is_timestamp(field.type) and field.type.tz == "Etc/UTC":  # DuckDB's name for it
            table = table.set_column(place, field.name, column.cast(pa.timestamp(field.type.unit, "UTC")))
        elif isinstance(field.type, pa.OpaqueType):
            table = table.set_column(place, field.name, as_text(column))
    return table


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts values of other types to DuckDB's text."""
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


@contextmanager
def domain_errors() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # late errors come through Arrow
        raise domain_error(error) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            raise OutOfMemoryError from error
        raise LakeforkError(f"the query engine failed: {error}") from error
    except UnicodeEncodeError:
        raise InvalidInputError("the text contains half of a surrogate pair") from None


class OutOfMemoryError(LakeforkError):
    """The statement exceeded the memory limit of the process; the engine reports the limit."""

    code = "out_of_memory"


def domain_error(error: Exception) -> LakeforkError:
    """Translates a DuckDB error: its first line; the rest is an excerpt of SQL that the user did not write."""
    line = str(error).split("\n", 1)[0]
    said = line.split("Error: ", 1)[-1]
    ran_out = isinstance(error, duckdb.OutOfMemoryException | pa.ArrowMemoryError)
    if ran_out or _OUT_OF_MEMORY.search(line):
        return OutOfMemoryError()
    if damaged := _DAMAGED_BATCH.search(line):
        return StorageError(
            f"a batch of the table is missing or damaged: {damaged['name']}; "
            "`lakefork run catalog_fsck --params '{\"deep\": true}'` says what is wrong with it"
        )
    said = _RELATION.sub("the table", said)
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return LakeforkError(f"the query engine failed: {said}")
    if isinstance(error, duckdb.PermissionException):
        return PermissionDeniedError(f"permission denied: {said}")
    return parse_error(said)


_OUT_OF_MEMORY = re.compile(r"Out of Memory Error:|bad_alloc|Memory allocation failure|Requested allocation size")
_DAMAGED_BATCH = re.compile(r"^(?!Conversion Error).*/(?P<name>batch-\d+\.parquet)\b")
_RELATION = re.compile(r"relation_[0-9a-f]{16}\w*")
# DuckDB takes these for functions of its own where there is no such column.
_OTHERWISE = {
    "user": "CURRENT_USER() is the user of the session",
    "current_user": "without quotes, CURRENT_USER is the user of the session",
    "session_user": "without quotes, SESSION_USER is the user of the session",
    "current_role": "CURRENT_ROLE() is the role of the session",
    "current_catalog": "without quotes, CURRENT_CATALOG is the catalog of the session",
    "current_schema": "CURRENT_SCHEMA() is the namespace of the session",
}
_REFUSED_NAMES = "".join(
    f"""CREATE MACRO "{name}"() AS error('there is no column {name} here; {otherwise}');"""
    for name, otherwise in _OTHERWISE.items()
)
_LOCKED = {
    "TimeZone": "'UTC'",
    "temp_directory": "''",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
