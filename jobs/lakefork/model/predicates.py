"""Predicates: comparisons of a column with constants, rendered for each engine."""

import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakefork.errors import InvalidInputError
from lakefork.model.column_types import ColumnType
from lakefork.model.tables import Column


@dataclass(frozen=True)
class Predicate:
    """column <op> any of the values; op is =, <, <=, > or >=, and only = may have several values."""

    column: Column
    op: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.column.name} {self.op} {', '.join(map(str, self.values))}"


def text_of(value: Any) -> str:
    """Returns a value as text that Postgres and DuckDB parse alike."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def is_exact(value: Any, kind: ColumnType) -> bool:
    """Tells whether a value has the column's Python type, so that no engine needs to convert it."""
    if kind.element or value is None:
        return False
    if kind.name in _INTEGER_BITS:
        bits = _INTEGER_BITS[kind.name]
        return type(value) is int and -(1 << bits) <= value < (1 << bits)
    if kind.digits:
        return False  # DuckDB rounds
    if type(value) is datetime.datetime:
        return kind.name == ("timestamp" if value.tzinfo is None else "timestamptz")
    if type(value) is str and not is_storable(value):
        return False
    return type(value) is _PYTHON_TYPES.get(kind.name)


def is_storable(text: str) -> bool:
    """Tells whether Postgres can store a text."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def postgres_literal(value: Any, kind: ColumnType) -> str:
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else text_of(value)
    return f"{quoted(text)}::{kind.postgres}"


def postgres_text(text: str | None) -> str:
    return "NULL" if text is None else f"{quoted(text)}::text"


def postgres_array(values: Iterable[Any], kind: ColumnType) -> str:
    """Returns an array constant, which Postgres parses much faster than a list of expressions."""
    return f"{quoted('{' + ','.join(_array_element(value) for value in values) + '}')}::{kind.postgres}[]"


def duckdb_literal(value: Any, kind: ColumnType) -> str:
    if value is None:
        return f"CAST(NULL AS {kind.duckdb})"
    text = "".join(f"\\x{byte:02x}" for byte in value) if isinstance(value, bytes) else text_of(value)
    return f"CAST({quoted(text)} AS {kind.duckdb})"


def quoted(text: str) -> str:
    if not is_storable(text):
        raise InvalidInputError("text cannot hold the character NUL or half of a surrogate pair")
    return "'" + text.replace("'", "''") + "'"


def _array_element(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else text_of(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_INTEGER_BITS = {"int16": 15, "int32": 31, "int64": 63}
_PYTHON_TYPES: dict[str, type] = {
    "boolean": bool, "varchar": str, "blob": bytes, "date": datetime.date, "time": datetime.time, "uuid": uuid.UUID,
    "float64": float,
}  # fmt: skip
