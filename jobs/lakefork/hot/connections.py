"""Pooled connections that exchange Arrow with Postgres (ADBC); errors of the driver are translated here."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import pyarrow as pa
from adbc_driver_manager import (
    INGEST_OPTION_MODE,
    INGEST_OPTION_MODE_APPEND,
    INGEST_OPTION_TARGET_TABLE,
    AdbcConnection,
    AdbcStatement,
    StatementOptions,
)
from adbc_driver_manager import Error as AdbcError
from adbc_driver_manager._reader import AdbcRecordBatchReader
from psycopg.conninfo import make_conninfo

from lakefork.database_errors import all_domain_errors, refusal, saving
from lakefork.errors import DatabaseError, LakeforkError, LimitError, SnapshotLostError
from lakefork.hot.drivers import CONNECT_SECONDS, open_connection
from lakefork.model.predicates import quoted
from lakefork.pools import Pool

COPY_ROWS = 8_192


class ArrowConnection:
    """One connection; within transaction() all calls belong to one transaction."""

    def __init__(self, dsn: str, *, read_only: bool, timeout_seconds: float, max_bytes: int) -> None:
        isolation = r"repeatable\ read" if read_only else r"read\ committed"
        options = (
            f"-c statement_timeout={int(timeout_seconds * 1000)} -c standard_conforming_strings=on -c TimeZone=UTC "
            f"-c default_transaction_isolation={isolation} "
            f"-c default_transaction_read_only={'on' if read_only else 'off'}"
            f"{'' if timeout_seconds else ' -c idle_in_transaction_session_timeout=0'}"
        )
        # Not the driver's DB-API: its import takes a second (pandas), and it adds a layer to each call.
        try:
            self._connected = open_connection(
                make_conninfo(dsn, options=options, application_name="lakefork", connect_timeout=CONNECT_SECONDS)
            )
        except AdbcError as error:
            # This DSN has worked before, so the problem is in Postgres and is temporary.
            raise DatabaseError(f"cannot connect to Postgres: {refusal(error)}") from None
        self._connection: AdbcConnection = self._connected.connection
        self._connection.set_autocommit(False)
        self.is_broken = False
        self._read_only = read_only
        self._max_bytes = max_bytes

    def query(self, sql: str) -> pa.Table:
        with self.stream(sql) as reader:
            batches = []
            size = 0
            for batch in reader:
                size += batch.nbytes
                if size > self._max_bytes:
                    raise LimitError("reading the rows needs too much memory (setting sql.memory_mb)")
                batches.append(batch)
            return pa.Table.from_batches(batches, schema=reader.schema)

    @contextmanager
    def stream(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """Yields rows as they arrive; the caller bounds the memory."""
        with all_domain_errors(), AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            yield AdbcRecordBatchReader._import_from_c(stream.address)  # keeps the SQLSTATE of errors

    def join_snapshot(self, snapshot: str) -> None:
        """Makes the transaction see an exported snapshot."""
        try:
            with AdbcStatement(self._connection) as statement:
                statement.set_sql_query(f"SET TRANSACTION SNAPSHOT {quoted(snapshot)}")
                statement.execute_update()
        except AdbcError as error:
            raise SnapshotLostError(
                "the exported snapshot is gone because Postgres or the driver restarted: run it again"
            ) from error

    def execute(self, sql: str) -> None:
        with all_domain_errors(), AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            statement.execute_update()

    def copy_in(self, schema: str, table: str, rows: pa.Table) -> None:
        """Appends Arrow rows with one binary COPY, by column names."""
        with all_domain_errors(), AdbcStatement(self._connection) as statement:
            statement.set_options(
                **{
                    INGEST_OPTION_TARGET_TABLE: table,
                    INGEST_OPTION_MODE: INGEST_OPTION_MODE_APPEND,
                    StatementOptions.INGEST_TARGET_DB_SCHEMA.value: schema,
                }
            )
            # In parts, so that Postgres loads one while the next is encoded.
            statement.bind_stream(rows.to_reader(max_chunksize=COPY_ROWS))
            statement.execute_update()

    @contextmanager
    def transaction(self) -> Iterator["ArrowConnection"]:
        try:
            yield self
        except BaseException as error:
            self.is_broken |= not isinstance(error, LakeforkError)
            self._roll_back()
            raise
        try:
            with all_domain_errors() if self._read_only else saving():
                self._connection.commit()
        except DatabaseError:
            self.is_broken = True
            raise

    def _roll_back(self) -> None:
        try:
            self._connection.rollback()
        except AdbcError:
            self.is_broken = True

    def cancel(self) -> None:
        """Ends, from another thread, what Postgres does for this connection now."""
        with suppress(AdbcError):
            self._connection.cancel()

    def shut_down(self) -> None:
        """Ends, from another thread, waiting for a server that does not answer."""
        self.is_broken = True
        self._connected.shut_down()

    def close(self) -> None:
        self._connection.close()


class ArrowPool:
    """Keeps connections for later transactions; discards one that failed to roll back."""

    def __init__(
        self,
        connect: Callable[[], ArrowConnection],
        size: int,
        timeout_seconds: float,
        using: Callable[[ArrowConnection], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._pool = Pool(connect, lambda connection: not connection.is_broken, size, timeout_seconds, using)

    @contextmanager
    def transaction(self) -> Iterator[ArrowConnection]:
        with self._pool.connection() as connection, connection.transaction():
            yield connection

    def close_idle(self) -> None:
        self._pool.close_idle()

    def close(self) -> None:
        self._pool.close()
