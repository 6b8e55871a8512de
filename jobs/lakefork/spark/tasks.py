"""Errors of Spark tasks: those that retries cannot mend are results, so that they reach the reader as they are."""

from collections.abc import Callable
from typing import TypeVar

import psycopg
from adbc_driver_manager import Error as AdbcError

from lakefork.errors import DatabaseError, LakeforkError

Result = TypeVar("Result")


def attempt(action: Callable[[], Result]) -> Result | LakeforkError:
    """Runs in a task."""
    try:
        return action()
    except LakeforkError as error:
        return error
    except (psycopg.Error, AdbcError) as error:
        return DatabaseError(f"Postgres: {str(error).splitlines()[0]}")


def good(found: Result | LakeforkError) -> Result:
    """Runs in the driver."""
    if isinstance(found, LakeforkError):
        raise found
    return found
