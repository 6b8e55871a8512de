"""What an engine works with: connections, DuckDB, definitions and ids, shared by all its sessions."""

import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import TransactionStatus

from lakefork.catalog.catalogs import Catalog, find_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection, connect, open_connection
from lakefork.database_errors import refusal
from lakefork.errors import ConflictError, DatabaseError, DefinitionChangedError
from lakefork.hot.connections import ArrowConnection, ArrowPool
from lakefork.hot.rows import any_key_between
from lakefork.hot.tables import HotTable, create_hot_table
from lakefork.maintenance.pruning import batches_to_read
from lakefork.pools import Pool
from lakefork.predicates import Predicate
from lakefork.seqid import PostgresNodeLease, SeqIdGenerator
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.closing import CLOSE_SECONDS, close_quietly
from lakefork.sql.hot_cache import HotCache
from lakefork.sql.lookup import KEPT_DEFINITIONS, FoundTable, Lookup, namespace_of
from lakefork.sql.manifest_cache import ManifestCache
from lakefork.sql.permissions import KnownRules
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
        self.workers = QueryWorkers(config, sql.workers)  # the first one starts while we connect
        self.own_workers = QueryWorkers(config, sql.workers)  # for reads under locks, which wait for no user's query
        try:
            connect(dsn).close()  # says what is wrong with the database before anything else does
        except BaseException:
            self.workers.close()
            raise
        self.lookup = Lookup()
        self.known_rules = KnownRules()
        self.hot_cache = HotCache(sql.hot_cache_mb << 20)
        self._targets: dict[tuple[str, str, str], FoundTable] = {}  # by catalog, namespace and table
        self.readers = self._pool(read_only=True)
        self.writers = self._pool(read_only=False)
        self.catalog: Pool[Connection] = Pool(self._connect, _is_usable, sql.connections, timeout)
        self.manifests = ManifestCache(self.catalog.connection, self.storage, settings.manifest_cache)
        self.seqids = SeqIdGenerator(PostgresNodeLease(self.catalog.connection, settings.node_id))

    def _pool(self, *, read_only: bool) -> ArrowPool:
        timeout, max_bytes = self.settings.statement_timeout_seconds, self.settings.memory_mb << 20
        return ArrowPool(
            lambda: ArrowConnection(self.dsn, read_only=read_only, timeout_seconds=timeout, max_bytes=max_bytes),
            self.settings.connections,
            timeout,
        )

    def _connect(self) -> Connection:
        options = f"-c statement_timeout={int(self.settings.statement_timeout_seconds * 1000)}"
        try:
            return open_connection(self.dsn, autocommit=True, options=options)
        except psycopg.Error as error:
            # Whoever comes here has connected with this DSN before: what is wrong lies in Postgres, and passes.
            raise DatabaseError(f"cannot connect to Postgres: {refusal(error)}") from None

    def drop_idle_connections(self) -> None:
        for pool in (self.catalog, self.readers, self.writers):
            pool.close_idle()

    def close(self) -> None:
        """Each part is released whatever became of the others; an interrupt is raised when all are."""
        with ExitStack() as parts:
            for part in (self.own_workers, self.workers, self.writers, self.readers, self.catalog):
                parts.callback(close_quietly, part.close)
            for close in (self.manifests.close, self.seqids.close):  # first, as they need a Postgres that answers
                parts.callback(close_quietly, close, CLOSE_SECONDS)

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


def _is_usable(connection: Connection) -> bool:
    """Idle, and Postgres has not said anything since: it does so only to end a connection."""
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return not waiting.poll(0)


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
