"""Cleanup: which scheduled files may go, decided in Postgres, and the ledger of those that went."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.queries import load

_SQL = load(__package__)
FENCE_TIMEOUT = "15s"  # of each statement, the wait of up to ten for the fence included


@dataclass(frozen=True)
class Taken:
    """Files that are in the ledger and may go now, by the number of their entry."""

    paths: dict[int, str]
    looked_at: int
    still_needed: int


def take_for_deletion(
    connection: Connection,
    run: tuple[str, str, str | None],
    catalog: str | None,
    scheduled_until: datetime.datetime,
    limit: int,
) -> Taken:
    """run: job, run and plan. One transaction; nothing may be removed before it is committed."""
    job_id, run_id, plan_id = run
    with domain_errors(), connection.transaction():
        _limit_the_fence(connection)
        row = connection.execute(
            "SELECT * FROM lakefork.take_for_deletion(%s, %s, %s, %s, %s, %s)",
            (job_id, run_id, plan_id, catalog, scheduled_until, limit),
        ).fetchone()
    assert row is not None  # noqa: S101 - a function with OUT parameters
    paths = dict(zip(row["deletions"] or [], row["paths"] or [], strict=True))
    return Taken(paths, row["looked_at"], row["still_needed"])


def take_orphans(
    connection: Connection,
    run: tuple[str, str, str | None],
    sizes: Mapping[str, int],
    known: Callable[[Connection, Iterable[str]], set[str]],
) -> Taken:
    """The same for files that were found in storage, by path. known: which of them somebody needs after all."""
    job_id, run_id, plan_id = run
    with domain_errors(), connection.transaction():
        _limit_the_fence(connection)
        connection.execute("SELECT lakefork.begin_cleanup(%s)", (job_id,))
        needed = known(connection, sizes)
        paths = [path for path in sizes if path not in needed]
        rows = connection.execute(
            "SELECT * FROM lakefork.record_orphans(%s, %s, %s, %s, %s)",
            (job_id, run_id, plan_id, paths, [sizes[path] for path in paths]),
        ).fetchall()
    return Taken({row["deletion_id"]: row["path"] for row in rows}, len(sizes), len(sizes) - len(paths))


def _limit_the_fence(connection: Connection) -> None:
    """Commits wait while the fence is held: what takes longer than a few seconds is given up, and nothing happens."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute("SELECT set_config(%s, %s, true)", (name, FENCE_TIMEOUT))


def open_deletions(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """Files that an earlier run took for deletion and of which nobody knows whether they went."""
    return connection.execute(_SQL["open_deletions"], {"limit": limit}).fetchall()


def finish_deletions(connection: Connection, outcomes: Sequence[tuple[int, str, str | None]]) -> None:
    """Number, what became of it, and where it lies in the trash."""
    connection.execute(
        "SELECT lakefork.finish_deletions(%s, %s, %s)",
        ([one[0] for one in outcomes], [one[1] for one in outcomes], [one[2] for one in outcomes]),
    )


def count_to_clean(
    connection: Connection, catalog: str | None, scheduled_until: datetime.datetime
) -> list[dict[str, Any]]:
    """What a run would look at, by the catalog that had it last and why it was given up."""
    return connection.execute(
        _SQL["count_to_clean"], {"catalog": catalog, "scheduled_until": scheduled_until}
    ).fetchall()


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


def cleanup_plan(connection: Connection, plan_id: str) -> dict[str, Any]:
    row = connection.execute(_SQL["cleanup_plan"], {"plan_id": plan_id}).fetchone()
    if row is None:
        raise NotFoundError(f"there is no plan {plan_id!r} of file_cleanup")
    return row


def require_same(plan: dict[str, Any], digest: str) -> None:
    if plan["digest"] != digest:
        raise InvalidInputError(
            f"what plan {plan['plan_id']!r} was made of has changed since {plan['created_at']}: make a new one"
        )


def begin_cleanup_plan(connection: Connection, plan_id: str) -> None:
    connection.execute(_SQL["begin_cleanup_plan"], {"plan_id": plan_id})


def finish_cleanup_plan(connection: Connection, plan_id: str) -> None:
    connection.execute(_SQL["finish_plan"], {"plan_id": plan_id})


def take_old_trash(
    connection: Connection, job_id: str, older_than: datetime.timedelta, after: int, limit: int
) -> dict[int, str]:
    """What has been in the trash for so long, with higher numbers than after: nobody can bring it back from now on."""
    with domain_errors():
        rows = connection.execute(
            "SELECT * FROM lakefork.take_old_trash(%s, %s, %s, %s)", (job_id, older_than, after, limit)
        ).fetchall()
    return {row["deletion_id"]: row["trash_path"] for row in rows}


def finish_trash(connection: Connection, outcomes: Mapping[int, str]) -> None:
    """What became of it; what could not be removed is in the trash as before."""
    connection.execute("SELECT lakefork.finish_trash(%s, %s)", (list(outcomes), list(outcomes.values())))


def take_for_restore(connection: Connection, holder: str, run_id: str, after: int, limit: int) -> list[dict[str, Any]]:
    """What a run put into the trash and nobody brought back: nobody removes it from now on."""
    with domain_errors():
        return connection.execute(
            "SELECT * FROM lakefork.take_for_restore(%s, %s, %s, %s) ORDER BY deletion_id",
            (holder, run_id, after, limit),
        ).fetchall()


def finish_restore(connection: Connection, restored: Sequence[int], failed: Sequence[int]) -> None:
    connection.execute("SELECT lakefork.finish_restore(%s, %s)", (list(restored), list(failed)))
