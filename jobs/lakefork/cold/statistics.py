"""Column statistics as the catalog records them: bounds as text, in DuckLake's format."""

import datetime
import json
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from lakefork.model.column_types import ColumnType


class ColumnStatistics(NamedTuple):
    """Statistics of a column, in the order that a commit takes them.

    min and max are None if unknown, or if their text would not sort as they do.

    null_count is None if the footer does not have it.
    """

    value_count: int
    null_count: int | None
    min_value: str | None
    max_value: str | None
    contains_nan: bool | None = None


@dataclass(frozen=True)
class BatchFacts:
    """What the catalog records of a batch. statistics: the JSON that a commit takes."""

    size_bytes: int
    footer_size: int
    record_count: int
    statistics: str
    as_defined: bool = True  # the columns and types are as intended

    @classmethod
    def of(
        cls, size: int, footer_size: int, rows: int, columns: Mapping[int, ColumnStatistics], *, as_defined: bool = True
    ) -> "BatchFacts":
        statistics = json.dumps([(column_id, *column) for column_id, column in columns.items()])
        return cls(size, footer_size, rows, statistics, as_defined)

    @property
    def columns(self) -> dict[int, ColumnStatistics]:
        """Returns statistics by column id, which renames do not change."""
        return {column_id: ColumnStatistics(*column) for column_id, *column in json.loads(self.statistics)}


def bound_text(value: Any) -> str | None:
    """Returns a bound as text; None if its text would not sort as the value does."""
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
    """Parses the text of bound_text, also under a wider type; None: unknown."""
    return bound_parser(kind)(text)


def bound_parser(kind: ColumnType) -> Callable[[str | None], Any]:
    """Returns a parser for bounds of one type."""
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
