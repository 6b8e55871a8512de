"""Rows of hot tables: appends versions, looks them up by key, reads them. Nothing is changed in place."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.errors import ConflictError, InvalidInputError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.snapshots import PgSnapshot
from lakefork.hot.tables import SCHEMA, HotTable, hot_column
from lakefork.hot.watermarks import unpublished
from lakefork.model.column_types import BIGINT
from lakefork.model.predicates import Predicate, postgres_array, postgres_literal, postgres_text, quoted
from lakefork.model.tables import DELETED, SEQ, USER_ID, Column, TableDefinition

SYSTEM = (SEQ, DELETED)
# Rows come from workers without alignment, and Arrow would warn about that in the user's terminal.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def append_version(
    connection: ArrowConnection, definition: TableDefinition, user_id: str | None, rows: pa.Table
) -> None:
    """Appends versions of rows, for INSERT, UPDATE and DELETE: the table's columns by name, _seq and _deleted."""
    count = rows.num_rows
    columns = {"catalog_id": pa.repeat(pa.scalar(definition.catalog_id, pa.int64()), count)}
    if definition.per_user:
        columns[USER_ID] = pa.repeat(pa.scalar(user_id, pa.string()), count)
    columns |= {name: rows[name] for name in SYSTEM}
    columns |= {hot_column(column): as_stored(rows[column.name], column) for column in definition.columns}
    connection.copy_in(SCHEMA, HotTable(definition).name, pa.table(columns))
    connection.execute(
        f"INSERT INTO lakefork.hot_delta VALUES ({definition.catalog_id}, {definition.table_id}, "
        f"{postgres_text(user_id or '')}, {count}, clock_timestamp())"
    )


def append_one_statement(definition: TableDefinition) -> str:
    """Returns a statement that guards and appends one row in one round trip; parameters: append_one_values."""
    hot = HotTable(definition)
    columns = [*hot.owner_columns, *SYSTEM, *(hot_column(column) for column in definition.columns)]
    owner_types = {"catalog_id": "bigint", USER_ID: "text", SEQ: "bigint", DELETED: "boolean"}
    types = [owner_types.get(name) for name in columns[: len(columns) - len(definition.columns)]]
    types += [column.type.postgres for column in definition.columns]
    values = ", ".join(f"%s::{kind}" for kind in types)
    return (
        f"WITH version AS (INSERT INTO {hot.qualified} ({', '.join(columns)}) SELECT {values} WHERE "
        f"lakefork.guard_write({_expected(definition)}, %s, %s::text[]) RETURNING 1) "  # catalog names have no %
        "INSERT INTO lakefork.hot_delta "
        f"SELECT {definition.catalog_id}, {definition.table_id}, %s, 1, clock_timestamp() FROM version"
    )


def append_one_values(
    definition: TableDefinition,
    user_id: str | None,
    actor: str | None,
    rules: Sequence[str] | None,
    seq: int,
    values: Sequence[Any],
) -> list[Any]:
    """Returns the parameters of append_one_statement. user_id: the owner; actor: must exist, with unchanged rules."""
    owner = [definition.catalog_id, user_id] if definition.per_user else [definition.catalog_id]
    return [*owner, int(seq), False, *values, actor, None if rules is None else list(rules), user_id or ""]


def validate_primary_key(definition: TableDefinition, keys: pa.Table, existing: pa.Table | None = None) -> None:
    """Raises unless keys are not NULL, unique, and not those of existing live rows."""
    names = [column.name for column in definition.key]
    for name in names:
        if keys[name].null_count:
            raise InvalidInputError(f"{definition}: the key column {name} cannot be NULL")
    if not are_unique(keys):
        raise ConflictError(
            f"{definition}: the same key occurs twice in one statement{_example(definition, _repeated(keys))}"
        )
    if existing is not None and existing.num_rows:
        raise key_exists(definition, existing.slice(0, 1).select(names).to_pylist()[0])


def key_exists(definition: TableDefinition, key: Mapping[str, Any]) -> ConflictError:
    return ConflictError(f"{definition}: a row with this key already exists{_shown(definition, key)}")


def are_unique(keys: pa.Table) -> bool:
    if keys.num_rows < 2:
        return True
    keys = _groupable(keys)
    if keys.num_columns == 1 and is_increasing(keys.column(0)):
        return True
    distinct = int(keys.group_by(keys.column_names).aggregate([]).num_rows)
    return bool(distinct == keys.num_rows)


def is_increasing(values: pa.ChunkedArray) -> bool:
    """Tells whether keys increase, which is common and faster to check than uniqueness."""
    return bool(pc.all(pc.less(values.slice(0, len(values) - 1), values.slice(1))).as_py())


def _groupable(keys: pa.Table) -> pa.Table:
    """Prepares keys for grouping in Arrow: storage types instead of extension types, and plain column names."""
    keys = keys.rename_columns([f"k{place}" for place in range(keys.num_columns)])
    for place, field in enumerate(keys.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            keys = keys.set_column(place, field.name, keys.column(place).cast(field.type.storage_type))
    return keys


def lock_rows(
    connection: ArrowConnection,
    definition: TableDefinition,
    user_id: str | None,
    key_hashes: Iterable[int] | None,
    rules: Iterable[str] | None = None,
) -> None:
    """Locks keys until the transaction ends; None: all rows of the user."""
    keys = "NULL" if key_hashes is None else postgres_array(key_hashes, BIGINT)
    user = postgres_text(user_id)
    connection.execute(f"SELECT lakefork.lock_rows({_expected(definition)}, {user}, {keys}, {quoted_texts(rules)})")


def lock_rows_statement(definition: TableDefinition) -> str:
    """Returns a statement that does the same; parameters: owner, hashes of keys, rules."""
    return f"SELECT lakefork.lock_rows({_expected(definition)}, %s::text, %s::bigint[], %s::text[])"


def guard_write(
    connection: ArrowConnection, definition: TableDefinition, user_id: str | None, rules: Iterable[str] | None = None
) -> None:
    """Guards writes that check no keys. rules: the user's rules that the write depends on."""
    user = postgres_text(user_id)
    connection.execute(f"SELECT lakefork.guard_write({_expected(definition)}, {user}, {quoted_texts(rules)})")


def quoted_texts(texts: Iterable[str] | None) -> str:
    return "NULL" if texts is None else f"ARRAY[{', '.join(postgres_text(text) for text in texts)}]::text[]"


def find_versions(connection: ArrowConnection, hot: HotTable, user_id: str | None, keys: pa.Table) -> pa.Table:
    """Returns the newest version in this table of each existing key; keys have their columns in key order."""
    key = hot.definition.key
    wanted = ", ".join(
        postgres_array(values.to_pylist(), column.type) for column, values in zip(key, keys.columns, strict=True)
    )
    names = ", ".join(f"k{column.column_id}" for column in key)
    same = " AND ".join(f"h.{hot_column(column)} = k.k{column.column_id}" for column in key)
    return connection.query(
        f"SELECT v.* FROM unnest({wanted}) AS k ({names}) "
        f"CROSS JOIN LATERAL (SELECT {_columns(hot, hot.definition.columns)} "
        f"FROM {hot.qualified} h WHERE {hot.of(user_id)} AND {same} ORDER BY {SEQ} DESC LIMIT 1) v"
    )


def read_versions(
    connection: ArrowConnection,
    hot: HotTable,
    user_id: str | None,
    columns: Iterable[Column],
    predicates: Iterable[Predicate] = (),
    *,
    batches_too: bool = False,
    not_seen_by: str | None = None,
) -> pa.Table:
    """Reads all versions that satisfy the predicates (on key and _seq only), of one user or of all.

    batches_too: the caller also reads batches in this transaction, so published rows are left out.
    not_seen_by: only what this Postgres snapshot did not see.
    """
    conditions = [] if not_seen_by is None else [f"NOT {_seen_by(not_seen_by)}"]
    conditions += [_readable(hot, user_id, batches_too=batches_too), *(_condition(one) for one in predicates)]
    return connection.query(f"SELECT {_columns(hot, columns)} FROM {hot.qualified} WHERE {' AND '.join(conditions)}")


@dataclass(frozen=True)
class Moment:
    """What a transaction sees: a Postgres snapshot, and the server's start that it is valid for."""

    snapshot: str
    server: str

    def sees_all_of(self, other: "Moment") -> bool:
        """Tells whether everything that the other one sees is visible here too; false if unknown."""
        return self.server == other.server and PgSnapshot(self.snapshot).includes(PgSnapshot(other.snapshot))


def moment_of(connection: ArrowConnection) -> Moment:
    (found,) = connection.query(
        "SELECT pg_current_snapshot()::text AS snapshot, pg_postmaster_start_time()::text AS server"
    ).to_pylist()
    return Moment(**found)


def count_versions(
    connection: ArrowConnection, hot: HotTable, user_id: str | None, snapshot: str, *, batches_too: bool
) -> tuple[int, int]:
    """Counts the readable versions that another snapshot saw, and those that it did not see."""
    (found,) = connection.query(
        f"SELECT count(*) AS every, count(*) FILTER (WHERE NOT {_seen_by(snapshot)}) AS unseen "
        f"FROM {hot.qualified} WHERE {_readable(hot, user_id, batches_too=batches_too)}"
    ).to_pylist()
    return found["every"] - found["unseen"], found["unseen"]


def _seen_by(snapshot: str) -> str:
    """Returns the condition that a snapshot sees a row; the first test is fast and true for most rows."""
    oldest = snapshot.partition(":")[0]
    return f"(_xid < {quoted(oldest)}::xid8 OR pg_visible_in_snapshot(_xid, {quoted(snapshot)}))"


def _readable(hot: HotTable, user_id: str | None, *, batches_too: bool) -> str:
    if batches_too and (user_id is not None or not hot.definition.per_user):
        return f"{hot.of(user_id)} AND {unpublished(hot, user_id or '')}"
    return hot.of(user_id)


def any_key_between(
    connection: ArrowConnection, hot: HotTable, user_id: str | None, column: Column, low: Any, high: Any
) -> bool:
    """Tells whether there may be a row with a key in a range; bulk loads mostly have new keys."""
    name = hot_column(column)
    found = connection.query(
        f"SELECT 1 FROM {hot.qualified} WHERE {hot.of(user_id)} AND {name} >= {postgres_literal(low, column.type)} "
        f"AND {name} <= {postgres_literal(high, column.type)} LIMIT 1"
    )
    return bool(found.num_rows)


def _expected(definition: TableDefinition) -> str:
    """Returns the expected definition as arguments of guard_write and lock_rows."""
    catalog = postgres_text(definition.catalog)
    return f"{definition.catalog_id}, {catalog}, {definition.table_id}, {definition.definition_snapshot}"


def _columns(hot: HotTable, columns: Iterable[Column]) -> str:
    owner = [USER_ID] if hot.definition.per_user else []
    readable = [f"{hot_column(column)}::{column.type.readable} AS {hot_column(column)}" for column in columns]
    return ", ".join([*owner, *SYSTEM, *readable])


def _condition(predicate: Predicate) -> str:
    name = predicate.column.name if predicate.column.name in (SEQ, USER_ID) else hot_column(predicate.column)
    if len(predicate.values) > 1:
        return f"{name} = ANY ({postgres_array(predicate.values, predicate.column.type)})"
    return f"{name} {predicate.op} {postgres_literal(predicate.values[0], predicate.column.type)}"


def as_stored(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Returns the storage type for COPY, which takes JSON as text."""
    if column.type.name == "json":
        return values.cast(pa.string())
    if column.type.element and column.type.element.name == "json":
        return values.cast(pa.list_(pa.string()))
    return values


def _repeated(keys: pa.Table) -> pa.Table:
    """Returns one of the repeated keys."""
    grouped = _groupable(keys)
    counts = grouped.group_by(grouped.column_names).aggregate([("k0", "count")])
    repeated = counts.filter(pc.greater(counts["k0_count"], 1)).select(grouped.column_names)
    return repeated.rename_columns(keys.column_names)


def _example(definition: TableDefinition, rows: pa.Table) -> str:
    return _shown(definition, rows.slice(0, 1).to_pylist()[0])


def _shown(definition: TableDefinition, key: Mapping[str, Any]) -> str:
    return " (" + ", ".join(f"{column.name} = {key[column.name]!s:.100}" for column in definition.key) + ")"
