"""The overview: totals, catalogs, waiting rows, runs, and flushes over time."""

import datetime
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.model.params import JOBS
from lakefork.queries import load
from lakefork.settings import FlushSettings

Row = dict[str, Any]
_SQL = load(__package__)
PAGE_SIZE = 50
SPANS = {"6h": (6 * 3600, 300), "24h": (24 * 3600, 900), "7d": (7 * 86_400, 7_200), "30d": (30 * 86_400, 43_200)}


@dataclass(frozen=True)
class Page:
    """Some rows of a longer list, and where the next page begins (None: this is the last)."""

    rows: list[Row]
    next: Any


def read_totals(connection: Connection) -> Row:
    return connection.execute(_SQL["totals"]).fetchall()[0]


def list_catalogs(
    connection: Connection, search: str | None = None, after: str | None = None, limit: int = PAGE_SIZE
) -> Page:
    found = connection.execute(
        _SQL["catalogs"], {"search": search or None, "after": after, "limit": limit + 1}
    ).fetchall()
    return make_page(found, limit, "name")


def list_waiting(connection: Connection, policy: FlushSettings, limit: int = PAGE_SIZE) -> list[Row]:
    """Returns tables with waiting rows, longest waiting first."""
    return connection.execute(_SQL["waiting"], {**default_policy(policy), "limit": limit}).fetchall()


def default_policy(policy: FlushSettings) -> Row:
    return {"default_rows": policy.default_rows, "default_seconds": policy.default_interval_seconds}


def last_runs(connection: Connection) -> list[Row]:
    """Returns the last attempt of every job, and when it is scheduled next."""
    return connection.execute(_SQL["last_runs"], {"jobs": list(JOBS)}).fetchall()


def list_runs(
    connection: Connection,
    job: str | None = None,
    status: str | None = None,
    before: datetime.datetime | None = None,
    limit: int = PAGE_SIZE,
) -> Page:
    found = connection.execute(
        _SQL["runs"], {"job": job or None, "status": status or None, "before": before, "limit": limit + 1}
    ).fetchall()
    return make_page(found, limit, "start_time")


def list_audits(
    connection: Connection,
    run_id: str | None = None,
    before: datetime.datetime | None = None,
    limit: int = PAGE_SIZE,
    *,
    failed_only: bool = False,
) -> Page:
    found = connection.execute(
        _SQL["audits"], {"run_id": run_id or None, "before": before, "failed_only": failed_only, "limit": limit + 1}
    ).fetchall()
    return make_page(found, limit, "audited_at")


def read_flushed(
    connection: Connection, span: str, catalog: str | None = None, table_id: int | None = None
) -> list[Row]:
    """Returns what was published in each step of a time span that ends now."""
    seconds, step = SPANS[span]
    return connection.execute(
        _SQL["flushed"], {"span": seconds, "step": step, "catalog": catalog, "table_id": table_id}
    ).fetchall()


def make_page(found: list[Row], limit: int, key: str) -> Page:
    """Makes a page of rows that were queried with limit + 1: the extra row shows that another page follows."""
    rows = found[:limit]
    return Page(rows, rows[-1][key] if len(found) > limit else None)
