"""Computes the columns after ALTER TABLE: a pure function from columns and actions to new columns."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

from lakefork.errors import InvalidInputError
from lakefork.model.column_types import ColumnType
from lakefork.model.tables import DELETED, SEQ, SUPERSEDED, UPDATED, USER_ID, Column, TableDefinition, fold
from lakefork.sql.parse.statements import (
    AddColumn,
    AlterAction,
    ColumnDefinition,
    DropColumn,
    ModifyColumn,
    RenameColumn,
)
from lakefork.sql.parse.types import type_of

RESERVED = (SEQ, DELETED, UPDATED, USER_ID, SUPERSEDED)
Defaults = Callable[[ColumnDefinition, Column], Column]
"""Fills in the default of a column; existing rows get it too when the column is added later."""


def altered_columns(
    definition: TableDefinition, actions: Sequence[AlterAction], with_default: Defaults
) -> tuple[Column, ...]:
    """Returns the columns after all actions, in order; ids of dropped columns are not reused."""
    columns = {fold(column.name): column for column in definition.columns}
    next_id = definition.next_column_id
    for action in actions:
        if isinstance(action, AddColumn):
            column = new_column(str(definition), action.column, next_id, columns)
            column = with_default(action.column, column)
            if not column.nullable and column.default is None:
                raise InvalidInputError(
                    f"{definition}: a new column {column.name} that is NOT NULL needs a DEFAULT for existing rows"
                )
            columns[fold(column.name)] = column
            next_id += ids_of(column)
        elif isinstance(action, DropColumn):
            columns.pop(fold(_protected(definition, columns, action.name, "dropped").name))
        elif isinstance(action, RenameColumn):
            columns = _renamed(definition, columns, action)
        elif isinstance(action, ModifyColumn):
            column = _protected(definition, columns, action.name, "modified")
            columns[fold(column.name)] = _modified(definition, column, action, with_default)
    return tuple(columns.values())


def new_column(table: str, column: ColumnDefinition, column_id: int, others: dict[str, Column]) -> Column:
    _check_name(table, column.name, others)
    return Column(column_id, column.name, type_of(column.type), column.nullable)


def ids_of(column: Column) -> int:
    """Returns the ids of a column; an array has two: its own and that of its elements."""
    return 2 if column.type.element else 1


def _check_name(table: str, name: str, others: dict[str, Column]) -> None:
    if fold(name) in RESERVED:
        raise InvalidInputError(f"{table}: the name {name} is reserved for a system column")
    if not name or len(name) > 200 or "\0" in name:
        raise InvalidInputError(f"{table}: a column name has 1 to 200 characters")
    if fold(name) in others:
        raise InvalidInputError(f"{table}: column {others[fold(name)].name} already exists")


def _renamed(definition: TableDefinition, columns: dict[str, Column], action: RenameColumn) -> dict[str, Column]:
    column = _existing(definition, columns, action.name)
    others = {name: other for name, other in columns.items() if other is not column}
    _check_name(str(definition), action.new_name, others)
    renamed = replace(column, name=action.new_name)
    return {
        (fold(action.new_name) if other is column else name): (renamed if other is column else other)
        for name, other in columns.items()
    }


def _modified(definition: TableDefinition, column: Column, action: ModifyColumn, with_default: Defaults) -> Column:
    kind = type_of(action.type)
    if not column.type.widens_to(kind):
        raise InvalidInputError(
            f"{definition}: column {column.name} cannot become {kind.duckdb} from {column.type.duckdb}: "
            "only widening that keeps every value is allowed"
        )
    if column.nullable and action.nullable is False:
        raise InvalidInputError(f"{definition}: column {column.name} may contain NULL and cannot become NOT NULL")
    changed = replace(
        column,
        type=kind,
        nullable=column.nullable if action.nullable is None else action.nullable,
        initial_default=_widened(column, kind),
    )
    if action.default is None:
        return changed
    given = ColumnDefinition(name=column.name, type=action.type, default=action.default)
    return replace(with_default(given, changed), initial_default=changed.initial_default)


def _widened(column: Column, kind: ColumnType) -> str | None:
    """Widens a default exactly: 0.1 as FLOAT is not 0.1 as DOUBLE."""
    if column.initial_default is None or (column.type.name, kind.name) != ("float32", "float64"):
        return column.initial_default
    return repr(struct.unpack("f", struct.pack("f", float(column.initial_default)))[0])


def _existing(definition: TableDefinition, columns: dict[str, Column], name: str) -> Column:
    if fold(name) in RESERVED:
        raise InvalidInputError(f"{definition}: {fold(name)} is a system column and cannot be altered")
    if fold(name) not in columns:
        raise InvalidInputError(
            f"{definition} has no column {name}; it has {', '.join(c.name for c in columns.values())}"
        )
    return columns[fold(name)]


def _protected(definition: TableDefinition, columns: dict[str, Column], name: str, what: str) -> Column:
    column = _existing(definition, columns, name)
    if any(column.column_id == key.column_id for key in definition.key):
        raise InvalidInputError(f"{definition}: the key column {column.name} cannot be {what}")
    return column
