"""The Spark task of snapshot_dedup: reads batches, keeps the newest versions, writes new batches."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.rows import dict_row

from lakefork.cold.batch_files import Destination, WrittenFile, use_lean_memory, write_rows
from lakefork.errors import StorageError
from lakefork.model.tables import DELETED, SEQ, TableDefinition
from lakefork.read.newest import Newest, TooLargeError, newest_versions
from lakefork.read.reader import open_reader
from lakefork.read.scan import between, scan_sql
from lakefork.upkeep.dedup.plan import Group

ROWS_AT_ONCE = 100_000
READER_MB = 1_024

Key = tuple[Any, ...]  # values of the key columns


@dataclass(frozen=True)
class Merge:
    """A group of batches to merge; tombstones with a _seq below forget_before are removed."""

    definition: TableDefinition
    user_id: str | None
    group: Group
    forget_before: int | None
    rows_per_file: int


@dataclass(frozen=True)
class Part:
    """A key range of a merge, from low (inclusive) to high (exclusive)."""

    merge: int
    low: Key | None = None
    high: Key | None = None


@dataclass(frozen=True)
class Merged:
    """The result of a part. problem: why it was not written; said: messages for the log."""

    merge: int
    files: list[WrittenFile]
    read: int
    problem: str | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class MergeEnvironment:
    dsn: str
    slice_bytes: int
    destination: Destination


def run_parts(environment: MergeEnvironment, merges: Sequence[Merge], parts: Sequence[Part]) -> list[Merged]:
    use_lean_memory()
    reader = open_reader(environment.destination.storage, memory_mb=READER_MB, threads=1)
    try:
        with psycopg.connect(environment.dsn, autocommit=True, row_factory=dict_row) as catalog:
            return [_run_part(environment, reader, catalog, merges[part.merge], part) for part in parts]
    finally:
        reader.close()


def _run_part(environment: MergeEnvironment, reader: Any, catalog: Any, merge: Merge, part: Part) -> Merged:
    files: list[WrittenFile] = []
    said: list[str] = []
    read = 0
    try:
        for newest in _read_all(environment, reader, merge, part):
            read += newest.read
            files += [
                replace(file, rows=None)  # rows are not sent to the driver
                for rows in _split(newest.rows, merge.forget_before)
                for file in write_rows(
                    environment.destination, catalog, merge.definition, rows, merge.rows_per_file, said.append
                )
            ]
    except StorageError as error:
        return Merged(part.merge, files, read, str(error), tuple(said))
    return Merged(part.merge, files, read, said=tuple(said))


def _read_all(environment: MergeEnvironment, reader: Any, merge: Merge, part: Part) -> Iterator[Newest]:
    """Reads a part, in halves if its rows need more memory than planned from the file sizes."""
    waiting = [part]
    while waiting:
        one = waiting.pop()
        try:
            newest = _read(reader, merge, one, environment.slice_bytes)
        except TooLargeError:
            middle = _middle_key(reader, merge, one)
            if middle is not None:
                waiting += [replace(one, low=middle), replace(one, high=middle)]
                continue
            newest = _read(reader, merge, one, sys.maxsize)
        yield newest


def _read(reader: Any, merge: Merge, part: Part, max_bytes: int) -> Newest:
    definition = merge.definition
    key = [column.name for column in definition.key]
    try:
        found = reader.execute(scan_of(merge, part, [*definition.columns, *definition.system_columns]))
        with found.to_arrow_reader(ROWS_AT_ONCE) as batches:
            return newest_versions(batches, definition.arrow_schema, key, SEQ, max_bytes)
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # late errors come through Arrow
        raise StorageError(f"a batch cannot be read: {str(error).splitlines()[0]}") from error


def scan_of(merge: Merge, part: Part, columns: Sequence[Any]) -> str:
    paths = [batch.path for batch in merge.group.batches]
    return scan_sql(paths, columns, more_conditions=between(merge.definition.key, part.low, part.high))


def _middle_key(reader: Any, merge: Merge, part: Part) -> Key | None:
    names = ", ".join(f"c{column.column_id}" for column in merge.definition.key)
    keys = f"SELECT DISTINCT {names} FROM ({scan_of(merge, part, merge.definition.key)})"
    (count,) = reader.execute(f"SELECT count(*) FROM ({keys})").fetchone()
    found = reader.execute(f"{keys} ORDER BY {names} LIMIT 1 OFFSET {max(1, count // 2)}").fetchone()
    return None if found is None else tuple(found)


def _split(rows: pa.Table, forget_before: int | None) -> Iterator[pa.Table]:
    """Separates live rows and tombstones, so that readers of live rows need not open the others."""
    deleted = rows[DELETED]
    live = rows.filter(pc.invert(deleted))
    if live.num_rows:
        yield live
    tombstones = rows.filter(deleted)
    if forget_before is not None and tombstones.num_rows:
        tombstones = tombstones.filter(pc.greater_equal(tombstones[SEQ], pa.scalar(forget_before, pa.int64())))
    if tombstones.num_rows:
        yield tombstones
