"""What a Spark task of a flush does: reads slices of hot rows as Arrow, keeps the newest versions, writes batches."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.rows import dict_row

from lakefork.catalog.flushes import reserve_batches
from lakefork.cold.batch import BatchLayout, can_filter, with_field_ids, write_batch
from lakefork.cold.layout import batch_directory, batch_name
from lakefork.cold.newest import Newest, TooLargeError, newest_versions, repeated_keys
from lakefork.cold.statistics import BatchFacts
from lakefork.errors import StorageError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import middle_key_query, versions_query
from lakefork.hot.tables import HotTable
from lakefork.maintenance.flush import FlushTask, Slice
from lakefork.storage import StorageOptions, make_durable
from lakefork.tables import SEQ, USER_ID, TableDefinition, fold


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
    """What a task needs to know besides its rows."""

    dsn: str
    storage: StorageOptions
    snapshot: str
    job_id: str
    slice_bytes: int
    file_bytes: int
    false_positives: float


@dataclass(frozen=True)
class StagedFile:
    """A file that was written and not published; metrics: what the audit looks at."""

    table: int
    user_id: str | None
    path: str
    facts: BatchFacts
    metrics: dict[str, int]


@dataclass(frozen=True)
class TaskReport:
    """files and versions read, and what went wrong, by table: one that cannot be written does not keep the others."""

    files: list[StagedFile]
    read: dict[int, int]
    failed: dict[int, str]


def _use_lean_memory() -> None:
    """Arrow's default allocator takes long to get large pieces of memory for the first time."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def run_task(environment: TaskEnvironment, tables: Sequence[TableToFlush], task: FlushTask) -> TaskReport:
    _use_lean_memory()
    files: list[StagedFile] = []
    read: dict[int, int] = {}
    failed: dict[int, str] = {}
    reader = ArrowConnection(environment.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
    try:
        reader.join_snapshot(environment.snapshot)
        with psycopg.connect(environment.dsn, autocommit=True, row_factory=dict_row) as catalog:
            for place, newest in _read_all(environment, reader, tables, task.slices):
                read[place] = read.get(place, 0) + newest.read
                try:
                    written = list(_write(environment, catalog, tables[place], place, newest))
                    _settle(written)
                    files += written
                except StorageError as error:
                    failed[place] = str(error)
    finally:
        reader.close()
    return TaskReport(files, read, failed)


def _read_all(
    environment: TaskEnvironment, reader: ArrowConnection, tables: Sequence[TableToFlush], slices: Sequence[Slice]
) -> Iterator[tuple[int, Newest]]:
    """Slices are planned by the average size of rows: one whose rows are larger is read in halves."""
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
    """Of the users, or of one user's keys; nothing if there is only one key."""
    if one.users and len(one.users) > 1:
        middle = len(one.users) // 2
        return [replace(one, users=one.users[:middle]), replace(one, users=one.users[middle:])]
    with reader.stream(middle_key_query(table.definition, table.hot, one.users, one.low, one.high)) as batches:
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return [replace(one, high=found[0]), replace(one, low=found[0])] if found else []


def _write(
    environment: TaskEnvironment, catalog: Any, table: TableToFlush, place: int, newest: Newest
) -> Iterator[StagedFile]:
    """One file per user, or more where a user has much; numbers for all of them are reserved in one go."""
    definition = table.definition
    layout = batch_layout(definition, environment.false_positives)
    owners = [
        (user, batch_directory(definition, user), _parts(rows, environment.file_bytes))
        for user, rows in _by_owner(newest.rows.cast(layout.schema), per_user=definition.per_user)
    ]
    numbers = reserve_batches(
        catalog, environment.job_id, definition.catalog_id, definition.table_id,
        [directory for _, directory, _ in owners], [len(parts) for _, _, parts in owners],
    )  # fmt: skip
    parts = [part for _, _, parts in owners for part in parts]
    layout = layout.suited_to(parts)
    metrics = RowMetrics(definition, newest.rows)
    repeated = newest.repeated
    for (user, directory, of_owner), first in zip(owners, numbers, strict=True):
        for number, rows in enumerate(of_owner, first):
            path = f"{directory}/{batch_name(number)}"
            facts = _write_file(path, rows, layout, environment.storage)
            yield StagedFile(place, user, path, facts, _file_metrics(rows, facts) | metrics.of(rows, repeated))
            repeated = 0  # counted once


def _write_file(path: str, rows: pa.Table, layout: BatchLayout, storage: StorageOptions) -> BatchFacts:
    try:
        return write_batch(path, rows, layout, storage)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {str(error).splitlines()[0]}") from error


def _settle(files: Sequence[StagedFile]) -> None:
    """What is published must outlive a loss of power; one call for all files of a file system."""
    try:
        devices = {Path(file.path).stat().st_dev: file.path for file in files if not file.path.startswith("s3://")}
        for path in devices.values():
            make_durable(path)
    except OSError as error:
        raise StorageError(f"files cannot be made durable: {error}") from error


def _by_owner(rows: pa.Table, *, per_user: bool) -> Iterator[tuple[str | None, pa.Table]]:
    """Rows are sorted by user first."""
    if not per_user:
        yield from [(None, rows)] if rows.num_rows else []
        return
    runs = pc.run_end_encode(rows[USER_ID].combine_chunks()) if rows.num_rows else None
    start = 0
    for user, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True) if runs else ():
        yield user, rows.slice(start, end - start)
        start = end


def _parts(rows: pa.Table, file_bytes: int) -> list[pa.Table]:
    """Slices of about the size that a file may have."""
    count = max(1, -(-rows.nbytes // file_bytes))
    size = -(-rows.num_rows // count)
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


def batch_layout(definition: TableDefinition, false_positives: float) -> BatchLayout:
    """Bloom filters for the key, _seq and the columns that the table's options name, less those that they exclude."""
    columns = definition.columns + definition.system_columns
    schema = with_field_ids(definition.arrow_schema, {column.name: column.column_id for column in columns})
    options = definition.options
    wanted = [column.name for column in definition.key] + [SEQ] + list(options.get("bloom_filters", []))
    off = {fold(name) for name in options.get("no_bloom_filters", [])}
    folded = {fold(name) for name in wanted} - off
    filters = tuple(column.name for column in columns if fold(column.name) in folded and can_filter(column.type.arrow))
    key = tuple(column.name for column in definition.key)
    return BatchLayout(schema, key, filters, options.get("bloom_filter_fpp", false_positives))


def _file_metrics(rows: pa.Table, facts: BatchFacts) -> dict[str, int]:
    return {
        "rows_kept": rows.num_rows,
        "rows_written": facts.record_count,
        "wrong_types": 0 if facts.as_defined else 1,
    }


class RowMetrics:
    """What the audit looks at, and what is to be 0. Where all rows are good, each file's are."""

    def __init__(self, definition: TableDefinition, rows: pa.Table) -> None:
        self._key = [column.name for column in definition.key]
        self._present = [SEQ] + [column.name for column in definition.columns if not column.nullable]
        self._present += [name for name in self._key if name not in self._present]
        owner = [USER_ID] if definition.per_user else []
        self._all = self._measure(rows, owner + self._key)

    def of(self, rows: pa.Table, repeated_seqs: int) -> dict[str, int]:
        found = self._measure(rows, self._key) if any(self._all.values()) else self._all
        return {**found, "repeated_seqs": repeated_seqs}

    def _measure(self, rows: pa.Table, key: Sequence[str]) -> dict[str, int]:
        return {
            "repeated_keys": repeated_keys(rows.select(key)),
            "repeated_seqs": 0,
            **{f"nulls in {name}": rows[name].null_count for name in self._present},
        }
