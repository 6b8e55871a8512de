"""Closes resources that may hang: within a time limit, and without raising."""

import logging
import threading
from collections.abc import Callable

CLOSE_SECONDS = 3.0

logger = logging.getLogger(__name__)


def close_quietly(close: Callable[[], None], seconds: float | None = None) -> None:
    """Closes within a number of seconds, or leaves it to a thread that nobody joins; problems are logged."""
    if seconds is None:
        _close(close)
        return
    closing = threading.Thread(target=_close, args=(close,), name="lakefork-closing", daemon=True)
    try:
        closing.start()
    except RuntimeError:  # the interpreter is exiting
        return
    closing.join(seconds)
    if closing.is_alive():
        logger.warning("%s did not finish within %s s and is abandoned", close.__qualname__, seconds)


def _close(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:
        logger.warning("%s failed: %s", close.__qualname__, error)
