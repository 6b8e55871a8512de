"""Queries of a flush on hot tables: versions of some users or of a key range, under the current definition."""

from collections.abc import Iterable, Sequence
from typing import Any

from lakefork.hot.tables import HotTable, hot_column
from lakefork.hot.watermarks import unpublished_by_owner
from lakefork.model.column_types import TEXT, ColumnType
from lakefork.model.predicates import postgres_array, postgres_literal, quoted
from lakefork.model.tables import USER_ID, Column, TableDefinition


def versions_query(
    definition: TableDefinition,
    hots: Iterable[HotTable],
    users: Sequence[str] | None,
    low: Sequence[str] | None = None,
    high: Sequence[str] | None = None,
    *,
    waiting_only: bool = False,
) -> str:
    """Returns a query for all versions, with the definition's columns; low is inclusive, high exclusive.

    waiting_only: without those that are already in batches.
    """
    system = ", ".join(column.name for column in definition.system_columns)
    parts = []
    for hot in hots:
        values = ", ".join(
            f"{value_under(hot.definition, column)}::{column.type.readable} AS {hot_column(column)}"
            for column in definition.columns
        )
        waiting = [unpublished_by_owner(hot)] if waiting_only else []
        conditions = " AND ".join([_of(hot, users), *_between(definition, hot, low, high), *waiting])
        parts.append(f"SELECT {values}, {system} FROM {hot.qualified} WHERE {conditions}")
    return " UNION ALL ".join(parts)


def _key_under(under: TableDefinition, definition: TableDefinition) -> str:
    return ", ".join(f"{value_under(under, column)} AS {hot_column(column)}" for column in definition.key)


def defaults_query(columns: Iterable[Column]) -> str:
    """Returns a query for one row with the values of columns that were added later, in types that Arrow can read."""
    values = (f"{_initial_default(column)}::{column.type.readable} AS {hot_column(column)}" for column in columns)
    return f"SELECT {', '.join(values)}"


def middle_key_query(
    definition: TableDefinition,
    hots: Iterable[HotTable],
    users: Sequence[str] | None,
    low: Sequence[str] | None,
    high: Sequence[str] | None,
) -> str:
    """Returns a query for the middle key of a range, as text; no row if there is only one key."""
    names = [hot_column(column) for column in definition.key]
    as_text, ordered = ", ".join(f"k.{name}::text" for name in names), ", ".join(f"k.{name}" for name in names)
    versions = versions_query(definition, hots, users, low, high)
    return (
        f"WITH k AS (SELECT DISTINCT {', '.join(names)} FROM ({versions}) v) "
        f"SELECT {as_text} FROM k ORDER BY {ordered} OFFSET (SELECT greatest(1, count(*) / 2) FROM k) LIMIT 1"
    )


def key_sample_query(definition: TableDefinition, hots: Iterable[HotTable], user_id: str | None, percent: float) -> str:
    """Returns a query for a sample of keys, from some blocks of the tables, sorted, as text."""
    names = [hot_column(column) for column in definition.key]
    parts = [
        f"SELECT {_key_under(hot.definition, definition)} "
        f"FROM {hot.qualified} TABLESAMPLE SYSTEM ({percent}) "
        f"WHERE {_of(hot, None if user_id is None else [user_id])}"
        for hot in hots
    ]
    # Qualified, because the bare name is the output column: text, which sorts differently.
    return (
        f"SELECT {', '.join(f's.{name}::text' for name in names)} FROM ({' UNION ALL '.join(parts)}) s "
        f"ORDER BY {', '.join(f's.{name}' for name in names)}"
    )


def _of(hot: HotTable, users: Sequence[str] | None) -> str:
    mine = f"catalog_id = {hot.definition.catalog_id}"
    return mine if users is None else f"{mine} AND {USER_ID} = ANY ({postgres_array(users, TEXT)})"


def _between(
    definition: TableDefinition, hot: HotTable, low: Sequence[str] | None, high: Sequence[str] | None
) -> list[str]:
    key = ", ".join(value_under(hot.definition, column) for column in definition.key)
    types = [column.type.postgres for column in definition.key]
    return [
        f"({key}) {op} ({', '.join(f'{quoted(value)}::{kind}' for value, kind in zip(bound, types, strict=True))})"
        for op, bound in ((">=", low), ("<", high))
        if bound is not None
    ]


def value_under(under: TableDefinition, column: Column) -> str:
    """Returns a column's value in rows that were written under another definition."""
    if column.column_id not in under.by_id:
        return _initial_default(column)
    name = hot_column(column)
    return name if under.by_id[column.column_id].type == column.type else f"{name}::{column.type.postgres}"


def _initial_default(column: Column) -> str:
    text, kind = column.initial_default, column.type
    if text is None:
        return f"NULL::{kind.postgres}"
    if kind.element:
        return postgres_array(_duckdb_value(text, kind), kind.element)
    return postgres_literal(_duckdb_value(text, kind) if kind.name == "blob" else text, kind)


def _duckdb_value(text: str, kind: ColumnType) -> Any:
    """Converts a default from DuckDB's text, whose arrays and bytes Postgres cannot parse."""
    import duckdb

    with duckdb.connect() as connection:
        row = connection.execute(f"SELECT CAST(CAST(? AS VARCHAR) AS {kind.duckdb})", [text]).fetchone()
        return row[0] if row else None
