"""Answers to /api/sql: small ones are sent as a whole, large ones as they come; written by the statement's thread."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from starlette.types import Send

from lakefork.errors import CancelledError, InvalidInputError, LakeforkError, TooLongError
from lakefork.server.json_rows import compact, rows_json
from lakefork.server.recording import Record
from lakefork.server.refusals import error_json, headers_of, status_of
from lakefork.settings import ServerSettings
from lakefork.sql.parse import statements as st
from lakefork.sql.results import Affected, FewRows, Result, Rows
from lakefork.sql.workers.pool import Cancellation

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
STREAM_BYTES = 256 << 10  # more than this is not held
TRUNCATED, FAILED = "lakefork.truncated", "lakefork.error"  # metadata of the last batch of an Arrow stream


async def send_answer(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """A whole answer."""
    given = {"Content-Length": str(len(body)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(given)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


class Outlet:
    """From the statement's thread to the client; it waits while the client is slow, and gives up after a time."""

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop, cancellation: Cancellation, seconds: float) -> None:
        self._send, self._loop, self._cancellation, self._seconds = send, loop, cancellation, seconds
        self.is_started = False
        self.is_stuck = False  # the client takes nothing

    def write(self, piece: bytes, content_type: str) -> None:
        """A piece of an answer under status 200."""
        self._cancellation.check()
        self.write_last(piece, content_type)
        if self.is_stuck:
            self._cancellation.cancel()
            raise CancelledError("the client did not take its answer")

    def write_last(self, piece: bytes, content_type: str) -> None:
        """The same for how an answer ends, also if it was cancelled."""
        if self.is_stuck:
            return
        sending = asyncio.run_coroutine_threadsafe(self._write(piece, content_type), self._loop)
        try:
            sending.result(self._seconds)
        except TimeoutError:
            sending.cancel()
            self.is_stuck = True

    async def _write(self, piece: bytes, content_type: str) -> None:
        if not self.is_started:
            self.is_started = True
            headers = _encoded({"Content-Type": content_type, "Cache-Control": "no-store"})
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})


class _Answer:
    """What both kinds have in common: the limits of the request, and its record."""

    is_broken = False  # whether the client must not take what was streamed for all of it

    def __init__(self, outlet: Outlet, record: Record, settings: ServerSettings) -> None:
        self.max_rows: int | None = settings.max_rows
        self._outlet, self._record, self._seconds = outlet, record, settings.request_seconds

    def begin(self, statement: st.Statement) -> None:
        if time.monotonic() - self._record.started > self._seconds:
            raise TooLongError(f"the request took longer than {self._seconds:g} s (setting server.request_seconds)")
        self._record.statements.append(type(statement).__name__)


class JsonAnswer(_Answer):
    """The object of `lakefork sql --format json`; status comes last in one that is streamed."""

    def __init__(self, outlet: Outlet, record: Record, settings: ServerSettings) -> None:
        super().__init__(outlet, record, settings)
        self._pieces: list[bytes] = []
        self._size = self._sent = 0
        self._is_first = True
        self._started = time.monotonic()

    def add(self, result: Result) -> None:
        if isinstance(result, FewRows):
            self._add_few(result)
            return
        if isinstance(result, Rows):
            self.stream(result.statement, iter([result.table]))
            return
        if isinstance(result, Affected):
            self._record.rows += result.affected_rows
        self._next()
        self._write(compact(result.as_json()))

    def _add_few(self, result: FewRows) -> None:
        self._begin_rows(result.statement, result.columns)
        if result.rows:
            self._write(compact(result.as_json()["rows"])[1:-1])
        self._end_rows(len(result.rows), truncated=False)

    def stream(self, statement: str, chunks: Iterator[pa.Table]) -> None:
        """Rows as they come. If they break off, those that were sent are marked, and others are left out."""
        mark, sent, was_first, count, truncated = len(self._pieces), self._sent, self._is_first, 0, False
        try:
            for place, chunk in enumerate(chunks):
                chunk, truncated = _within(chunk, count, self.max_rows)
                if not place:
                    self._begin_rows(statement, chunk.column_names)
                if chunk.num_rows:
                    self._write((b"," if count else b"") + rows_json(chunk))
                count += chunk.num_rows
        except Exception:
            if sent == self._sent:
                self._pieces, self._is_first = self._pieces[:mark], was_first
            else:
                self._end_rows(count, truncated=True)
            raise
        self._end_rows(count, truncated=truncated)

    def _begin_rows(self, statement: str, columns: list[str]) -> None:
        self._next()
        self._write(b'{"statement":' + compact(statement) + b',"columns":' + compact(columns) + b',"rows":[')

    def _end_rows(self, count: int, *, truncated: bool) -> None:
        self._record.rows += count
        self._write(b'],"row_count":%d%s}' % (count, b',"truncated":true' if truncated else b""))

    def finish(self, error: LakeforkError | None) -> tuple[int, bytes, dict[str, str]] | None:
        """The whole answer, unless it was streamed."""
        milliseconds = round((time.monotonic() - self._started) * 1000)
        if error is None:
            status, end = b'"status":"success"', b'"execution_time_ms":%d' % milliseconds
        else:
            status, end = b'"status":"error"', b'"error":' + compact(error_json(error))
        if self._outlet.is_started:
            self._outlet.write_last(b"".join([*self._pieces, b"]," + end + b"," + status + b"}"]), JSON)
            return None
        body = b"{" + status + b',"results":[' + b"".join(self._pieces) + b"]," + end + b"}"
        code = 200 if error is None else status_of(error)
        return code, body, {"Content-Type": JSON, "Cache-Control": "no-store", **headers_of(code)}

    def _next(self) -> None:
        if not self._is_first:
            self._write(b",")
        self._is_first = False

    def _write(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= STREAM_BYTES:
            self._flush()

    def _flush(self) -> None:
        start = b"" if self._outlet.is_started else b'{"results":['
        self._outlet.write(start + b"".join(self._pieces), JSON)
        self._pieces, self._size = [], 0
        self._sent += 1


class ArrowAnswer(_Answer):
    """The rows of one statement as an Arrow stream."""

    def __init__(self, outlet: Outlet, record: Record, settings: ServerSettings) -> None:
        super().__init__(outlet, record, settings)
        self._sink = _Pieces()
        self._writer: Any = None

    def add(self, result: Result) -> None:
        if isinstance(result, Rows):
            self.stream(result.statement, iter([result.table]))

    def stream(self, statement: str, chunks: Iterator[pa.Table]) -> None:  # noqa: ARG002 - the stream has rows only
        count, truncated = 0, False
        for chunk in chunks:
            chunk, truncated = _within(chunk, count, self.max_rows)
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._sink, chunk.schema)
            self._writer.write_table(_as_begun(chunk, self._writer_schema(chunk)))
            count += chunk.num_rows
            if self._sink.size >= STREAM_BYTES:
                self._outlet.write(self._sink.take(), ARROW)
        self._record.rows += count
        if truncated:
            self._write_last({TRUNCATED: "true"})

    def finish(self, error: LakeforkError | None) -> tuple[int, bytes, dict[str, str]] | None:
        headers = {"Content-Type": ARROW, "Cache-Control": "no-store"}
        if error is not None and not self._outlet.is_started:
            code = status_of(error)
            body = compact({"status": "error", "results": [], "error": error_json(error)})
            return code, body, {**headers, "Content-Type": JSON, **headers_of(code)}
        if error is None:
            self._writer.close()
        else:
            self._write_last({FAILED: compact(error_json(error)).decode()})
            self.is_broken = True
        if self._outlet.is_started:
            self._outlet.write_last(self._sink.take(), ARROW)
            return None
        return 200, self._sink.take(), headers

    def _writer_schema(self, chunk: pa.Table) -> pa.Schema:
        self._schema: pa.Schema = getattr(self, "_schema", chunk.schema)
        return self._schema

    def _write_last(self, about: dict[str, str]) -> None:
        """A batch without rows that says what a stream has no other place for."""
        empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        self._writer.write_batch(empty, custom_metadata=about)


class _Pieces:
    """What a writer of Arrow writes to; closed only for form."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def write(self, piece: Any) -> int:
        self._pieces.append(bytes(piece))
        self.size += len(self._pieces[-1])
        return len(self._pieces[-1])

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces, self.size = [], 0
        return taken

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _within(chunk: pa.Table, before: int, max_rows: int | None) -> tuple[pa.Table, bool]:
    """The part of a chunk that the answer may have, and whether that is not all."""
    left = chunk.num_rows if max_rows is None else max_rows - before
    return (chunk, False) if chunk.num_rows <= left else (chunk.slice(0, left), True)


def _as_begun(chunk: pa.Table, schema: pa.Schema) -> pa.Table:
    """Sums of 128 bits may come as whole numbers in one chunk, as text in another."""
    if chunk.schema == schema:
        return chunk
    try:
        return chunk.cast(schema)
    except pa.ArrowException:
        raise InvalidInputError(
            "a column has whole numbers of more than 64 bits in some rows only: CAST it to DOUBLE or VARCHAR"
        ) from None
