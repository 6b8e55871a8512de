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
from lakefork.hot.rows import any_key_between
from lakefork.hot.tables import HotTable, create_hot_table
from lakefork.maintenance.pruning import batches_to_read
from lakefork.predicates import Predicate
from lakefork.seqid import PostgresNodeLease, SeqIdGenerator
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.hot_cache import HotCache
from lakefork.sql.lookup import KEPT_DEFINITIONS, FoundTable, Lookup, namespace_of
from lakefork.sql.manifest_cache import ManifestCache
from lakefork.sql.session import Session
from lakefork.sql.statements import TableName
from lakefork.sql.versions import Wanted, list_batches
from lakefork.sql.workers.pool import QueryWorkers, WorkerConfig
from lakefork.storage import StorageOptions
from lakefork.tables import TableDefinition, fold

MANY_KEYS = 100


class Resources:
    def __init__(self, settings: Settings, dsn: str) -> None:
        sql: SqlSettings = settings.sql
        self.settings = sql
        self.home = str(settings.home)
        self.dsn = dsn
        self.storage = StorageOptions(settings.storage.s3_endpoint, settings.storage.s3_region)
        timeout = sql.statement_timeout_seconds
        config = WorkerConfig(self.storage, sql.memory_mb, sql.threads, sql.hot_cache_mb, timeout)
        self.workers = QueryWorkers(config, sql.workers, ready=1)  # which starts while we connect
        self.own_workers = QueryWorkers(config, sql.workers)  # for reads under locks, which wait for no user's query
        try:
            connect(dsn).close()  # says what is wrong with the database before anything else does
        except BaseException:
            self.workers.close()
            raise
        self.lookup = Lookup()
        self.hot_cache = HotCache(sql.hot_cache_mb << 20)
        self._targets: dict[tuple[str, str, str], FoundTable] = {}  # by catalog, namespace and table
        self.readers = self._pool(read_only=True)
        self.writers = self._pool(read_only=False)
        self.catalog: ConnectionPool[Connection] = ConnectionPool(
            dsn,
            connection_class=psycopg.Connection[dict[str, object]],
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "application_name": "lakefork",
                "options": f"-c statement_timeout={int(timeout * 1000)}",
            },
            min_size=0,
            max_size=sql.connections,
            open=True,
        )
        self.manifests = ManifestCache(self.catalog.connection, self.storage, settings.manifest_cache)
        self.seqids = SeqIdGenerator(PostgresNodeLease(self.catalog.connection, settings.node_id))

    def _pool(self, *, read_only: bool) -> ArrowPool:
        timeout, max_bytes = self.settings.statement_timeout_seconds, self.settings.memory_mb << 20
        return ArrowPool(
            lambda: ArrowConnection(self.dsn, read_only=read_only, timeout_seconds=timeout, max_bytes=max_bytes),
            self.settings.connections,
            timeout,
        )

    def drop_idle_connections(self) -> None:
        self.catalog.check()
        self.readers.close()
        self.writers.close()

    def close(self) -> None:
        self.seqids.close()
        self.manifests.close()
        self.catalog.close()
        self.readers.close()
        self.writers.close()
        self.workers.close()
        self.own_workers.close()

    @contextmanager
    def catalog_of(self, session: Session) -> Iterator[tuple[Connection, Catalog]]:
        """A connection for commits, and the session's catalog as it is now."""
        with self.catalog.connection() as connection:
            yield connection, find_catalog(connection, session.catalog)

    def known_target(self, session: Session, name: TableName) -> FoundTable | None:
        """What was last written to under this name; whoever uses it checks under a lock that it still holds."""
        return self._targets.get(_target_key(session, name))

    def remember_target(self, session: Session, name: TableName, found: FoundTable | None) -> None:
        if len(self._targets) >= KEPT_DEFINITIONS:
            self._targets.clear()
        if found is None:
            self._targets.pop(_target_key(session, name), None)
        else:
            self._targets[_target_key(session, name)] = found

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
                base = _retained(connection, definition)
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


def _target_key(session: Session, name: TableName) -> tuple[str, str, str]:
    return session.catalog, fold(namespace_of(name, session)), fold(name.table)


def _retained(connection: Connection, definition: TableDefinition) -> int:
    """A snapshot to base a commit on: the definition's own may have expired or be older than a fork, and nothing newer
    changed it.
    """
    row = connection.execute(
        "SELECT s.snapshot_id FROM public.ducklake_snapshot s "
        "WHERE s.snapshot_id = greatest(%s, lakefork.catalog_birth(%s))",
        (definition.definition_snapshot, definition.catalog_id),
    ).fetchone()
    return int(row["snapshot_id"]) if row else newest_snapshot(connection)
