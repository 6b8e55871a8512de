"""Connections that are kept for the next caller."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, Protocol, TypeVar

from lakefork.errors import LimitError

logger = logging.getLogger(__name__)


class Pooled(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Pooled)


class Pool(Generic[C]):
    """A pool of connections. The caller opens a new one if needed, and so gets its error at once."""

    def __init__(
        self,
        connect: Callable[[], C],
        is_usable: Callable[[C], bool],
        size: int,
        timeout_seconds: float,
        using: Callable[[C], AbstractContextManager[object]] = nullcontext,  # around each use
    ) -> None:
        self._using = using
        self._connect = connect
        self._is_usable = is_usable
        self._timeout = timeout_seconds
        self._idle: list[C] = []
        self._closed = False
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(size)

    @contextmanager
    def connection(self) -> Iterator[C]:
        """For one caller, who leaves no transaction open; one that is not usable afterwards is thrown away."""
        with self._slot():
            connection = self._take_idle() or self._connect()
            try:
                with self._using(connection):
                    yield connection
            finally:
                self._give_back(connection)

    def close_idle(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)

    def close(self) -> None:
        """Those in use are closed when they are given back."""
        self._closed = True
        self.close_idle()

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=self._timeout):
            raise LimitError("all connections to Postgres are busy: try again, or raise the setting sql.connections")
        try:
            yield
        finally:
            self._slots.release()

    def _take_idle(self) -> C | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._is_usable(connection):
                return connection
            _close(connection)

    def _give_back(self, connection: C) -> None:
        with self._lock:
            if not self._closed and self._is_usable(connection):
                self._idle.append(connection)
                return
        _close(connection)


def _close(connection: Pooled) -> None:
    """One that broke may not even close well; there is nothing left to do about it."""
    try:
        connection.close()
    except Exception as error:
        logger.debug("a connection did not close well: %s", error)
