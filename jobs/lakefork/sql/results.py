"""What a statement answers, and its JSON form."""

import base64
import datetime
import json
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa

EXACT_IN_JSON = 2**53


@dataclass(frozen=True)
class Rows:
    """The answer of a query; table is Arrow, rows the same as Python values."""

    statement: str
    table: pa.Table

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*(_values(column) for column in self.table.columns), strict=True))

    def as_json(self) -> dict[str, Any]:
        rows = [[json_value(value) for value in row] for row in self.rows]
        return {"statement": self.statement, "columns": self.columns, "rows": rows, "row_count": len(rows)}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """As Python values; what Python cannot hold, such as infinite dates, as text."""
    try:
        return _moments(column) if pa.types.is_timestamp(column.type) else list(column.to_pylist())
    except (OverflowError, ValueError, pa.ArrowException):
        from lakefork.sql.workers.duck import as_text

        return list(as_text(column).to_pylist())


def _moments(column: pa.ChunkedArray) -> list[datetime.datetime | None]:
    """Without Arrow's own conversion, which imports pandas for a second or two."""
    zone = column.type.tz and datetime.UTC
    start = datetime.datetime(1970, 1, 1, tzinfo=zone)
    numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if one is None else start + datetime.timedelta(microseconds=one) for one in numbers]


@dataclass(frozen=True)
class Affected:
    """The answer of INSERT, UPDATE and DELETE."""

    statement: str
    affected_rows: int

    def as_json(self) -> dict[str, Any]:
        return {"statement": self.statement, "affected_rows": self.affected_rows}


@dataclass(frozen=True)
class Done:
    """The answer of what has nothing to count."""

    statement: str

    def as_json(self) -> dict[str, Any]:
        return {"statement": self.statement, "status": "success"}


Result = Rows | Affected | Done


def json_value(value: Any) -> Any:
    """A value as JSON holds it; what JSON has no form for becomes text."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if -EXACT_IN_JSON <= value <= EXACT_IN_JSON else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        if value.utcoffset():
            return value.isoformat()
        return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, list):
        return [json_value(one) for one in value]
    if isinstance(value, dict):
        return {str(key): json_value(one) for key, one in value.items()}
    return str(value)


def from_columns(statement: str, names: list[str], rows: list[tuple[Any, ...]]) -> Rows:
    """A small answer made by hand."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [pa.array(list(column)) if rows else pa.array([], pa.string()) for column in columns]
    return Rows(statement, pa.Table.from_arrays(arrays, names=names))


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
