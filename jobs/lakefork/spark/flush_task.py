"""What a Spark task of a flush does: reads slices of hot rows as Arrow, keeps the newest versions, writes batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.rows import dict_row

from lakefork.catalog.flushes import reserve_batches
from lakefork.cold.batch import BatchLayout, can_filter, with_field_ids, write_batch
from lakefork.cold.layout import batch_directory, batch_name
from lakefork.cold.newest import Newest, newest_versions, repeated_keys
from lakefork.cold.statistics import BatchFacts
from lakefork.errors import StorageError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import versions_query
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
            for one in task.slices:
                newest = _read(environment, reader, tables[one.table], one)
                read[one.table] = read.get(one.table, 0) + newest.read
                try:
                    written = list(_write(environment, catalog, tables[one.table], one.table, newest))
                    _settle(written)
                    files += written
                except StorageError as error:
                    failed[one.table] = str(error)
    finally:
        reader.close()
    return TaskReport(files, read, failed)


def _read(environment: TaskEnvironment, reader: ArrowConnection, table: TableToFlush, one: Slice) -> Newest:
    query = versions_query(table.definition, table.hot, one.users, one.low, one.high)
    with reader.stream(query) as batches:
        return newest_versions(batches, table.definition.arrow_schema, table.key, SEQ, environment.slice_bytes)


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
    repeated = newest.repeated
    for (user, directory, parts), first in zip(owners, numbers, strict=True):
        for number, rows in enumerate(parts, first):
            path = f"{directory}/{batch_name(number)}"
            facts = _write_file(path, rows, layout, environment.storage)
            yield StagedFile(place, user, path, facts, file_metrics(definition, rows, facts, repeated))
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


def file_metrics(definition: TableDefinition, rows: pa.Table, facts: BatchFacts, repeated: int) -> dict[str, int]:
    """What the audit looks at: all but the first two are to be 0."""
    keys = rows.select([column.name for column in definition.key])
    return {
        "rows_kept": rows.num_rows,
        "rows_written": facts.record_count,
        "wrong_types": 0 if facts.as_defined else 1,
        "repeated_keys": repeated_keys(keys),
        "repeated_seqs": repeated,
        f"nulls in {SEQ}": rows[SEQ].null_count,
        **{
            f"nulls in {column.name}": rows[column.name].null_count
            for column in definition.columns
            if not column.nullable or column in definition.key
        },
    }
