"""Cleanup: which scheduled files may go, decided in Postgres, and the ledger of those that went."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection, domain_errors
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.queries import load

_SQL = load(__package__)


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
        connection.execute("SELECT lakefork.begin_cleanup(%s)", (job_id,))
        needed = known(connection, sizes)
        paths = [path for path in sizes if path not in needed]
        rows = connection.execute(
            "SELECT * FROM lakefork.record_orphans(%s, %s, %s, %s, %s)",
            (job_id, run_id, plan_id, paths, [sizes[path] for path in paths]),
        ).fetchall()
    return Taken({row["deletion_id"]: row["path"] for row in rows}, len(sizes), len(sizes) - len(paths))


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


def trashed_files(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """What a run put into the trash and nobody brought back."""
    return connection.execute(_SQL["trashed_files"], {"run_id": run_id}).fetchall()


def mark_restored(connection: Connection, deletions: Sequence[int]) -> None:
    connection.execute(
        "UPDATE lakefork.deletion SET restored_at = clock_timestamp() WHERE deletion_id = ANY (%s)", (list(deletions),)
    )


def old_trash(connection: Connection, older_than: datetime.timedelta, limit: int) -> dict[int, str]:
    rows = connection.execute(_SQL["old_trash"], {"older_than": older_than, "limit": limit})
    return {row["deletion_id"]: row["trash_path"] for row in rows}
