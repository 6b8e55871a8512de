"""What a flush reads of hot tables: versions of some users or of a range of keys, under the definition of now."""

from collections.abc import Iterable, Sequence
from typing import Any

from lakefork.column_types import TEXT, ColumnType
from lakefork.hot.tables import HotTable, hot_column
from lakefork.predicates import postgres_array, postgres_literal, quoted
from lakefork.tables import USER_ID, Column, TableDefinition


def versions_query(
    definition: TableDefinition,
    hots: Iterable[HotTable],
    users: Sequence[str] | None,
    low: Sequence[str] | None = None,
    high: Sequence[str] | None = None,
    *,
    waiting_only: bool = False,
) -> str:
    """All versions, with the columns as the definition names them; low is included, high is not. waiting_only: without
    those that are in batches already.
    """
    system = ", ".join(column.name for column in definition.system_columns)
    parts = []
    for hot in hots:
        values = ", ".join(
            f"{_value(hot.definition, column)}::{column.type.readable} AS {hot_column(column)}"
            for column in definition.columns
        )
        waiting = [_is_waiting(hot)] if waiting_only else []
        conditions = " AND ".join([_of(hot, users), *_between(definition, hot, low, high), *waiting])
        parts.append(f"SELECT {values}, {system} FROM {hot.qualified} WHERE {conditions}")
    return " UNION ALL ".join(parts)


def defaults_query(columns: Iterable[Column]) -> str:
    """What rows have in columns that were added after them, as Arrow can read it; one row."""
    values = (f"{_initial_default(column)}::{column.type.readable} AS {hot_column(column)}" for column in columns)
    return f"SELECT {', '.join(values)}"


def middle_key_query(
    definition: TableDefinition,
    hots: Iterable[HotTable],
    users: Sequence[str] | None,
    low: Sequence[str] | None,
    high: Sequence[str] | None,
) -> str:
    """The key in the middle of a range, as text; nothing where there is only one key."""
    names = [hot_column(column) for column in definition.key]
    as_text, ordered = ", ".join(f"k.{name}::text" for name in names), ", ".join(f"k.{name}" for name in names)
    versions = versions_query(definition, hots, users, low, high)
    return (
        f"WITH k AS (SELECT DISTINCT {', '.join(names)} FROM ({versions}) v) "
        f"SELECT {as_text} FROM k ORDER BY {ordered} OFFSET (SELECT greatest(1, count(*) / 2) FROM k) LIMIT 1"
    )


def key_sample_query(definition: TableDefinition, hots: Iterable[HotTable], user_id: str | None, percent: float) -> str:
    """Keys of some blocks of the tables, in the order of the key, as text."""
    names = [hot_column(column) for column in definition.key]
    parts = [
        f"SELECT {', '.join(f'{_value(hot.definition, column)} AS {hot_column(column)}' for column in definition.key)} "
        f"FROM {hot.qualified} TABLESAMPLE SYSTEM ({percent}) "
        f"WHERE {_of(hot, None if user_id is None else [user_id])}"
        for hot in hots
    ]
    # Qualified: a bare name would be that of the text, and in another order.
    return (
        f"SELECT {', '.join(f's.{name}::text' for name in names)} FROM ({' UNION ALL '.join(parts)}) s "
        f"ORDER BY {', '.join(f's.{name}' for name in names)}"
    )


def _of(hot: HotTable, users: Sequence[str] | None) -> str:
    mine = f"catalog_id = {hot.definition.catalog_id}"
    return mine if users is None else f"{mine} AND {USER_ID} = ANY ({postgres_array(users, TEXT)})"


def _is_waiting(hot: HotTable) -> str:
    """What trim would not remove: no watermark of this Postgres has seen it."""
    definition = hot.definition
    owner = USER_ID if definition.per_user else "''"
    return (
        f"NOT EXISTS (SELECT FROM lakefork.watermark w WHERE w.catalog_id = {definition.catalog_id} "
        f"AND w.table_id = {definition.table_id} AND w.hot_snapshot = {definition.definition_snapshot} "
        f'AND w.user_id COLLATE "C" = {owner} AND w.cluster_id = (SELECT lakefork.cluster_id()) '
        "AND pg_visible_in_snapshot(_xid, w.seen::pg_snapshot))"
    )


def _between(
    definition: TableDefinition, hot: HotTable, low: Sequence[str] | None, high: Sequence[str] | None
) -> list[str]:
    key = ", ".join(_value(hot.definition, column) for column in definition.key)
    types = [column.type.postgres for column in definition.key]
    return [
        f"({key}) {op} ({', '.join(f'{quoted(value)}::{kind}' for value, kind in zip(bound, types, strict=True))})"
        for op, bound in ((">=", low), ("<", high))
        if bound is not None
    ]


def _value(under: TableDefinition, column: Column) -> str:
    """A column's value in rows that were written under another definition."""
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
    """Defaults are kept as DuckDB writes them; of arrays and bytes Postgres would not understand that."""
    import duckdb

    with duckdb.connect() as connection:
        row = connection.execute(f"SELECT CAST(CAST(? AS VARCHAR) AS {kind.duckdb})", [text]).fetchone()
        return row[0] if row else None
