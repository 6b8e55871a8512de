"""INSERT, UPDATE and DELETE: every change appends a version, and concurrent writers lose no update."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakefork.errors import ConflictError, DefinitionChangedError, InvalidInputError, LimitError, TooLongError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import append_version, are_unique, guard_write, lock_rows, validate_primary_key
from lakefork.model.tables import DELETED, SEQ, Column, TableDefinition, TableKind
from lakefork.read.requests import ScanRequest
from lakefork.read.scan import quoted_name
from lakefork.read.tables import FoundTable
from lakefork.sql.expressions import bind
from lakefork.sql.parse.statements import Delete, Insert, TableName, Update
from lakefork.sql.permissions import Access
from lakefork.sql.read.predicates import conjuncts, later_conjuncts, names_only_keys, pinned_keys
from lakefork.sql.read.select import Prepared, Reader, exposed
from lakefork.sql.read.versions import read_by_key
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.pool import SECONDS_IN_TRANSACTION, check_time
from lakefork.sql.write.auditing import audit
from lakefork.sql.write.change import TARGET, Change, columns_in, inline_rows, target_table, with_condition
from lakefork.sql.write.events import EventAppender, reject_change
from lakefork.sql.write.receipts import leave_receipt
from lakefork.sql.write.rows import (
    check_row_filter,
    check_values,
    completed,
    given_value,
    key_hashes,
    named_column,
    plain_rows,
    target_columns,
    values_query,
    with_generated_keys,
)
from lakefork.sql.write.targets import Targets, none_between

LOCKED_KEYS = 200  # above this, a statement locks all rows of the user: Postgres has room for some thousands of locks
ATTEMPTS = 20


class Writer:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._targets = Targets(resources)
        self._events = EventAppender(resources)

    def insert(
        self,
        session: Session,
        statement: Insert,
        parameters: Sequence[Any],
        learn: Callable[[Session, Insert, FoundTable], None] = lambda *_: None,
    ) -> int:
        """Executes an INSERT. learn: called with the target, for later executions."""
        return self._retry_if_redefined(
            session, statement.name, lambda: self._insert(session, statement, parameters, learn)
        )

    def update(self, session: Session, statement: Update, parameters: Sequence[Any]) -> int:
        acting = _acting(session, statement.as_user)
        assignments = tuple((name, bind(value, parameters, acting)) for name, value in statement.assignments)
        where = bind(statement.where, parameters, acting) if statement.where is not None else None
        change = Change(statement.name, statement.alias, where, assignments, statement.as_user)
        return self._retry_if_redefined(session, statement.name, lambda: self._change(session, change))

    def delete(self, session: Session, statement: Delete, parameters: Sequence[Any]) -> int:
        acting = _acting(session, statement.as_user)
        where = bind(statement.where, parameters, acting) if statement.where is not None else None
        change = Change(statement.name, statement.alias, where, None, statement.as_user)
        return self._retry_if_redefined(session, statement.name, lambda: self._change(session, change))

    def load(self, session: Session, name: TableName, rows: pa.Table, as_user: str | None = None) -> int:
        """Appends Arrow rows; columns are matched by name, missing ones get their defaults."""

        def load() -> int:
            found, access = self._targets.find(session, name, as_user)
            self._events.prepare(found.definition)
            if not rows.column_names:
                raise InvalidInputError(f"{found.definition}: the rows have no columns")
            columns = target_columns(found.definition, rows.column_names)
            given = rows.rename_columns([column.name for column in columns])
            return self._append(
                session, found, access, completed(self._resources.workers, found.definition, columns, given), as_user
            )

        return self._retry_if_redefined(session, name, load)

    def _retry_if_redefined(self, session: Session, name: TableName, work: Callable[[], int]) -> int:
        """Repeats a write whose target's definition has changed since it was planned."""
        for attempt in range(ATTEMPTS - 1):
            try:
                return work()
            except DefinitionChangedError:
                self._targets.forget(session, name)
                time.sleep(random.uniform(0, 0.01) * attempt)  # noqa: S311 - so that those who wait come apart
            except InvalidInputError:
                # An error under a cached definition may not be one under the current definition.
                if not self._targets.knows(session, name):
                    raise
                self._targets.forget(session, name)
        return work()

    def _insert(
        self,
        session: Session,
        statement: Insert,
        parameters: Sequence[Any],
        learn: Callable[[Session, Insert, FoundTable], None],
    ) -> int:
        found, access = self._targets.find(session, statement.name, statement.as_user)
        self._events.prepare(found.definition)
        learn(session, statement, found)
        columns = target_columns(found.definition, statement.columns)
        acting = _acting(session, statement.as_user)
        rows = self._inserted_rows(acting, found.definition, columns, statement.source, parameters)
        limit = self._resources.settings.max_changed_rows
        return self._append(session, found, access, rows, statement.as_user, limit)

    def _inserted_rows(
        self,
        session: Session,
        definition: TableDefinition,
        columns: tuple[Column, ...],
        source: exp.Expr,
        parameters: Sequence[Any],
    ) -> pa.Table:
        resources = self._resources
        source = bind(source, parameters, session)
        if isinstance(source, exp.Values):
            plain = plain_rows(columns, source)
            if plain is not None:
                return completed(resources.workers, definition, columns, plain)
            source = values_query(definition, columns, source)
        with resources.readers.transaction() as connection:
            prepared = Reader(connection, resources.workers, resources.lookup, session).prepare(source)
        most = resources.settings.max_changed_rows
        given = resources.workers.run(prepared.request(max_rows=most, setting="sql.max_changed_rows"))
        if given.num_columns != len(columns):
            raise InvalidInputError(f"INSERT names {len(columns)} columns, and gives {given.num_columns} values")
        return completed(
            resources.workers, definition, columns, given.rename_columns([column.name for column in columns])
        )

    def _append(
        self,
        session: Session,
        found: FoundTable,
        access: Access,
        rows: pa.Table,
        as_user: str | None,
        limit: int | None = None,
    ) -> int:
        """Appends rows; checks explicit keys under their locks."""
        resources, definition = self._resources, found.definition
        if not rows.num_rows:
            return 0
        if limit is not None and rows.num_rows > limit:
            raise _too_many(limit)
        is_stream = definition.kind == TableKind.STREAM
        own_keys = False
        if not is_stream:
            rows, own_keys = with_generated_keys(definition, rows, resources.seqids.next_many(rows.num_rows))
        check_values(definition, rows)
        check_row_filter(resources.workers, definition, access.row_filter, rows)
        with resources.writers.transaction() as connection:
            if is_stream:
                self._events.append(connection, definition, access, rows)
            else:
                self._append_versions(connection, found, access, rows, own_keys=own_keys)
            audit(connection, session, definition, "INSERT", as_user, rows.num_rows)
            leave_receipt(connection, rows.num_rows)
        return int(rows.num_rows)

    def _append_versions(
        self, connection: ArrowConnection, found: FoundTable, access: Access, rows: pa.Table, *, own_keys: bool
    ) -> None:
        definition = found.definition
        after = 0
        if own_keys:
            keys = rows.select([column.name for column in definition.key])
            validate_primary_key(definition, keys)
            after = self._check_new(connection, found, access, keys)
        else:
            guard_write(connection, definition, access.user_id, access.rules)
        append_version(connection, definition, access.user_id, _stamped(self._resources, rows, after, deleted=False))

    def _check_new(self, connection: ArrowConnection, found: FoundTable, access: Access, keys: pa.Table) -> int:
        """Raises if a live row has one of the keys; returns the newest _seq of deleted ones."""
        _lock(connection, found.definition, access, keys)
        if none_between(connection, found, access.user_id, keys):
            return 0
        existing = read_by_key(connection, self._resources.own_workers, found, access.user_id, keys)
        live = existing.filter(pc.invert(existing[DELETED]))
        # The same message as for rows outside the rules, so that it does not reveal hidden rows.
        if live.num_rows:
            check_row_filter(
                self._resources.own_workers, found.definition, access.row_filter, live, SECONDS_IN_TRANSACTION
            )
        validate_primary_key(found.definition, keys, live)
        return _newest(existing)

    def _change(self, session: Session, change: Change) -> int:
        resources = self._resources
        found, access = self._targets.find(session, change.name, change.as_user)
        definition = found.definition
        reject_change(definition)
        names = {named_column(definition, name): value for name, value in change.assignments or ()}
        _reject_key_change(definition, names)
        keys = pinned_keys(definition, change.where, change.alias)
        if keys is None:
            keys = self._matching_keys(session, found, access, change)
        if keys.num_rows > resources.settings.max_changed_rows:
            raise _too_many(resources.settings.max_changed_rows)
        if not keys.num_rows and change.as_user is None:
            return 0
        prepared = self._prepare_change(_acting(session, change.as_user), definition, change, names)
        target = _Target(session, change, found, access, keys, prepared)
        try:
            return self._change_under_lock(target, lambda current: self._computed(target, current, in_time=True))
        except TooLongError:
            return self._change_without_locks(target)

    def _change_under_lock(self, target: "_Target", compute: Callable[[pa.Table], pa.Table]) -> int:
        """Changes rows under their locks. compute: from the newest versions to the new rows."""
        resources, change, definition = self._resources, target.change, target.found.definition
        with resources.writers.transaction() as connection:
            _lock(connection, definition, target.access, target.keys)
            current = read_by_key(connection, resources.own_workers, target.found, target.access.user_id, target.keys)
            rows = compute(current)
            action = "DELETE" if change.assignments is None else "UPDATE"
            audit(connection, target.session, definition, action, change.as_user, rows.num_rows)
            if not rows.num_rows:
                return 0
            versions = _stamped(resources, rows, _newest(current), deleted=change.assignments is None)
            append_version(connection, definition, target.access.user_id, versions)
            leave_receipt(connection, rows.num_rows)
        return int(rows.num_rows)

    def _change_without_locks(self, target: "_Target") -> int:
        """Computes a long change without locks, and applies it if the rows have not changed."""
        resources, definition = self._resources, target.found.definition
        for _ in range(ATTEMPTS):
            check_time()
            with resources.readers.transaction() as connection:
                before = read_by_key(connection, resources.workers, target.found, target.access.user_id, target.keys)
            rows = self._computed(target, before)

            def unless_changed(current: pa.Table, before: pa.Table = before, rows: pa.Table = rows) -> pa.Table:
                if _versions(current) != _versions(before):
                    raise _ChangedConcurrentlyError
                return rows

            try:
                return self._change_under_lock(target, unless_changed)
            except _ChangedConcurrentlyError:
                continue
        raise ConflictError(f"{definition}: the rows were changed concurrently; retry")

    def _computed(self, target: "_Target", current: pa.Table, *, in_time: bool = False) -> pa.Table:
        """The rows as they are to be, checked."""
        definition, row_filter = target.found.definition, target.access.row_filter
        seconds = SECONDS_IN_TRANSACTION if in_time else None
        rows = self._changed_rows(target, current.filter(pc.invert(current[DELETED])), seconds)
        if not are_unique(rows.select([column.name for column in definition.key])):
            raise InvalidInputError(f"{definition}: SET gives more than one value for a row")
        check_values(definition, rows)
        check_row_filter(self._resources.workers, definition, row_filter, rows, seconds)
        return rows

    def _prepare_change(
        self, session: Session, definition: TableDefinition, change: Change, assigned: dict[Column, exp.Expr]
    ) -> Prepared | None:
        """Other tables that the change looks at are read in one snapshot; None: it looks at none."""
        if not change.reads_tables:
            return None
        values = _new_values(definition, assigned)
        aliased = [exp.alias_(value, column.name, quoted=True) for column, value in values.items()]
        query = with_condition(exp.select(*aliased).from_(target_table(definition, change)), change)
        with self._resources.readers.transaction() as connection:
            reader = Reader(connection, self._resources.workers, self._resources.lookup, session)
            return reader.prepare(query, given=[TARGET])

    def _matching_keys(self, session: Session, found: FoundTable, access: Access, change: Change) -> pa.Table:
        """Keys of the rows that satisfy the condition now; it is looked at again once they are locked."""
        resources, definition = self._resources, found.definition
        with resources.readers.transaction() as connection:
            found = resources.lookup.find(connection, session, change.name)  # what was known may lack new batches
            if found.definition is not definition:
                raise DefinitionChangedError(f"{definition} changed concurrently; retry")
            columns = (*definition.key, *columns_in(definition, change), *access.filter_columns)
            name = change.alias or definition.name
            early = tuple(conjuncts(definition, change.where, name)) if change.where else ()
            later = tuple(later_conjuncts(definition, change.where, name)) if change.where else ()
            wanted = ScanRequest(found, columns, access.user_id, early, row_filter=access.row_filter, filters=later)
            query = exp.select(*(quoted_name(column) for column in definition.key)).from_(
                target_table(definition, change)
            )
            reader = Reader(connection, resources.workers, resources.lookup, _acting(session, change.as_user))
            prepared = reader.prepare_over(with_condition(query, change), TARGET, wanted, change.names)
        return resources.workers.run(prepared.request()).cast(definition.key_schema)

    def _changed_rows(self, target: "_Target", live: pa.Table, seconds: float | None) -> pa.Table:
        """The rows that still satisfy the condition, with their new values."""
        definition, change, workers = target.found.definition, target.change, self._resources.workers
        filters = {TARGET: target.access.row_filter} if target.access.row_filter else {}
        is_plain = change.assignments is None and names_only_keys(definition, change.where, change.alias)
        if is_plain and not filters:
            return live.select([column.name for column in definition.columns])
        rows = exposed(live, change.names)
        if target.prepared is not None:
            request = target.prepared.request(given={TARGET: rows}, row_filters=filters)
        else:
            request = _evaluation(definition, change, rows, filters)
        return workers.run(request, seconds=seconds).cast(definition.row_schema)


@dataclass(frozen=True)
class _Target:
    """The rows that a change is about, and who changes them."""

    session: Session
    change: Change
    found: FoundTable
    access: Access
    keys: pa.Table
    prepared: Prepared | None


class _ChangedConcurrentlyError(Exception):
    """A row has another version than the one that its new values were computed from."""


def _versions(rows: pa.Table) -> set[int]:
    return set(rows[SEQ].to_pylist())


def _new_values(definition: TableDefinition, assigned: dict[Column, exp.Expr]) -> dict[Column, exp.Expr]:
    return {
        column: given_value(assigned[column], column) if column in assigned else exp.column(column.name, quoted=True)
        for column in definition.columns
    }


def _evaluation(definition: TableDefinition, change: Change, rows: pa.Table, filters: dict[str, str]) -> Request:
    """A change that names no tables: text is put together faster than trees."""
    assigned = {named_column(definition, name): value for name, value in change.assignments or ()}
    values = _new_values(definition, assigned)
    columns = [f"{value.sql(dialect='duckdb')} AS {quoted_name(column)}" for column, value in values.items()]
    source = None if filters else inline_rows(definition, change, rows)
    sql = f"SELECT {', '.join(columns)} FROM {source or target_table(definition, change).sql(dialect='duckdb')}"
    if change.where is not None:
        sql += f" WHERE {change.where.sql(dialect='duckdb')}"
    return Request(sql, {} if source else {TARGET: rows}, row_filters=filters)


def _too_many(limit: int) -> LimitError:
    return LimitError(
        f"the statement changes more than {limit} rows: narrow it, or raise the setting sql.max_changed_rows"
    )


def _acting(session: Session, as_user: str | None) -> Session:
    """AS USER reads what that user may read, and is that user for CURRENT_USER."""
    return session if as_user is None else replace(session, user=as_user, role=Role.USER)


def _reject_key_change(definition: TableDefinition, assigned: dict[Column, exp.Expr]) -> None:
    for column in definition.key:
        if column in assigned:
            raise InvalidInputError(
                f"{definition}: the key column {column.name} cannot be updated; delete the row and insert it again"
            )


def _lock(connection: ArrowConnection, definition: TableDefinition, access: Access, keys: pa.Table) -> None:
    hashes = key_hashes(definition, keys) if keys.num_rows <= LOCKED_KEYS else None
    lock_rows(connection, definition, access.user_id, hashes, access.rules)


def _newest(rows: pa.Table) -> int:
    return int(pc.max(rows[SEQ]).as_py() or 0) if rows.num_rows else 0


def _stamped(resources: Resources, rows: pa.Table, after: int, *, deleted: bool) -> pa.Table:
    """New versions: each _seq exceeds those of the versions that they replace."""
    seqs = resources.seqids.next_many(rows.num_rows, after=after)
    rows = rows.append_column(SEQ, pa.array(seqs, pa.int64()))
    return rows.append_column(DELETED, pa.repeat(pa.scalar(deleted), rows.num_rows))
