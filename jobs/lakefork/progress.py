"""How far long work is: a line each second at most, which `lakefork run` draws over the one before on a terminal."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

WIDTH = 20
SECONDS = 1.0


def bar_text(share: float) -> str:
    filled = int(WIDTH * share)
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%}"


@dataclass
class Bar:
    say: Callable[[str], None]
    total: int
    _started: float = field(default_factory=time.monotonic)
    _next: float = 0.0

    def reach(self, done: int, text: str) -> None:
        """The last step is always said."""
        now = time.monotonic()
        if done < self.total and now < self._next:
            return
        self._next = now + SECONDS
        share = min(done / self.total, 1.0) if self.total else 1.0
        self.say(f"{bar_text(share)} {text}{self._left(share)}")

    def per_second(self, amount: float) -> float:
        return amount / max(time.monotonic() - self._started, 0.001)

    def _left(self, share: float) -> str:
        seconds = time.monotonic() - self._started
        if not 0 < share < 1 or seconds < SECONDS:
            return ""
        return f", about {seconds / share - seconds:,.0f} s left"


@contextlib.contextmanager
def reporting(report: Callable[[], None], seconds: float) -> Iterator[None]:
    """Calls `report` every few seconds while the block runs, and once more when it has succeeded."""
    over = threading.Event()

    def keep_reporting() -> None:
        while not over.wait(seconds):
            report()

    thread = threading.Thread(target=keep_reporting, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    report()
