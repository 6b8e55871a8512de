"""Ends waiting for a server that has stopped answering: shuts the socket down when the time is over."""

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

LOOK_SECONDS = 0.5


class TimeLimit:
    """end: called once, by another thread, unless the work is done by `until` (of time.monotonic())."""

    def __init__(self, until: float, end: Callable[[], None]) -> None:
        self.until = until
        self.is_over = False
        self._end = end

    def end(self) -> None:
        self.is_over = True
        self._end()

    def shorten(self, seconds: float) -> None:
        self.until = min(self.until, time.monotonic() + seconds)


class _Watchdog:
    """One thread per process, which sleeps while there is nothing to watch."""

    def __init__(self) -> None:
        self._limits: dict[int, TimeLimit] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._is_running = False

    def add(self, limit: TimeLimit) -> None:
        with self._lock:
            self._limits[id(limit)] = limit
            is_running, self._is_running = self._is_running, True
        if not is_running:
            threading.Thread(target=self._run, name="watchdog", daemon=True).start()
        self._changed.set()

    def remove(self, limit: TimeLimit) -> None:
        with self._lock:
            self._limits.pop(id(limit), None)

    def _run(self) -> None:
        while True:
            self._changed.wait()
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            with self._lock:
                for limit in [one for one in self._limits.values() if one.until <= now]:
                    del self._limits[id(limit)]
                    limit.end()  # under the lock: its connection is still in use
                if not self._limits:
                    self._changed.clear()


_watchdog = _Watchdog()


def _reset() -> None:
    global _watchdog
    _watchdog = _Watchdog()


os.register_at_fork(after_in_child=_reset)


@contextmanager
def time_limit(until: float, end: Callable[[], None]) -> Iterator[TimeLimit]:
    """Has `end` called if the block takes longer; it must not block."""
    limit, watchdog = TimeLimit(until, end), _watchdog
    watchdog.add(limit)
    try:
        yield limit
    finally:
        watchdog.remove(limit)


_claimed: WeakKeyDictionary[object, int] = WeakKeyDictionary()


def claim(owner: object, fd: int) -> None:
    """Notes whose socket it is."""
    _claimed[owner] = inode_of(fd)


def is_claimed(inode: int) -> bool:
    return inode in list(_claimed.values())


def inode_of(fd: int) -> int:
    """Returns what tells a socket from later ones with the same number; 0 if it is none."""
    with suppress(OSError):
        found = os.fstat(fd)
        return found.st_ino if stat.S_ISSOCK(found.st_mode) else 0
    return 0


def shut_down(fd: int) -> None:
    """Whoever waits for the other side of a socket sees it closed."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as other:
        other.shutdown(socket.SHUT_RDWR)
