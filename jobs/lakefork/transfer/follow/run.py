"""Applies what a source has committed since its copy, up to a position, within some time."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from lakefork.errors import CopyRequiredError, LakeforkError, LeaseHeldError, LeaseLostError
from lakefork.garbage import garbage_collection_paused
from lakefork.model.params import PostgresFollowParams
from lakefork.spark.job import JobContext
from lakefork.transfer.follow import state
from lakefork.transfer.follow.changes import Piece, TableChange, Truncation
from lakefork.transfer.follow.pgoutput import Commit
from lakefork.transfer.follow.source import FollowedSource
from lakefork.transfer.follow.stream import ChangeStream, lsn_text, parse_lsn

APPLIED_TOGETHER = 5_000  # changes in one transaction of the target, unless one of the source has more
LOOK_SECONDS = 1.0


class Target(Protocol):
    """Takes whole transactions, with the position in the same one."""

    def position(self, first: int) -> int: ...

    def begin(self) -> None: ...

    def apply(self, changes: Sequence[TableChange | Truncation]) -> None: ...

    def finish(self, before: int, position: int, committed_at: int | None) -> None: ...

    def close(self) -> None: ...


class OpenTarget(Protocol):
    """Opens the target of a copy."""

    def __call__(self, context: JobContext, follow: state.Follow, source: FollowedSource) -> Target: ...


@dataclass
class Applied:
    """What a run has done, and how far it is."""

    position: int
    transactions: int = 0
    changes: int = 0
    committed_at: int | None = None
    reached: int = 0


@garbage_collection_paused()
def run_postgres_follow(context: JobContext, params: PostgresFollowParams, open_target: OpenTarget) -> dict[str, Any]:
    """Of several copies, those that can be followed are, before the first error is raised."""
    copies = [params.copy_id] if params.copy_id else state.followed_copies(context.connection)
    done: list[Applied] = []
    errors: list[LakeforkError | psycopg.Error] = []
    for copy_id in copies:
        try:
            if (found := _follow(context, params, copy_id, open_target)) is not None:
                done.append(found)
        except LeaseLostError:
            raise
        except (LakeforkError, psycopg.Error) as error:
            context.progress(f"copy {copy_id}: {error}")
            errors.append(error)
    if errors:
        raise errors[0]
    return {
        "copies": len(done),
        "transactions": sum(one.transactions for one in done),
        "changes": sum(one.changes for one in done),
    }


def _follow(context: JobContext, params: PostgresFollowParams, copy_id: str, open_target: OpenTarget) -> Applied | None:
    """None: another run is at it, and nobody asked for this copy in particular."""
    if not context.leases.acquire_available(context.connection, [state.follow_lease(copy_id)]):
        if params.copy_id is None:
            return None
        raise LeaseHeldError(f"copy {copy_id} is followed by another run")
    try:
        return follow_copy(context, copy_id, params.until, params.max_seconds, open_target)
    except (LakeforkError, psycopg.Error) as error:
        status = {"status": "copy_required"} if isinstance(error, CopyRequiredError) else {}
        with contextlib.suppress(LakeforkError, psycopg.Error):
            state.note_progress(context.connection, copy_id, error=str(error), **status)
        raise


def follow_copy(
    context: JobContext, copy_id: str, until: str, max_seconds: float | None, open_target: OpenTarget
) -> Applied:
    follow = state.find_follow(context.connection, copy_id)
    state.require_following(follow)
    source = FollowedSource.find(follow)
    with contextlib.closing(open_target(context, follow, source)) as target:
        position = target.position(follow.position)
        wanted = source.check(position)
        if until != "current":
            wanted = parse_lsn(until)
        state.note_progress(context.connection, copy_id, run_id=context.run.run_id, run_at=source.now(), error=None)
        deadline = time.monotonic() + max_seconds if max_seconds else None
        with source.changes(position) as stream:
            applied = _Applier(context, stream, target, position).drain(wanted, deadline)
    is_drained = applied.reached >= wanted
    slot = source.look()
    if warning := source.warning(slot):
        context.progress(warning)
    state.note_progress(
        context.connection, copy_id, transactions=applied.transactions, changes=applied.changes,
        position=applied.position, wal_kept=slot["wal_kept"], warning=warning,
        **({"drained_at": source.now()} if is_drained else {}),
        **({"committed_at": _moment(applied.committed_at)} if applied.committed_at is not None else {}),
    )  # fmt: skip
    left = "" if is_drained else f"; the time is over before {lsn_text(wanted)}, and the next run goes on"
    context.progress(
        f"copy {copy_id}: {applied.transactions:,} transaction(s) with {applied.changes:,} change(s) applied, "
        f"up to {lsn_text(applied.position)}{left}"
    )
    return applied


def _moment(microseconds: int) -> Any:
    import datetime

    return datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=microseconds)


class _Applier:
    """Takes pieces out of the buffer, and brings them to the target."""

    def __init__(self, context: JobContext, stream: ChangeStream, target: Target, position: int) -> None:
        self._context, self._stream, self._target = context, stream, target
        self._applied = Applied(position)
        self._waiting: list[TableChange | Truncation] = []
        self._last: Commit | None = None  # of what is applied and not committed
        self._is_open = False  # the target has a transaction
        self._uncommitted = 0
        self._looked_at = time.monotonic()

    def drain(self, wanted: int, deadline: float | None) -> Applied:
        """Until the source was read up to the position, or the time is over."""
        applied = self._applied
        while max(applied.reached, applied.position) < wanted:
            for piece in self._stream.buffer.take(LOOK_SECONDS):
                self._take(piece)
                if applied.reached >= wanted:
                    break  # what follows is for the next run, which gets it again
            self._commit()
            if time.monotonic() - self._looked_at > LOOK_SECONDS:
                self._context.check_leases()
                self._looked_at = time.monotonic()
            if deadline is not None and time.monotonic() > deadline and not self._is_open:
                break
        if applied.reached > applied.position and not self._is_open:  # nothing read since is for the target
            self._target.begin()
            self._finish(applied.reached, None)
        applied.reached = applied.position
        return applied

    def _take(self, piece: Piece) -> None:
        if piece.reached is not None:
            self._commit()
            self._applied.reached = max(self._applied.reached, piece.reached)
            return
        self._waiting += piece.changes
        self._applied.changes += len(piece.changes)
        self._last = None
        if piece.commit is not None:
            self._last = piece.commit
            self._applied.transactions += 1
            self._applied.committed_at = piece.commit.committed_at
        if len(self._waiting) >= APPLIED_TOGETHER:
            self._apply()
            if self._uncommitted >= APPLIED_TOGETHER:
                self._commit()

    def _apply(self) -> None:
        if self._waiting:
            if not self._is_open:
                self._target.begin()
                self._is_open = True
            self._target.apply(self._waiting)
            self._uncommitted += len(self._waiting)
            self._waiting = []

    def _commit(self) -> None:
        """Only behind the last change of a transaction."""
        self._apply()
        if self._last is None or (not self._is_open and self._last.end_lsn <= self._applied.position):
            return
        if not self._is_open:  # a transaction without changes of tables that are followed
            self._target.begin()
        self._finish(self._last.end_lsn, self._last.committed_at)
        self._is_open, self._uncommitted, self._last = False, 0, None

    def _finish(self, position: int, committed_at: int | None) -> None:
        self._target.finish(self._applied.position, position, committed_at)
        self._applied.position = self._stream.durable = position
        self._applied.reached = max(self._applied.reached, position)
