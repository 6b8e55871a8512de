"""The ASGI application of one worker process: routes, what they share, and how it starts and stops."""

import asyncio
import contextlib
import hmac
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp

from lakefork.catalog.connection import shut
from lakefork.errors import LakeforkError
from lakefork.model.durations import seconds_of
from lakefork.queries import load
from lakefork.server import console
from lakefork.server.admission import Admission
from lakefork.server.answers import JSON
from lakefork.server.auth import Identities, Verifier
from lakefork.server.json_rows import compact
from lakefork.server.keys import token_key
from lakefork.server.live import Live
from lakefork.server.metrics import Metrics
from lakefork.server.recording import Record, Recording
from lakefork.server.refusals import RefusedError, error_json, headers_of, status_of
from lakefork.server.socket import Endpoint
from lakefork.server.sql_endpoint import SqlEndpoint
from lakefork.settings import Settings, load_settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.watchdog import time_limit

METRICS_DIRECTORY = "LAKEFORK_SERVER_RUN"  # from the parent process to its workers
UPKEEP_SECONDS = 600
HEALTH_SECONDS = 3.0  # for Postgres to answer
PARENT_SECONDS = 0.5
RESTART_SECONDS = 1.0  # before a worker that could not start is replaced
CORS_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", "X-Request-ID")

MISTAKE = "a mistake in Lakefork itself: the server's log has it under the request's id"

logger = logging.getLogger(__name__)
_SQL = load(__package__)


class Server:
    """What the routes of one worker process share."""

    def __init__(self, settings: Settings, dsn: str, directory: Path) -> None:
        self.settings = settings
        self.admission = Admission(settings.server)
        self.metrics = Metrics(directory, self.admission)
        self.identities = Identities(dsn)
        self.engine = Engine(settings, dsn)
        verifier = Verifier(settings.server, token_key(settings))
        self.sql = SqlEndpoint(settings.server, self.engine, verifier, self.identities, self.admission)
        self.live = Live(settings, dsn, self.engine, verifier, self.identities)
        self.metrics.live = self.live.counts

    def warm_up(self) -> None:
        """So that the first request does not wait for connections and a query worker."""
        self.engine.run(Session("", role=Role.ADMIN), "SELECT 1")
        self.engine.start_eviction()

    async def close(self) -> None:
        await self.live.close()
        await self.sql.stop()
        await asyncio.to_thread(self.engine.close)
        self.identities.close()

    async def look_after(self, parent: int) -> None:
        """Ends the process with its parent, and forgets receipts that nobody needs any more."""
        ticks = 0
        while True:
            await asyncio.sleep(PARENT_SECONDS)
            ticks += 1
            if os.getppid() != parent:
                logger.error("the server's parent process is gone: this worker stops")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if ticks % int(UPKEEP_SECONDS / PARENT_SECONDS) == 0:
                await asyncio.to_thread(self._forget_receipts)

    def _forget_receipts(self) -> None:
        seconds = seconds_of(self.settings.server.idempotency_for, "server.idempotency_for")
        try:
            with self.identities.pool.connection() as connection:
                connection.execute(_SQL["forget_receipts"], {"seconds": seconds})
        except Exception as error:
            logger.warning("receipts could not be removed: %s", error)


def create_app() -> ASGIApp:
    """For uvicorn, in each worker process."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("lakefork").setLevel(logging.INFO)
    settings = load_settings()
    try:
        return application(settings, str(settings.dsn), Path(os.environ[METRICS_DIRECTORY]))
    except LakeforkError as error:
        logger.error("a worker cannot start, and is tried again: %s", error)
        time.sleep(RESTART_SECONDS)
        raise SystemExit(1) from None


def application(settings: Settings, dsn: str, directory: Path) -> ASGIApp:
    server = Server(settings, dsn, directory)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(server.warm_up)
        parent = _parent()
        looking_after = asyncio.create_task(server.look_after(parent))
        yield
        looking_after.cancel()
        await server.close()
        if os.getppid() != parent:  # which would have removed it
            shutil.rmtree(directory, ignore_errors=True)

    async def health(_: Request) -> Response:
        """Whether statements can be executed: 200, or 503 while Postgres is away."""
        return await asyncio.to_thread(_health, server)

    async def metrics(request: Request) -> Response:
        token = settings.metrics.token
        given = request.headers.get("authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise RefusedError(401, "unauthenticated", "this needs the token of the setting metrics.token")
        return PlainTextResponse(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [
        Route("/api/sql", server.sql),
        WebSocketRoute("/ws", Endpoint(server.live)),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/", console.page),
        Mount("/console", routes=[Route("/{name}", console.asset)]),
    ]
    starlette = Starlette(routes=routes, lifespan=lifespan, exception_handlers=HANDLERS)
    starlette.router.redirect_slashes = False
    app: ASGIApp = starlette
    if settings.server.cors_origins:
        app = CORSMiddleware(
            app, allow_origins=settings.server.cors_origins, allow_methods=["POST"], allow_headers=CORS_HEADERS,
            expose_headers=["X-Request-ID", "Retry-After"], max_age=600,
        )  # fmt: skip
    return Recording(app, server.metrics)


def _parent() -> int:
    """The process that started this one, whether it still runs or not."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _health(server: Server) -> Response:
    try:
        with (
            server.identities.pool.connection() as connection,
            time_limit(time.monotonic() + HEALTH_SECONDS, partial(shut, connection)),
        ):
            connection.execute("SELECT 1")
    except Exception:
        server.identities.pool.close_idle()
        body = compact({"status": "error", "error": {"code": "database", "message": "Postgres does not answer"}})
        return Response(body, 503, headers_of(503), media_type=JSON)
    return Response(compact({"status": "ok"}), media_type=JSON)


def _answer(error: RefusedError) -> Response:
    body = compact({"status": "error", "results": [], "error": error_json(error)})
    return Response(body, error.status, error.headers, media_type=JSON)


def _refuse(request: Request, error: Exception) -> Response:
    """Whatever a route raises becomes JSON; what nobody foresaw is logged by its caller."""
    record: Record = request.scope["record"]
    if isinstance(error, HTTPException):
        found = _REFUSED_ROUTES.get(error.status_code, ("bad_request", str(error.detail)))
        error = RefusedError(error.status_code, *found, dict(error.headers or {}))
    elif isinstance(error, LakeforkError):
        status = status_of(error)
        error = RefusedError(status, error.code, str(error), headers_of(status))
    elif not isinstance(error, RefusedError):
        error = RefusedError(
            500, "internal", "a mistake in Lakefork itself: the server's log has it under the request's id"
        )
    record.code = error.code
    return _answer(error)


_REFUSED_ROUTES = {
    404: ("not_found", "there is nothing at this path; SQL goes to POST /api/sql"),
    405: ("method_not_allowed", "this path takes another method"),
}
HANDLERS = dict.fromkeys((HTTPException, RefusedError, LakeforkError, Exception), _refuse)
