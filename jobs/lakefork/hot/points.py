"""Hot rows by key in one round trip, which also tells whether the plan that asks for them still holds."""

from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int8

from lakefork.hot.ranges import value_under
from lakefork.hot.tables import HotTable, hot_column
from lakefork.model.column_types import BIGINT, ColumnType
from lakefork.model.predicates import postgres_array, postgres_text
from lakefork.model.tables import DELETED, SEQ, USER_ID, Column, TableDefinition

PARAMETER_OF_USER, PARAMETER_OF_OWNER = "user", "owner"


def newest_by_key(
    definition: TableDefinition,
    hots: Sequence[HotTable],
    columns: Sequence[Column],
    count: int,
    *,
    guarded: bool = False,
) -> str:
    """Returns a query for the newest hot version of `count` keys: is_current, rules, files, place of the key, _seq,
    _deleted and the columns; without a version they are NULL.

    guarded: lock_rows has compared the definition.
    Parameters by name: user (of the session), owner (of the rows), and those of key_parameter.
    """
    names = [f"k{column.column_id}" for column in definition.key]
    keys = ", ".join(
        f"({place}, "
        + ", ".join(
            f"%({key_parameter(place, number)})s::{column.type.postgres}"
            for number, column in enumerate(definition.key)
        )
        + ")"
        for place in range(count)
    )
    return (
        f"SELECT g.is_current, g.rules, g.files, k.place, v.* FROM {_check(definition, hots, guarded=guarded)} g "
        f"CROSS JOIN (VALUES {keys}) AS k (place, {', '.join(names)}) "
        f"LEFT JOIN LATERAL ({_newest(definition, hots, columns)}) v ON true"
    )


def append_version_statement(definition: TableDefinition) -> str:
    """Returns a statement that appends one version whose key is locked; parameters: those of version_values."""
    hot = HotTable(definition)
    types = {"catalog_id": "bigint", USER_ID: "text", SEQ: "bigint", DELETED: "boolean"}
    system = [*hot.owner_columns, SEQ, DELETED]
    columns = [*system, *(hot_column(column) for column in definition.columns)]
    kinds = [*(types[name] for name in system), *(column.type.postgres for column in definition.columns)]
    return (
        f"WITH version AS (INSERT INTO {hot.qualified} ({', '.join(columns)}) "
        f"VALUES ({', '.join(f'%s::{kind}' for kind in kinds)}) RETURNING 1) INSERT INTO lakefork.hot_delta "
        f"SELECT {definition.catalog_id}, {definition.table_id}, %s, 1, clock_timestamp() FROM version"
    )


def version_values(
    definition: TableDefinition, owner: str | None, seq: int, values: Sequence[Any], *, deleted: bool
) -> list[Any]:
    owners = [definition.catalog_id, owner] if definition.per_user else [definition.catalog_id]
    return [*owners, Int8(seq), deleted, *map(fixed, values), owner or ""]


def fixed(value: Any) -> Any:
    """Returns whole numbers in one type: Postgres would prepare a statement for each."""
    return Int8(value) if type(value) is int else value


def files_query(definition: TableDefinition) -> str:
    """Returns a query for what changes with the table's files."""
    catalog_id, table_id = definition.ref
    return f"SELECT files FROM lakefork.check_plan({catalog_id}, '', {table_id}, NULL, '{{}}', NULL)"


def key_parameter(place: int, number: int) -> str:
    """Returns the parameter for a column of the key at a place."""
    return f"k{place}_{number}"


def _check(definition: TableDefinition, hots: Sequence[HotTable], *, guarded: bool) -> str:
    snapshots = postgres_array(sorted(hot.definition.definition_snapshot for hot in hots), BIGINT)
    snapshot = "NULL" if guarded else definition.definition_snapshot
    return (
        f"lakefork.check_plan({definition.catalog_id}, {_escaped(postgres_text(definition.catalog))}, "
        f"{definition.table_id}, {snapshot}, {snapshots}, %({PARAMETER_OF_USER})s::text)"
    )


def _newest(definition: TableDefinition, hots: Sequence[HotTable], columns: Sequence[Column]) -> str:
    parts = [f"({_newest_of(definition, hot, columns)})" for hot in hots]
    if not parts:
        nulls = [f"NULL::{_sent_as(column.type)}" for column in columns]
        return f"SELECT {', '.join(['NULL::bigint', 'NULL::boolean', *nulls])} WHERE false"
    if len(parts) == 1:
        return parts[0][1:-1]
    return f"{' UNION ALL '.join(parts)} ORDER BY {SEQ} DESC LIMIT 1"


def _newest_of(definition: TableDefinition, hot: HotTable, columns: Sequence[Column]) -> str:
    values = [
        f"{_escaped(value_under(hot.definition, column))}::{_sent_as(column.type)} AS {hot_column(column)}"
        for column in columns
    ]
    owner = f" AND {USER_ID} = %({PARAMETER_OF_OWNER})s::text" if definition.per_user else ""
    same = " AND ".join(f"{hot_column(column)} = k.k{column.column_id}" for column in definition.key)
    return (
        f"SELECT {', '.join([SEQ, DELETED, *values])} FROM {hot.qualified} "
        f"WHERE catalog_id = {definition.catalog_id}{owner} AND {same} ORDER BY {SEQ} DESC LIMIT 1"
    )


def _sent_as(kind: ColumnType) -> str:
    """Returns the Postgres type in which values arrive as they are: JSON would be parsed."""
    if kind.element:
        return f"{_sent_as(kind.element)}[]"
    return "text" if kind.name == "json" else kind.postgres


def _escaped(sql: str) -> str:
    return sql.replace("%", "%%")
