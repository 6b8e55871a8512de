"""The ledger: files to delete, decided in Postgres and recorded before the removal, and their outcomes."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.queries import load

_SQL = load(__package__)
FENCE_TIMEOUT = "15s"  # of each statement, the wait of up to ten for the fence included


class Outcome(StrEnum):
    """The outcome for a file; any other text is an error."""

    REMOVED = "removed"
    MISSING = "missing"  # it was not there
    TRASHED = "trashed"  # it can be restored
    NEEDED = "needed"  # it is needed after all


@dataclass(frozen=True)
class FileOutcome:
    """outcome: see Outcome. trash: where the file is now, if it can be brought back."""

    path: str
    outcome: str
    trash: str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome in (Outcome.REMOVED, Outcome.MISSING, Outcome.TRASHED)


@dataclass(frozen=True)
class RemovalRun:
    """Who removes files, by which run, and by which plan if there is one."""

    job_id: str
    run_id: str
    plan_id: str | None = None


@dataclass(frozen=True)
class OpenDeletion:
    """An entry of the ledger whose file may still exist. is_orphan: no catalog knew it."""

    deletion_id: int
    path: str
    is_orphan: bool


@dataclass(frozen=True)
class TrashedFile:
    deletion_id: int
    path: str
    trash_path: str


@dataclass(frozen=True)
class TakenFiles:
    """Files that are in the ledger and may go now, by the number of their entry."""

    paths: dict[int, str]
    looked_at: int
    still_needed: int


def take_for_deletion(
    connection: Connection,
    run: RemovalRun,
    catalog: str | None,
    scheduled_until: datetime.datetime,
    limit: int,
) -> TakenFiles:
    """One transaction; nothing may be removed before it is committed."""
    with domain_errors(), connection.transaction():
        _limit_fence_wait(connection)
        row = connection.execute(
            "SELECT * FROM lakefork.take_for_deletion(%s, %s, %s, %s, %s, %s)",
            (run.job_id, run.run_id, run.plan_id, catalog, scheduled_until, limit),
        ).fetchone()
    assert row is not None  # noqa: S101 - a function with OUT parameters
    paths = dict(zip(row["deletions"] or [], row["paths"] or [], strict=True))
    return TakenFiles(paths, row["looked_at"], row["still_needed"])


def take_orphans(
    connection: Connection,
    run: RemovalRun,
    sizes: Mapping[str, int],
    known: Callable[[Connection, Iterable[str]], set[str]],
) -> TakenFiles:
    """Takes files that were found in storage, by path. known: returns which of them are needed after all."""
    with domain_errors(), connection.transaction():
        _limit_fence_wait(connection)
        connection.execute("SELECT lakefork.begin_cleanup(%s)", (run.job_id,))
        needed = known(connection, sizes)
        paths = [path for path in sizes if path not in needed]
        rows = connection.execute(
            "SELECT * FROM lakefork.record_orphans(%s, %s, %s, %s, %s)",
            (run.job_id, run.run_id, run.plan_id, paths, [sizes[path] for path in paths]),
        ).fetchall()
    return TakenFiles({row["deletion_id"]: row["path"] for row in rows}, len(sizes), len(sizes) - len(paths))


def _limit_fence_wait(connection: Connection) -> None:
    """Commits wait while the fence is held: what takes longer than a few seconds is given up, and nothing happens."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.execute("SELECT set_config(%s, %s, true)", (name, FENCE_TIMEOUT))


def open_deletions(connection: Connection, limit: int) -> list[OpenDeletion]:
    """Returns files that an earlier run took for deletion, with unknown outcome."""
    return [OpenDeletion(**row) for row in connection.execute(_SQL["open_deletions"], {"limit": limit})]


def finish_deletions(connection: Connection, gone: Mapping[int, FileOutcome]) -> None:
    """Records outcomes by the numbers of entries."""
    connection.execute(
        "SELECT lakefork.finish_deletions(%s, %s, %s)",
        (list(gone), [str(one.outcome) for one in gone.values()], [one.trash for one in gone.values()]),
    )


def take_old_trash(
    connection: Connection, job_id: str, older_than: datetime.timedelta, after: int, limit: int
) -> dict[int, str]:
    """Takes old files from the trash, with numbers above `after`; they can no longer be restored."""
    with domain_errors():
        rows = connection.execute(
            "SELECT * FROM lakefork.take_old_trash(%s, %s, %s, %s)", (job_id, older_than, after, limit)
        ).fetchall()
    return {row["deletion_id"]: row["trash_path"] for row in rows}


def finish_trash(connection: Connection, outcomes: Mapping[int, str]) -> None:
    """Records outcomes; a file that could not be removed stays in the trash."""
    connection.execute(
        "SELECT lakefork.finish_trash(%s, %s)", (list(outcomes), [str(outcome) for outcome in outcomes.values()])
    )


def take_for_restore(connection: Connection, holder: str, run_id: str, after: int, limit: int) -> list[TrashedFile]:
    """Takes the files of a run from the trash to restore them; they are no longer removed."""
    with domain_errors():
        rows = connection.execute(
            "SELECT * FROM lakefork.take_for_restore(%s, %s, %s, %s) ORDER BY deletion_id",
            (holder, run_id, after, limit),
        ).fetchall()
    return [TrashedFile(**row) for row in rows]


def finish_restore(connection: Connection, restored: Sequence[int], failed: Sequence[int]) -> None:
    connection.execute("SELECT lakefork.finish_restore(%s, %s)", (list(restored), list(failed)))
