"""The page's JSON endpoints. They only read; runs are started through Airflow's own API, which checks permissions."""

import datetime
import time
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import APIRouter, Depends, Query

from lakefork.catalog.connection import Connection
from lakefork.model.params import JOBS
from lakefork.orchestration.database import CONNECTION
from lakefork.overview import lake
from lakefork.overview.copies import list_recent_copies
from lakefork.overview.forks import list_children, reclaimable
from lakefork.overview.gc import list_deletions, read_gc
from lakefork.overview.status import read_status
from lakefork.overview.superseded import with_superseded_share
from lakefork.overview.tables import list_tables, read_table
from lakefork.settings import load_settings
from lakefork_page.database import ReadOnlyConnection

TOTALS_SECONDS = 15.0
TENANT_DATA = ("examples", "observed")

router = APIRouter(
    prefix="/api",
    dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
    responses={
        401: {"description": "not logged in"},
        403: {"description": "not allowed"},
        404: {"description": "no such object"},
    },
)
Text = Annotated[str | None, Query(max_length=300)]
Name = Annotated[str, Query(min_length=1, max_length=300)]
Span = Annotated[str, Query(pattern=f"^({'|'.join(lake.SPANS)})$")]
Time = datetime.datetime | None
PositiveId = Annotated[int | None, Query(ge=0, lt=2**63)]


def can_read_rows(user: GetUserDep) -> bool:
    """Whoever may read Airflow's connection to the catalog could read every row with it."""
    details = ConnectionDetails(conn_id=CONNECTION)
    return bool(get_auth_manager().is_authorized_connection(method="GET", details=details, user=user))


CanReadRows = Annotated[bool, Depends(can_read_rows)]


@router.get("/me")
def me(user: GetUserDep) -> dict[str, Any]:
    """Returns the jobs that this user may start, and the jobs that need parameters."""
    manager = get_auth_manager()
    may_trigger = [
        job
        for job in JOBS
        if manager.is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=job), user=user
        )
    ]
    needs_params = [job for job, params in JOBS.items() if any(f.is_required() for f in params.model_fields.values())]
    console = load_settings().server.public_url or None
    return {"user": user.get_name(), "may_trigger": may_trigger, "needs_params": needs_params, "console": console}


@router.get("/status")
def status(connection: ReadOnlyConnection) -> dict[str, Any]:
    """The same as `lakefork status --json`, for programs."""
    return read_status(connection, load_settings().flush).as_json()


@router.get("/overview")
def overview(connection: ReadOnlyConnection) -> dict[str, Any]:
    return {
        "totals": _totals.read(connection),
        "waiting": with_superseded_share(connection, lake.list_waiting(connection, load_settings().flush, 20)),
        "jobs": lake.last_runs(connection),
        "failures": lake.list_runs(connection, status="failed", limit=5).rows,
    }


@router.get("/catalogs")
def catalogs(connection: ReadOnlyConnection, search: Text = None, after: Text = None) -> lake.Page:
    return lake.list_catalogs(connection, search, after)


@router.get("/forks")
def forks(connection: ReadOnlyConnection, parent: Text = None, after: Text = None, search: Text = None) -> lake.Page:
    return list_children(connection, parent, after, search=search)


@router.get("/reclaim")
def reclaim(connection: ReadOnlyConnection, catalog: Name) -> lake.Page:
    """Returns what would be freed, and the first catalogs that keep the rest."""
    return lake.make_page(reclaimable(connection, catalog, lake.PAGE_SIZE + 1), lake.PAGE_SIZE, "pinned_by")


@router.get("/tables")
def tables(connection: ReadOnlyConnection, catalog: Name, search: Text = None, after: Text = None) -> lake.Page:
    return list_tables(connection, catalog, search, after)


@router.get("/table")
def table(
    connection: ReadOnlyConnection,
    shows_bounds: CanReadRows,
    catalog: Name,
    namespace: Name,
    table: Name,
    snapshot: PositiveId = None,
    user: Text = None,
) -> dict[str, Any]:
    """Returns bounds of batches only to users who may read rows, because bounds are keys of rows."""
    policy = load_settings().flush
    found = read_table(connection, catalog, namespace, table, policy, snapshot=snapshot, user=user)
    if not shows_bounds:
        found["batches"] = [{**batch, "low": None, "high": None} for batch in found["batches"]]
    return {**found, "shows_bounds": shows_bounds}


@router.get("/runs")
def runs(connection: ReadOnlyConnection, job: Text = None, status: Text = None, before: Time = None) -> lake.Page:
    return lake.list_runs(connection, job, status, before)


@router.get("/audits")
def audits(connection: ReadOnlyConnection, run: Text = None, failed: bool = False, before: Time = None) -> lake.Page:
    """Leaves out examples, because a viewer of the page may not be allowed to see rows of tenants."""
    page = lake.list_audits(connection, run, before, failed_only=failed)
    for row in page.rows:
        row["results"] = [{key: one[key] for key in one if key not in TENANT_DATA} for one in row["results"]]
    return page


@router.get("/copies")
def copies(connection: ReadOnlyConnection) -> list[dict[str, Any]]:
    return list_recent_copies(connection)


@router.get("/gc")
def gc(connection: ReadOnlyConnection) -> dict[str, Any]:
    return read_gc(connection)


@router.get("/deletions")
def deletions(connection: ReadOnlyConnection, before: PositiveId = None) -> lake.Page:
    return list_deletions(connection, before)


@router.get("/flushed")
def flushed(connection: ReadOnlyConnection, span: Span = "24h", catalog: Text = None) -> dict[str, Any]:
    seconds, step = lake.SPANS[span]
    return {"seconds": seconds, "step": step, "points": lake.read_flushed(connection, span, catalog)}


class _CachedTotals:
    """Caches the totals, because counting everything is the slowest query of the page."""

    def __init__(self) -> None:
        self._value: dict[str, Any] = {}
        self._until = 0.0

    def read(self, connection: Connection) -> dict[str, Any]:
        if time.monotonic() > self._until:
            self._value = lake.read_totals(connection)
            self._until = time.monotonic() + TOTALS_SECONDS
        return self._value


_totals = _CachedTotals()
