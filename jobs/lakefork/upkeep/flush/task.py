"""The Spark task of a flush: reads slices of hot rows as Arrow, keeps the newest versions, writes batches."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

from lakefork.cold.batch_files import Destination, use_lean_memory, write_rows
from lakefork.cold.statistics import BatchFacts
from lakefork.errors import StorageError
from lakefork.garbage import garbage_collection_paused
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import middle_key_query, versions_query
from lakefork.hot.tables import HotTable
from lakefork.model.tables import SEQ, USER_ID, TableDefinition
from lakefork.read.newest import Newest, TooLargeError, newest_versions, repeated_keys
from lakefork.upkeep.flush.plan import FlushTask, Slice


@dataclass(frozen=True)
class TableToFlush:
    definition: TableDefinition
    hot: tuple[HotTable, ...]

    @property
    def key(self) -> list[str]:
        owner = [USER_ID] if self.definition.per_user else []
        return owner + [column.name for column in self.definition.key]


@dataclass(frozen=True)
class TaskEnvironment:
    """Everything that a task needs besides its rows."""

    dsn: str
    snapshot: str
    slice_bytes: int
    destination: Destination


@dataclass(frozen=True)
class StagedFile:
    """A file that was written and not published; metrics: input of the audit."""

    table: int
    user_id: str | None
    path: str
    facts: BatchFacts
    metrics: dict[str, int]


@dataclass(frozen=True)
class TaskReport:
    """The result of a task: files, and by table the versions read, the rows kept and the error, if any.

    said: messages for the log.
    """

    users: int
    files: list[StagedFile]
    read: dict[int, int]
    kept: dict[int, int]
    failed: dict[int, str]
    said: tuple[str, ...] = ()

    @property
    def amounts(self) -> tuple[int, int, int, int]:
        """Returns users done, versions read, rows and files written."""
        rows = sum(file.facts.record_count for file in self.files)
        return self.users, sum(self.read.values()), rows, len(self.files)


@garbage_collection_paused()
def run_task(environment: TaskEnvironment, tables: Sequence[TableToFlush], task: FlushTask) -> TaskReport:
    use_lean_memory()
    files: list[StagedFile] = []
    read: dict[int, int] = {}
    kept: dict[int, int] = {}
    failed: dict[int, str] = {}
    said: list[str] = []
    reader = ArrowConnection(environment.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
    try:
        reader.join_snapshot(environment.snapshot)
        with psycopg.connect(environment.dsn, autocommit=True, row_factory=dict_row) as catalog:
            for table_index, newest in _read_all(environment, reader, tables, task.slices):
                read[table_index] = read.get(table_index, 0) + newest.read
                kept[table_index] = kept.get(table_index, 0) + newest.rows.num_rows
                try:
                    files += list(_write(environment, catalog, tables[table_index], table_index, newest, said.append))
                except StorageError as error:
                    failed[table_index] = str(error)
    finally:
        reader.close()
    users = {(one.table, user) for one in task.slices for user in one.users or ()}
    return TaskReport(len(users), files, read, kept, failed, tuple(said))


def _read_all(
    environment: TaskEnvironment, reader: ArrowConnection, tables: Sequence[TableToFlush], slices: Sequence[Slice]
) -> Iterator[tuple[int, Newest]]:
    """Reads a slice, in halves if its rows are larger than the average that it was planned with."""
    waiting = list(reversed(slices))
    while waiting:
        one = waiting.pop()
        table = tables[one.table]
        try:
            newest = _read(reader, table, one, environment.slice_bytes)
        except TooLargeError:
            halves = _halves(reader, table, one)
            waiting += reversed(halves)
            if halves:
                continue
            newest = _read(reader, table, one, sys.maxsize)
        yield one.table, newest


def _read(reader: ArrowConnection, table: TableToFlush, one: Slice, max_bytes: int) -> Newest:
    query = versions_query(table.definition, table.hot, one.users, one.low, one.high)
    with reader.stream(query) as batches:
        return newest_versions(batches, table.definition.arrow_schema, table.key, SEQ, max_bytes)


def _halves(reader: ArrowConnection, table: TableToFlush, one: Slice) -> list[Slice]:
    """Splits a slice by users, or by the keys of one user; empty if there is only one key."""
    if one.users and len(one.users) > 1:
        middle = len(one.users) // 2
        return [replace(one, users=one.users[:middle]), replace(one, users=one.users[middle:])]
    with reader.stream(middle_key_query(table.definition, table.hot, one.users, one.low, one.high)) as batches:
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return [replace(one, high=found[0]), replace(one, low=found[0])] if found else []


def _write(
    environment: TaskEnvironment,
    catalog: Any,
    table: TableToFlush,
    table_index: int,
    newest: Newest,
    say: Callable[[str], None],
) -> Iterator[StagedFile]:
    metrics = RowMetrics(table.definition, newest.rows)
    repeated = newest.repeated
    for file in write_rows(environment.destination, catalog, table.definition, newest.rows, say=say):
        measured = _file_metrics(file.rows, file.facts) | metrics.of(file.rows, repeated)
        yield StagedFile(table_index, file.user_id, file.path, file.facts, measured)
        repeated = 0  # counted once


def _file_metrics(rows: pa.Table, facts: BatchFacts) -> dict[str, int]:
    return {
        "rows_kept": rows.num_rows,
        "rows_written": facts.record_count,
        "wrong_types": 0 if facts.as_defined else 1,
    }


class RowMetrics:
    """Measures what the audit checks. If all rows are valid, so are those of each file."""

    def __init__(self, definition: TableDefinition, rows: pa.Table) -> None:
        key = [column.name for column in definition.key]
        self._key = ([USER_ID] if definition.per_user else []) + key
        self._present = [SEQ] + [column.name for column in definition.columns if not column.nullable]
        self._present += [name for name in key if name not in self._present]
        self._before: pa.Table | None = None  # the last key of the previous file: the next file must not contain it
        self._all = self._measure(rows)

    def of(self, rows: pa.Table, repeated_seqs: int) -> dict[str, int]:
        """Returns the metrics of a file; files must be passed in order."""
        found = self._all
        if any(self._all.values()):
            found = self._measure(rows)
            self._before = rows.select(self._key).slice(rows.num_rows - 1)
        return {**found, "repeated_seqs": repeated_seqs}

    def _measure(self, rows: pa.Table) -> dict[str, int]:
        keys = rows.select(self._key)
        return {
            "repeated_keys": repeated_keys(keys if self._before is None else pa.concat_tables([self._before, keys])),
            "repeated_seqs": 0,
            **{f"nulls in {name}": rows[name].null_count for name in self._present},
        }
