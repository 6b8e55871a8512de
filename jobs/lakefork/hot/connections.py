"""Connections that speak Arrow with Postgres (ADBC), pooled; errors become Lakefork's by SQLSTATE."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import adbc_driver_postgresql
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

from lakefork.errors import (
    BY_SQLSTATE,
    ConflictError,
    DatabaseError,
    DefinitionChangedError,
    InvalidInputError,
    LakeforkError,
    LimitError,
    SnapshotLostError,
)
from lakefork.predicates import quoted

_OTHER_ERRORS: dict[str, tuple[type[LakeforkError], str]] = {
    "40001": (ConflictError, "another transaction got in the way: try again"),
    "40P01": (ConflictError, "another transaction got in the way: try again"),
    "42P01": (DefinitionChangedError, "the table was changed meanwhile: try again"),
    "54000": (InvalidInputError, "a key is too long to be indexed: keys may have up to about 2,700 bytes"),
    "57014": (LimitError, "the statement took too long and was stopped (setting sql.statement_timeout_seconds)"),
}

COPY_ROWS = 8_192


class ArrowConnection:
    """One connection; within transaction() all calls see and make one transaction."""

    def __init__(self, dsn: str, *, read_only: bool, timeout_seconds: float, max_bytes: int) -> None:
        isolation = r"repeatable\ read" if read_only else r"read\ committed"
        options = (
            f"-c statement_timeout={int(timeout_seconds * 1000)} -c standard_conforming_strings=on -c TimeZone=UTC "
            f"-c default_transaction_isolation={isolation} "
            f"-c default_transaction_read_only={'on' if read_only else 'off'}"
            f"{'' if timeout_seconds else ' -c idle_in_transaction_session_timeout=0'}"
        )
        # Not the driver's DB-API, whose import takes a second (pandas), and which adds a layer to each call.
        try:
            self._database = adbc_driver_postgresql.connect(
                make_conninfo(dsn, options=options, application_name="lakefork")
            )
            self._connection = AdbcConnection(self._database)
        except AdbcError as error:
            # Whoever comes here has connected with this DSN before: what is wrong lies in Postgres, and passes.
            raise DatabaseError(f"cannot connect to Postgres: {_said(error)}") from None
        self._connection.set_autocommit(False)
        self.is_broken = False
        self._max_bytes = max_bytes

    def query(self, sql: str) -> pa.Table:
        with self.stream(sql) as reader:
            batches = []
            size = 0
            for batch in reader:
                size += batch.nbytes
                if size > self._max_bytes:
                    raise LimitError("the rows to read need more memory than they may have (setting sql.memory_mb)")
                batches.append(batch)
            return pa.Table.from_batches(batches, schema=reader.schema)

    @contextmanager
    def stream(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """The rows as they come; memory is the caller's business."""
        with domain_errors(), AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            yield AdbcRecordBatchReader._import_from_c(stream.address)  # its errors keep their SQLSTATE

    def join_snapshot(self, snapshot: str) -> None:
        """From here on the transaction sees what the one that exported the snapshot sees."""
        try:
            with AdbcStatement(self._connection) as statement:
                statement.set_sql_query(f"SET TRANSACTION SNAPSHOT {quoted(snapshot)}")
                statement.execute_update()
        except AdbcError as error:
            raise SnapshotLostError(
                f"the snapshot that rows are read under is gone; Postgres or the driver restarted? {_said(error)}"
            ) from error

    def execute(self, sql: str) -> None:
        with domain_errors(), AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            statement.execute_update()

    def copy_in(self, schema: str, table: str, rows: pa.Table) -> None:
        """Appends Arrow rows with one binary COPY; their columns name the table's."""
        with domain_errors(), AdbcStatement(self._connection) as statement:
            statement.set_options(
                **{
                    INGEST_OPTION_TARGET_TABLE: table,
                    INGEST_OPTION_MODE: INGEST_OPTION_MODE_APPEND,
                    StatementOptions.INGEST_TARGET_DB_SCHEMA.value: schema,
                }
            )
            # In parts, so that Postgres takes in one while the next is encoded.
            statement.bind_stream(rows.to_reader(max_chunksize=COPY_ROWS))
            statement.execute_update()

    @contextmanager
    def transaction(self) -> Iterator["ArrowConnection"]:
        try:
            yield self
        except BaseException:
            try:
                self._connection.rollback()
            except AdbcError:
                self.is_broken = True
            raise
        with domain_errors():
            self._connection.commit()

    def close(self) -> None:
        self._connection.close()
        self._database.close()


class ArrowPool:
    """Keeps connections for the next caller; a connection that failed to roll back is thrown away."""

    def __init__(self, connect: Callable[[], ArrowConnection], size: int, timeout_seconds: float) -> None:
        self._connect = connect
        self._timeout = timeout_seconds
        self._idle: list[ArrowConnection] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(size)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=self._timeout):
            raise LimitError("all connections to Postgres are busy: try again, or raise the setting sql.connections")
        try:
            yield
        finally:
            self._slots.release()

    @contextmanager
    def transaction(self) -> Iterator[ArrowConnection]:
        with self._slot():
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._connect()
            usable = False
            try:
                with connection.transaction():
                    yield connection
                usable = True
            except LakeforkError:
                usable = True
                raise
            finally:
                if usable and not connection.is_broken:
                    with self._lock:
                        self._idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        """Closes the connections that nobody uses now."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turns what Postgres reports, by SQLSTATE, into Lakefork's errors."""
    try:
        yield
    except AdbcError as error:
        state = error.sqlstate or ""
        if kind := BY_SQLSTATE.get(state):
            raise kind(_said(error)) from error
        if state in _OTHER_ERRORS:
            kind, sentence = _OTHER_ERRORS[state]
            raise kind(sentence) from error
        raise


def _said(error: AdbcError) -> str:
    """What Postgres said, without the driver's words around it."""
    for name, value in error.details or ():
        if "PG_DIAG_MESSAGE_PRIMARY" in str(name):  # bytes or text, as the driver likes
            return bytes(value).decode()
    return str(error).splitlines()[0]
