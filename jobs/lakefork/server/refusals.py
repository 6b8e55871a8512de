"""Which HTTP status an error has, and its form in JSON."""

from collections.abc import Mapping
from typing import Any

from lakefork.errors import (
    CancelledError,
    ConflictError,
    InvalidInputError,
    LakeforkError,
    LeaseHeldError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    TooLongError,
)
from lakefork.sql.parse.grammar import SqlSyntaxError

RETRY_SECONDS = 2
_STATUS: tuple[tuple[type[LakeforkError], int], ...] = (
    (OutcomeUnknownError, 500),  # not 503, which programs repeat without asking
    (TooLongError, 504),
    (CancelledError, 503),
    (PermissionDeniedError, 403),
    (ConflictError, 409),
    (LeaseHeldError, 409),
    (InvalidInputError, 400),
    (NotFoundError, 400),
    (LimitError, 400),
)


class RefusedError(Exception):
    """A request that is not executed, or not further."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})


def status_of(error: LakeforkError) -> int:
    """What can be repeated with success is 503, all else that is not about the request 500."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 503 if error.retryable else 500


def headers_of(status: int) -> dict[str, str]:
    return {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}


def error_json(error: LakeforkError | RefusedError) -> dict[str, Any]:
    """Code and message; where the mistake is, if it has a place in the text."""
    message = error.message if isinstance(error, RefusedError) else str(error)
    found: dict[str, Any] = {"code": error.code, "message": message}
    if isinstance(error, SqlSyntaxError) and error.line is not None:
        found |= {"line": error.line, "column": error.column}
    return found
