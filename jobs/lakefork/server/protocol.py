"""uvicorn's HTTP protocol with limits: heads of requests are small and arrive soon, and refusals are JSON."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lakefork.server.json_rows import compact

HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0


class LimitedProtocol(HttpToolsProtocol):
    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES + len(data):
                self.send_400_response("the head of the request is too large")
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self.scope["abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        error = {"code": "bad_request", "message": msg}
        body = compact({"status": "error", "results": [], "error": error})
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
