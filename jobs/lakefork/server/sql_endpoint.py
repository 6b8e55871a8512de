"""POST /api/sql: who asks, when it is their turn, and the statements in a thread of their own."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.types import Message, Receive, Scope, Send

from lakefork.errors import InvalidInputError, LakeforkError, UnexpectedError
from lakefork.server.admission import Admission
from lakefork.server.answers import ARROW, ArrowAnswer, JsonAnswer, Outlet, send_answer
from lakefork.server.auth import BadTokenError, Claims, FailedTries, Identities, Verifier
from lakefork.server.recording import Record
from lakefork.server.refusals import RefusedError, headers_of
from lakefork.server.requests import ClientGoneError, SqlRequest, idempotency_key, parse_request, read_body
from lakefork.settings import ServerSettings
from lakefork.sql.engine import QUERIES, Engine, parsed
from lakefork.sql.parse.statements import Select
from lakefork.sql.session import Session
from lakefork.sql.workers.pool import Cancellation
from lakefork.sql.write.receipts import Receipt

WATCH_AFTER_SECONDS = 0.05  # most answers are there before it is worth looking whether the client still is
UNAUTHENTICATED = "the token is missing, malformed, expired or revoked"
CLIENT_GONE = 499  # in the log only: nobody is there to see it
Answer = tuple[int, bytes, dict[str, str]]

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Running:
    """A request while it waits or runs."""

    claims: Claims
    request: SqlRequest
    key: str | None  # of Idempotency-Key
    record: Record
    cancellation: Cancellation = field(default_factory=Cancellation)
    is_gone: bool = False


class BrokenOffError(Exception):
    """An answer ends before its end, on purpose: the client sees a broken connection."""


class SqlEndpoint:
    def __init__(
        self, settings: ServerSettings, engine: Engine, verifier: Verifier, identities: Identities, admission: Admission
    ) -> None:
        self._settings, self._engine = settings, engine
        self._verifier, self._identities, self._admission = verifier, identities, admission
        self._failed = FailedTries(settings.failed_tokens_per_minute)
        self._threads = ThreadPoolExecutor(settings.statements, thread_name_prefix="statement")
        self._running: set[Running] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: Record = scope["record"]
        try:
            if scope["method"] != "POST":
                raise RefusedError(405, "method_not_allowed", "/api/sql takes POST only", {"Allow": "POST"})
            await self._answer(scope, receive, send, record)
        except ClientGoneError:
            record.status = record.status or CLIENT_GONE
            record.code = "client_gone"
            scope.get("abort", _nothing)()
            await asyncio.sleep(0)  # in which the connection is lost

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        headers = dict(scope["headers"])
        claims = self._claims(scope["headers"], record)
        record.user, record.catalog = claims.user, claims.catalog
        body = await read_body(headers, receive, self._settings.max_body_kb << 10, self._settings.body_seconds)
        request, key = parse_request(body), idempotency_key(headers)
        kind = ArrowAnswer if ARROW.encode() in headers.get(b"accept", b"") else JsonAnswer
        running = Running(claims, request, key, record)
        self._running.add(running)
        watch = _Watch(receive, running)
        outlet = Outlet(send, asyncio.get_running_loop(), running.cancellation, self._settings.send_seconds)
        try:
            await self._admission.enter((claims.catalog, claims.user))
            try:
                answer = kind(outlet, record, self._settings)
                found = await self._run(running, answer)
            finally:
                self._admission.leave((claims.catalog, claims.user))
        except asyncio.CancelledError:
            if running.is_gone:
                raise ClientGoneError from None
            raise RefusedError(503, "stopping", "the server is stopping: try again", headers_of(503)) from None
        finally:
            watch.stop()
            self._running.discard(running)
        if running.is_gone or outlet.is_stuck:
            raise ClientGoneError
        if found is not None:
            await send_answer(send, *found)
        elif answer.is_broken:
            raise BrokenOffError
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _run(self, running: Running, answer: JsonAnswer | ArrowAnswer) -> Answer | None:
        """If the server is stopping, what runs is cancelled; what was done before that is answered."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._execute, running, answer)
        try:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                running.cancellation.cancel()
                found = await work
                if running.is_gone:
                    raise
                return found
        except BadTokenError as error:
            raise self._bad_token(running.record, error) from None

    def _execute(self, running: Running, answer: JsonAnswer | ArrowAnswer) -> Answer | None:
        """In a thread: whoever presented the token is looked up first."""
        error: LakeforkError | None
        request, record = running.request, running.record
        try:
            who = self._identities.identify(running.claims)
            session = Session(who.catalog, who.user, who.role, request.namespace)
            if isinstance(answer, ArrowAnswer):
                _require_one_query(request.sql)
            receipt = Receipt(who.catalog_id, who.user, running.key, request.digest()) if running.key else None
            error = self._engine.run_into(answer, session, request.sql, request.params, running.cancellation, receipt)
        except BadTokenError:
            raise
        except LakeforkError as found:
            error = found
        except Exception:
            logger.exception("request %s failed", record.request_id)
            error = UnexpectedError("a mistake in Lakefork itself: the server's log has it under the request's id")
        record.code = error.code if error else None
        return answer.finish(error)

    def _claims(self, headers: list[tuple[bytes, bytes]], record: Record) -> Claims:
        given = [value for name, value in headers if name == b"authorization"]
        try:
            if len(given) != 1 or given[0][:7].lower() != b"bearer ":
                raise BadTokenError("no bearer token")
            return self._verifier.verify(given[0][7:].strip().decode("ascii", "replace"))
        except BadTokenError as error:
            raise self._bad_token(record, error) from None

    def _bad_token(self, record: Record, error: BadTokenError) -> RefusedError:
        """The same answer whatever is wrong with it; the log has the reason."""
        record.code, record.reason = "unauthenticated", str(error)[:200]
        if self._failed.is_beyond(record.client):
            return RefusedError(
                429, "too_many_requests", "too many bad tokens: try again in a minute", {"Retry-After": "60"}
            )
        return RefusedError(401, "unauthenticated", UNAUTHENTICATED, {"WWW-Authenticate": "Bearer"})

    async def stop(self) -> None:
        """Cancels what still runs, and waits for it."""
        for running in self._running:
            running.cancellation.cancel()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)


class _Watch:
    """Notices that the client is gone, unless the answer is there before."""

    def __init__(self, receive: Receive, running: Running) -> None:
        self._receive, self._running = receive, running
        self._waiting_task = asyncio.current_task()
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._start)

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        message: Message = {}
        while message.get("type") != "http.disconnect":
            message = await self._receive()
        self._running.is_gone = True
        if self._waiting_task is not None:
            self._waiting_task.cancel()


def _nothing() -> None:
    pass


def _require_one_query(sql: str) -> None:
    statements = parsed(sql) if sql.strip() else ()
    if len(statements) != 1 or not isinstance(statements[0], (Select, *QUERIES)):
        raise InvalidInputError(f"{ARROW} is for one statement that returns rows")
