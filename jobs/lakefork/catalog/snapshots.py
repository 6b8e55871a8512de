"""Postgres snapshots that several connections read under."""

import datetime
from dataclasses import dataclass

from lakefork.catalog.connection import Connection
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class ReadSnapshot:
    """The Postgres snapshot under which a flush reads: its exported name, and what is visible in it."""

    name: str
    seen: str
    read_at: datetime.datetime


def export_snapshot(connection: Connection) -> ReadSnapshot:
    """Exports a snapshot; its transaction must stay open until all tasks have read."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # It idles for as long as others read.
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0")
    row = connection.execute(_SQL["export_snapshot"]).fetchone()
    assert row is not None  # noqa: S101 - a query without FROM
    return ReadSnapshot(**row)
