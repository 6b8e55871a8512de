"""Rows of hot tables: append versions, look them up by key, read them; nothing is changed in place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.column_types import BIGINT
from lakefork.errors import ConflictError, InvalidInputError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.tables import SCHEMA, HotTable, hot_column
from lakefork.predicates import Predicate, postgres_array, postgres_literal, postgres_text, quoted
from lakefork.tables import DELETED, SEQ, USER_ID, Column, TableDefinition

SYSTEM = (SEQ, DELETED)


def append_version(
    connection: ArrowConnection, definition: TableDefinition, user_id: str | None, rows: pa.Table
) -> None:
    """Adds versions: the table's columns by name, _seq and _deleted. INSERT, UPDATE and DELETE all come here."""
    count = rows.num_rows
    columns = {"catalog_id": pa.repeat(pa.scalar(definition.catalog_id, pa.int64()), count)}
    if definition.per_user:
        columns[USER_ID] = pa.repeat(pa.scalar(user_id, pa.string()), count)
    columns |= {name: rows[name] for name in SYSTEM}
    columns |= {hot_column(column): _storage(rows[column.name], column) for column in definition.columns}
    connection.copy_in(SCHEMA, HotTable(definition).name, pa.table(columns))
    connection.execute(
        f"INSERT INTO lakefork.hot_delta VALUES ({definition.catalog_id}, {definition.table_id}, "
        f"{postgres_text(user_id or '')}, {count}, clock_timestamp())"
    )


def append_one_statement(definition: TableDefinition) -> str:
    """The same for one row in one round trip: guards, then inserts; the parameters are those of append_one_values."""
    hot = HotTable(definition)
    columns = [*hot.owner_columns, *SYSTEM, *(hot_column(column) for column in definition.columns)]
    owner_types = {"catalog_id": "bigint", USER_ID: "text", SEQ: "bigint", DELETED: "boolean"}
    types = [owner_types.get(name) for name in columns[: len(columns) - len(definition.columns)]]
    types += [column.type.postgres for column in definition.columns]
    values = ", ".join(f"%s::{kind}" for kind in types)
    return (
        f"WITH version AS (INSERT INTO {hot.qualified} ({', '.join(columns)}) SELECT {values} WHERE "
        f"lakefork.guard_write({_expected(definition)}, %s, %s::text[]) RETURNING 1) "  # no name of a catalog has a %
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
    """user_id: whose row it becomes; actor: who must not have been deleted, nor have other rules."""
    owner = [definition.catalog_id, user_id] if definition.per_user else [definition.catalog_id]
    return [*owner, int(seq), False, *values, actor, None if rules is None else list(rules), user_id or ""]


def validate_primary_key(definition: TableDefinition, keys: pa.Table, existing: pa.Table | None = None) -> None:
    """Keys are there, different from each other, and not those of existing live rows."""
    names = [column.name for column in definition.key]
    for name in names:
        if keys[name].null_count:
            raise InvalidInputError(f"{definition}: the key column {name} cannot be NULL")
    if not are_unique(keys):
        raise ConflictError(
            f"{definition}: the same key occurs twice in one statement{_example(definition, _repeated(keys))}"
        )
    if existing is not None and existing.num_rows:
        raise ConflictError(f"{definition}: a row with this key exists already{_example(definition, existing)}")


def are_unique(keys: pa.Table) -> bool:
    if keys.num_rows < 2:
        return True
    keys = _groupable(keys)
    if keys.num_columns == 1 and is_increasing(keys.column(0)):
        return True
    distinct = int(keys.group_by(keys.column_names).aggregate([]).num_rows)
    return bool(distinct == keys.num_rows)


def is_increasing(values: pa.ChunkedArray) -> bool:
    """Keys mostly come in order, and that is seen faster than that they differ."""
    return bool(pc.all(pc.less(values.slice(0, len(values) - 1), values.slice(1))).as_py())


def _groupable(keys: pa.Table) -> pa.Table:
    """Arrow cannot group by extension types such as UUID, but by what they are stored as; names are not paths to it."""
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
    """Keeps other writers of these keys out until the transaction ends; None: all writers of this user's rows."""
    keys = "NULL" if key_hashes is None else postgres_array(key_hashes, BIGINT)
    user = postgres_text(user_id)
    connection.execute(f"SELECT lakefork.lock_rows({_expected(definition)}, {user}, {keys}, {_texts(rules)})")


def guard_write(
    connection: ArrowConnection, definition: TableDefinition, user_id: str | None, rules: Iterable[str] | None = None
) -> None:
    """For writes that look at no keys. rules: those of the user that the write relies on."""
    user = postgres_text(user_id)
    connection.execute(f"SELECT lakefork.guard_write({_expected(definition)}, {user}, {_texts(rules)})")


def _texts(texts: Iterable[str] | None) -> str:
    return "NULL" if texts is None else f"ARRAY[{', '.join(postgres_text(text) for text in texts)}]::text[]"


def find_versions(connection: ArrowConnection, hot: HotTable, user_id: str | None, keys: pa.Table) -> pa.Table:
    """The newest version in this table of each of the keys that it has; keys in the order of the key's columns."""
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
    """All versions that satisfy the predicates (on key and _seq only), of one user or of all.

    batches_too: whoever reads batches in the same transaction needs no rows that were published there.
    not_seen_by: only what this Postgres snapshot did not see.
    """
    conditions = [] if not_seen_by is None else [f"NOT {_seen_by(not_seen_by)}"]
    conditions += [_readable(hot, user_id, batches_too=batches_too), *(_condition(one) for one in predicates)]
    return connection.query(f"SELECT {_columns(hot, columns)} FROM {hot.qualified} WHERE {' AND '.join(conditions)}")


@dataclass(frozen=True)
class Moment:
    """What a transaction sees: a Postgres snapshot, of a server since its start."""

    snapshot: str
    server: str

    def sees_all_of(self, other: "Moment") -> bool:
        """Whether whatever the other one sees is seen here too; false also where that is not known."""
        _, end, under_way = _parts(self.snapshot)
        _, other_end, other_under_way = _parts(other.snapshot)
        missed = {one for one in under_way if one < other_end} - other_under_way
        return self.server == other.server and other_end <= end and not missed


def _parts(snapshot: str) -> tuple[int, int, set[int]]:
    """xmin:xmax:xip: all below the first are over, none from the second on has begun, the rest are under way."""
    first, end, under_way = snapshot.split(":")
    return int(first), int(end), {int(one) for one in under_way.split(",") if one}


def moment_of(connection: ArrowConnection) -> Moment:
    (found,) = connection.query(
        "SELECT pg_current_snapshot()::text AS snapshot, pg_postmaster_start_time()::text AS server"
    ).to_pylist()
    return Moment(**found)


def count_versions(
    connection: ArrowConnection, hot: HotTable, user_id: str | None, snapshot: str, *, batches_too: bool
) -> tuple[int, int]:
    """How many of the versions that can be read now another snapshot saw, and did not see."""
    (found,) = connection.query(
        f"SELECT count(*) AS every, count(*) FILTER (WHERE NOT {_seen_by(snapshot)}) AS unseen "
        f"FROM {hot.qualified} WHERE {_readable(hot, user_id, batches_too=batches_too)}"
    ).to_pylist()
    return found["every"] - found["unseen"], found["unseen"]


def _seen_by(snapshot: str) -> str:
    """Most rows are older than all that was under way then, which is quickly seen."""
    oldest = snapshot.partition(":")[0]
    return f"(_xid < {quoted(oldest)}::xid8 OR pg_visible_in_snapshot(_xid, {quoted(snapshot)}))"


def _readable(hot: HotTable, user_id: str | None, *, batches_too: bool) -> str:
    if batches_too and (user_id is not None or not hot.definition.per_user):
        return f"{hot.of(user_id)} AND {_unpublished(hot, user_id or '')}"
    return hot.of(user_id)


def _unpublished(hot: HotTable, user_id: str) -> str:
    """No watermark of this Postgres has seen it; one of another would mean nothing here."""
    definition = hot.definition
    seen = (
        f"SELECT w.seen::pg_snapshot FROM lakefork.watermark w WHERE w.catalog_id = {definition.catalog_id} "
        f"AND w.table_id = {definition.table_id} AND w.hot_snapshot = {definition.definition_snapshot} "
        f"AND w.user_id = {postgres_text(user_id)} AND w.cluster_id = lakefork.cluster_id()"
    )
    return f"pg_visible_in_snapshot(_xid, ({seen})) IS NOT TRUE"


def any_key_between(
    connection: ArrowConnection, hot: HotTable, user_id: str | None, column: Column, low: Any, high: Any
) -> bool:
    """Whether there may be a row with a key in a range; for bulk loads, which mostly come with new keys."""
    name = hot_column(column)
    found = connection.query(
        f"SELECT 1 FROM {hot.qualified} WHERE {hot.of(user_id)} AND {name} >= {postgres_literal(low, column.type)} "
        f"AND {name} <= {postgres_literal(high, column.type)} LIMIT 1"
    )
    return bool(found.num_rows)


def _expected(definition: TableDefinition) -> str:
    """What a write was planned for, as arguments of guard_write and lock_rows."""
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


def _storage(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """COPY takes JSON as the text that it is."""
    if column.type.name == "json":
        return values.cast(pa.string())
    if column.type.element and column.type.element.name == "json":
        return values.cast(pa.list_(pa.string()))
    return values


def _repeated(keys: pa.Table) -> pa.Table:
    """One of the keys that are there more than once."""
    grouped = _groupable(keys)
    counts = grouped.group_by(grouped.column_names).aggregate([("k0", "count")])
    repeated = counts.filter(pc.greater(counts["k0_count"], 1)).select(grouped.column_names)
    return repeated.rename_columns(keys.column_names)


def _example(definition: TableDefinition, rows: pa.Table) -> str:
    first = rows.slice(0, 1).to_pylist()[0]
    return " (" + ", ".join(f"{column.name} = {first[column.name]!s:.100}" for column in definition.key) + ")"
