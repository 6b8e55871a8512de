"""Closing what may not answer any more: within a time, and without an error."""

import logging
import threading
from collections.abc import Callable

CLOSE_SECONDS = 3.0

logger = logging.getLogger(__name__)


def close_quietly(close: Callable[[], None], seconds: float | None = None) -> None:
    """Closes within so many seconds, or leaves it to a thread that nobody waits for; problems are logged."""
    if seconds is None:
        _close(close)
        return
    closing = threading.Thread(target=_close, args=(close,), name="lakefork-closing", daemon=True)
    try:
        closing.start()
    except RuntimeError:  # the interpreter is going
        return
    closing.join(seconds)
    if closing.is_alive():
        logger.warning("%s did not finish within %s s, and is left alone", close.__qualname__, seconds)


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:
        logger.warning("%s failed: %s", close.__qualname__, error)
