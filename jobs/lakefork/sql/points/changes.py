"""INSERT, UPDATE and DELETE of one row by key: what they write, as far as no query engine is needed to compute it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from lakefork.cold.lookups import SEARCHED_TYPES
from lakefork.errors import InvalidInputError
from lakefork.hot.points import append_version_statement, newest_by_key
from lakefork.model.predicates import is_exact
from lakefork.model.tables import Column, TableDefinition, TableKind
from lakefork.read.tables import FoundTable
from lakefork.sql.parse.grammar import is_default
from lakefork.sql.parse.statements import Delete, Insert, Update
from lakefork.sql.points.keys import KeySlots, Slot, column_of, keys_in, slot_of
from lakefork.sql.write.quick_insert import constant_default
from lakefork.sql.write.rows import target_columns

CONVERTED_TYPES = ("date", "timestamp", "timestamptz", "json")  # whose values arrive in more than one form
_WHOLE_NUMBERS = ("int16", "int32", "int64")
NEEDS_ENGINE = object()
Row = Mapping[Column, Any]
NewValue = Callable[[Row, Sequence[Any]], Any]  # from the row as it is and the statement's values


@dataclass(frozen=True)
class PointChange:
    """A change of one row. sql: finds its newest version; append: writes the next one; new_values: by column."""

    statement: Insert | Update | Delete
    found: FoundTable
    keys: KeySlots
    new_values: Mapping[Column, NewValue]
    sql: str
    append: str

    @property
    def definition(self) -> TableDefinition:
        return self.found.definition

    @property
    def is_insert(self) -> bool:
        return isinstance(self.statement, Insert)

    @property
    def is_deletion(self) -> bool:
        return isinstance(self.statement, Delete)

    def row(self, current: Row, values: Sequence[Any]) -> list[Any] | None:
        """Returns the values of the next version in the order of columns; None: the query engine has to compute it."""
        found = [
            self.new_values[column](current, values) if column in self.new_values else current[column]
            for column in self.definition.columns
        ]
        return None if any(value is NEEDS_ENGINE for value in found) else found


def plan_change(statement: Insert | Update | Delete, found: FoundTable) -> PointChange | None:
    """Returns how to execute a change of one row by key; None: it is something else."""
    definition = found.definition
    has_hot_table = any(hot.definition.definition_snapshot == definition.definition_snapshot for hot in found.hot)
    if definition.kind == TableKind.STREAM or statement.as_user is not None or not has_hot_table:
        return None
    if any(column.type.name not in SEARCHED_TYPES for column in definition.key):
        return None
    planned = _inserted(statement, definition) if isinstance(statement, Insert) else _changed(statement, definition)
    if planned is None or planned[0].count != 1:
        return None
    keys, new_values = planned
    columns = definition.columns
    sql = newest_by_key(definition, found.hot, columns, 1, guarded=True)
    return PointChange(statement, found, keys, new_values, sql, append_version_statement(definition))


def _changed(
    statement: Update | Delete, definition: TableDefinition
) -> tuple[KeySlots, Mapping[Column, NewValue]] | None:
    name = statement.alias or definition.name
    keys = keys_in(definition, statement.where, name)
    if keys is None:
        return None
    new_values: dict[Column, NewValue] = {}
    for title, expression in statement.assignments if isinstance(statement, Update) else ():
        column = column_of(definition, exp.column(exp.to_identifier(title)), name)
        value = None if column is None or column in definition.key else _assigned(definition, column, expression, name)
        if column is None or value is None:
            return None
        new_values[column] = value
    return keys, new_values


def _inserted(statement: Insert, definition: TableDefinition) -> tuple[KeySlots, Mapping[Column, NewValue]] | None:
    source = statement.source
    if not isinstance(source, exp.Values) or len(source.expressions) != 1:
        return None
    cells = source.expressions[0].expressions
    try:
        columns = target_columns(definition, statement.columns)
    except InvalidInputError:
        return None
    if len(cells) != len(columns) or not set(definition.key) <= set(columns):
        return None
    given = dict(zip(columns, cells, strict=True))
    keys = [slot_of(given[column]) for column in definition.key]
    new_values: dict[Column, NewValue] = {}
    for column in definition.columns:
        value = _given(column, given[column]) if column in given else _default(column)
        if value is None:
            return None
        new_values[column] = value
    slots = tuple((slot,) for slot in keys if slot is not None)
    return (KeySlots(definition.key, slots), new_values) if definition.key and len(slots) == len(keys) else None


def _assigned(definition: TableDefinition, column: Column, expression: exp.Expr, name: str) -> NewValue | None:
    if isinstance(expression, exp.Add | exp.Sub):
        return _sum(definition, column, expression, name)
    return _given(column, expression)


def _given(column: Column, expression: exp.Expr) -> NewValue | None:
    if is_default(expression):
        return _default(column)
    slot = slot_of(expression)
    return None if slot is None else _of_slot(column, slot)


def _of_slot(column: Column, slot: Slot) -> NewValue:
    def value(_: Row, values: Sequence[Any]) -> Any:
        found = slot.value(values)
        return found if fits(column, found) and not (found is None and slot.is_negative) else NEEDS_ENGINE

    return value


def _default(column: Column) -> NewValue | None:
    known, default = constant_default(column)
    return (lambda *_: default) if known and fits(column, default) else None


def _sum(definition: TableDefinition, column: Column, expression: exp.Add | exp.Sub, name: str) -> NewValue | None:
    """Returns column ± constant of whole numbers, where the result is in range whatever type it is computed in."""
    sign = 1 if isinstance(expression, exp.Add) else -1
    operand, other = column_of(definition, expression.left, name), expression.right
    if operand is None and sign > 0:
        operand, other = column_of(definition, expression.right, name), expression.left
    slot = slot_of(other)
    if operand is None or slot is None or operand.type != column.type or column.type.name not in _WHOLE_NUMBERS:
        return None
    source = operand

    def value(row: Row, values: Sequence[Any]) -> Any:
        before, by = row[source], slot.value(values)
        if type(by) is not int or not is_exact(by, column.type):
            return NEEDS_ENGINE
        after = None if before is None else before + sign * by
        return after if is_exact(after, column.type) or after is None else NEEDS_ENGINE

    return value


def fits(column: Column, value: Any) -> bool:
    """Tells whether a value needs no conversion and no check."""
    if value is None:
        return column.nullable
    return column.type.name not in CONVERTED_TYPES and is_exact(value, column.type)
