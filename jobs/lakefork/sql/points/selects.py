"""SELECT of plain columns by key: what it reads, and how rows become its answer."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from lakefork.hot.points import newest_by_key
from lakefork.model.column_types import ColumnType
from lakefork.model.tables import DELETED, SEQ, Column, TableDefinition, TableKind, fold
from lakefork.read.tables import FoundTable
from lakefork.sql.parse.grammar import time_travel
from lakefork.sql.parse.statements import Select
from lakefork.sql.points.keys import KeySlots, column_of, keys_in
from lakefork.sql.system.relations import SYSTEM_NAMESPACES

_CLAUSES = frozenset(("expressions", "from", "from_", "where"))
_TABLE_ARGS = frozenset(("this", "db", "alias"))


@dataclass(frozen=True)
class PointSelect:
    """A SELECT by key. outputs: for each column of the answer its place among _seq, _deleted and the columns read."""

    statement: Select
    found: FoundTable
    keys: KeySlots
    columns: tuple[Column, ...]
    outputs: tuple[int, ...]
    schema: pa.Schema
    sql: str
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]

    @property
    def definition(self) -> TableDefinition:
        return self.found.definition

    def with_columns(self, more: Sequence[Column]) -> "PointSelect":
        """Returns the same SELECT that also reads other columns."""
        columns = tuple(dict.fromkeys([*self.columns, *more]))
        sql = newest_by_key(self.definition, self.found.hot, columns, self.keys.count)
        return replace(self, columns=columns, sql=sql, converters=tuple(_converters(columns)))


def table_of(query: exp.Expr) -> exp.Table | None:
    """Returns the table of a query that may be a SELECT by key, as far as its text tells."""
    if not isinstance(query, exp.Select) or _others(query, _CLAUSES):
        return None
    source = query.args.get("from_") or query.args.get("from")
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or query.args.get("where") is None:
        return None
    if _others(table, _TABLE_ARGS) or time_travel(table) or fold(table.db) in SYSTEM_NAMESPACES:
        return None
    alias = table.args.get("alias")
    return None if alias is not None and alias.args.get("columns") else table


def _others(node: exp.Expr, known: frozenset[str]) -> list[str]:
    return [name for name, value in node.args.items() if value and name not in known]


def plan_select(statement: Select, table: exp.Table, found: FoundTable, sees_all: bool) -> PointSelect | None:
    """sees_all: rows of all users, among whom a key is not unique. None: it is no SELECT by key of plain columns."""
    definition, query = found.definition, statement.query
    if definition.kind == TableKind.STREAM or (definition.per_user and sees_all):
        return None
    name = table.alias_or_name
    keys = keys_in(definition, query.args["where"].this, name)
    outputs = _outputs(definition, query, name)
    if keys is None or outputs is None:
        return None
    columns = tuple(dict.fromkeys(column for _, column in outputs if column.name not in (SEQ, DELETED)))
    places = {SEQ: 0, DELETED: 1, **{column.name: place for place, column in enumerate(columns, 2)}}
    arrow = definition.arrow_schema
    return PointSelect(
        statement,
        found,
        keys,
        columns,
        tuple(places[column.name] for _, column in outputs),
        pa.schema([(title, arrow.field(column.name).type) for title, column in outputs]),
        newest_by_key(definition, found.hot, columns, keys.count),
        tuple(_converters(columns)),
    )


def _outputs(definition: TableDefinition, query: exp.Expr, name: str) -> list[tuple[str, Column]] | None:
    """Returns the titles and columns of an answer; None if one is computed, or its title is not its name."""
    system = {column.name: column for column in definition.system_columns if column.name in (SEQ, DELETED)}
    found: list[tuple[str, Column]] = []
    for part in query.expressions:
        if isinstance(part, exp.Star) and not any(part.args.values()):
            found += [(column.name, column) for column in (*definition.columns, *system.values())]
            continue
        inner = part.this if isinstance(part, exp.Alias) else part
        column = column_of(definition, inner, name) or _system_column(inner, system, name)
        if column is None or (inner is part and part.name != column.name):
            return None
        found.append((part.alias if inner is not part else column.name, column))
    titles = {fold(title) for title, _ in found}
    # DuckDB has a name of its own for the time zone of such arrays.
    zoned = any(column.type.element and column.type.element.name == "timestamptz" for _, column in found)
    return found if found and len(titles) == len(found) and not zoned else None


def _system_column(expression: exp.Expr, system: dict[str, Column], name: str) -> Column | None:
    if not isinstance(expression, exp.Column) or expression.args.get("db"):
        return None
    if expression.table and fold(expression.table) != fold(name):
        return None
    return system.get(expression.name)


def _converters(columns: Sequence[Column]) -> list[tuple[int, Callable[[Any], Any]]]:
    """Returns what has to be done with values as they arrive, by their place in a row."""
    found = ((place, _converter(column.type)) for place, column in enumerate(columns, 2))
    return [(place, _of_values(convert)) for place, convert in found if convert is not None]


def _of_values(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _converter(kind: ColumnType) -> Callable[[Any], Any] | None:
    if kind.element:
        convert = _converter(kind.element)
        if convert is None:
            return None
        each = _of_values(convert)
        return lambda values: [each(value) for value in values]
    return _in_utc if kind.name == "timestamptz" else None


def _in_utc(moment: datetime.datetime) -> datetime.datetime:
    return moment.astimezone(datetime.UTC)
