"""UPDATE and DELETE statements, and the queries that compute them."""

import functools
import secrets
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from lakefork.model.predicates import duckdb_literal
from lakefork.model.tables import Column, TableDefinition, fold
from lakefork.read.scan import quoted_name
from lakefork.sql.parse.statements import TableName
from lakefork.sql.read.select import names_whole_rows

TARGET = f"changed_{secrets.token_hex(8)}"  # not a name that users can write
MAX_INLINE_ROWS = 10


@dataclass(frozen=True)
class Change:
    """An UPDATE or DELETE; assignments is None for DELETE."""

    name: TableName
    alias: str | None
    where: exp.Expr | None
    assignments: tuple[tuple[str, exp.Expr], ...] | None
    as_user: str | None

    @property
    def expressions(self) -> list[exp.Expr]:
        values = [value for _, value in self.assignments or ()]
        return values if self.where is None else [self.where, *values]

    @functools.cached_property
    def reads_tables(self) -> bool:
        """Tells whether it reads other tables, which is rare."""
        return any(
            isinstance(node, exp.Table) or node.args.get("db")
            for one in self.expressions
            for node in one.find_all(exp.Table, exp.Column)
        )

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Returns the folded names that occur in it."""
        return frozenset(
            fold(identifier.name) for one in self.expressions for identifier in one.find_all(exp.Identifier)
        )


def columns_in(definition: TableDefinition, change: Change) -> tuple[Column, ...]:
    """Returns the columns that a condition needs."""
    where = change.where
    if where is not None and names_whole_rows(where, {fold(change.alias or definition.name)}):
        return definition.columns
    names = {fold(identifier.name) for identifier in where.find_all(exp.Identifier)} if where is not None else set()
    return tuple(column for column in definition.columns if fold(column.name) in names)


def target_table(definition: TableDefinition, change: Change) -> exp.Expr:
    alias = change.alias or definition.name
    return exp.Table(this=exp.to_identifier(TARGET), alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def inline_rows(definition: TableDefinition, change: Change, rows: pa.Table) -> str | None:
    """Returns a few rows as VALUES, which DuckDB reads faster than an Arrow table."""
    columns = [column for column in definition.columns if not column.type.element]
    columns += [column for column in definition.system_columns if column.name in rows.column_names]
    if rows.num_rows > MAX_INLINE_ROWS or len(columns) < rows.num_columns:
        return None
    lists = [rows[column.name].to_pylist() for column in columns]
    values = ", ".join(
        "(" + ", ".join(duckdb_literal(value, column.type) for column, value in zip(columns, row, strict=True)) + ")"
        for row in zip(*lists, strict=True)
    )
    alias = exp.to_identifier(change.alias or definition.name, quoted=True).sql(dialect="duckdb")
    return f"(VALUES {values}) AS {alias} ({', '.join(map(quoted_name, columns))})" if values else None


def with_condition(query: exp.Select, change: Change) -> exp.Expr:
    return query if change.where is None else query.where(change.where.copy())
