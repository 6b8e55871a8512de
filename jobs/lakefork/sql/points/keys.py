"""The keys that a statement names: where their values are in its text, and the values of one execution."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from lakefork.model.column_types import ColumnType
from lakefork.model.predicates import is_exact
from lakefork.model.tables import Column, TableDefinition, fold
from lakefork.sql.expressions import constant, literal
from lakefork.sql.read.constants import exact_value

MAX_KEYS = 100
KEY_TYPES = frozenset(
    ("boolean", "int16", "int32", "int64", "varchar", "date", "time", "timestamp", "timestamptz", "uuid")
)
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Slot:
    """A value of a statement: a parameter by position (None: a constant), perhaps with a minus sign."""

    position: int | None
    constant: Any = None
    is_negative: bool = False

    def value(self, values: Sequence[Any]) -> Any:
        """Returns the value; None if it has none that can be used."""
        found = self.constant if self.position is None else values[self.position]
        if not self.is_negative:
            return found
        return -found if type(found) is int else None


def slot_of(expression: exp.Expr) -> Slot | None:
    expression = expression.unnest()
    if isinstance(expression, exp.Placeholder):
        return Slot(int(expression.name) - 1)
    if isinstance(expression, exp.Neg) and isinstance(expression.this, exp.Placeholder):
        return Slot(int(expression.this.name) - 1, is_negative=True)
    known, value = constant(expression)
    return Slot(None, value) if known else None


@dataclass(frozen=True)
class KeySlots:
    """For each column of the key the values that it may have."""

    columns: tuple[Column, ...]
    slots: tuple[tuple[Slot, ...], ...]

    @property
    def count(self) -> int:
        count = 1
        for slots in self.slots:
            count *= len(slots)
        return count

    def keys(self, values: Sequence[Any]) -> list[Key] | None:
        """Returns the keys in one execution; None: a value has not exactly the column's type, or occurs twice."""
        by_column = []
        for column, slots in zip(self.columns, self.slots, strict=True):
            found = [key_value(slot.value(values), column.type) for slot in slots]
            if None in found or (len(found) > 1 and len(set(found)) < len(found)):
                return None
            by_column.append(found)
        return list(itertools.product(*by_column))


def key_value(value: Any, kind: ColumnType) -> Any:
    """Returns a value of a key column; None if engines might disagree about it."""
    if value is None or is_exact(value, kind):
        return value
    return exact_value(literal(value), kind) if type(value) is str else None


def keys_in(definition: TableDefinition, where: exp.Expr | None, name: str) -> KeySlots | None:
    """Returns the keys that a condition names, if it does nothing else."""
    if where is None or not definition.key:
        return None
    where = where.unnest()
    found: dict[Column, tuple[Slot, ...]] = {}
    for part in where.flatten() if isinstance(where, exp.And) else [where]:
        named = _compared(definition, part.unnest(), name)
        if named is None or named[0] in found:
            return None
        found[named[0]] = named[1]
    if set(found) != set(definition.key):
        return None
    slots = KeySlots(definition.key, tuple(found[column] for column in definition.key))
    return slots if slots.count <= MAX_KEYS else None


def _compared(definition: TableDefinition, part: exp.Expr, name: str) -> tuple[Column, tuple[Slot, ...]] | None:
    if isinstance(part, exp.EQ):
        pairs = [(part.left, [part.right]), (part.right, [part.left])]
    elif isinstance(part, exp.In) and part.expressions and not part.args.get("query"):
        pairs = [(part.this, part.expressions)]
    else:
        return None
    for side, others in pairs:
        column = column_of(definition, side, name)
        slots = tuple(slot_of(other) for other in others)
        if column in definition.key and column.type.name in KEY_TYPES and None not in slots:
            return column, tuple(slot for slot in slots if slot is not None)
    return None


def column_of(definition: TableDefinition, expression: exp.Expr, name: str) -> Column | None:
    """Returns the column that an expression is, of a table that is called so."""
    if not isinstance(expression, exp.Column) or expression.args.get("db"):
        return None
    if not isinstance(expression.this, exp.Identifier) or expression.args.get("join_mark"):
        return None
    if expression.table and fold(expression.table) != fold(name):
        return None
    return definition.by_name.get(fold(expression.name))
