"""What an engine works with: connections, DuckDB, definitions and ids, shared by all its sessions."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from lakefork.catalog.catalogs import Catalog, find_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection, connect
from lakefork.errors import ConflictError, DefinitionChangedError
from lakefork.hot.connections import ArrowConnection, ArrowPool
from lakefork.hot.registry import create_hot_table
from lakefork.hot.rows import any_key_between
from lakefork.hot.tables import HotTable
from lakefork.maintenance.pruning import batches_to_read
from lakefork.predicates import Predicate
from lakefork.seqid import PostgresNodeLease, SeqIdGenerator
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.duck import Duck
from lakefork.sql.lookup import FoundTable, Lookup
from lakefork.sql.session import Session
from lakefork.sql.statements import TableName
from lakefork.sql.versions import Wanted, list_batches
from lakefork.storage import StorageOptions

MANY_KEYS = 100


class Resources:
    def __init__(self, settings: Settings, dsn: str) -> None:
        sql: SqlSettings = settings.sql
        self.settings = sql
        self.dsn = dsn
        self.storage = StorageOptions(settings.storage.s3_endpoint, settings.storage.s3_region)
        connect(dsn).close()  # says what is wrong with the database before anything else does
        timeout = sql.statement_timeout_seconds
        self.duck = Duck(self.storage, memory_mb=sql.memory_mb, threads=sql.threads, timeout_seconds=timeout)
        self.lookup = Lookup()
        self.known_targets: dict[tuple[str, str, str], FoundTable] = {}  # by catalog, namespace and table
        self.readers = ArrowPool(lambda: ArrowConnection(dsn, read_only=True, timeout_seconds=timeout), sql.connections)
        self.writers = ArrowPool(
            lambda: ArrowConnection(dsn, read_only=False, timeout_seconds=timeout), sql.connections
        )
        self.catalog: ConnectionPool[Connection] = ConnectionPool(
            dsn,
            connection_class=psycopg.Connection[dict[str, object]],
            kwargs={"autocommit": True, "row_factory": dict_row, "application_name": "lakefork"},
            min_size=0,
            max_size=sql.connections,
            open=True,
        )
        self.seqids = SeqIdGenerator(PostgresNodeLease(self.catalog.connection, settings.node_id))

    def drop_idle_connections(self) -> None:
        self.catalog.check()
        self.readers.close()
        self.writers.close()

    def close(self) -> None:
        self.seqids.close()
        self.catalog.close()
        self.readers.close()
        self.writers.close()
        self.duck.close()

    @contextmanager
    def catalog_of(self, session: Session) -> Iterator[tuple[Connection, Catalog]]:
        """A connection for commits, and the session's catalog as it is now."""
        with self.catalog.connection() as connection:
            yield connection, find_catalog(connection, session.catalog)

    def with_hot_table(self, session: Session, name: TableName, found: FoundTable) -> FoundTable:
        """The table with a place for new rows; the first write under a definition makes it."""
        definition = found.definition
        if any(hot.definition.definition_snapshot == definition.definition_snapshot for hot in found.hot):
            return found
        hot = HotTable(definition)
        changes = Changes()
        changes.require_table_unchanged(definition.table_id)
        changes.add(
            "ducklake_inlined_data_tables",
            table_id=definition.table_id, table_name=hot.name, schema_version=definition.schema_version,
        )  # fmt: skip
        try:
            with self.catalog.connection() as connection, connection.transaction():
                create_hot_table(connection, hot)
                base = _retained(connection, definition.definition_snapshot)
                commit(connection, definition.catalog_id, base, changes, message=f"hot table of {definition}")
        except DefinitionChangedError:
            raise
        except ConflictError:
            pass  # another session was faster, or the definition changed: looking again tells
        with self.readers.transaction() as reading:
            again = self.lookup.find(reading, session, name)
        if again.definition.definition_snapshot != definition.definition_snapshot:
            raise DefinitionChangedError(f"{definition} was changed meanwhile: try again")
        return again

    def none_between(self, connection: ArrowConnection, found: FoundTable, user_id: str | None, keys: pa.Table) -> bool:
        """Whether many new keys lie where there are no rows at all; then none needs to be looked for."""
        column = found.definition.key[0]
        if keys.num_rows < MANY_KEYS or column.type.name not in ("int16", "int32", "int64", "varchar"):
            return False
        low, high = (bound.as_py() for bound in pc.min_max(keys[column.name]).values())
        if any(any_key_between(connection, hot, user_id, column, low, high) for hot in found.hot):
            return False
        within = (Predicate(column, ">=", (low,)), Predicate(column, "<=", (high,)))
        batches = list_batches(connection, found.definition, Wanted(found, (), user_id, within))
        return not batches_to_read(batches, within)


def _retained(connection: Connection, snapshot: int) -> int:
    """A snapshot to base a commit on: the definition's own may have expired, nothing newer changed it."""
    row = connection.execute("SELECT 1 FROM public.ducklake_snapshot WHERE snapshot_id = %s", (snapshot,)).fetchone()
    return snapshot if row else newest_snapshot(connection)
