"""Rows of an Arrow table as JSON text: the same values as `lakefork sql --format json`, a column at a time."""

import datetime
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.sql.results import EXACT_IN_JSON, Rows, dumps, json_value

FEW_ROWS = 64  # for which setting up columns takes longer than the rows
CHUNK_ROWS = 16_384
_FIRST, _LAST = (int(datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp()) * 10**6 for year in (1000, 9999))
_ESCAPED = r'["\\\x00-\x1f]'


def rows_json(rows: pa.Table) -> bytes:
    """`[…],[…]`, without the brackets around all of it."""
    if rows.num_rows <= FEW_ROWS or not rows.num_columns:
        return compact(Rows("", rows).as_json()["rows"])[1:-1]
    parts = [_chunk(rows.slice(start, CHUNK_ROWS)) for start in range(0, rows.num_rows, CHUNK_ROWS)]
    return b",".join(parts)


def objects_json(rows: pa.Table) -> bytes:
    """`[{…},{…}]`: each row with the names of its columns."""
    if not rows.num_rows or not rows.num_columns:
        return b"[" + b",".join([b"{}"] * rows.num_rows) + b"]"
    names = rows.column_names
    if rows.num_rows <= FEW_ROWS:
        return compact([dict(zip(names, row, strict=True)) for row in Rows("", rows).as_json()["rows"]])
    large = pa.large_string()
    columns = [
        pc.binary_join_element_wise(pa.scalar(f"{dumps(name)}:", large), _column(column), pa.scalar("", large))
        for name, column in zip(names, rows.columns, strict=True)
    ]
    joined = pc.binary_join_element_wise(*columns, pa.scalar(",", large))
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(joined)], pa.int64()), joined)
    text = pc.binary_join(whole, pa.scalar("},{", large))[0]
    return b"".join((b"[{", text.as_buffer(), b"}]"))


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _chunk(rows: pa.Table) -> bytes:
    columns = [_column(column) for column in rows.columns]
    joined = pc.binary_join_element_wise(*columns, pa.scalar(",", pa.large_string()))
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(joined)], pa.int64()), joined)
    text = pc.binary_join(whole, pa.scalar("],[", pa.large_string()))[0]
    return b"".join((b"[", text.as_buffer(), b"]"))


def _column(column: pa.ChunkedArray) -> pa.LargeStringArray:
    kind = column.type
    if pa.types.is_integer(kind):
        texts = _integers(column)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = _texts(column)
    elif pa.types.is_boolean(kind):
        texts = pc.if_else(column, "true", "false").cast(pa.large_string())
    elif pa.types.is_floating(kind):
        texts = _floats(column)
    elif pa.types.is_timestamp(kind) and kind.tz in (None, "UTC") and _is_usual(column):
        texts = _timestamps(column)
    else:
        texts = _others(column)
    return _one_array(pc.fill_null(texts, "null"))


def _one_array(column: pa.ChunkedArray) -> pa.LargeStringArray:
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.large_string())
    if column.type.bit_width < 64:
        return texts
    is_exact = pc.less_equal(column, pa.scalar(EXACT_IN_JSON, column.type))
    if pa.types.is_signed_integer(column.type):
        is_exact = pc.and_(is_exact, pc.greater_equal(column, pa.scalar(-EXACT_IN_JSON, column.type)))
    if pc.all(is_exact, min_count=0).as_py():
        return texts
    return pc.if_else(is_exact, texts, _quoted(texts))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = column.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py():
        return _others(column)
    return _quoted(column)


def _quoted(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    quote = pa.scalar('"', pa.large_string())
    return pc.binary_join_element_wise(quote, texts, quote, pa.scalar("", pa.large_string()))


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The shortest text that is read as the same number; what JSON has no number for is a text."""
    column = column.cast(pa.float64())
    texts = pc.replace_substring_regex(column.cast(pa.large_string()), r"^(-?\d+)$", r"\1.0")
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return texts
    infinite = pc.if_else(pc.less(column, 0), '"-Infinity"', '"Infinity"').cast(pa.large_string())
    special = pc.if_else(pc.is_nan(column), pa.scalar('"NaN"', pa.large_string()), infinite)
    return pc.if_else(pc.is_finite(column), texts, special)


def _is_usual(column: pa.ChunkedArray) -> bool:
    """Whether all times are within years of four digits, and none is infinite."""
    bounds = pc.min_max(column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is None or (low >= _FIRST and high <= _LAST)


def _timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As Python's isoformat: a fraction of six digits, or none."""
    texts = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.string())
    texts = pc.binary_replace_slice(texts, 10, 11, "T")
    return _quoted(pc.replace_substring_regex(texts, r"\.000000(Z?)$", r"\1").cast(pa.large_string()))


def _others(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Value by value, for what has no simpler way."""
    values = Rows("", pa.table({"value": column})).rows
    return pa.chunked_array([pa.array([dumps(json_value(value)) for (value,) in values], pa.large_string())])
