"""Keeps the newest version of each key, sorted by key, in bounded memory while versions stream in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Newest:
    """The newest versions. rows: one per key, sorted; read: versions that were read; repeated: equal versions."""

    rows: pa.Table
    read: int
    repeated: int


class TooLargeError(Exception):
    """The newest versions alone exceed the memory limit."""


def newest_versions(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: Sequence[str], seq: str, max_bytes: int
) -> Newest:
    """Keeps the newest versions of a stream of batches, which get this schema.

    Superseded ones are dropped whenever more than max_bytes have arrived; raises TooLargeError if more remain.
    """
    kept: list[pa.Table] = []
    read = repeated = size = 0
    compact_at = max_bytes
    for batch in batches:
        kept.append(pa.Table.from_batches([batch]).rename_columns(schema.names).cast(schema))
        read += batch.num_rows
        size += batch.nbytes
        if size > compact_at:
            rows, again = _compact(pa.concat_tables(kept), key, seq)
            kept, repeated = [rows], repeated + again
            size = rows.nbytes
            if size > max_bytes:
                raise TooLargeError
            compact_at = max(max_bytes, 2 * size)
    if not kept:
        return Newest(pa.Table.from_batches([], schema), 0, 0)
    rows, again = _compact(pa.concat_tables(kept), key, seq)
    return Newest(rows, read, repeated + again)


def _compact(rows: pa.Table, key: Sequence[str], seq: str) -> tuple[pa.Table, int]:
    if not rows.num_rows:
        return rows, 0
    # By position: a column may have any name, but sort keys are parsed as paths.
    order = _sortable(rows, [*key, seq])
    if len(key) > 1:
        order = order.set_column(0, "k0", _ranked(order.column(0).combine_chunks()))
    indices = pc.sort_indices(order, sort_keys=[(name, "ascending") for name in order.column_names])
    ordered = order.take(indices)
    changes = differs(ordered.select(order.column_names[:-1]))
    same_seq = pc.equal(ordered.column(-1).slice(1), ordered.column(-1).slice(0, len(indices) - 1))
    repeated = pc.sum(pc.and_(pc.invert(changes), same_seq)).as_py() or 0
    # [True] derived from an existing array, because Arrow imports pandas to convert Python values.
    last = pa.chunked_array([*changes.chunks, *pc.is_valid(ordered.column(-1).slice(0, 1)).chunks])
    return rows.combine_chunks().take(indices.filter(last.combine_chunks())), repeated


def repeated_keys(keys: pa.Table) -> int:
    """Counts rows with the same key as the previous row."""
    if keys.num_rows < 2 or not keys.num_columns:
        return 0
    sortable = _sortable(keys, keys.column_names)
    return int(sortable.num_rows - 1 - (pc.sum(differs(sortable)).as_py() or 0))


def differs(keys: pa.Table) -> pa.ChunkedArray:
    """Returns for each row but the last whether the next one has a different key."""
    count = keys.num_rows - 1
    changed = [_differs(column.slice(0, count), column.slice(1)) for column in keys.columns]
    found = changed[0]
    for one in changed[1:]:
        found = pc.or_(found, one)
    return found


def _differs(before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.ChunkedArray:
    different = pc.not_equal(before, after)
    if pa.types.is_floating(before.type):  # NaN equals itself, as in Postgres
        different = pc.and_not(different, pc.and_(pc.is_nan(before), pc.is_nan(after)))
    return different


def _ranked(values: pa.Array) -> pa.Array:
    """Replaces repeating texts, such as owners, by numbers of the same order, which sort twice as fast."""
    if not pa.types.is_string(values.type) or values.null_count:
        return values
    encoded = values.dictionary_encode()
    return pc.rank(encoded.dictionary, sort_keys="ascending").take(encoded.indices)


def _sortable(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns a column that Arrow can sort: the storage of extension types such as UUID."""
    columns = []
    for name in names:
        column = rows.column(name).combine_chunks()
        columns.append(column.storage if isinstance(column, pa.ExtensionArray) else column)
    return pa.table(columns, names=[f"k{place}" for place in range(len(names))])
