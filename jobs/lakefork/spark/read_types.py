"""Column types in Spark: for reading and for display."""

import datetime
import uuid
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from lakefork.model.column_types import ColumnType
from lakefork.model.predicates import text_of


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type that Spark accepts: storage types of extension types, and microseconds for times,
    because Spark's own type for them is switched off by default.
    """
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.int64() if pa.types.is_time(kind) else kind


def to_plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Casts an array by way of its storage type, the only cast that Arrow has for extension types."""
    return column.cast(_storage_type(column.type)).cast(plain_type(column.type))


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_storage_type(kind.value_type))
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def spark_type(kind: ColumnType) -> DataType:
    """Returns the type in which Spark reads a column; UUIDs are bytes until they are shown."""
    return from_arrow_type(plain_type(kind.arrow))


def display_sql(name: str, kind: ColumnType) -> str:
    """SQL for a column as people see it."""
    if kind.name == "uuid":
        return _uuid_text(name)
    if kind.element and kind.element.name == "uuid":
        return f"transform({name}, one -> {_uuid_text('one')})"
    return name


def _uuid_text(value: str) -> str:
    parts = [
        f"hex(substring({value}, {start}, {length}))" for start, length in ((1, 4), (5, 2), (7, 2), (9, 2), (11, 6))
    ]
    dashed = ", '-', ".join(parts)
    return f"lower(concat({dashed}))"


def literal(value: Any, kind: ColumnType) -> str:
    """SQL for a value that Spark reads as a column of this type."""
    name = spark_type(kind).simpleString()
    if value is None:
        return f"CAST(NULL AS {name})"
    if kind.element:
        return f"CAST(array({', '.join(literal(one, kind.element) for one in value)}) AS {name})"
    if isinstance(value, uuid.UUID):
        return _bytes_sql(value.bytes)
    if isinstance(value, bytes):
        return _bytes_sql(value)
    if isinstance(value, datetime.time):
        return f"{microseconds(value)}L"
    # As bytes, because Spark's parsing of quotes and backslashes depends on settings.
    return f"CAST(CAST({_bytes_sql(_text(value).encode())} AS STRING) AS {name})"


def microseconds(time: datetime.time) -> int:
    """Returns microseconds since midnight."""
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000 + time.microsecond


def _text(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(datetime.UTC)
    return text_of(value)


def _bytes_sql(value: bytes) -> str:
    return f"X'{value.hex()}'"
