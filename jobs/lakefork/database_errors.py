"""Translates errors of the Postgres drivers; the only module that reads SQLSTATEs and drivers' messages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from adbc_driver_manager import Error as AdbcError

from lakefork.errors import (
    AlreadyExistsError,
    CatalogVersionError,
    ConflictError,
    DatabaseError,
    DefinitionChangedError,
    InvalidInputError,
    LakeforkError,
    LeaseLostError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    PermissionDeniedError,
    SetupError,
    TooLongError,
    one_line,
)

DRIVER_ERRORS = (psycopg.Error, AdbcError)
DriverError = psycopg.Error | AdbcError

# Raised by schema/functions with messages of our own.
_OURS: dict[str, type[LakeforkError]] = {
    "LFC01": ConflictError,
    "LFC02": DefinitionChangedError,
    "LFN01": NotFoundError,
    "LFV01": InvalidInputError,
    "LFP01": PermissionDeniedError,
    "LFL01": LeaseLostError,
    "LFX01": AlreadyExistsError,
}

_NAME_CONSTRAINTS = {
    "ducklake_catalog_live_name": "catalog",
    "ducklake_schema_live_name": "namespace",
    "ducklake_table_live_name": "table",
    "ducklake_view_live_name": "view",
    "ducklake_macro_live_name": "macro",
    "ducklake_column_live_name": "column",
}

# About the request: the caller must change something, or retry.
_REQUESTS: dict[str, tuple[type[LakeforkError], str]] = {
    "40001": (ConflictError, "another transaction got in the way: try again"),
    "40P01": (ConflictError, "another transaction got in the way: try again"),
    "54000": (
        InvalidInputError,
        "a key or a row is too large for Postgres: keys may have up to about 2,700 bytes",
    ),
}

_TOO_LONG = "the statement took too long and was stopped (setting sql.statement_timeout_seconds)"
_BROKE = "the connection to Postgres broke, which may be restarting: try again in a moment"
_UNKNOWN = (
    "the connection to Postgres broke while the change was being saved: look whether it is there before you repeat it"
)
_NOT_NOW = "Postgres is starting up, recovering or shutting down: try again in a moment"
_INCOMPLETE = "this database lacks a part of Lakefork's catalog: check LAKEFORK_DSN, or restore the database"
_FILES = "Postgres cannot read or write its own files: look into its log"

# About Postgres: trying again can succeed once it is well. Five characters, or the two of a class.
_FAULTS: dict[str, tuple[type[LakeforkError], str]] = {
    "08": (DatabaseError, _BROKE),
    "25006": (DatabaseError, "this Postgres takes no writes, as a standby does: check LAKEFORK_DSN"),
    "25P03": (DatabaseError, "Postgres ended the transaction because it was idle for too long: try again"),
    "25P04": (LimitError, "the transaction took longer than transaction_timeout of Postgres allows: raise that"),
    "3D000": (SetupError, "the database does not exist: check LAKEFORK_DSN"),
    "3F000": (CatalogVersionError, _INCOMPLETE),
    "42703": (CatalogVersionError, _INCOMPLETE),
    "42883": (CatalogVersionError, _INCOMPLETE),
    "42P01": (CatalogVersionError, _INCOMPLETE),
    "53100": (DatabaseError, "the disk of Postgres is full: free some space there, and try again"),
    "53200": (DatabaseError, "Postgres ran out of memory: try again, or give it more"),
    "53300": (DatabaseError, "Postgres has no free connection: close some, or raise its max_connections"),
    "53400": (DatabaseError, "a limit in the configuration of Postgres is reached (temp_file_limit?): raise that"),
    "55P03": (ConflictError, "another transaction holds a lock that this statement needs: try again"),
    "57014": (TooLongError, _TOO_LONG),
    "57P01": (DatabaseError, "Postgres, or who administers it, ended the connection: try again in a moment"),
    "57P02": (DatabaseError, _BROKE),
    "57P03": (DatabaseError, _NOT_NOW),
    "57P04": (SetupError, "the database was dropped: check LAKEFORK_DSN"),
    "57P05": (DatabaseError, "Postgres closed a connection that was idle for too long: try again"),
    "58": (DatabaseError, _FILES),
    "XX001": (DatabaseError, "Postgres reports damaged data: look into its log, and restore a backup"),
    "XX002": (DatabaseError, "Postgres reports a damaged index: look into its log, and run REINDEX"),
}

# A refused connection has no SQLSTATE; in other languages the message of Postgres is passed on.
_REFUSALS = {
    "Connection refused": "nothing listens there",
    "timeout expired": "it does not answer",
    "server closed the connection": "it closed the connection, try again in a moment",
    "starting up": "it is starting up or recovering, try again in a moment",
    "recovery mode": "it is starting up or recovering, try again in a moment",
    "not yet accepting connections": "it is starting up or recovering, try again in a moment",
    "shutting down": "it is shutting down, try again in a moment",
    "too many clients": "it has no free connection, close some or raise its max_connections",
    "connection slots are reserved": "it has no free connection, close some or raise its max_connections",
    "too many connections": "it has no free connection for this database or role, close some or raise the limit",
}


@contextmanager
def domain_errors() -> Iterator[None]:
    """Translates errors about the request; faults stay the driver's own, for callers that retry."""
    try:
        yield
    except DRIVER_ERRORS as error:
        if known := request_error(error):
            raise known from error
        raise


@contextmanager
def all_domain_errors() -> Iterator[None]:
    """Turns whatever a driver of Postgres reports into Lakefork's errors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise database_error(error) from error


@contextmanager
def saving() -> Iterator[None]:
    """Around what commits: a connection that breaks there leaves open whether it did."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise (OutcomeUnknownError(_UNKNOWN) if _is_lost(error) else database_error(error)) from error


def request_error(error: DriverError) -> LakeforkError | None:
    """Returns the error of the request; None for other faults."""
    state = error.sqlstate or ""
    if kind := _OURS.get(state):
        return kind(said(error))
    if state == "23505":
        return _name_taken(error)
    if state == "42P01" and '"hot.' in said(error):
        return DefinitionChangedError("the table changed concurrently; retry")
    if state in _REQUESTS:
        kind, sentence = _REQUESTS[state]
        return kind(sentence)
    return None


def database_error(error: DriverError) -> LakeforkError:
    """Always an error of Lakefork, in one sentence and without anything that only we can understand."""
    state = error.sqlstate or ""
    if known := request_error(error):
        return known
    if state == "57014" and "user request" in said(error):
        return DatabaseError("somebody cancelled the statement in Postgres: try again")
    if found := _FAULTS.get(state) or _FAULTS.get(state[:2]):
        kind, sentence = found
        return kind(sentence)
    if state == "42501":
        return SetupError(f"the Postgres role of LAKEFORK_DSN lacks a right: {said(error)}")
    if state == "22021" or "NUL (0x00)" in str(error):
        return InvalidInputError("a text contains a NUL character or bytes that are not valid UTF-8")
    if state.startswith("22") or (not state and isinstance(error, psycopg.DataError)):
        return InvalidInputError(said(error))
    if not state:
        return DatabaseError(_BROKE)
    return DatabaseError(f"Postgres could not do this (SQLSTATE {state}); see its log")


def refusal(error: DriverError) -> str:
    """Returns why Postgres refused the connection."""
    text = one_line(str(error)) if str(error).strip() else "it does not answer"
    for part, reason in _REFUSALS.items():
        if part in text:
            return reason
    first = str(error).strip().splitlines()[0].rsplit(" failed: ", 1)[-1] if str(error).strip() else text
    return re.sub(r"^\S+:  ", "", first)  # the severity, in whatever language


def said(error: DriverError) -> str:
    """The message of Postgres itself, without the driver's words around it."""
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or (str(error).splitlines() or [""])[0]
    for name, value in error.details or ():
        if "PG_DIAG_MESSAGE_PRIMARY" in str(name):  # bytes or text, depending on the driver
            return bytes(value).decode()
    return ""


def _name_taken(error: DriverError) -> LakeforkError:
    diagnosed = error.diag if isinstance(error, psycopg.Error) else None
    if diagnosed and (what := _NAME_CONSTRAINTS.get(diagnosed.constraint_name or "")):
        return ConflictError(f"a {what} of this name already exists ({diagnosed.message_detail})")
    return ConflictError("another commit added the same row first: try again")


def _is_lost(error: DriverError) -> bool:
    """Whether the connection ended before Postgres could answer; one that it ended with a word had nothing saved."""
    return not error.sqlstate or error.sqlstate[:2] == "08"
