"""COPY from one Postgres to another, without files between: what comes out goes in as it is."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from lakefork.transfer.postgres_copy.sessions import Session

PIECE_BYTES = 512 * 1024


@dataclass(frozen=True)
class Copied:
    """digest: of the stream, in its order. The same digest means the same rows."""

    rows: int
    bytes: int
    digest: str


Take = Callable[[bytes], Any]
Sender = Callable[[str, Take], tuple[int, str]]  # reads a COPY: gives its pieces away, returns size and digest


def stream_rows(source: Session, copy_out: str, target: Session, copy_in: str) -> Copied:
    """Rows out of one COPY into another; an error of either ends both."""
    return stream_from(lambda statement, take: _read(source, statement, take), copy_out, target, copy_in)


def stream_from(send: Sender, copy_out: str, target: Session, copy_in: str) -> Copied:
    """The same from whoever reads the source."""
    receiver = target.pgconn
    receiver.nonblocking = 0  # a target that is slower than the source is waited for, instead of kept in memory
    try:
        _begin(receiver, copy_in, ExecStatus.COPY_IN, target)
        try:
            size, digest = send(copy_out, receiver.put_copy_data)
        except BaseException:
            with suppress(psycopg.Error):
                receiver.put_copy_end(b"the source failed")
                _results(receiver)
            raise
        receiver.put_copy_end()
        rows = 0
        for result in _results(receiver):
            _check(result, target)
            rows = result.command_tuples or rows
        return Copied(rows, size, digest)
    finally:
        with suppress(psycopg.Error):
            receiver.nonblocking = 1


def send_rows(target: Session, copy_in: str, content: bytes) -> int:
    """Rows that are in memory into one COPY; returns how many."""
    return stream_from(lambda _, take: (take(content), (len(content), ""))[1], "", target, copy_in).rows


def digest_rows(source: Session, copy_out: str) -> Copied:
    """The same without a target: tells whether rows are still those that were copied."""
    size, digest = _read(source, copy_out, lambda _: None)
    return Copied(0, size, digest)


def _read(source: Session, copy_out: str, take: Take) -> tuple[int, str]:
    sender = source.pgconn
    sender.nonblocking = 0
    try:
        _begin(sender, copy_out, ExecStatus.COPY_OUT, source)
        digest, size = hashlib.blake2b(digest_size=16), 0
        pieces: list[Any] = []
        waiting = 0
        read = sender.get_copy_data
        while True:
            count, piece = read(0)
            if count < 0:
                break
            pieces.append(piece)
            waiting += count
            if waiting >= PIECE_BYTES:
                content = b"".join(pieces)
                digest.update(content)
                take(content)
                size += waiting
                pieces, waiting = [], 0
        content = b"".join(pieces)
        digest.update(content)
        if content:
            take(content)
        for result in _results(sender):
            _check(result, source)
        return size + waiting, digest.hexdigest()
    finally:
        with suppress(psycopg.Error):
            sender.nonblocking = 1


def _begin(connection: Any, statement: str, expected: ExecStatus, session: Session) -> None:
    result = connection.exec_(statement.encode(session.info.encoding))
    if result.status != expected:
        raise error_from_result(result, session.info.encoding)


def _results(connection: Any) -> list[Any]:
    found = []
    while (result := connection.get_result()) is not None:
        found.append(result)
    return found


def _check(result: Any, session: Session) -> None:
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise error_from_result(result, session.info.encoding)
