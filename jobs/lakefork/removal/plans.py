"""Plans of file_cleanup: what there is to remove, and whether that is still so when a plan is carried out."""

import datetime
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class CleanupPlan:
    """A plan of file_cleanup. digest: of the files that it covers."""

    plan_id: str
    created_at: datetime.datetime
    params: dict[str, Any]
    digest: str
    begun_at: datetime.datetime | None
    done_at: datetime.datetime | None


@dataclass(frozen=True)
class FilesToClean:
    """Scheduled files of one table, by the catalog that had them last, and why they were given up."""

    catalog_name: str
    parent_name: str | None
    table_name: str
    reason: str
    files: int
    bytes: int


def has_files_to_clean(connection: Connection, older_than_seconds: int) -> bool:
    """Whether a run over all catalogs would find anything, or has an earlier one to finish."""
    row = connection.execute(_SQL["has_files_to_clean"], {"seconds": older_than_seconds}).fetchone()
    return bool(row and row["found"])


def digest_of(connection: Connection, catalog: str | None, scheduled_until: datetime.datetime) -> str:
    row = connection.execute("SELECT lakefork.cleanup_digest(%s, %s) AS digest", (catalog, scheduled_until)).fetchone()
    return str(row["digest"]) if row else ""


def save_cleanup_plan(connection: Connection, plan_id: str, run_id: str, params: dict[str, Any], digest: str) -> None:
    wanted = {"plan_id": plan_id, "run_id": run_id, "params": Jsonb(params), "digest": digest}
    connection.execute(_SQL["save_cleanup_plan"], wanted)


def cleanup_plan(connection: Connection, plan_id: str) -> CleanupPlan:
    row = connection.execute(_SQL["cleanup_plan"], {"plan_id": plan_id}).fetchone()
    if row is None:
        raise NotFoundError(f"plan {plan_id!r} of file_cleanup does not exist")
    return CleanupPlan(**row)


def require_same(plan: CleanupPlan, digest: str) -> None:
    if plan.digest != digest:
        raise InvalidInputError(
            f"what plan {plan.plan_id!r} was made from has changed since {plan.created_at}: make a new one"
        )


def begin_cleanup_plan(connection: Connection, plan_id: str) -> None:
    connection.execute(_SQL["begin_cleanup_plan"], {"plan_id": plan_id})


def finish_cleanup_plan(connection: Connection, plan_id: str) -> None:
    connection.execute(_SQL["finish_cleanup_plan"], {"plan_id": plan_id})


def count_to_clean(
    connection: Connection, catalog: str | None, scheduled_until: datetime.datetime
) -> list[FilesToClean]:
    """Counts the files that a run would check."""
    rows = connection.execute(_SQL["count_to_clean"], {"catalog": catalog, "scheduled_until": scheduled_until})
    return [FilesToClean(**row) for row in rows]
