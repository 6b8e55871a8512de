"""Evicts events from STREAM tables, in a thread of whatever process writes some, and of the server."""

import logging
import threading

from lakefork.catalog.connection import Connection
from lakefork.catalog.streams import evict_events
from lakefork.database_errors import all_domain_errors
from lakefork.errors import LakeforkError
from lakefork.pools import Pool

TICK_SECONDS = 0.25
AFTER_FAILURE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Eviction:
    """Readers see only what a table keeps; this removes the rest within a second. Any number of processes share it."""

    def __init__(self, pool: Pool[Connection]) -> None:
        self._pool = pool
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begins, unless it has begun or was closed."""
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="eviction", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._stopped.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        wait = TICK_SECONDS
        while not self._stopped.wait(wait):
            try:
                wait = TICK_SECONDS
                self._evict()
            except LakeforkError as error:
                wait = AFTER_FAILURE_SECONDS
                logger.warning("events of STREAM tables are not evicted for now: %s", error)
            except Exception:
                wait = AFTER_FAILURE_SECONDS
                logger.exception("events of STREAM tables are not evicted for now")

    def _evict(self) -> None:
        with all_domain_errors(), self._pool.connection() as connection:
            while not self._stopped.is_set() and evict_events(connection):
                pass
