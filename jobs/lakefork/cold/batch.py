"""Writes one Parquet batch, and reads back what its footer says."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefork.cold.statistics import BatchFacts, ColumnStatistics, bound_text

FIELD_ID = b"PARQUET:field_id"


def write_batch(filesystem: Any, path: str, rows: pa.Table, column_ids: Mapping[str, int]) -> BatchFacts:
    """Writes a batch under its final name; the facts come from the written footer."""
    schema = pa.schema([field.with_metadata({FIELD_ID: str(column_ids[field.name]).encode()}) for field in rows.schema])
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(rows.cast(schema), stream, compression="zstd", write_page_index=True)
    return read_facts(filesystem, path)


def read_facts(filesystem: Any, path: str) -> BatchFacts:
    """Opens only the footer."""
    with filesystem.open_input_file(path) as file:
        size = file.size()
        parquet = pq.ParquetFile(file)
        metadata = parquet.metadata
        return BatchFacts(size, metadata.serialized_size, metadata.num_rows, _columns(metadata, parquet.schema_arrow))


def _columns(metadata: Any, schema: pa.Schema) -> dict[int, ColumnStatistics]:
    """Statistics of the flat columns that carry a field id, over all row groups."""
    ids = {
        field.name: int(field.metadata[FIELD_ID]) for field in schema if field.metadata and FIELD_ID in field.metadata
    }
    position = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    return {
        column_id: _merge(
            [metadata.row_group(group).column(position[name]) for group in range(metadata.num_row_groups)]
        )
        for name, column_id in ids.items()
        if name in position
    }


def _merge(chunks: list[Any]) -> ColumnStatistics:
    statistics = [chunk.statistics for chunk in chunks]
    values = sum(chunk.num_values for chunk in chunks)
    nulls = sum(one.null_count for one in statistics if one is not None and one.has_null_count)
    with_values = [one for one in statistics if one is None or one.num_values > 0]
    if not with_values or not all(one is not None and one.has_min_max for one in with_values):
        return ColumnStatistics(values, nulls, None, None)
    low, high = min(one.min for one in with_values), max(one.max for one in with_values)
    return ColumnStatistics(values, nulls, bound_text(low), bound_text(high))
