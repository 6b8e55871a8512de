"""The change feed: what became visible in hot tables between two Postgres snapshots, and cursors to resume from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

from lakefork.errors import InvalidInputError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import value_under
from lakefork.hot.snapshots import PgSnapshot
from lakefork.hot.streams import StreamBuffer
from lakefork.hot.tables import HotTable, hot_column
from lakefork.model.column_types import BIGINT, TEXT
from lakefork.model.predicates import postgres_array, quoted
from lakefork.model.tables import DELETED, SEQ, USER_ID, TableDefinition, TableKind, TableRef

XID = "_xid"
FORMAT = "1"


@dataclass(frozen=True)
class Position:
    """Where a reader of the feed stands. mark: another one after a crash or a restore; None: there is none yet."""

    cluster: str
    timeline: int
    mark: str | None
    catalog_snapshot: int
    seen: PgSnapshot

    def is_after(self, other: "Position") -> bool:
        """Tells whether the transactions of both can be compared."""
        return (self.cluster, self.timeline, self.mark) == (other.cluster, other.timeline, other.mark)


def current_position(connection: ArrowConnection) -> Position:
    """Returns the position of the connection's transaction."""
    return position_and_changes(connection, (), None)[0]


def position_and_changes(
    connection: ArrowConnection, names: Sequence[str], since: PgSnapshot | None
) -> tuple[Position, dict[str, int]]:
    """Returns the position of the connection's transaction, and those of some Postgres tables that have rows which an
    earlier snapshot did not see, with the newest _xid of these.
    """
    probes = [] if since is None else [_newest_unseen(name, since) for name in names]
    (found,) = connection.query(
        "SELECT cluster, timeline, mark::text AS mark, catalog_snapshot, seen, "
        f"ARRAY[{', '.join(probes)}]::bigint[] AS newest FROM lakefork.feed_position()"
    ).to_pylist()
    newest = zip(names, found.pop("newest"), strict=False)
    changed = {name: xid for name, xid in newest if xid is not None}
    return Position(**{**found, "seen": PgSnapshot(found["seen"])}), changed


def _newest_unseen(name: str, since: PgSnapshot) -> str:
    parts = [
        f"(SELECT _xid::text::bigint FROM {name} WHERE {part} ORDER BY _xid DESC LIMIT 1)"
        for part in since.unseen_parts()
    ]
    return f"greatest({', '.join(parts)})"


@dataclass(frozen=True)
class Cursor:
    """A position in the changes of one table, as a short text that any server can resume from.

    query: a digest of what is read of the table. until, last_seq: of the changes up to the snapshot `until`, those
    with a _seq up to last_seq have been delivered too.
    """

    position: Position
    catalog_id: int
    table_id: int
    query: str
    until: PgSnapshot | None = None
    last_seq: int = 0

    def __str__(self) -> str:
        at = self.position
        parts = [FORMAT, at.cluster, at.timeline, at.mark, self.catalog_id, self.table_id, self.query]
        parts += [at.catalog_snapshot, at.seen.text]
        parts += [] if self.until is None else [self.until.text, self.last_seq]
        return ".".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = text.split(".")
        try:
            if parts[0] != FORMAT or len(parts) not in (9, 11):
                raise ValueError
            _, cluster, timeline, mark, catalog_id, table_id, query, snapshot, seen, *rest = parts
            position = Position(cluster, int(timeline), str(UUID(mark)), int(snapshot), _snapshot(seen))
            cursor = cls(position, int(catalog_id), int(table_id), query)
            return replace(cursor, until=_snapshot(rest[0]), last_seq=int(rest[1])) if rest else cursor
        except ValueError:
            raise InvalidInputError("resume: this is not a cursor that a subscription was given") from None

    def has_delivered(self, xid: int, seq: int) -> bool:
        """Tells whether a change that `position` does not see was delivered nevertheless."""
        return self.until is not None and seq <= self.last_seq and self.until.sees(xid)


def _snapshot(text: str) -> PgSnapshot:
    found = PgSnapshot(text)
    first, _, _ = text.split(":")
    if not 0 < int(first) <= found.end or any(one < 1 for one in found.under_way):
        raise ValueError(text)
    return found


def changes_query(definition: TableDefinition, hots: Iterable[HotTable], since: PgSnapshot, limit: int) -> str:
    """Returns a query for the versions that a snapshot did not see, under the current definition, by _seq."""
    if definition.kind == TableKind.STREAM:
        return _events_query(definition, since, limit)
    system = ", ".join(column.name for column in definition.system_columns)
    parts = [
        f"SELECT {_values(hot, definition)}, {system}, _xid::text::bigint AS {XID} FROM {hot.qualified} "
        f"WHERE {_of_catalog(definition)} AND {since.unseen()}"
        for hot in hots
    ]
    return f"SELECT * FROM ({' UNION ALL '.join(parts)}) changes ORDER BY {SEQ} LIMIT {limit}"


def _events_query(definition: TableDefinition, since: PgSnapshot, limit: int) -> str:
    values = ", ".join(
        f"{hot_column(column)}::{column.type.readable} AS {hot_column(column)}" for column in definition.columns
    )
    return (
        f"SELECT {values}, {SEQ}, false AS {DELETED}, {USER_ID}, _xid::text::bigint AS {XID} "
        f"FROM {StreamBuffer(definition).qualified} WHERE {_of_catalog(definition)} AND {since.unseen()} "
        f"ORDER BY _at, {SEQ} LIMIT {limit}"
    )


def versions_before_query(
    definition: TableDefinition,
    hots: Iterable[HotTable],
    owners: Sequence[str] | None,
    keys: Sequence[Sequence[Any]],
    seqs: Sequence[int],
) -> str:
    """Returns a query for the newest hot version of each key below a _seq; place: which of the keys it is.

    owners, seqs and each column of the key are given in parallel.
    """
    given = [postgres_array(values, column.type) for column, values in zip(definition.key, keys, strict=True)]
    names = [f"k{column.column_id}" for column in definition.key]
    given += [postgres_array(seqs, BIGINT)] + ([] if owners is None else [postgres_array(owners, TEXT)])
    names += ["below"] + ([] if owners is None else ["owner"])
    system = ", ".join(column.name for column in definition.system_columns)
    same = [f"h.{hot_column(column)} = k.k{column.column_id}" for column in definition.key]
    same += [] if owners is None else [f"h.{USER_ID} = k.owner"]
    found = [
        f"SELECT k.place, v.* FROM k CROSS JOIN LATERAL (SELECT {_values(hot, definition)}, {system} "
        f"FROM {hot.qualified} h WHERE h.catalog_id = {definition.catalog_id} AND {' AND '.join(same)} "
        f"AND h.{SEQ} < k.below ORDER BY h.{SEQ} DESC LIMIT 1) v"
        for hot in hots
    ]
    return (
        f"WITH k AS MATERIALIZED (SELECT * FROM unnest({', '.join(given)}) "
        f"WITH ORDINALITY AS k ({', '.join(names)}, place)) "
        f"SELECT DISTINCT ON (place) * FROM ({' UNION ALL '.join(found)}) f ORDER BY place, {SEQ} DESC"
    )


def _values(hot: HotTable, definition: TableDefinition) -> str:
    return ", ".join(
        f"{value_under(hot.definition, column)}::{column.type.readable} AS {hot_column(column)}"
        for column in definition.columns
    )


def _of_catalog(definition: TableDefinition) -> str:
    """Returns the condition in a form that no index answers, so that the one on _xid is used without statistics too."""
    return f"catalog_id + 0 = {definition.catalog_id}"


def row_names(definition: TableDefinition) -> list[str]:
    """Returns the names of the columns of a definition in the answers of these queries."""
    return [hot_column(column) for column in definition.columns]


def trimmed_owners(connection: ArrowConnection, definition: TableDefinition, since: PgSnapshot) -> frozenset[str]:
    """Returns the owners ('': a shared table) of whose versions trim removed some that a snapshot had not seen."""
    catalog_id, table_id = definition.ref
    found = connection.query(
        f"SELECT user_id FROM lakefork.trimmed_since({catalog_id}, {table_id}, {quoted(since.text)}::pg_snapshot)"
    )
    return frozenset(found["user_id"].to_pylist())


def file_commits_since(
    connection: ArrowConnection, tables: Sequence[TableRef], snapshot: int
) -> dict[TableRef, frozenset[str]]:
    """Returns who has committed files of tables since: 'flush', 'snapshot_dedup' and 'other'."""
    catalogs = postgres_array([table.catalog_id for table in tables], BIGINT)
    ids = postgres_array([table.table_id for table in tables], BIGINT)
    found = connection.query(
        f"SELECT t.catalog_id, t.table_id, c.author FROM unnest({catalogs}, {ids}) AS t (catalog_id, table_id) "
        f"CROSS JOIN LATERAL lakefork.file_commits_since(t.catalog_id, t.table_id, {snapshot}) c"
    ).to_pylist()
    authors: dict[TableRef, frozenset[str]] = {}
    for row in found:
        ref = TableRef.of(row)
        authors[ref] = authors.get(ref, frozenset()) | {row["author"]}
    return authors


def missed_events(connection: ArrowConnection, definition: TableDefinition, since: Position) -> str | None:
    """Returns why events of a STREAM table that a position had not seen may be gone; None: they are all there."""
    catalog_id, table_id = definition.ref
    found = connection.query(
        f"SELECT lakefork.missed_events({catalog_id}, {table_id}, {quoted(since.seen.text)}::pg_snapshot, "
        f"{quoted(since.mark or '')}::uuid) AS reason"
    )
    return None if found["reason"][0].as_py() is None else str(found["reason"][0].as_py())


def ensure_mark(connection: Any) -> None:
    """Stores the mark of this run of Postgres, if there is none."""
    connection.execute("SELECT lakefork.ensure_crash_mark()")


def index_name(name: str) -> str:
    return f"{name.partition('.')[2]}_xid"


def index_statement(name: str) -> str:
    """Returns the DDL of the index that makes a look cheap; tables that nobody reads changes of have none."""
    return f"CREATE INDEX IF NOT EXISTS {index_name(name)} ON {name} (_xid)"
