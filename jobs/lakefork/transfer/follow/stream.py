"""Receives changes of a replication slot: a thread reads them into a buffer of bounded size."""

import contextlib
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import psycopg

from lakefork.database_errors import said
from lakefork.errors import CopyRequiredError, DatabaseError, LakeforkError
from lakefork.transfer.follow.changes import Piece, TableChange, Truncation
from lakefork.transfer.follow.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Parser,
    ProtocolError,
    Relation,
    Truncate,
    Update,
)
from lakefork.transfer.postgres_copy.plan import quote
from lakefork.transfer.postgres_copy.sessions import Endpoint

BUFFER_BYTES = 32 << 20
PIECE_CHANGES = 5_000
PIECE_BYTES = 4 << 20
OVERHEAD = 200  # bytes that Python needs for a change, besides its values
STATUS_SECONDS = 1.0
ASK_SECONDS = 0.05  # how often an idle source is asked how far it has read
_DATA, _STATUS = struct.Struct(">cQQQ"), struct.Struct(">cQQQQB")
_KEEPALIVE = struct.Struct(">cQQB")
_EPOCH = 946_684_800  # 2000-01-01
# Values as text, in a form that any server reads the same.
_OPTIONS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c extra_float_digits=3 -c bytea_output=hex "
    "-c search_path= -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)


def lsn_text(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class Buffer:
    """Pieces that were received and not taken yet, up to a number of bytes."""

    def __init__(self, most_bytes: int = BUFFER_BYTES) -> None:
        self._most = most_bytes
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def put(self, piece: Piece, seconds: float) -> bool:
        """False if there was no room for so long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._size < self._most, seconds):
                return False
            self._pieces.append(piece)
            self._size += piece.size
            self._changed.notify_all()
        return True

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, seconds: float) -> list[Piece]:
        """All that wait; none if nothing came for so long. What was received before an error comes before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._error, seconds)
            found = list(self._pieces)
            self._pieces.clear()
            self._size = 0
            self._changed.notify_all()
            if not found and self._error is not None:
                raise self._error
            return found


class ChangeStream:
    """Changes of the slot's publication, from a position on. `durable` is what the source may forget."""

    def __init__(self, source: Endpoint, slot: str, position: int) -> None:
        self.durable = position
        self._source, self._slot = source, slot
        self._parser = Parser(1)
        self._relations: dict[int, Relation] = {}
        self._pending: list[TableChange | Truncation] = []
        self._pending_size = 0
        self._in_transaction = self._is_known = False
        self._start = position
        self._seen = 0
        self._told = self._asked = 0.0
        self.buffer = Buffer()
        self._stop = threading.Event()
        self._connection = self._connect()
        self._thread = threading.Thread(target=self._receive, name="receive changes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Says what is durable, and leaves the slot."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(psycopg.Error):
            self._tell(ask=False)
        self._connection.close()

    def _connect(self) -> Any:
        name = self._source.name
        try:
            connection = psycopg.connect(
                self._source.dsn, autocommit=True, connect_timeout=10, replication="database", options=_OPTIONS,
                application_name="lakefork", client_encoding=self._source.encoding,
            )  # fmt: skip
        except psycopg.Error as error:
            raise DatabaseError(f"cannot connect to {name!r} for its changes: {str(error).splitlines()[0]}") from None
        start = (
            f"START_REPLICATION SLOT {quote(self._slot)} LOGICAL {lsn_text(self.durable)} "
            f"(proto_version '1', publication_names '{quote(self._slot)}')"
        )
        found = connection.pgconn.exec_(start.encode())
        if found.status != psycopg.pq.ExecStatus.COPY_BOTH:
            refusal = psycopg.errors.error_from_result(found)
            connection.close()
            raise self._refused(refusal)
        connection.pgconn.nonblocking = 1
        return connection

    def _refused(self, error: psycopg.Error) -> LakeforkError:
        name = self._source.name
        if error.sqlstate == "55006":
            return DatabaseError(f"the slot {self._slot} of {name!r} is in use: another run reads it, or just ended")
        if error.sqlstate in ("42704", "55000"):
            return CopyRequiredError(f"copy required: {name!r} cannot go on from where it was followed ({said(error)})")
        return DatabaseError(f"{name!r} does not send its changes: {said(error)}")

    def _receive(self) -> None:
        try:
            while not self._stop.is_set():
                self._receive_some()
        except BaseException as error:
            self.buffer.fail(self._translated(error))

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, psycopg.Error) and not isinstance(error, LakeforkError):
            if error.sqlstate in ("42704", "55000"):
                return self._refused(error)
            return DatabaseError(f"the connection to {self._source.name!r} broke: the next run goes on")
        return error

    def _receive_some(self) -> None:
        pgconn = self._connection.pgconn
        size, data = pgconn.get_copy_data(1)
        if size > 0:
            self._handle(bytes(data))
            if time.monotonic() - self._told > STATUS_SECONDS:
                self._tell(ask=False)
            return
        if size < 0:
            result = pgconn.get_result()
            raise (
                psycopg.errors.error_from_result(result)
                if result is not None
                else DatabaseError(f"{self._source.name!r} ended the stream of changes: the next run goes on")
            )
        if time.monotonic() - self._asked > ASK_SECONDS:
            self._tell(ask=True)
        select.select([pgconn.socket], [], [], ASK_SECONDS)
        pgconn.consume_input()

    def _tell(self, *, ask: bool) -> None:
        """How far the target is; ask: for an answer with how far the source has read."""
        now = time.monotonic()
        self._told = now
        if ask:
            self._asked = now
        at = int((time.time() - _EPOCH) * 1_000_000)
        message = _STATUS.pack(b"r", max(self._seen, self.durable), self.durable, self.durable, at, int(ask))
        self._connection.pgconn.put_copy_data(message)
        self._connection.pgconn.flush()

    def _handle(self, data: bytes) -> None:
        if data[:1] == b"k":
            _, reached, _, must_answer = _KEEPALIVE.unpack(data)
            self._seen = max(self._seen, reached)
            if not self._in_transaction:
                self._put(Piece(reached=reached))
            if must_answer:
                self._tell(ask=False)
            return
        if data[:1] != b"w":
            raise ProtocolError(f"{self._source.name!r} sent a message that is neither data nor a sign of life")
        self._take(self._parser.parse(data[_DATA.size :]), len(data))

    def _take(self, message: Any, size: int) -> None:
        if isinstance(message, Insert | Update | Delete):
            self._pending.append(TableChange(self._relations[message.relation], message))
            self._pending_size += size + OVERHEAD
            if len(self._pending) >= PIECE_CHANGES or self._pending_size >= PIECE_BYTES:
                self._hand_over(None)
        elif isinstance(message, Commit):
            self._in_transaction = False
            self._hand_over(message)
        elif isinstance(message, Begin):
            self._in_transaction, self._is_known = True, message.final_lsn < self._start
        elif isinstance(message, Relation):
            if self._relations.get(message.oid) != message:
                self._relations[message.oid] = message
        elif isinstance(message, Truncate):
            relations = tuple(self._relations[oid] for oid in message.relations)
            self._pending.append(Truncation(relations, message))

    def _hand_over(self, commit: Commit | None) -> None:
        piece = Piece(self._pending, commit, None, self._pending_size)
        self._pending, self._pending_size = [], 0
        if not self._is_known:  # a source that restarted may send again what it was not told in time
            self._put(piece)

    def _put(self, piece: Piece) -> None:
        """Waits for room; until then the source is told that the receiver is alive."""
        while not self.buffer.put(piece, STATUS_SECONDS):
            if self._stop.is_set():
                return
            self._tell(ask=False)


def transactions_of(pieces: Sequence[Piece]) -> int:
    return sum(piece.commit is not None for piece in pieces)
