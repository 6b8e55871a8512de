"""What `lakefork follow` does without Spark: status, cut-over, stop."""

import contextlib
import getpass
import os
import uuid
from collections.abc import Iterator
from typing import Any

from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.catalog.named_connections import connect_to
from lakefork.errors import CopyRequiredError, InvalidInputError, JobFailedError, LakeforkError, LeaseHeldError
from lakefork.progress import reporting
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.transfer.follow import state
from lakefork.transfer.follow.run import OpenTarget, follow_copy
from lakefork.transfer.follow.source import FollowedSource
from lakefork.transfer.follow.stream import lsn_text
from lakefork.transfer.postgres_copy.commands import compare_now, look_at_source, params_of
from lakefork.transfer.postgres_copy.holder import drop_slot
from lakefork.transfer.postgres_copy.into_postgres import set_sequences
from lakefork.transfer.postgres_copy.sessions import find_endpoint, source_errors

MOST_COUNTED = 10_000
RENEW_SECONDS = 5.0
COMMIT_MESSAGE = ord("C")


def statuses(dsn: str, copy_id: str | None) -> list[dict[str, Any]]:
    """Each followed copy, with the slot as the source has it; a source that does not answer is said so."""
    with connect(dsn) as connection:
        if copy_id is not None:
            state.find_follow(connection, copy_id)
        rows = connection.execute(
            "SELECT f.*, c.source, c.target, c.into_catalog FROM lakefork.follow f "
            "JOIN lakefork.copy c USING (copy_id) WHERE coalesce(f.copy_id = %s, true) ORDER BY c.started_at DESC",
            (copy_id,),
        ).fetchall()
        return [{**row, **_lag(connection, row)} for row in rows]


def _lag(connection: Any, row: dict[str, Any]) -> dict[str, Any]:
    if row["status"] not in ("following", "copy_required"):
        return {}
    try:
        follow = state.find_follow(connection, row["copy_id"])
        source = FollowedSource.find(follow)
        found = source.look()
        transactions = _count_transactions(source) if found["slot_name"] and not found["active"] else None
    except LakeforkError as error:
        return {"slot": str(error)}
    behind = max(0, found["current"] - max(follow.position, found["confirmed"]))
    caught_up = row["drained_at"] or row["run_at"]
    return {
        "slot": found["wal_status"] or "gone", "active": found["active"], "lag_bytes": behind,
        "lag_transactions": transactions,
        "lag_seconds": (source.now() - caught_up).total_seconds() if caught_up and transactions != 0 else 0.0,
        "wal_kept_bytes": found["wal_kept"], "warning": source.warning(found),
    }  # fmt: skip


def _count_transactions(source: FollowedSource) -> int | None:
    """How many wait, up to a limit."""
    with contextlib.closing(source.endpoint.open_target()) as session, source_errors(source.endpoint.name):
        row: dict[str, Any] | None = session.execute(
            "SELECT count(*) AS found FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, 'proto_version', '1', "
            "'publication_names', %s) WHERE get_byte(data, 0) = %s",
            (source.slot, MOST_COUNTED, source.slot, COMMIT_MESSAGE),
        ).fetchone()
    return row["found"] if row else None


def status_line(row: dict[str, Any]) -> str:
    way = f"{row['source']} -> {row['target'] or row['into_catalog']}"
    line = f"{row['copy_id']}  {way}  {row['status'].replace('_', ' ')} up to {row['position']}"
    if "lag_bytes" in row:
        waiting = "?" if row["lag_transactions"] is None else f"{row['lag_transactions']:,}"
        line += (
            f": {row['lag_bytes']:,} bytes and {waiting} transaction(s) behind, {row['lag_seconds']:,.0f} s; slot "
            f"{row['slot']}, {(row['wal_kept_bytes'] or 0) / 1e6:,.0f} MB of WAL kept"
        )
    elif "slot" in row:
        line += f"\n  {row['slot']}"
    return "\n  ".join([line, *(row[name] for name in ("warning", "error") if row.get(name))])


@contextlib.contextmanager
def _at_work(dsn: str, settings: Settings, copy_id: str) -> Iterator[JobContext]:
    """The lease of the copy, renewed while a command works."""
    run_id = f"cli__{uuid.uuid4().hex[:8]}"
    run = JobRun(f"follow/{run_id}", "follow", run_id, f"cli/{getpass.getuser()}/{os.getpid()}", settings.node_id)
    with connect(dsn) as connection, connect(dsn) as beside:
        context = JobContext(run, settings, dsn, connection, Leases(run.job_id, settings.jobs.lease_seconds))
        if not context.leases.acquire_available(connection, [state.follow_lease(copy_id)]):
            raise LeaseHeldError(f"copy {copy_id} is followed by a run: wait for it, or stop it first")
        try:
            with reporting(lambda: context.leases.renew(beside), RENEW_SECONDS):
                yield context
        finally:
            context.leases.release(context.connection)


def cut_over(dsn: str, settings: Settings, copy_id: str, open_target: OpenTarget, *, force: bool) -> dict[str, Any]:
    """Drains, sets sequences, compares, and drops slot and publication: from now on the target is on its own."""
    with _at_work(dsn, settings, copy_id) as context:
        follow_copy(context, copy_id, "current", None, open_target)
        late = follow_copy(context, copy_id, "current", None, open_target)
        if late.transactions and not force:
            raise InvalidInputError(
                f"the source of copy {copy_id} still writes ({late.transactions:,} transaction(s) in a moment): stop "
                "what writes there, or cut over with --force"
            )
        follow = state.find_follow(context.connection, copy_id)
        sequences = _set_sequences(follow) if follow.copy.target else 0
        differences = _compare(context, follow)
        if differences and not force:
            raise JobFailedError(
                f"source and target differ, and nothing was cut over: {'; '.join(differences[:10])}", {}
            )
        _drop(follow)
        state.note_progress(context.connection, copy_id, status="cut_over", ended_at=FollowedSource.find(follow).now())
        return {
            "copy_id": copy_id, "position": lsn_text(late.position), "sequences": sequences, "differences": differences,
        }  # fmt: skip


def stop(dsn: str, settings: Settings, copy_id: str) -> str:
    """Drops the slot; returns what is lost by it."""
    with _at_work(dsn, settings, copy_id) as context:
        follow = state.find_follow(context.connection, copy_id)
        if follow.status in ("stopped", "cut_over"):
            raise InvalidInputError(f"copy {copy_id} is not followed any longer: it was {follow.status}")
        _drop(follow)
        state.note_progress(
            context.connection, copy_id, status="stopped", ended_at=context.connection.execute(
                "SELECT clock_timestamp() AS now"
            ).fetchone()["now"],  # type: ignore[index]
        )  # fmt: skip
    return (
        f"copy {copy_id} is not followed any longer: what the source commits after {lsn_text(follow.position)} does "
        "not reach the target, and only a new copy makes them equal again"
    )


def _compare(context: JobContext, follow: state.Follow) -> list[str]:
    if follow.copy.target is not None:
        return compare_now(context.dsn, follow.copy.copy_id, of_now=True)
    from lakefork.transfer.follow.compare_lake import compare_with_source

    return compare_with_source(context, follow)


def _set_sequences(follow: state.Follow) -> int:
    copy = follow.copy
    params = params_of(copy)
    if "sequences" in params.skip:
        return 0
    inventory, source = look_at_source(params)
    target, _ = find_endpoint(copy.target or "")
    with (
        contextlib.closing(source.open_source(None)) as reading,
        contextlib.closing(target.open_target()) as session,
        source_errors(target.name),
    ):
        set_sequences(reading, session, inventory.sequences)
    return len(inventory.sequences)


def _drop(follow: state.Follow) -> None:
    """A source that lost the slot, or is another one by now, has nothing to drop."""
    with contextlib.suppress(CopyRequiredError):
        FollowedSource.find(follow)
        with connect_to(follow.copy.source, autocommit=True) as session, source_errors(follow.copy.source):
            drop_slot(session, follow.slot)
    if follow.copy.target is not None:
        with connect_to(follow.copy.target, autocommit=True) as session, source_errors(follow.copy.target):
            session.execute("DROP SCHEMA IF EXISTS lakefork_follow CASCADE")
