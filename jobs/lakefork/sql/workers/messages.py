"""The protocol of an engine and its workers: frames on a socket, rows as Arrow streams."""

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from lakefork.sql.workers.shared_rows import Piece, map_rows, pieces_of

READY, REQUEST, ROWS, END, ERROR = b"I", b"Q", b"R", b"E", b"X"
MAX_FILES = 200  # per message
_HEADER = struct.Struct("<cQI")  # kind, length of the body, length of the JSON at its start


@dataclass(frozen=True)
class Read:
    """SQL that Lakefork wrote, over batches and relations (name in the SQL → name in the request).

    refusal: what to say instead where a row filter fails, because the reason may tell of hidden rows.
    """

    name: str
    sql: str
    relations: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None


@dataclass(frozen=True)
class Request:
    """Reads run first and become relations, then sql, which a user wrote and which reaches only these.

    Without sql the answer is the last read's rows. row_filters: of relations, before anything else sees them.
    """

    sql: str | None = None
    relations: Mapping[str, pa.Table] = field(default_factory=dict)
    reads: Sequence[Read] = ()
    row_filters: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)  # relations that are read while sql runs …
    paths: Sequence[str] = ()  # … from these files
    max_rows: int | None = None
    setting: str = "sql.max_rows"
    cut: bool = False  # rows beyond max_rows are left out, instead of an error; nobody holds the whole answer


@dataclass(frozen=True)
class Probe:
    """Probes the bloom filters of batches for values of one column, given as SQL literals."""

    paths: Sequence[str]
    column_id: int
    literals: Sequence[str]


@dataclass(frozen=True)
class Frame:
    kind: bytes
    json: dict[str, Any]
    body: memoryview
    fds: Sequence[int] = ()


class ClosedError(Exception):
    """The other side has closed the socket."""


def send(sock: socket.socket, kind: bytes, content: Mapping[str, Any], *parts: Any, fds: Sequence[int] = ()) -> None:
    text = json.dumps(content).encode()
    length = len(text) + sum(memoryview(part).nbytes for part in parts)
    head = _HEADER.pack(kind, length, len(text)) + text
    try:
        if fds:
            sent = socket.send_fds(sock, [head], fds)
            head = head[sent:]
        sock.sendall(b"".join([head, *parts]) if length < 1 << 16 else head)
        if length >= 1 << 16:
            for part in parts:
                sock.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        raise ClosedError from None


def receive(sock: socket.socket) -> Frame:
    fds: list[int] = []
    header = _receive(sock, _HEADER.size, fds)
    kind, length, json_length = _HEADER.unpack(header)
    body = memoryview(_receive(sock, length, fds))
    return Frame(kind, json.loads(bytes(body[:json_length])), body[json_length:], fds)


def _receive(sock: socket.socket, length: int, fds: list[int]) -> bytearray:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        try:
            if not fds and length == _HEADER.size:
                data, found, _, _ = socket.recv_fds(sock, len(view), MAX_FILES)
                fds.extend(found)
                count = len(data)
                view[:count] = data
            else:
                count = sock.recv_into(view)
        except ConnectionResetError:
            count = 0
        if not count:
            raise ClosedError
        view = view[count:]
    return buffer


def stream_of(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def rows_of(body: memoryview) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(body)).read_all()


def send_request(sock: socket.socket, request: Request | Probe) -> None:
    """Sends a request: large relations as files in memory, small ones inline."""
    if isinstance(request, Probe):
        send(sock, REQUEST, {"probe": asdict(request)})
        return
    pieces: list[Piece] = []
    parts: list[pa.Buffer] = []
    relations: dict[str, list[dict[str, int | None]]] = {}
    for name, rows in request.relations.items():
        shared = pieces_of(rows)
        if shared and len(pieces) + len(shared) <= MAX_FILES:
            relations[name] = [{"number": one.number, "size": one.size} for one in shared]
            pieces.extend(shared)
        else:
            parts.append(stream_of(rows))
            relations[name] = [{"inline": parts[-1].size}]
    content = {
        "sql": request.sql, "relations": relations, "reads": [asdict(read) for read in request.reads],
        "row_filters": dict(request.row_filters), "views": dict(request.views), "paths": sorted(request.paths),
        "max_rows": request.max_rows, "setting": request.setting, "cut": request.cut,
    }  # fmt: skip
    send(sock, REQUEST, content, *parts, fds=[piece.fd for piece in pieces])


class RequestReader:
    """Reads requests in a worker; repeated pieces stay mapped."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._mapped: dict[int, tuple[int, pa.Table]] = {}  # by number, least recently used first

    def read(self, frame: Frame) -> Request | Probe:
        if "probe" in frame.json:
            return Probe(**frame.json["probe"])
        fds = iter(frame.fds)
        place = 0
        relations = {}
        for name, parts in frame.json["relations"].items():
            tables = []
            for part in parts:
                if "inline" in part:
                    tables.append(rows_of(frame.body[place : place + part["inline"]]))
                    place += part["inline"]
                else:
                    tables.append(self._map(part["number"], part["size"], next(fds)))
            relations[name] = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        reads = tuple(Read(**read) for read in frame.json["reads"])
        return Request(**{**frame.json, "relations": relations, "reads": reads})

    def _map(self, number: int | None, size: int, fd: int) -> pa.Table:
        _, rows = self._mapped.pop(number, (0, None)) if number is not None else (0, None)
        if rows is None:
            rows = map_rows(fd, size)
        os.close(fd)
        if number is None:
            return rows
        self._mapped[number] = size, rows
        while len(self._mapped) > 1 and sum(one for one, _ in self._mapped.values()) > self._max_bytes:
            del self._mapped[next(iter(self._mapped))]
        return rows
