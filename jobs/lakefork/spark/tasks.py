"""Errors of Spark tasks: final ones are returned as results, so that their message reaches the user unchanged."""

from collections.abc import Callable
from typing import TypeVar

from lakefork.database_errors import DRIVER_ERRORS, database_error
from lakefork.errors import LakeforkError

Result = TypeVar("Result")


def attempt(action: Callable[[], Result]) -> Result | LakeforkError:
    """Calls a function in a task, and returns its result or a final error."""
    try:
        return action()
    except LakeforkError as error:
        return error
    except DRIVER_ERRORS as error:
        return database_error(error)


def unwrap(found: Result | LakeforkError) -> Result:
    """Yields the results in the driver; raises the first error."""
    if isinstance(found, LakeforkError):
        raise found
    return found
