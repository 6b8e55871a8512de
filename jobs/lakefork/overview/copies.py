"""Copies of Postgres databases and their progress, for the page."""

from lakefork.catalog.connection import Connection
from lakefork.overview.lake import Row
from lakefork.queries import load

_SQL = load(__package__)
COPIES_SHOWN = 20


def list_recent_copies(connection: Connection) -> list[Row]:
    """Returns the last copies, newest first."""
    return connection.execute(_SQL["copies"], {"limit": COPIES_SHOWN}).fetchall()
