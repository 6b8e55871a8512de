"""What a subscription begins with: the rows as of a position, or what changed since a cursor."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lakefork.errors import InvalidInputError
from lakefork.hot.changes import (
    Cursor,
    Position,
    current_position,
    ensure_mark,
    file_commits_since,
    position_and_changes,
)
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.streams import StreamBuffer, create_buffer
from lakefork.live.conditions import compute
from lakefork.live.feed import CONDITION_SECONDS, CRASHED, FOREIGN
from lakefork.live.index import ensure_indexes
from lakefork.live.messages import Event, Shape, satisfied_by
from lakefork.live.query import LiveQuery, Plan, parse_live_query, plan
from lakefork.live.versions import TRIMMED, read_changes
from lakefork.model.tables import TableKind
from lakefork.read.tables import FoundTable
from lakefork.sql.engine import parsed
from lakefork.sql.parse import statements as st
from lakefork.sql.permissions import read_access
from lakefork.sql.read.select import Reader
from lakefork.sql.resources import Resources
from lakefork.sql.session import Session


@dataclass(frozen=True)
class CatchUp:
    """The events between a cursor and a position; reason: why they cannot be told."""

    plan: Plan
    position: Position
    events: tuple[Event, ...] = ()
    reason: str | None = None


class LiveReader:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._has_mark = False

    def prepare(self, session: Session, text: str) -> Plan:
        """Binds a subscription's text, and prepares its table for a reader of changes."""
        query = parse_live_query(text, session)
        self._ensure_mark()
        with self._resources.readers.transaction() as connection:
            found, bound = self._bound(connection, session, query)
        definition = found.definition
        if definition.kind == TableKind.STREAM:
            with self._resources.catalog.connection() as writing, writing.transaction():
                create_buffer(writing, StreamBuffer(definition))
            self._resources.eviction.start()
        else:
            ensure_indexes(self._resources, [hot.qualified for hot in found.hot])
        return bound

    def _ensure_mark(self) -> None:
        if not self._has_mark:
            with self._resources.catalog.connection() as connection:
                ensure_mark(connection)
            self._has_mark = True

    def _bound(self, connection: ArrowConnection, session: Session, query: LiveQuery) -> tuple[FoundTable, Plan]:
        found = self._resources.lookup.find(connection, session, query.table)
        access = read_access(connection, session, found.definition)
        return found, plan(query, session, found.definition, access)

    def bind_again(self, session: Session, before: Plan) -> Plan:
        """Binds a query to the definition and the permissions of now."""
        with self._resources.readers.transaction() as connection:
            return self._rebound(connection, session, before)[1]

    def _rebound(self, connection: ArrowConnection, session: Session, before: Plan) -> tuple[FoundTable, Plan]:
        found = self._resources.lookup.find(connection, session, before.query.table)
        if found.definition.table_id != before.definition.table_id:
            raise InvalidInputError(f"table {found.definition} was dropped and created again")
        access = read_access(connection, session, found.definition)
        query = before.query.under(before, found.definition)
        return found, plan(query, session, found.definition, access)

    @contextmanager
    def initial(
        self, session: Session, before: Plan, last_rows: int | None, max_rows: int
    ) -> Iterator[tuple[Plan, Position, Iterator[pa.Table]]]:
        """Yields the rows that a query has at a position, in chunks."""
        resources = self._resources
        with resources.readers.transaction() as connection:
            position = current_position(connection)
            _, bound = self._rebound(connection, session, before)
            prepared = None
            if last_rows != 0:
                reader = Reader(
                    connection, resources.workers, resources.lookup, session, resources.manifests, resources.hot_cache
                )
                (statement,) = parsed(bound.initial_sql(last_rows))
                assert isinstance(statement, st.Select)  # noqa: S101 - it was written as one
                prepared = reader.prepare(statement.query, with_views=True)
        if prepared is None:
            yield bound, position, iter(())
            return
        with closing(
            resources.workers.stream(prepared.request(max_rows=max_rows, setting="server.max_rows"))
        ) as chunks:
            yield bound, position, chunks

    def catch_up(self, session: Session, before: Plan, cursor: Cursor) -> CatchUp:
        """Returns what has changed since a cursor, or why that is not known."""
        with self._resources.readers.transaction() as connection:
            until = current_position(connection)
            found, bound = self._rebound(connection, session, before)
            if reason := self._unusable(connection, found, bound, cursor, until):
                return CatchUp(bound, until, reason=reason)
            ref, since = found.definition.ref, cursor.position
            authors = file_commits_since(connection, [ref], since.catalog_snapshot).get(ref, frozenset())
            look = read_changes(
                connection, self._resources.own_workers, found, since, until, authors, check_trimmed=True
            )
        owner = bound.owner
        if look.lost is not None:
            return CatchUp(bound, until, reason=look.lost)
        if look.lost_owners and (owner is None or owner in look.lost_owners):
            return CatchUp(bound, until, reason=TRIMMED)
        changes = [
            one
            for one in look.changes
            if owner in (None, one.row.owner) and not cursor.has_delivered(one.xid, one.row.seq)
        ]
        shape = Shape(bound)
        workers = self._resources.own_workers
        satisfied = satisfied_by(look, [shape], lambda tests, rows: compute(workers, tests, rows, CONDITION_SECONDS))
        return CatchUp(bound, until, tuple(shape.events(changes, satisfied.get(bound.condition_key))))

    def _unusable(
        self, connection: ArrowConnection, found: FoundTable, bound: Plan, cursor: Cursor, until: Position
    ) -> str | None:
        definition = found.definition
        if (cursor.catalog_id, cursor.table_id) != definition.ref:
            return "the cursor is of another table"
        if not until.is_after(cursor.position) or not until.seen.includes(cursor.position.seen):
            return f"{CRASHED} since, or the cursor is of another one"
        if cursor.query != bound.digest:
            return "the query, the table's columns or the permissions are not what they were"
        names = [hot.qualified for hot in found.hot]
        newest = position_and_changes(connection, names, cursor.position.seen)[1]
        if any(xid >= until.seen.end for xid in newest.values()):
            return FOREIGN
        return None
