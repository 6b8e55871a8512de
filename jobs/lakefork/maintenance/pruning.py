"""Which batches can hold rows that are wanted, by what the catalog knows of their columns."""

import datetime
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lakefork.predicates import Predicate


@dataclass(frozen=True)
class Batch:
    """A file and the bounds of some of its columns, as the catalog records them: text, or None where not known."""

    path: str
    bounds: Mapping[int, tuple[str | None, str | None]]


def batches_to_read(batches: Sequence[Batch], predicates: Sequence[Predicate]) -> list[Batch]:
    """Leaves out only batches that certainly hold nothing: what is not known, or cannot be compared, is read."""
    return [batch for batch in batches if all(_may_match(batch, predicate) for predicate in predicates)]


def _may_match(batch: Batch, predicate: Predicate) -> bool:
    low, high = (_parsed(bound, predicate) for bound in batch.bounds.get(predicate.column.column_id, (None, None)))
    return any(_within(predicate.op, value, low, high) for value in predicate.values)


def _within(op: str, value: Any, low: Any, high: Any) -> bool:
    above_low = low is None or value >= low
    below_high = high is None or value <= high
    if op == "=":
        return above_low and below_high
    if op in (">", ">="):
        return high is None or (high > value if op == ">" else high >= value)
    return low is None or (low < value if op == "<" else low <= value)


def _parsed(bound: str | None, predicate: Predicate) -> Any:
    """A bound as a value of the predicate's type; None: not known."""
    if bound is None:
        return None
    try:
        return _PARSERS[type(predicate.values[0])](bound)
    except (KeyError, ValueError, ArithmeticError):
        return None


_PARSERS: dict[type, Any] = {
    int: int,
    str: str,
    Decimal: Decimal,
    uuid.UUID: uuid.UUID,
    datetime.date: datetime.date.fromisoformat,
    datetime.datetime: datetime.datetime.fromisoformat,
}
