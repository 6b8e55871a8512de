"""The tables that statements write to: found under a definition, with a hot table for it."""

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection
from lakefork.errors import ConflictError, DefinitionChangedError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import any_key_between
from lakefork.hot.tables import HotTable, create_hot_table
from lakefork.model.predicates import Predicate
from lakefork.model.tables import TableDefinition, TableKind, fold
from lakefork.read.pruning import batches_to_read
from lakefork.read.requests import ScanRequest
from lakefork.read.tables import CACHED_DEFINITIONS, FoundTable
from lakefork.sql.lookup import namespace_of
from lakefork.sql.parse.statements import TableName
from lakefork.sql.permissions import Access, write_access
from lakefork.sql.read.versions import requested_batches
from lakefork.sql.resources import Resources
from lakefork.sql.session import Session

MANY_KEYS = 100


class Targets:
    """Tables that were written to are remembered: whether what is known of them still holds is checked under a lock."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._known: dict[tuple[str, str, str], FoundTable] = {}  # by catalog, namespace and table

    def knows(self, session: Session, name: TableName) -> bool:
        return _key(session, name) in self._known

    def forget(self, session: Session, name: TableName) -> None:
        self._known.pop(_key(session, name), None)

    def find(self, session: Session, name: TableName, as_user: str | None) -> tuple[FoundTable, Access]:
        """Returns the table, with a hot table for its definition of now, and what the session may do with it."""
        resources = self._resources
        known = self._known.get(_key(session, name))
        if known and known.definition.per_user and as_user is None:
            known_access = resources.known_rules.access(session, known.definition)
            if known_access is not None:
                return known, known_access
        with resources.readers.transaction() as connection:
            found = resources.lookup.find(connection, session, name)
            access = write_access(connection, session, found.definition, as_user)
        found = self._with_hot_table(session, name, found)
        if len(self._known) >= CACHED_DEFINITIONS:
            self._known.clear()
        self._known[_key(session, name)] = found
        resources.known_rules.remember(found.definition, access)
        return found, access

    def _with_hot_table(self, session: Session, name: TableName, found: FoundTable) -> FoundTable:
        """The first write under a definition makes one."""
        definition = found.definition
        is_there = any(hot.definition.definition_snapshot == definition.definition_snapshot for hot in found.hot)
        if is_there or definition.kind == TableKind.STREAM:
            return found
        hot = HotTable(definition)
        changes = Changes()
        changes.require_table_unchanged(definition.table_id)
        changes.add(
            "ducklake_inlined_data_tables",
            table_id=definition.table_id, table_name=hot.name, schema_version=definition.schema_version,
        )  # fmt: skip
        try:
            with self._resources.catalog.connection() as connection, connection.transaction():
                create_hot_table(connection, hot)
                base = _retained_snapshot(connection, definition)
                commit(connection, definition.catalog_id, base, changes, message=f"hot table of {definition}")
        except DefinitionChangedError:
            raise
        except ConflictError:
            pass  # another session was faster, or the definition changed: look again
        with self._resources.readers.transaction() as reading:
            again = self._resources.lookup.find(reading, session, name)
        if again.definition.definition_snapshot != definition.definition_snapshot:
            raise DefinitionChangedError(f"{definition} changed concurrently; retry")
        return again


def none_between(connection: ArrowConnection, found: FoundTable, user_id: str | None, keys: pa.Table) -> bool:
    """Tells whether many new keys are in a range without rows, so that none needs to be looked up."""
    column = found.definition.key[0]
    if keys.num_rows < MANY_KEYS or column.type.name not in ("int16", "int32", "int64", "varchar"):
        return False
    low, high = (bound.as_py() for bound in pc.min_max(keys[column.name]).values())
    if any(any_key_between(connection, hot, user_id, column, low, high) for hot in found.hot):
        return False
    within = (Predicate(column, ">=", (low,)), Predicate(column, "<=", (high,)))
    batches = requested_batches(connection, ScanRequest(found, (), user_id, within))
    return not batches_to_read(batches, within)


def _key(session: Session, name: TableName) -> tuple[str, str, str]:
    return session.catalog, fold(namespace_of(name, session)), fold(name.table)


def _retained_snapshot(connection: Connection, definition: TableDefinition) -> int:
    """A snapshot to base a commit on: the definition's own may have expired or be older than a fork, and nothing newer
    changed it.
    """
    row = connection.execute(
        "SELECT s.snapshot_id FROM lakefork.retained_snapshot s "
        "WHERE s.snapshot_id = greatest(%s, lakefork.catalog_birth(%s))",
        (definition.definition_snapshot, definition.catalog_id),
    ).fetchone()
    return int(row["snapshot_id"]) if row else newest_snapshot(connection)
