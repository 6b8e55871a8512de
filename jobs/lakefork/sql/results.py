"""Results of statements, and their JSON form."""

import base64
import datetime
import itertools
import json
import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from lakefork.sql.parse.statements import Statement

EXACT_IN_JSON = 2**53


@dataclass(frozen=True)
class Rows:
    """The result of a query; table: as Arrow; rows: as Python values."""

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


class FewRows(Rows):
    """Rows that came as Python values; Arrow makes a table of them for whoever asks."""

    def __init__(self, statement: str, schema: pa.Schema, rows: list[tuple[Any, ...]]) -> None:
        vars(self).update(statement=statement, schema=schema, rows=rows)

    @cached_property
    def table(self) -> pa.Table:
        schema: pa.Schema = vars(self)["schema"]
        columns = list(zip(*self.rows, strict=True)) or [()] * len(schema)
        arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    @property
    def columns(self) -> list[str]:
        return list(vars(self)["schema"].names)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))
    if pa.types.is_list(kind) and isinstance(kind.value_type, pa.BaseExtensionType):
        lengths = [0 if one is None else len(one) for one in values]
        offsets = [None if one is None else place for one, place in zip(values, _starts(lengths), strict=True)]
        elements = _array([one for many in values for one in many or ()], kind.value_type)
        return pa.ListArray.from_arrays(pa.array([*offsets, sum(lengths)], pa.int32()), elements, kind)
    return pa.array(values, kind)


def _starts(lengths: list[int]) -> list[int]:
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Converts to Python values; values that Python cannot hold, such as infinite dates, become text."""
    try:
        return _moments(column) if pa.types.is_timestamp(column.type) else list(column.to_pylist())
    except (OverflowError, ValueError, pa.ArrowException):
        from lakefork.sql.workers.duck import as_text

        return list(as_text(column).to_pylist())


def _moments(column: pa.ChunkedArray) -> list[datetime.datetime | None]:
    """Converts timestamps without Arrow's own conversion, which imports pandas."""
    zone = column.type.tz and datetime.UTC
    start = datetime.datetime(1970, 1, 1, tzinfo=zone)
    numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if one is None else start + datetime.timedelta(microseconds=one) for one in numbers]


@dataclass(frozen=True)
class Affected:
    """The result of INSERT, UPDATE and DELETE."""

    statement: str
    affected_rows: int

    def as_json(self) -> dict[str, Any]:
        return {"statement": self.statement, "affected_rows": self.affected_rows}


@dataclass(frozen=True)
class Done:
    """The answer of what has nothing to count; warning: what is left to be done."""

    statement: str
    warning: str | None = None

    def as_json(self) -> dict[str, Any]:
        warned = {} if self.warning is None else {"warning": self.warning}
        return {"statement": self.statement, "status": "success", **warned}


Result = Rows | Affected | Done


class Sink(Protocol):
    """Takes the answers of statements as they come; what it raises ends the request."""

    max_rows: int | None  # of a SELECT; None: as the settings say, and more are an error instead of being cut

    def begin(self, statement: Statement) -> None:
        """The statement is about to be executed."""

    def add(self, result: Result) -> None:
        """The answer of one that is done."""

    def stream(self, statement: str, chunks: Iterator[pa.Table]) -> None:
        """The rows of a SELECT, of which there may be one more than max_rows."""


class Collected:
    """A sink that keeps everything."""

    max_rows: int | None = None

    def __init__(self) -> None:
        self.results: list[Result] = []

    def begin(self, statement: Statement) -> None:
        pass

    def add(self, result: Result) -> None:
        self.results.append(result)

    def stream(self, statement: str, chunks: Iterator[pa.Table]) -> None:
        self.results.append(Rows(statement, joined(list(chunks))))


def joined(tables: list[pa.Table]) -> pa.Table:
    """Sums of 128 bits come as whole numbers where those of a chunk fit, else as text."""
    if len(tables) > 1 and any(table.schema != tables[0].schema for table in tables):
        for place, field in enumerate(tables[0].schema):
            if any(table.schema.field(place).type != field.type for table in tables):
                tables = [
                    table.set_column(place, field.name, table.column(place).cast(pa.string())) for table in tables
                ]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def json_value(value: Any) -> Any:
    """Converts a value for JSON; values without a JSON form become text."""
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
    """Builds a small result from columns."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [pa.array(list(column)) if rows else pa.array([], pa.string()) for column in columns]
    return Rows(statement, pa.Table.from_arrays(arrays, names=names))


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
