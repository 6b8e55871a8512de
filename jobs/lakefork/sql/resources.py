"""The resources of an engine, shared by its sessions: connections, workers, definitions and ids."""

import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from lakefork.catalog.catalogs import Catalog, find_catalog
from lakefork.catalog.connection import Connection, cancel, connect, open_connection, shut
from lakefork.database_errors import refusal
from lakefork.errors import DatabaseError
from lakefork.hot.connections import ArrowConnection, ArrowPool
from lakefork.hot.point_connections import PointConnection, connect_for_points
from lakefork.hot.seqids import PostgresNodeLease, SeqIdGenerator
from lakefork.manifests.cache import ManifestCache
from lakefork.pools import Pool
from lakefork.settings import SqlSettings
from lakefork.sql.closing import CLOSE_SECONDS, close_quietly
from lakefork.sql.eviction import Eviction
from lakefork.sql.lookup import Lookup
from lakefork.sql.permissions import KnownRules
from lakefork.sql.read.hot_cache import HotCache
from lakefork.sql.session import Session
from lakefork.sql.workers.pool import ANSWER_SECONDS, QueryWorkers, WorkerConfig, cancelling
from lakefork.storage.installation import Installation


class Resources:
    def __init__(self, installation: Installation) -> None:
        settings = installation.settings
        sql: SqlSettings = settings.sql
        self.settings = sql
        self.home = str(settings.home)
        self.dsn = dsn = installation.dsn
        self.storage = installation.storage
        timeout = sql.statement_timeout_seconds
        config = WorkerConfig(self.storage, sql.memory_mb, sql.threads, sql.hot_cache_mb, timeout)
        self.workers = QueryWorkers(config, sql.workers)  # the first worker starts while we connect
        self.own_workers = QueryWorkers(config, sql.workers)  # for reads under locks, beside users' queries
        try:
            connect(dsn).close()  # reports problems of the database first
        except BaseException:
            self.workers.close()
            raise
        self.lookup = Lookup()
        self.known_rules = KnownRules()
        self.hot_cache = HotCache(sql.hot_cache_mb << 20)
        self.readers = self._pool(read_only=True)
        self.writers = self._pool(read_only=False)
        self.catalog: Pool[Connection] = Pool(
            self._connect, _is_usable, sql.connections, timeout,
            lambda one: cancelling(partial(cancel, one, ANSWER_SECONDS), partial(shut, one)),
        )  # fmt: skip
        self.points: Pool[PointConnection] = Pool(
            lambda: connect_for_points(dsn, timeout), _is_usable, sql.connections, timeout,
            lambda one: cancelling(partial(cancel, one, ANSWER_SECONDS), partial(shut, one)),
        )  # fmt: skip
        self.eviction = Eviction(self.catalog)
        self.manifests = ManifestCache(self.catalog.connection, self.storage, settings.manifest_cache)
        self.seqids = SeqIdGenerator(PostgresNodeLease(self.catalog.connection, settings.node_id))

    def _pool(self, *, read_only: bool) -> ArrowPool:
        timeout, max_bytes = self.settings.statement_timeout_seconds, self.settings.memory_mb << 20
        return ArrowPool(
            lambda: ArrowConnection(self.dsn, read_only=read_only, timeout_seconds=timeout, max_bytes=max_bytes),
            self.settings.connections,
            timeout,
            lambda one: cancelling(one.cancel, one.shut_down),
        )

    def _connect(self) -> Connection:
        options = f"-c statement_timeout={int(self.settings.statement_timeout_seconds * 1000)}"
        try:
            return open_connection(self.dsn, autocommit=True, options=options)
        except psycopg.Error as error:
            # This DSN has worked before, so the problem is in Postgres and is temporary.
            raise DatabaseError(f"cannot connect to Postgres: {refusal(error)}") from None

    def drop_idle_connections(self) -> None:
        for pool in (self.catalog, self.readers, self.writers, self.points):
            pool.close_idle()

    def close(self) -> None:
        """Releases each part regardless of the others; an interrupt is raised after all."""
        with ExitStack() as parts:
            for part in (self.own_workers, self.workers, self.writers, self.readers, self.points, self.catalog):
                parts.callback(close_quietly, part.close)
            # first, because they need a working Postgres
            for close in (self.eviction.close, self.manifests.close, self.seqids.close):
                parts.callback(close_quietly, close, CLOSE_SECONDS)

    @contextmanager
    def catalog_of(self, session: Session) -> Iterator[tuple[Connection, Catalog]]:
        """Yields a connection for commits, and the session's current catalog."""
        with self.catalog.connection() as connection:
            yield connection, find_catalog(connection, session.catalog)


def _is_usable(connection: psycopg.Connection[Any]) -> bool:
    """Idle, and Postgres has not said anything since: it does so only to end a connection."""
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return not waiting.poll(0)
