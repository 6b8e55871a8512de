"""Column types on their way into Spark: as they are read, and as they are shown."""

import datetime
import uuid
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from lakefork.column_types import ColumnType
from lakefork.predicates import text_of


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type in which Spark takes values: extension types as what they are stored as, times as microseconds,
    because Spark's own type for them is switched off by default.
    """
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.int64() if pa.types.is_time(kind) else kind


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """By way of the type it is stored as: Arrow casts extension types to nothing else."""
    return column.cast(_storage_type(column.type)).cast(plain_type(column.type))


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_storage_type(kind.value_type))
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def spark_type(kind: ColumnType) -> DataType:
    """The type as which Spark reads a column; UUIDs are bytes until they are shown."""
    return from_arrow_type(plain_type(kind.arrow))


def shown(column: SparkColumn, kind: ColumnType) -> SparkColumn:
    if kind.name == "uuid":
        return _uuid_text(column)
    if kind.element and kind.element.name == "uuid":
        return F.transform(column, _uuid_text)
    return column


def _uuid_text(value: SparkColumn) -> SparkColumn:
    parts = [F.hex(F.substring(value, start, length)) for start, length in ((1, 4), (5, 2), (7, 2), (9, 2), (11, 6))]
    dashed = [piece for part in parts for piece in (F.lit("-"), part)][1:]
    return F.lower(F.concat(*dashed))


def literal(value: Any, kind: ColumnType) -> SparkColumn:
    return F.expr(_literal_sql(value, kind))


def _literal_sql(value: Any, kind: ColumnType) -> str:
    name = spark_type(kind).simpleString()
    if value is None:
        return f"CAST(NULL AS {name})"
    if kind.element:
        return f"CAST(array({', '.join(_literal_sql(one, kind.element) for one in value)}) AS {name})"
    if isinstance(value, uuid.UUID):
        return _bytes_sql(value.bytes)
    if isinstance(value, bytes):
        return _bytes_sql(value)
    if isinstance(value, datetime.time):
        return f"{microseconds(value)}L"
    # As bytes, because how Spark reads quotes and backslashes depends on its settings.
    return f"CAST(CAST({_bytes_sql(_text(value).encode())} AS STRING) AS {name})"


def microseconds(time: datetime.time) -> int:
    """Since midnight."""
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000 + time.microsecond


def _text(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(datetime.UTC)
    return text_of(value)


def _bytes_sql(value: bytes) -> str:
    return f"X'{value.hex()}'"
