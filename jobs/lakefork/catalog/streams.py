"""Eviction of events from STREAM tables."""

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors

BUFFERS_AT_ONCE = 50  # per transaction, because writers to a quiet table wait for it


def evict_events(connection: Connection) -> bool:
    """Removes what some buffers no longer hold; returns whether more are to be looked at."""
    with domain_errors():
        row = connection.execute("SELECT lakefork.evict_events(%s) AS buffers", (BUFFERS_AT_ONCE,)).fetchone()
    return row is not None and row["buffers"] == BUFFERS_AT_ONCE


def evict_all_events(connection: Connection) -> None:
    """For schedules: writers and the server evict within a second, and may be gone."""
    while evict_events(connection):
        pass


def drop_unused_streams(connection: Connection) -> int:
    """Drops the Postgres tables of STREAM tables that no catalog can have again; returns how many."""
    with domain_errors():
        row = connection.execute("SELECT lakefork.drop_unused_streams() AS dropped").fetchone()
    return int(row["dropped"]) if row else 0
