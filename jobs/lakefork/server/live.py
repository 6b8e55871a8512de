"""Live queries of one worker process: the feed, the registry, and who watches over permissions."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from lakefork.database_errors import all_domain_errors
from lakefork.errors import DatabaseError, LakeforkError
from lakefork.hot.changes import Position
from lakefork.live.fan_out import Delivery
from lakefork.live.feed import Feed
from lakefork.live.reading import LiveReader
from lakefork.live.registry import Registry
from lakefork.server.auth import Claims, Identities, Verifier
from lakefork.server.subscription import State, Subscription
from lakefork.settings import Settings
from lakefork.sql.engine import Engine

if TYPE_CHECKING:
    from lakefork.server.socket import Socket

WATCH_SECONDS = 0.5
THREADS = 8
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Live:
    def __init__(
        self, settings: Settings, dsn: str, engine: Engine, verifier: Verifier, identities: Identities
    ) -> None:
        self.settings, self.verifier, self.identities = settings.server, verifier, identities
        self._resources = engine.resources
        self.reader = LiveReader(engine.resources)
        self.sockets: set[Socket] = set()
        self.resyncs = 0
        self.messages = 0
        self.bytes = 0
        self._messages_before = 0
        self._feed = Feed(engine.resources, dsn, self._deliver)
        self._registry = Registry(identities.pool, settings.node_id)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live")
        self._upkeep = ThreadPoolExecutor(1, thread_name_prefix="live-upkeep")
        self._subscriptions: dict[uuid.UUID, tuple[Socket, Subscription]] = {}
        self._to_add: list[tuple[Subscription, asyncio.Future[None]]] = []
        self._to_remove: list[uuid.UUID] = []
        self._known: dict[tuple[str, str, uuid.UUID | None], tuple[bool, str]] = {}
        self._counted: dict[uuid.UUID, int] = {}
        self._has_news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def count(self) -> int:
        return len(self._subscriptions)

    @property
    def lag_seconds(self) -> float:
        return self._feed.lag_seconds

    def counts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Returns what metrics count, and gauges."""
        counts = {
            "live_messages_total": self.messages,
            "live_bytes_total": self.bytes,
            "live_resyncs_total": self.resyncs,
        }
        gauges = {"sockets": len(self.sockets), "subscriptions": self.count, "live_look_seconds": self.lag_seconds}
        return dict(counts), dict(gauges)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Runs what waits for Postgres or a query worker in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, work, arguments)

    def _call(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            with all_domain_errors():
                return work(*arguments)
        except DatabaseError:
            self._resources.drop_idle_connections()  # after a restart of Postgres all of them are broken
            raise

    def start(self) -> None:
        """With the first socket."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._feed.start()
            self._tasks = [asyncio.create_task(self._register()), asyncio.create_task(self._watch())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for socket in list(self.sockets):
            await socket.close(1012, "the server is stopping")
        await asyncio.to_thread(self._feed.close)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        try:
            await asyncio.to_thread(self._registry.close)
        except LakeforkError as error:
            logger.warning("the lease of live queries runs out by itself: %s", error)
        self._upkeep.shutdown(wait=False)

    async def know(self, claims: Claims) -> None:
        """Notes the permissions of a user before anything relies on them."""
        who = _who(claims)
        if who not in self._known:
            loop = asyncio.get_running_loop()
            (state,) = await loop.run_in_executor(self._upkeep, self._registry.permissions, [who])
            self._known.setdefault(who, state)

    async def add(self, socket: "Socket", subscription: Subscription) -> None:
        """Makes a subscription known, and has the feed follow its table from now on."""
        loop = asyncio.get_running_loop()
        self._subscriptions[subscription.live_id] = (socket, subscription)
        registered: asyncio.Future[None] = loop.create_future()
        self._to_add.append((subscription, registered))
        self._has_news.set()
        await registered
        await self._attach(subscription)

    async def attach_again(self, subscription: Subscription) -> None:
        """After its plan was changed, which the feed sorts it by."""
        self._feed.detach(subscription)
        await self._attach(subscription)

    async def _attach(self, subscription: Subscription) -> None:
        """Returns when the feed collects the changes of the subscription's table."""
        loop = asyncio.get_running_loop()
        attached: asyncio.Future[Position] = loop.create_future()

        def answer(found: Position | LakeforkError) -> None:
            loop.call_soon_threadsafe(_settle, attached, found)

        self._feed.attach(subscription, answer)
        await attached
        if subscription.state is State.ENDED:  # meanwhile
            self._feed.detach(subscription)

    def remove(self, subscription: Subscription) -> None:
        subscription.state = State.ENDED
        subscription.clear()
        if self._subscriptions.pop(subscription.live_id, None) is not None:
            self._feed.detach(subscription)
            self._counted.pop(subscription.live_id, None)
            self._to_remove.append(subscription.live_id)
            self._has_news.set()

    def note(self, subscription: Subscription) -> None:
        """Its definition or owner changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.exception())
        self._to_add.append((subscription, future))
        self._has_news.set()

    # From the feed's thread --------------------------------------------------------------------------------------

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatch, deliveries)

    def _dispatch(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            subscription: Subscription = delivery.subscriber
            found = self._subscriptions.get(subscription.live_id)
            if found is None:
                continue
            socket = found[0]
            if delivery.ended is not None:
                socket.end(subscription, delivery.ended)
                continue
            subscription.take(delivery, self.settings.live_buffer_kb << 10)
            socket.wake()

    # Upkeep ------------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        """Writes what came together while the last ones were written."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            added, self._to_add = self._to_add, []
            removed, self._to_remove = self._to_remove, []
            error: Exception | None = None
            try:
                await loop.run_in_executor(self._upkeep, self._write, [one for one, _ in added], removed)
            except Exception as found:
                error = found
                self._to_remove += removed  # with what is removed next
            for _, future in added:
                if not future.done():
                    future.set_result(None) if error is None else future.set_exception(error)

    def _write(self, added: list[Subscription], removed: list[uuid.UUID]) -> None:
        entries = [one.entry(one.plan.query.text) for one in added if one.state is not State.ENDED]
        if entries:
            self._registry.add(entries)
        if removed:
            self._registry.remove(removed)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self._look_after(loop)
            except LakeforkError as error:
                logger.warning("live queries cannot be looked after for now: %s", error)
                self.identities.pool.close_idle()
            except Exception:
                logger.exception("live queries cannot be looked after for now")

    async def _look_after(self, loop: asyncio.AbstractEventLoop) -> None:
        rate = (self.messages - self._messages_before) / WATCH_SECONDS
        self._messages_before = self.messages
        shown = rate, self.resyncs, self.lag_seconds
        if not await loop.run_in_executor(self._upkeep, self._registry.renew, *shown):
            for _, subscription in self._subscriptions.values():
                self.note(subscription)
            return
        if not self._subscriptions:
            return
        await self._count(loop)
        for live_id, reason in (await loop.run_in_executor(self._upkeep, self._registry.ended)).items():
            if found := self._subscriptions.get(live_id):
                found[0].end(found[1], reason)
        await self._check_permissions(loop)

    def _has(self, who: tuple[str, str, uuid.UUID | None]) -> bool:
        return any(one.claims is not None and _who(one.claims) == who for one in self.sockets)

    async def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        sent = {
            live_id: (one.messages, one.sent_bytes)
            for live_id, (_, one) in self._subscriptions.items()
            if self._counted.get(live_id) != one.messages
        }
        if sent:
            await loop.run_in_executor(self._upkeep, self._registry.count, sent)
            self._counted |= {live_id: messages for live_id, (messages, _) in sent.items()}

    async def _check_permissions(self, loop: asyncio.AbstractEventLoop) -> None:
        sockets: dict[tuple[str, str, uuid.UUID | None], list[Socket]] = {}
        now = time.time()
        for socket in list(self.sockets):
            if socket.claims is not None and socket.claims.expires_at < now:
                socket.end_all("the token has expired")
            elif socket.claims is not None:
                sockets.setdefault(_who(socket.claims), []).append(socket)
        if not sockets:
            self._known = {}
            return
        states = await loop.run_in_executor(self._upkeep, self._registry.permissions, list(sockets))
        found = dict(zip(sockets, states, strict=True))
        before = self._known
        self._known = {**found, **{who: state for who, state in before.items() if who not in found and self._has(who)}}
        for who, (is_gone, state) in found.items():
            if is_gone:
                for socket in sockets[who]:
                    socket.end_all("the user, the catalog or the token is gone")
            elif who in before and before[who][1] != state:
                for socket in sockets[who]:
                    socket.check_again()


def _who(claims: Claims) -> tuple[str, str, uuid.UUID | None]:
    return claims.catalog, claims.user, claims.token_id


def _settle(future: "asyncio.Future[Any]", found: Any) -> None:
    if future.done():
        return
    if isinstance(found, LakeforkError):
        future.set_exception(found)
    else:
        future.set_result(found)
