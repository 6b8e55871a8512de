"""Connections for statements by key: values as Python has them, and statements that Postgres has prepared."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg

from lakefork.database_errors import refusal
from lakefork.errors import DatabaseError
from lakefork.watchdog import claim

CONNECT_SECONDS = 10
PREPARED_STATEMENTS = 500

# It logs that what follows a failed statement failed, too.
logging.getLogger("psycopg").addFilter(lambda record: not str(record.msg).startswith("error ignored terminating"))

PointConnection = psycopg.Connection[tuple[Any, ...]]


def connect_for_points(dsn: str, timeout_seconds: float) -> PointConnection:
    """Opens a connection; the DSN has worked before, so that a problem is in Postgres and temporary."""
    options = f"-c statement_timeout={int(timeout_seconds * 1000)} -c TimeZone=UTC"
    try:
        connection = psycopg.connect(
            dsn, autocommit=True, application_name="lakefork", connect_timeout=CONNECT_SECONDS, options=options
        )
    except psycopg.Error as error:
        raise DatabaseError(f"cannot connect to Postgres: {refusal(error)}") from None
    claim(connection, connection.fileno())
    connection.prepared_max = PREPARED_STATEMENTS
    return connection


def fetch(connection: PointConnection, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters, prepare=True, binary=True).fetchall()


def roll_back(connection: PointConnection) -> None:
    """Ends a transaction if there is one; a broken connection has none, and the error that broke it counts."""
    with suppress(psycopg.Error):
        connection.rollback()


def in_one_round_trip(connection: PointConnection, *statements: tuple[str, Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Executes statements with their parameters one after the other; returns the last one's cursor."""
    with connection.pipeline():
        cursors = [connection.execute(sql, given, prepare=True, binary=True) for sql, given in statements]
    return cursors[-1]
