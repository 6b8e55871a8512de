"""Follows the changes of all subscribed tables in one thread: one look per table, whoever has subscribed to it."""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from lakefork.catalog.connection import Connection, open_connection, shut
from lakefork.database_errors import all_domain_errors
from lakefork.errors import DatabaseError, LakeforkError, NotFoundError
from lakefork.hot.changes import (
    Position,
    current_position,
    ensure_mark,
    file_commits_since,
    position_and_changes,
)
from lakefork.hot.connections import ArrowConnection, ArrowPool
from lakefork.live.conditions import compute
from lakefork.live.fan_out import Delivery, SubscribedTable, Subscriber, fan_out
from lakefork.live.index import ensure_indexes
from lakefork.live.query import Plan, plan
from lakefork.live.versions import read_changes
from lakefork.model.tables import TableRef
from lakefork.read.tables import FoundTable
from lakefork.sql.parse.statements import TableName
from lakefork.sql.permissions import read_access
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session

BUSY_SECONDS = 0.003  # between looks while there is something to see
QUIET_SECONDS = 0.005
AWAY_SECONDS = 0.25  # while Postgres does not answer
CLOSE_SECONDS = 3.0
STALLED_SECONDS = 2.0  # after which versions may have been trimmed that nobody has read
CONDITION_SECONDS = 5.0
LOOK_BYTES, LOOK_SECONDS = 512 << 20, 60.0
FOREIGN = "its hot rows are of another Postgres: call lakefork.adopt_hot_rows()"
CRASHED = "Postgres crashed or was restored"

logger = logging.getLogger(__name__)


Attached = Callable[[Position | LakeforkError], None]


class Feed:
    """deliver: takes what a look brings; called in the feed's thread."""

    def __init__(self, resources: Resources, dsn: str, deliver: Callable[[list[Delivery]], None]) -> None:
        self._resources, self._dsn, self._deliver = resources, dsn, deliver
        self._readers = ArrowPool(self._connect, 1, LOOK_SECONDS)
        self._connection: Connection | None = None
        self._tables: dict[TableRef, SubscribedTable] = {}
        self._position: Position | None = None
        self._looked_at = 0.0
        self._commands: deque[tuple[str, Any, Attached | None]] = deque()
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self.looks = 0
        self.lag_seconds = 0.0

    def _connect(self) -> ArrowConnection:
        """Opens a connection that uses the indexes on _xid, whatever Postgres knows of a table so far."""
        connection = ArrowConnection(self._dsn, read_only=True, timeout_seconds=LOOK_SECONDS, max_bytes=LOOK_BYTES)
        with connection.transaction():
            connection.execute("SET enable_seqscan = off")
            connection.execute("SET jit = off")
        return connection

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
            self._thread.start()

    def attach(self, subscriber: Subscriber, attached: Attached) -> None:
        """The subscriber gets all changes after the position that `attached` is called with, in the feed's thread."""
        self._commands.append(("attach", subscriber, attached))
        self._wake.set()

    def detach(self, subscriber: Subscriber) -> None:
        self._commands.append(("detach", subscriber, None))
        self._wake.set()

    def close(self) -> None:
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive() and self._connection is not None:
                shut(self._connection)  # Postgres hangs
                self._thread.join(CLOSE_SECONDS)
        self._readers.close()
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                wait = self._tick()
            except DatabaseError as error:
                logger.warning("changes cannot be read for now: %s", error)
                self._disconnect()
                wait = AWAY_SECONDS
            except Exception:
                logger.exception("changes cannot be read for now")
                self._disconnect()
                wait = AWAY_SECONDS
            self._wake.wait(wait)
            self._wake.clear()

    def _disconnect(self) -> None:
        self._readers.close_idle()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _tick(self) -> float | None:
        """Returns for how long there is nothing to do; None: until there are subscribers."""
        if self._commands:
            self._obey()
        if not self._tables:
            self._position = None
            return None
        with all_domain_errors():
            seen = self._seen()
        if self._position is not None and seen == self._position.seen.text:
            self._looked_at = time.monotonic()
            return QUIET_SECONDS
        started = time.monotonic()
        self._look()
        self.lag_seconds = time.monotonic() - started
        return BUSY_SECONDS

    def _seen(self) -> str:
        if self._connection is None:
            self._connection = open_connection(self._dsn, autocommit=True, prepare_threshold=0)
        row = self._connection.execute("SELECT pg_current_snapshot()::text AS seen").fetchone()
        assert row is not None  # noqa: S101 - it always has one
        return str(row["seen"])

    # Subscribers -------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        while self._commands:
            kind, subscriber, attached = self._commands.popleft()
            if kind == "detach":
                self._remove(subscriber)
                continue
            assert attached is not None  # noqa: S101
            try:
                with all_domain_errors():
                    attached(self._attach(subscriber))
            except LakeforkError as error:
                attached(error)
                if isinstance(error, DatabaseError):
                    raise

    def _attach(self, subscriber: Subscriber) -> Position:
        ref = subscriber.plan.definition.ref
        if self._position is None or ref not in self._tables:
            with self._readers.transaction() as connection:
                if self._position is None:
                    self._position = self._marked(connection)
                    self._looked_at = time.monotonic()
                if ref not in self._tables:
                    self._tables[ref] = self._table(connection, subscriber)
        table = self._tables[ref]
        if subscriber.plan.definition.definition_snapshot != table.found.definition.definition_snapshot:
            with self._readers.transaction() as connection:
                subscriber.plan = self._planned(connection, table, subscriber)
        table.add(subscriber)
        return self._position

    def _marked(self, connection: ArrowConnection) -> Position:
        found = current_position(connection)
        if found.mark is None:
            with self._resources.catalog.connection() as writing:
                ensure_mark(writing)
            raise DatabaseError("Postgres was just started: try again in a moment")
        return found

    def _table(self, connection: ArrowConnection, subscriber: Subscriber) -> SubscribedTable:
        definition = subscriber.plan.definition
        name = TableName(definition.namespace, definition.name)
        found = self._find(connection, definition.catalog, name)
        if found.definition.table_id != definition.table_id:
            raise NotFoundError(f"table {definition} was dropped")
        return SubscribedTable(name, definition.catalog, found)

    def _find(self, connection: ArrowConnection, catalog: str, name: TableName) -> FoundTable:
        return self._resources.lookup.find(connection, Session(catalog, role=Role.ADMIN), name)

    def _planned(self, connection: ArrowConnection, table: SubscribedTable, subscriber: Subscriber) -> Plan:
        definition = table.found.definition
        access = read_access(connection, subscriber.session, definition)
        return plan(subscriber.plan.query.under(subscriber.plan, definition), subscriber.session, definition, access)

    def _remove(self, subscriber: Subscriber) -> None:
        ref = subscriber.plan.definition.ref
        if table := self._tables.get(ref):
            table.remove(subscriber)
            if not table.by_owner:
                del self._tables[ref]

    # Looks -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        since = self._position
        assert since is not None  # noqa: S101 - there are subscribers
        deliveries: list[Delivery] = []
        with self._readers.transaction() as connection:
            names = self._postgres_names()
            until, changed = position_and_changes(connection, names, since.seen)
            if until.mark is None:
                self._marked(connection)
            if not until.is_after(since):
                deliveries += self._all_lost(since, until)
            else:
                deliveries += self._changes(connection, since, until, names, changed)
        self._position, self._looked_at = until, time.monotonic()
        self.looks += 1
        if deliveries:
            self._deliver(deliveries)

    def _all_lost(self, since: Position, until: Position) -> list[Delivery]:
        found = [one for table in self._tables.values() for one in table.subscribers()]
        return [Delivery(one, since, until, lost=CRASHED) for one in found]

    def _postgres_names(self) -> list[str]:
        return sorted({name for table in self._tables.values() for name in table.postgres_names})

    def _changes(
        self, connection: ArrowConnection, since: Position, until: Position, names: list[str], changed: dict[str, int]
    ) -> list[Delivery]:
        deliveries: list[Delivery] = []
        commits: dict[TableRef, frozenset[str]] = {}
        if until.catalog_snapshot != since.catalog_snapshot:
            commits = self._refresh(connection, since, until, deliveries)
            added = sorted(set(self._postgres_names()) - set(names))
            changed |= position_and_changes(connection, added, since.seen)[1] if added else {}
        is_stalled = time.monotonic() - self._looked_at > STALLED_SECONDS
        for ref, table in list(self._tables.items()):
            newest = max((changed[name] for name in table.postgres_names if name in changed), default=None)
            if newest is not None and newest >= until.seen.end:
                deliveries += self._end(ref, since, until, FOREIGN)
            elif newest is not None or ref in commits or is_stalled:
                authors = commits.get(ref, frozenset())
                check_trimmed = bool(authors) or is_stalled
                deliveries += self._look_at(connection, ref, since, until, authors, check_trimmed=check_trimmed)
        return deliveries

    def _refresh(
        self, connection: ArrowConnection, since: Position, until: Position, deliveries: list[Delivery]
    ) -> dict[TableRef, frozenset[str]]:
        """Looks up the tables of catalogs with new commits; returns who has committed files of which."""
        found = connection.query(
            "SELECT DISTINCT catalog_id FROM lakefork.retained_snapshot "
            f"WHERE snapshot_id > {since.catalog_snapshot} AND catalog_id IS NOT NULL"
        )
        catalogs = set(found["catalog_id"].to_pylist())
        tables: dict[str, list[SubscribedTable]] = defaultdict(list)
        for ref, table in self._tables.items():
            if ref.catalog_id in catalogs:
                tables[table.catalog].append(table)
        for catalog, those in tables.items():
            for table, again in zip(those, self._found_again(connection, catalog, those), strict=True):
                deliveries += self._update(connection, table, again, since, until)
        refs = [table.found.definition.ref for those in tables.values() for table in those]
        return file_commits_since(connection, refs, since.catalog_snapshot) if refs else {}

    def _found_again(
        self, connection: ArrowConnection, catalog: str, tables: Sequence[SubscribedTable]
    ) -> list[FoundTable | NotFoundError]:
        session, names = Session(catalog, role=Role.ADMIN), [table.name for table in tables]
        try:
            return list(self._resources.lookup.find_all(connection, session, names))
        except NotFoundError as error:
            if len(tables) == 1:
                return [error]
        return [one for table in tables for one in self._found_again(connection, catalog, [table])]

    def _update(
        self,
        connection: ArrowConnection,
        table: SubscribedTable,
        again: FoundTable | NotFoundError,
        since: Position,
        until: Position,
    ) -> list[Delivery]:
        """Takes note of a table's definition and hot tables of now."""
        definition = table.found.definition
        if isinstance(again, NotFoundError):
            return self._end(definition.ref, since, until, str(again))
        if again.definition.table_id != definition.table_id:
            return self._end(definition.ref, since, until, f"table {definition} was dropped and created again")
        is_new = again.hot != table.found.hot
        table.found = again
        if is_new:
            ensure_indexes(self._resources, table.postgres_names)
        if again.definition.definition_snapshot == definition.definition_snapshot:
            return []
        return self._plan_again(connection, table, since, until)

    def _plan_again(
        self, connection: ArrowConnection, table: SubscribedTable, since: Position, until: Position
    ) -> list[Delivery]:
        ended = []
        subscribers = table.subscribers()
        table.clear()
        for one in subscribers:
            try:
                one.plan = self._planned(connection, table, one)
                table.add(one)
            except LakeforkError as error:
                ended.append(Delivery(one, since, until, ended=str(error)))
        return ended

    def _end(self, ref: TableRef, since: Position, until: Position, reason: str) -> list[Delivery]:
        return [Delivery(one, since, until, ended=reason) for one in self._tables.pop(ref).subscribers()]

    def _look_at(
        self,
        connection: ArrowConnection,
        ref: TableRef,
        since: Position,
        until: Position,
        authors: frozenset[str],
        *,
        check_trimmed: bool,
    ) -> list[Delivery]:
        table = self._tables[ref]
        try:
            workers = self._resources.own_workers
            look = read_changes(connection, workers, table.found, since, until, authors, check_trimmed=check_trimmed)
            return fan_out(table, look, since, until, self._compute)
        except DatabaseError:
            raise
        except Exception as error:
            logger.exception("the changes of %s cannot be told", table.found.definition)
            reason = (
                str(error) if isinstance(error, LakeforkError) else "a mistake in Lakefork itself: see the server's log"
            )
            return self._end(ref, since, until, reason)

    def _compute(self, conditions: Sequence[str], rows: pa.Table) -> list[list[bool]]:
        return compute(self._resources.own_workers, conditions, rows, CONDITION_SECONDS)
