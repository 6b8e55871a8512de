"""Removes files batch by batch: those that the ledger has, and notes there what became of each."""

import datetime
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from lakefork.catalog.connection import Connection
from lakefork.queries import load
from lakefork.removal.files import remove_files
from lakefork.removal.ledger import (
    FileOutcome,
    Outcome,
    RemovalRun,
    TakenFiles,
    finish_deletions,
    finish_trash,
    open_deletions,
    take_old_trash,
)
from lakefork.spark.job import JobContext

FILES_AT_ONCE = 5_000
_SQL = load(__package__)

KnownFiles = Callable[[Connection, Iterable[str]], set[str]]  # returns the files that are needed


@dataclass
class RemovalTotals:
    looked_at: int = 0
    still_needed: int = 0
    deleted: int = 0
    missing: int = 0
    failed: int = 0
    problem: str | None = None


class Removal:
    """Removes files in batches; checks the leases before each. A failure does not affect other files."""

    def __init__(self, context: JobContext, run: RemovalRun, known: KnownFiles, *, trash: bool) -> None:
        self.run = run
        self.totals = RemovalTotals()
        self._context, self._known, self._trash = context, known, trash
        self._started = time.monotonic()

    def remove(self, taken: TakenFiles) -> None:
        self.totals.looked_at += taken.looked_at
        self.totals.still_needed += taken.still_needed
        self._remove(taken.paths)

    def remove_uncounted(self, taken: TakenFiles) -> bool:
        """Removes files other than batches, of which totals count only failures; returns whether all were removed."""
        before = replace(self.totals)
        self._remove(taken.paths)
        self.totals.deleted, self.totals.missing = before.deleted, before.missing
        return self.totals.failed == before.failed

    def finish_earlier(self) -> None:
        """Deletes files that an interrupted run recorded but did not delete."""
        connection = self._context.connection
        tried: set[int] = set()
        while left := [
            one for one in open_deletions(connection, FILES_AT_ONCE + len(tried)) if one.deletion_id not in tried
        ]:
            self._context.progress(f"{len(left):,} file(s) left by an interrupted run")
            needed = self._known(connection, [one.path for one in left if one.is_orphan])
            kept = {one.deletion_id: FileOutcome(one.path, Outcome.NEEDED) for one in left if one.path in needed}
            finish_deletions(connection, kept)
            self._remove({one.deletion_id: one.path for one in left if one.path not in needed})
            tried |= {one.deletion_id for one in left}

    def empty_trash(self, older_than: datetime.timedelta) -> None:
        """Empties old trash; what fails is reported, and retried by the next run."""
        context, last = self._context, 0
        while old := take_old_trash(context.connection, self.run.job_id, older_than, last, FILES_AT_ONCE):
            context.check_leases()
            removed = dict(zip(old, remove_files(context, list(old.values()), trash=False), strict=True))
            finish_trash(context.connection, {number: one.outcome for number, one in removed.items()})
            self._note_problems(removed.values())
            last = max(old)

    def status(self) -> str:
        totals, seconds = self.totals, max(time.monotonic() - self._started, 0.001)
        return (
            f"{totals.looked_at:,} file(s) checked, {totals.still_needed:,} still needed, "
            f"{totals.deleted:,} removed, {totals.looked_at / seconds:,.0f}/s"
        )

    def bytes_freed(self) -> int:
        row = self._context.connection.execute(_SQL["bytes_freed"], {"run_id": self.run.run_id}).fetchone()
        return int(row["bytes"]) if row else 0

    def _remove(self, paths: Mapping[int, str]) -> None:
        if not paths:
            return
        context = self._context
        context.check_leases()
        removed = dict(zip(paths, remove_files(context, list(paths.values()), trash=self._trash), strict=True))
        finish_deletions(context.connection, removed)
        self.totals.deleted += sum(one.outcome in (Outcome.REMOVED, Outcome.TRASHED) for one in removed.values())
        self.totals.missing += sum(one.outcome == Outcome.MISSING for one in removed.values())
        self._note_problems(removed.values())

    def _note_problems(self, removed: Iterable[FileOutcome]) -> None:
        for one in removed:
            if not one.ok:
                self.totals.failed += 1
                self.totals.problem = self.totals.problem or f"{one.path}: {one.outcome}"
