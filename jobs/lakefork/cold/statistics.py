"""Column statistics as the catalog records them: bounds as text, in the form that DuckLake uses."""

import datetime
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

from lakefork.column_types import ColumnType


class ColumnStatistics(NamedTuple):
    """In the order in which a commit takes them. min and max are None where they are not known, or where their text would not sort as they do.

    null_count is None where a footer does not say.
    """

    value_count: int
    null_count: int | None
    min_value: str | None
    max_value: str | None
    contains_nan: bool | None = None


@dataclass(frozen=True)
class BatchFacts:
    """What the catalog records of a batch. Columns are known by id, which renames do not change."""

    size_bytes: int
    footer_size: int
    record_count: int
    columns: dict[int, ColumnStatistics]
    as_defined: bool = True  # the columns and their types are those that were to be written

    def with_nan(self, null_counts: Mapping[int, int]) -> "BatchFacts":
        """The same for columns with NaN, of which the footer has no statistics."""
        if not null_counts:
            return self
        nan = {
            column_id: ColumnStatistics(self.columns[column_id].value_count, nulls, None, None, contains_nan=True)
            for column_id, nulls in null_counts.items()
        }
        return replace(self, columns={**self.columns, **nan})


def bound_text(value: Any) -> str | None:
    """A bound as text; None when it has no text that keeps its order."""
    text = _TEXTS.get(type(value))
    return text(value) if text else None


def _moment_text(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(sep=" ")
    return value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(sep=" ") + "+00"


_TEXTS: dict[type, Callable[[Any], str | None]] = {
    bool: lambda value: "1" if value else "0",
    float: lambda value: None if math.isnan(value) else repr(value),
    bytes: lambda value: value.hex().upper(),
    datetime.datetime: _moment_text,
    **dict.fromkeys((datetime.date, datetime.time), lambda value: value.isoformat()),
    **dict.fromkeys((int, str, Decimal, uuid.UUID), str),
}


def parse_bound(text: str | None, kind: ColumnType) -> Any:
    """The value that bound_text wrote, also under a wider type; None: not known."""
    return bound_parser(kind)(text)


def bound_parser(kind: ColumnType) -> Callable[[str | None], Any]:
    """The same for many bounds of one type."""
    parse = Decimal if kind.digits else _PARSERS.get(kind.name)

    def parsed(text: str | None) -> Any:
        if text is None or parse is None:
            return None
        try:
            return parse(text)
        except (ValueError, ArithmeticError):
            return None

    return parsed


_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("int16", "int32", "int64"), int),
    **dict.fromkeys(("float32", "float64"), float),
    **dict.fromkeys(("timestamp", "timestamptz"), datetime.datetime.fromisoformat),
    "boolean": lambda text: bool(int(text)),
    "varchar": str,
    "blob": bytes.fromhex,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "uuid": uuid.UUID,
}
