"""What is given up and removed: plans, files that wait to be removed, the ledger, and what is kept for ever."""

from lakefork.catalog.connection import Connection
from lakefork.overview.lake import PAGE_SIZE, Page, Row, page_of
from lakefork.queries import load

_SQL = load(__package__)
PLANS_SHOWN = 10


def read_gc(connection: Connection) -> Row:
    return {
        "totals": read_cleanup_totals(connection),
        "plans": connection.execute(_SQL["plans"], {"limit": PLANS_SHOWN}).fetchall(),
        "pinned": connection.execute(_SQL["pinned"], {"limit": PAGE_SIZE}).fetchall(),
    }


def read_cleanup_totals(connection: Connection) -> Row:
    return connection.execute(_SQL["cleanup_totals"]).fetchall()[0]


def list_deletions(connection: Connection, before: int | None = None, limit: int = PAGE_SIZE) -> Page:
    found = connection.execute(_SQL["deletions"], {"before": before, "limit": limit + 1}).fetchall()
    return page_of(found, limit, "deletion_id")
