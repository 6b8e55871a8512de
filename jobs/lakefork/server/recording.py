"""One line for each request, in the log and in the counters; never with values or tokens."""

import json
import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakefork.server.metrics import Metrics

logger = logging.getLogger("lakefork.requests")
REQUEST_ID = b"x-request-id"
_SANE = re.compile(rb"[A-Za-z0-9._-]{1,64}")


@dataclass
class Record:
    """What becomes known of a request while it is answered."""

    request_id: str
    method: str
    path: str
    client: str
    started: float = field(default_factory=time.monotonic)
    user: str | None = None
    catalog: str | None = None
    statements: list[str] = field(default_factory=list)
    rows: int = 0
    status: int = 0
    bytes: int = 0
    code: str | None = None
    reason: str | None = None  # why a token was refused

    def line(self, seconds: float) -> str:
        kinds = ",".join(self.statements[:10]) + (",…" if len(self.statements) > 10 else "")
        facts: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "request": self.request_id,
            "client": self.client, "method": self.method, "path": self.path[:200], "status": self.status,
            "ms": round(seconds * 1000, 1), "user": self.user, "catalog": self.catalog, "statements": kinds,
            "rows": self.rows, "bytes": self.bytes, "code": self.code, "reason": self.reason,
        }  # fmt: skip
        return json.dumps({name: value for name, value in facts.items() if value not in (None, "")})


class Recording:
    """The outermost layer: gives each request an id, and tells what became of it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _record(scope)
        scope["record"] = record

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, record.request_id.encode())]
            else:
                record.bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, recorded)
        finally:
            seconds = time.monotonic() - record.started
            self._metrics.count(record.path, record.status, seconds, record.statements, record.rows, record.bytes)
            if record.path not in ("/health", "/metrics"):
                logger.info(record.line(seconds))


def socket_line(facts: dict[str, Any]) -> str:
    """One line about a socket, in the log beside those about requests."""
    found = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "path": "/ws", **facts}
    return json.dumps({name: value for name, value in found.items() if value not in (None, "")})


def _record(scope: Scope) -> Record:
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    request_id = given.decode() if _SANE.fullmatch(given) else uuid.uuid4().hex
    client = scope.get("client")
    return Record(request_id, scope["method"], scope["path"], client[0] if client else "")
