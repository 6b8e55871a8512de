"""WS /ws: one client's subscriptions on one socket."""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections import OrderedDict
from typing import Any

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from lakefork.errors import DatabaseError, InvalidInputError, LakeforkError
from lakefork.hot.changes import Cursor, Position
from lakefork.server.auth import BadTokenError, Claims, FailedTries
from lakefork.server.json_rows import compact, objects_json
from lakefork.server.live import Live
from lakefork.server.recording import socket_line
from lakefork.server.sql_endpoint import UNAUTHENTICATED
from lakefork.server.subscription import Run, State, Subscription
from lakefork.sql.session import Session

AUTHENTICATION_SECONDS = 3.0
AWAY_SECONDS = 0.5  # before Postgres, which did not answer, is asked again
PAGE_ROWS = 1_000
UNAUTHORIZED, TIMED_OUT, TOO_MANY, CLOSED_BY_SERVER = 4401, 4408, 4429, 1011

logger = logging.getLogger("lakefork.requests")


class Endpoint:
    """The route: one Socket per connection."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._failed = FailedTries(live.settings.failed_tokens_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._live.start()
        socket = Socket(WebSocket(scope, receive, send), self._live, self._failed)
        self._live.sockets.add(socket)
        try:
            await socket.serve()
        finally:
            self._live.sockets.discard(socket)


class Socket:
    def __init__(self, websocket: WebSocket, live: Live, failed: FailedTries) -> None:
        self._websocket, self._live, self._failed = websocket, live, failed
        self.claims: Claims | None = None
        self.subscriptions: OrderedDict[str, Subscription] = OrderedDict()
        self._session: Session | None = None
        self._has_work = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_message = self._opened = time.monotonic()
        self._sent = self._sent_bytes = 0
        self._id = uuid.uuid4().hex
        self._code: str | None = None
        self._preparing = 0  # subscriptions that are not in the list yet

    async def serve(self) -> None:
        """Returns when the socket is closed."""
        await self._websocket.accept()
        try:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the latter for what comes after the close
                if await self._authenticate():
                    self._spawn(self._send_changes())
                    await self._receive()
        finally:
            for task in list(self._tasks):
                task.cancel()
            for subscription in self.subscriptions.values():
                self._live.remove(subscription)
            self._log("close", self._code)

    async def close(self, code: int, reason: str) -> None:
        self._code = reason
        if self._websocket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError, TimeoutError, OSError):
                await asyncio.wait_for(self._websocket.close(code, reason[:100]), 1)

    def wake(self) -> None:
        self._has_work.set()

    # Who it is ---------------------------------------------------------------------------------------------------

    async def _authenticate(self) -> bool:
        given = self._websocket.headers.get("authorization", "")
        token = given[7:].strip() if given[:7].lower() == "bearer " else None
        is_by_message = token is None
        try:
            if token is None:
                message = await asyncio.wait_for(self._message(), AUTHENTICATION_SECONDS)
                token = message.get("token") if message.get("type") == "authenticate" else None
            claims = self._live.verifier.verify(token if isinstance(token, str) else "")
            identity = await self._live.run(self._live.identities.identify, claims)
            await self._live.know(claims)
        except TimeoutError:
            await self._refuse(TIMED_OUT, "unauthenticated", "no token came within 3 s")
            return False
        except (BadTokenError, InvalidInputError):
            client = self._websocket.client.host if self._websocket.client else ""
            if self._failed.is_beyond(client):
                await self._refuse(TOO_MANY, "too_many_requests", "too many bad tokens: try again in a minute")
            else:
                await self._refuse(UNAUTHORIZED, "unauthenticated", UNAUTHENTICATED)
            return False
        except LakeforkError as error:
            await self._refuse(CLOSED_BY_SERVER, error.code, str(error))
            return False
        self.claims = claims
        self._session = Session(identity.catalog, identity.user, identity.role)
        self._log("open", None)
        role = identity.role.name.lower()
        if is_by_message:
            await self._send(compact({"type": "auth_success", "user_id": identity.user, "role": role}))
        return True

    async def _refuse(self, close_code: int, code: str, message: str) -> None:
        await self._error(code, message)
        await self.close(close_code, message)

    # Messages of the client --------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        idle = self._live.settings.live_idle_seconds
        while True:
            try:
                message = await asyncio.wait_for(self._message(), idle)
            except TimeoutError:
                if not self.subscriptions and time.monotonic() - self._last_message >= idle:
                    await self._refuse(TIMED_OUT, "idle", f"no subscription and no message for {idle:g} s")
                    return
                continue
            except InvalidInputError as error:
                await self._error(error.code, str(error))
                continue
            self._last_message = time.monotonic()
            await self._obey(message)

    async def _message(self) -> dict[str, Any]:
        received = await self._websocket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1005))
        text = received.get("text")
        try:
            message = json.loads(text) if text is not None else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise InvalidInputError('a message is a JSON object such as {"type":"subscribe","subscriptions":[…]}')
        return message

    async def _obey(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "ping":
            await self._send(b'{"type":"pong"}')
        elif kind == "subscribe" or (kind is None and "subscriptions" in message):
            given = message.get("subscriptions")
            if not isinstance(given, list) or not given:
                await self._error("invalid_input", "subscriptions is a list of objects with id and sql")
                return
            for one in given:
                await self._begin(one)
        elif kind == "unsubscribe":
            name = message.get("id", message.get("subscription_id"))
            subscription = self.subscriptions.pop(name, None) if isinstance(name, str) else None
            if subscription is None:
                await self._error("not_found", f"there is no subscription {name!r} on this socket")
                return
            self._live.remove(subscription)
            await self._send(compact({"type": "unsubscribed", "subscription_id": name}))
        elif kind == "authenticate":
            await self._error("invalid_input", "this socket is authenticated already: open another one")
        else:
            await self._error("invalid_input", f"messages of type {kind!r} are not known: subscribe, unsubscribe, ping")

    async def _begin(self, given: Any) -> None:
        if len(self.subscriptions) + self._preparing >= self._live.settings.live_subscriptions_per_socket:
            name = given.get("id") if isinstance(given, dict) else None
            message = "the socket has as many subscriptions as it may have: open another one"
            await self._error("invalid_input", message, name if isinstance(name, str) else None)
            return
        self._preparing += 1
        task = asyncio.create_task(self._subscribe(given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Subscriptions -----------------------------------------------------------------------------------------------

    async def _subscribe(self, given: Any) -> None:
        name = given.get("id") if isinstance(given, dict) else None
        subscription = None
        try:
            try:
                subscription = await self._prepared(name, given)
            finally:
                self._preparing -= 1
            await self._live.add(self, subscription)
            self._log("subscribe", None, subscription)
            await self._begin_with(subscription)
        except LakeforkError as error:
            if subscription is not None:
                self._drop(subscription)
            await self._error(error.code, str(error), name if isinstance(name, str) else None)

    async def _prepared(self, name: Any, given: Any) -> Subscription:
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise InvalidInputError("a subscription needs an id: a text of 1 to 200 characters")
        if name in self.subscriptions:
            raise InvalidInputError(f"subscription {name!r} already exists on this socket")
        text, options = given.get("sql", given.get("query")), given.get("options") or {}
        if not isinstance(text, str) or not isinstance(options, dict):
            raise InvalidInputError("a subscription has sql, a text, and options, an object")
        if unknown := set(options) - {"last_rows", "resume"}:
            raise InvalidInputError(f"option {min(unknown)} is not known: last_rows, resume")
        last_rows, resume = options.get("last_rows"), options.get("resume")
        if last_rows is not None and (type(last_rows) is not int or last_rows < 0):
            raise InvalidInputError("last_rows is a whole number, 0 or more")
        if resume is not None and not isinstance(resume, str):
            raise InvalidInputError("resume is the text of an earlier message")
        assert self._session is not None  # noqa: S101 - it was authenticated
        cursor = Cursor.parse(resume) if resume else None
        plan = await self._live.run(self._live.reader.prepare, self._session, text)
        if name in self.subscriptions:
            raise InvalidInputError(f"subscription {name!r} already exists on this socket")
        subscription = Subscription(name, self._session, plan, last_rows, cursor)
        self.subscriptions[name] = subscription
        return subscription

    async def _begin_with(self, subscription: Subscription) -> None:
        """Sends what the subscription begins with; changes wait until then."""
        cursor, subscription.resume = subscription.resume, None
        if cursor is not None:
            if await self._catch_up(subscription, cursor):
                return
            subscription.begin_reading()
        await self._send_initial(subscription)

    async def _catch_up(self, subscription: Subscription, cursor: Cursor) -> bool:
        found = await self._live.run(self._live.reader.catch_up, subscription.session, subscription.plan, cursor)
        if found.reason is not None:
            await self._send_resync(subscription, found.reason)
            return False
        columns = [one.name for one in found.plan.outputs]
        await self._send(_page(subscription, columns, b"[]", 0, 0, str(cursor)), subscription)
        if found.events:
            await self._send_events(subscription, cursor.position, found.position, list(found.events))
        subscription.begin_live(found.position)
        self.wake()
        return True

    async def _send_events(
        self, subscription: Subscription, since: Position, until: Position, events: list[Any]
    ) -> None:
        for message in subscription.encoded(Run(since, until, events)):
            await self._send(message)

    async def _send_initial(self, subscription: Subscription) -> None:
        loop = asyncio.get_running_loop()

        def send(page: bytes) -> None:
            """From the thread that reads: it waits while the client is slow, and gives up after a time."""
            if subscription.state is not State.READING:
                raise _GoneError
            sending = asyncio.run_coroutine_threadsafe(self._send(page, subscription), loop)
            try:
                sending.result(self._live.settings.send_seconds)
            except TimeoutError:
                sending.cancel()
                raise _GoneError from None

        try:
            position = await self._live.run(self._read_initial, subscription, send)
        except _GoneError:
            if subscription.state is State.READING:
                await self.close(TIMED_OUT, "the client did not take its initial data")
            return
        subscription.begin_live(position)
        self.wake()

    def _read_initial(self, subscription: Subscription, send: Any) -> Position:
        """In a thread. A page is sent when it is known whether it is the last one."""
        settings = self._live.settings
        reading = self._live.reader.initial(
            subscription.session, subscription.plan, subscription.last_rows, settings.max_rows
        )
        with reading as (plan, position, chunks):
            columns = [one.name for one in plan.outputs]
            resume = str(Cursor(position, *plan.definition.ref, plan.digest))
            number, waiting = 0, None
            for chunk in chunks:
                for start in range(0, chunk.num_rows, PAGE_ROWS):
                    if waiting is not None:
                        send(_page(subscription, columns, *waiting, number, None))
                        number += 1
                    page = chunk.slice(start, PAGE_ROWS)
                    waiting = objects_json(page), page.num_rows
            rows, count = waiting or (b"[]", 0)
            send(_page(subscription, columns, rows, count, number, resume))
        return position

    async def _resynchronise(self, subscription: Subscription) -> None:
        """Has the client read everything again, as soon as Postgres answers."""
        reason = subscription.reason or ""
        while subscription.state is State.READING:
            try:
                await self._send_resync(subscription, reason)
                await self._send_initial(subscription)
            except DatabaseError:
                await asyncio.sleep(AWAY_SECONDS)
                subscription.begin_reading()
            except LakeforkError as error:
                self.end(subscription, str(error))
            else:
                return

    async def _send_resync(self, subscription: Subscription, reason: str) -> None:
        self._live.resyncs += 1
        self._log("resync", reason, subscription)
        message = {"type": "resync", "subscription_id": subscription.name, "reason": reason}
        await self._send(compact(message), subscription)

    def end(self, subscription: Subscription, reason: str) -> None:
        """Ends a subscription and tells the client why."""
        if subscription.state is State.ENDED:
            return
        self._drop(subscription)
        self._log("ended", reason, subscription)
        message = compact({"type": "ended", "subscription_id": subscription.name, "reason": reason})
        self._spawn(self._send(message))

    def end_all(self, reason: str) -> None:
        for subscription in list(self.subscriptions.values()):
            self.end(subscription, reason)
        self._spawn(self.close(UNAUTHORIZED, reason))

    def check_again(self) -> None:
        """The user's role or rules have changed."""
        self._spawn(self._check_again())

    async def _check_again(self) -> None:
        assert self.claims is not None  # noqa: S101 - it was authenticated
        try:
            identity = await self._live.run(self._live.identities.read_now, self.claims)
        except BadTokenError:
            self.end_all("the user, the catalog or the token is gone")
            return
        self._session = Session(identity.catalog, identity.user, identity.role)
        for subscription in list(self.subscriptions.values()):
            try:
                await self._bind_again(subscription, self._session)
            except LakeforkError as error:
                self.end(subscription, str(error))

    async def _bind_again(self, subscription: Subscription, session: Session) -> None:
        plan = await self._live.run(self._live.reader.bind_again, session, subscription.plan)
        subscription.session = session
        if plan.digest != subscription.plan.digest and subscription.state is not State.ENDED:
            subscription.plan = plan
            self._live.note(subscription)
            await self._live.attach_again(subscription)
            subscription.fall_behind("the user's permissions have changed")
            self.wake()

    def _drop(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        self._live.remove(subscription)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Messages to the client --------------------------------------------------------------------------------------

    async def _send_changes(self) -> None:
        """Sends what waits, one run of each subscription in turn; how fast is up to the client."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while working := [one for one in self.subscriptions.values() if one.has_work]:
                for subscription in working:
                    await self._send_run(subscription)

    async def _send_run(self, subscription: Subscription) -> None:
        if subscription.state is State.BEHIND:
            subscription.begin_reading()
            self._spawn(self._resynchronise(subscription))
            return
        if not subscription.runs:
            return
        for message in subscription.encoded(subscription.pop()):
            if subscription.state is not State.LIVE:
                return
            await self._send(message)

    async def _send(self, message: bytes, subscription: Subscription | None = None) -> None:
        if subscription is not None:
            subscription.messages += 1
            subscription.sent_bytes += len(message)
        self._sent += 1
        self._sent_bytes += len(message)
        self._live.messages += 1
        self._live.bytes += len(message)
        await self._websocket.send({"type": "websocket.send", "text": message.decode()})

    async def _error(self, code: str, message: str, subscription: str | None = None) -> None:
        about = {} if subscription is None else {"subscription_id": subscription}
        await self._send(compact({"type": "error", **about, "code": code, "message": message}))

    def _log(self, event: str, reason: str | None, subscription: Subscription | None = None) -> None:
        facts: dict[str, Any] = {"socket": self._id, "event": event, "reason": reason}
        if self._websocket.client:
            facts["client"] = self._websocket.client.host
        if self.claims is not None:
            facts |= {"user": self.claims.user, "catalog": self.claims.catalog}
        if subscription is not None:
            facts |= {"subscription": str(subscription.live_id), "table": str(subscription.plan.definition)}
        if event == "close":
            seconds = time.monotonic() - self._opened
            facts |= {"seconds": round(seconds, 1), "messages": self._sent, "bytes": self._sent_bytes}
        logger.info(socket_line(facts))


class _GoneError(Exception):
    """The client no longer takes the initial data."""


def _page(
    subscription: Subscription, columns: list[str], rows: bytes, count: int, number: int, resume: str | None
) -> bytes:
    """Returns a page of initial data; the last one has the cursor."""
    parts = [
        b'{"type":"initial_data","subscription_id":', subscription.label, b',"columns":', compact(columns),
        b',"rows":', rows, b',"row_count":%d,"page":%d,"last":' % (count, number),
        b"false" if resume is None else b'true,"resume":' + compact(resume), b"}",
    ]  # fmt: skip
    return b"".join(parts)


async def _quietly(work: Any) -> None:
    """The socket may be closed by now."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await work
