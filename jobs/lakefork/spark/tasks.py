"""Errors of Spark tasks: those that retries cannot mend are results, so that they reach the reader as they are."""

from collections.abc import Callable
from typing import TypeVar

from lakefork.database_errors import DRIVER_ERRORS, database_error
from lakefork.errors import LakeforkError

Result = TypeVar("Result")


def attempt(action: Callable[[], Result]) -> Result | LakeforkError:
    """Runs in a task."""
    try:
        return action()
    except LakeforkError as error:
        return error
    except DRIVER_ERRORS as error:
        return database_error(error)


def good(found: Result | LakeforkError) -> Result:
    """Runs in the driver."""
    if isinstance(found, LakeforkError):
        raise found
    return found
