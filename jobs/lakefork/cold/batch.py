"""Writes Parquet batches, and reads their footers."""

import functools
import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefork.cold.statistics import BatchFacts, ColumnStatistics, bound_text
from lakefork.errors import StorageError
from lakefork.model.tables import element_id
from lakefork.storage import StorageOptions, open_path, write_files
from lakefork.storage.creation import create_file

FIELD_ID = b"PARQUET:field_id"
MARK = b"lakefork"
ROW_GROUP_ROWS = 122_880  # DuckDB's unit of reading
SAMPLED_ROWS = 2_000
DICTIONARY_ROWS = 50  # in smaller files a dictionary costs more than it saves


@dataclass(frozen=True)
class BatchLayout:
    """How the batches of a table are written: columns with ids, sort order, bloom filters."""

    schema: pa.Schema  # with field ids
    key: tuple[str, ...] = ()
    bloom_filters: tuple[str, ...] = ()
    false_positives: float = 0.01
    dictionaries: tuple[str, ...] = ()  # columns whose values repeat
    without_nan: tuple[str, ...] = ()  # columns known to have no NaN

    @functools.cached_property
    def parquet_schema(self) -> Any:
        """The schema of a file with this layout."""
        content = pa.BufferOutputStream()
        pq.ParquetWriter(content, self.schema).close()
        return pq.ParquetFile(pa.BufferReader(content.getvalue())).schema

    @functools.cached_property
    def floating(self) -> list[str]:
        """Columns that may have NaN."""
        return [
            field.name
            for field in self.schema
            if pa.types.is_floating(field.type) and field.name not in self.without_nan
        ]

    @functools.cached_property
    def flat_columns(self) -> list[tuple[int, int]]:
        return _flat_columns(self.schema)

    def suited_to(self, files: Sequence[pa.Table]) -> "BatchLayout":
        """What needs a look at values is decided once for many files. Dictionaries only where values repeat within a
        file: elsewhere they cost time and make files larger.
        """
        if not files:
            return self
        rows = pa.concat_tables(files)
        nan = {field.name for field in self.schema if _has_nan(rows[field.name])}
        sample = max(files, key=len).slice(0, SAMPLED_ROWS)
        return replace(
            self,
            dictionaries=tuple(name for name in sample.column_names if _repeats(sample[name]))
            if sample.num_rows >= DICTIONARY_ROWS
            else (),
            without_nan=tuple(name for name in self.schema.names if name not in nan),
        )


def _repeats(column: pa.ChunkedArray) -> bool:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    return not pa.types.is_nested(column.type) and 2 * pc.count_distinct(column, mode="all").as_py() <= len(column)


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def with_field_ids(schema: pa.Schema, column_ids: Mapping[str, int]) -> pa.Schema:
    """Adds field ids to a schema, also to the elements of arrays."""
    return pa.schema([_with_field_id(field, column_ids[field.name]) for field in schema])


def _with_field_id(field: pa.Field, column_id: int) -> pa.Field:
    if pa.types.is_list(field.type):
        field = field.with_type(pa.list_(_with_field_id(field.type.value_field, element_id(column_id))))
    return field.with_metadata({FIELD_ID: str(column_id).encode()})


def mark_of(job_id: str) -> bytes:
    """Returns the mark that a job writes into the footers of its batches, to recognize and remove only its own."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:16].encode()


def read_mark(path: str, storage: StorageOptions) -> bytes | None:
    """Returns the mark in a batch's footer; None if there is none or it is not a batch. Raises FileNotFoundError."""
    filesystem, inner = open_path(path, storage)
    try:
        with filesystem.open_input_file(inner) as file:
            return dict(pq.read_metadata(file).metadata or {}).get(MARK)
    except pa.ArrowInvalid:
        return None


def write_batch(path: str, rows: pa.Table, layout: BatchLayout, storage: StorageOptions) -> BatchFacts:
    return write_batches([(path, rows)], layout, storage)[0][1]


def encode_batch(rows: pa.Table, layout: BatchLayout) -> tuple[pa.Buffer, BatchFacts]:
    """A batch that is not written yet, and its facts."""
    content, metadata = _encode(rows, layout, None)
    return content, _facts(content, metadata, rows, layout)


def write_batches(
    files: Sequence[tuple[str, pa.Table]],
    layout: BatchLayout,
    storage: StorageOptions,
    mark: bytes | None = None,
    path_after: Callable[[str], str] | None = None,
) -> list[tuple[str, BatchFacts]]:
    """Writes new files under their final names, atomically; returns the facts of the written footers.

    path_after gives another path instead of one that is taken; without it that is an error. Returns the paths as they
    are. The rows have the layout's schema. Each step is done for all files: going from step to step for each one costs
    half as much again, because the processor's caches hold one step, and not all.
    """
    encoded = [_encode(rows, layout, mark) for _, rows in files]
    paths = {path: path for path, _ in files}

    def create(path: str, content: pa.Buffer) -> None:
        try:
            paths[path] = _create(path, content, storage, path_after)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {str(error).splitlines()[0]}") from error

    write_files([(path, content) for (path, _), (content, _) in zip(files, encoded, strict=True)], create)
    return [(paths[path], _facts(*one, rows, layout)) for one, (path, rows) in zip(encoded, files, strict=True)]


def _create(path: str, content: pa.Buffer, storage: StorageOptions, path_after: Callable[[str], str] | None) -> str:
    while True:
        try:
            create_file(path, content, storage)
        except FileExistsError:
            if path_after is None:
                raise
            path = path_after(path)
        else:
            return path


def _encode(rows: pa.Table, layout: BatchLayout, mark: bytes | None) -> tuple[pa.Buffer, Any]:
    """Encodes a file; returns its content and the facts of its footer."""
    collected: list[Any] = []
    stream = pa.BufferOutputStream()
    nan = _with_nan(rows, layout)
    options = _options(layout, rows)
    if nan:
        options["write_statistics"] = [name for name in layout.schema.names if name not in nan]
    with pq.ParquetWriter(stream, layout.schema, **options, metadata_collector=collected) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        if mark:
            writer.add_key_value_metadata({MARK: mark})
    return stream.getvalue(), collected[0]


def _facts(content: pa.Buffer, metadata: Any, rows: pa.Table, layout: BatchLayout) -> BatchFacts:
    footer_size = int.from_bytes(content[-8:-4], "little")
    columns = _columns(metadata, layout.flat_columns)
    for name in _with_nan(rows, layout):  # the footer has no statistics for them
        column_id = _field_id(layout.schema.field(name))
        columns[column_id] = ColumnStatistics(rows.num_rows, rows[name].null_count, None, None, contains_nan=True)
    as_defined = metadata.schema.equals(layout.parquet_schema)
    return BatchFacts.of(content.size, footer_size, metadata.num_rows, columns, as_defined=as_defined)


def _options(layout: BatchLayout, rows: pa.Table) -> dict[str, Any]:
    names = layout.schema.names
    filters = {name: {"ndv": max(rows.num_rows, 1), "fpp": layout.false_positives} for name in layout.bloom_filters}
    return {
        "compression": "zstd",
        "use_dictionary": list(layout.dictionaries) or False,
        "write_page_index": True,
        "store_schema": False,  # field ids and logical types suffice, and tiny files get a third smaller
        "sorting_columns": [pq.SortingColumn(names.index(name)) for name in layout.key] or None,
        "bloom_filter_options": filters or None,
    }


def can_filter(kind: pa.DataType) -> bool:
    """Tells whether Parquet has bloom filters for a type and readers use them correctly: DuckDB 1.5 probes bytes as it
    would print them, and misses existing rows.
    """
    return not (pa.types.is_boolean(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind))


def _with_nan(rows: pa.Table, layout: BatchLayout) -> list[str]:
    """Returns columns with NaN: bounds in footers ignore NaN, so a reader that sorts it last would skip it."""
    return [name for name in layout.floating if _has_nan(rows[name])]


def read_facts(filesystem: Any, path: str) -> BatchFacts:
    """Reads the facts of a batch from its footer."""
    with filesystem.open_input_file(path) as file:
        parquet = pq.ParquetFile(file)
        metadata = parquet.metadata
        return BatchFacts.of(
            file.size(),
            metadata.serialized_size,
            metadata.num_rows,
            _columns(metadata, _flat_columns(parquet.schema_arrow)),
        )


def _field_id(field: pa.Field) -> int:
    return int(field.metadata[FIELD_ID])


def _columns(metadata: Any, flat_columns: Sequence[tuple[int, int]]) -> dict[int, ColumnStatistics]:
    """Returns statistics of columns over all row groups."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    return {column_id: _merge([group.column(index) for group in groups]) for index, column_id in flat_columns}


def _flat_columns(schema: pa.Schema) -> list[tuple[int, int]]:
    """Returns the indexes of flat columns with an id in a file of this schema."""
    found = []
    index = 0
    for field in schema:
        if not pa.types.is_nested(field.type) and field.metadata and FIELD_ID in field.metadata:
            found.append((index, _field_id(field)))
        index += leaves(field.type)
    return found


def leaves(kind: pa.DataType) -> int:
    """Returns how many Parquet columns a type occupies."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return sum(leaves(kind.field(index).type) for index in range(kind.num_fields)) if kind.num_fields else 1


def _merge(chunks: Sequence[Any]) -> ColumnStatistics:
    if len(chunks) == 1:
        return _of_chunk(chunks[0])
    statistics = [chunk.statistics for chunk in chunks]
    values = sum([chunk.num_values for chunk in chunks])
    known = [one for one in statistics if one is not None]
    nulls = sum([one.null_count for one in known if one.has_null_count]) if len(known) == len(statistics) else None
    with_values = [one for one in known if one.num_values]
    if not with_values or nulls is None or not all(one.has_min_max for one in with_values):
        return ColumnStatistics(values, nulls, None, None)
    low, high = min([one.min for one in with_values]), max([one.max for one in with_values])
    return ColumnStatistics(values, nulls, _bound(low, with_values[0]), _bound(high, with_values[0]))


def _of_chunk(chunk: Any) -> ColumnStatistics:
    """Returns the statistics of a single chunk, the fast path for thousands of small files."""
    found = chunk.statistics
    if found is None:
        return ColumnStatistics(chunk.num_values, None, None, None)
    nulls = found.null_count if found.has_null_count else 0
    if not found.has_min_max or not found.num_values:
        return ColumnStatistics(chunk.num_values, nulls, None, None)
    return ColumnStatistics(chunk.num_values, nulls, _bound(found.min, found), _bound(found.max, found))


def _bound(stored: Any, statistics: Any) -> str | None:
    """Converts a bound that the footer stores as bytes, by type."""
    if isinstance(stored, bytes):
        kind = statistics.logical_type.type
        stored = uuid.UUID(bytes=stored) if kind == "UUID" else stored.decode() if kind == "JSON" else stored
    return bound_text(stored)
