"""Waits for a condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(found: Callable[[], T], what: str = "so", seconds: float = 90, pause: float = 0.02) -> T:
    """Returns the first true value of found; fails if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not {what} after {seconds} s"
        time.sleep(pause)
    return answer
