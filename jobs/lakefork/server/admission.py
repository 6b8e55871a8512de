"""Whose statement runs next: so many at once in all and of each user, and users take turns."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable

from lakefork.server.refusals import RefusedError, headers_of
from lakefork.settings import ServerSettings


class Admission:
    """For one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.running = 0
        self.waiting = 0
        self._running_of: Counter[Hashable] = Counter()
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._ready: OrderedDict[Hashable, None] = OrderedDict()  # who waits and may run, the next one first

    async def enter(self, user: Hashable) -> None:
        """Returns when it is the user's turn; whoever enters leaves."""
        if self.running < self._settings.statements and user not in self._queues and self._may_run(user):
            self._start(user)
            return
        queue = self._queues.get(user, deque())
        if self.waiting >= self._settings.waiting or len(queue) >= self._settings.waiting_per_user:
            raise _too_many("too many requests are waiting")
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._queues[user] = queue
        self.waiting += 1
        self._update(user)
        await self._wait(user, turn)

    def leave(self, user: Hashable) -> None:
        self.running -= 1
        self._running_of[user] -= 1
        if not self._running_of[user]:
            del self._running_of[user]
        self._update(user)
        while self.running < self._settings.statements and self._ready:
            self._admit(next(iter(self._ready)))

    async def _wait(self, user: Hashable, turn: "asyncio.Future[None]") -> None:
        try:
            await asyncio.wait_for(asyncio.shield(turn), self._settings.wait_seconds)
        except BaseException as error:
            if turn.done():
                self.leave(user)
            else:
                self._queues[user].remove(turn)
                self.waiting -= 1
                self._update(user)
            if isinstance(error, TimeoutError):
                raise _too_many(f"the request waited {self._settings.wait_seconds:g} s for its turn") from None
            raise

    def _admit(self, user: Hashable) -> None:
        turn = self._queues[user].popleft()
        self.waiting -= 1
        self._start(user)
        turn.set_result(None)
        self._ready.pop(user, None)
        self._update(user)

    def _start(self, user: Hashable) -> None:
        self.running += 1
        self._running_of[user] += 1

    def _may_run(self, user: Hashable) -> bool:
        return self._running_of[user] < self._settings.statements_per_user

    def _update(self, user: Hashable) -> None:
        """The user is among those who may run next, at the end if not there yet, or is not."""
        if user in self._queues and not self._queues[user]:
            del self._queues[user]
        if user in self._queues and self._may_run(user):
            self._ready.setdefault(user)
        else:
            self._ready.pop(user, None)


def _too_many(what: str) -> RefusedError:
    return RefusedError(429, "too_many_requests", f"{what}: try again in a moment", headers_of(429))
