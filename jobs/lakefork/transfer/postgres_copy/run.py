"""Runs a copy: setup, snapshot, plan, then the target's own part; all of it can be stopped and resumed."""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from lakefork.catalog.connection import connect
from lakefork.catalog.roots import installation_id
from lakefork.database_errors import all_domain_errors
from lakefork.errors import ConflictError, InvalidInputError, LakeforkError, SetupError, SnapshotLostError
from lakefork.garbage import garbage_collection_paused
from lakefork.model.params import PostgresCopyParams
from lakefork.progress import Bar, reporting
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import attempt, unwrap
from lakefork.transfer.follow.source import give_full_identity, require_followable
from lakefork.transfer.follow.state import begin_follow
from lakefork.transfer.postgres_copy import state
from lakefork.transfer.postgres_copy.holder import HoldRequest, start_holder
from lakefork.transfer.postgres_copy.inventory import (
    Inventory,
    require_lock_room,
    select_relations,
    split_tables,
    take_inventory,
)
from lakefork.transfer.postgres_copy.plan import Table, workers_of
from lakefork.transfer.postgres_copy.sessions import SQL, Endpoint, Identity, Session, find_endpoint, source_errors
from lakefork.transfer.postgres_copy.task import Executor, TaskEnvironment, run_workers

PROGRESS_SECONDS = 1.0


@dataclass
class CopyRun:
    """A run of a copy, and what it found out so far."""

    context: JobContext
    params: PostgresCopyParams
    copy_id: str
    source: Endpoint
    source_identity: Identity
    copy: state.Copy | None = None
    inventory: Inventory | None = None
    spark: Any = None

    def with_reconnect(self, what: str, action: Any) -> Any:
        return self.context.with_reconnect(what, action)

    def refresh(self) -> state.Copy:
        self.copy = self.with_reconnect(
            "reading the copy", lambda: state.find_copy(self.context.connection, self.copy_id)
        )
        assert self.copy is not None  # noqa: S101 - just read
        return self.copy

    def begin_phase(self, phase: str) -> None:
        self.context.check_leases()
        self.with_reconnect(
            "saving the phase", lambda: state.update_copy(self.context.connection, self.copy_id, phase=phase)
        )

    def finish_phase(self, phase: str) -> None:
        self.with_reconnect(
            "saving the phase", lambda: state.finish_phase(self.context.connection, self.copy_id, phase)
        )

    def open_source(self) -> Session:
        """Under the snapshot of the copy."""
        copy = self.copy or self.refresh()
        return self.source.open_source(copy.snapshot_name)


class Destination(Protocol):
    """Where a copy goes: another Postgres, or a catalog."""

    identity: str | None

    def check(self, run: CopyRun, *, resumed: bool) -> None:
        """Raises unless it can take the copy."""

    def carry_out(self, run: CopyRun) -> dict[str, Any]:
        """Everything after the plan; returns counts."""

    def take_again(self, run: CopyRun) -> None:
        """Under a new snapshot: parts whose rows have changed are to be copied again."""


@garbage_collection_paused()
def run_copy(context: JobContext, params: PostgresCopyParams, destination: Destination) -> dict[str, Any]:
    source, identity = find_endpoint(params.source)
    if params.dry_run:
        return _dry_run(context, params, source, identity)
    run = CopyRun(context, params, params.copy_id or _new_id(params.source, context.run.run_id), source, identity)
    context.take_lease(state.copy_lease(run.copy_id))
    _begin(run, destination)
    try:
        if _hold_snapshot(run) and run.params.resume:
            destination.take_again(run)
        counts = destination.carry_out(run)
    except (LakeforkError, psycopg.Error) as error:
        _note_failure(run, error)
        raise
    run.with_reconnect(
        "finishing", lambda: context.connection.execute(
            "UPDATE lakefork.copy SET status = 'completed', phase = 'done', "
            "finished_at = clock_timestamp(), error = NULL WHERE copy_id = %s",
            (run.copy_id,),
        ),
    )  # fmt: skip
    return {"copy_id": run.copy_id, **counts}


def _new_id(source: str, run_id: str) -> str:
    """The same for each attempt of a run: one that Airflow tries again goes on."""
    return f"{source.lower()[:40]}-{hashlib.sha256(run_id.encode()).hexdigest()[:10]}"


def _begin(run: CopyRun, destination: Destination) -> None:
    context, params = run.context, run.params
    identity = str(run.source_identity)
    if params.resume or _is_of_this_run(run):
        copy = run.refresh()
        if copy.status == "completed":
            raise ConflictError(f"copy {run.copy_id} is completed: there is nothing to resume")
        state.require_same_setup(copy, params, identity, destination.identity)
        destination.check(run, resumed=True)
        state.update_copy(context.connection, run.copy_id, status="running", run_id=context.run.run_id, error=None)
    else:
        destination.check(run, resumed=False)
        state.start_copy(
            context.connection, copy_id=run.copy_id, source=params.source, target=params.target,
            into_catalog=params.into,
            source_identity=identity, target_identity=destination.identity, setup=state.setup_of(params),
            run_id=context.run.run_id,
        )  # fmt: skip
    run.refresh()
    context.progress(f"copy {run.copy_id}: {params.source} into {params.target or params.into}")


def _is_of_this_run(run: CopyRun) -> bool:
    """Whether an earlier attempt of the same run began the copy."""
    row = run.context.connection.execute(
        "SELECT run_id FROM lakefork.copy WHERE copy_id = %s", (run.copy_id,)
    ).fetchone()
    return row is not None and row["run_id"] == run.context.run.run_id


def _note_failure(run: CopyRun, error: Exception) -> None:
    with contextlib.suppress(psycopg.Error, LakeforkError):
        state.update_copy(run.context.connection, run.copy_id, status="failed", error=str(error))
    run.context.progress(f"what is done is kept: lakefork copy resume {run.copy_id} goes on")


def _hold_snapshot(run: CopyRun) -> bool:
    """Makes sure that somebody holds the snapshot; True: it is a new one, in the place of another."""
    copy = run.copy or run.refresh()
    if copy.snapshot_name is not None:
        try:
            with contextlib.closing(run.open_source()):
                return False
        except SnapshotLostError:
            if copy.is_done("data"):
                run.context.progress("the snapshot is lost but no longer needed: all rows are copied")
                return False
            if not run.params.not_consistent:
                raise
            run.context.progress("the snapshot is lost: a new one is taken, and what has changed since is copied again")
    _take_snapshot(run)
    return copy.snapshot_name is not None


def _take_snapshot(run: CopyRun) -> None:
    """Tables are locked as they were listed; one that came or went meanwhile would be missed, or is not there."""
    run.begin_phase("snapshot")
    tables = _list_tables(run, None)
    if run.params.follow:
        _prepare_follow(run, list(tables))
    slot = _slot_name(run) if run.params.follow else None
    held = start_holder(HoldRequest(run.copy_id, run.source.name, list(tables.values()), slot), run.context.dsn)
    run.with_reconnect(
        "saving the snapshot", lambda: run.context.connection.execute(
            "UPDATE lakefork.copy SET snapshot_name = %s, snapshot_lsn = %s, snapshot_at = %s, slot_name = %s, "
            "snapshots = snapshots + 1 WHERE copy_id = %s",
            (held.snapshot, held.lsn, held.taken_at, held.slot, run.copy_id),
        ),
    )  # fmt: skip
    if held.slot is not None:
        run.with_reconnect("saving the slot", lambda: begin_follow(run.context.connection, run.copy_id, held.lsn))
    if _list_tables(run, run.refresh().snapshot_name).keys() != tables.keys():
        raise ConflictError("tables were created or dropped while the snapshot was taken: begin again")
    run.context.progress(
        f"snapshot {held.snapshot} of {run.source.name} at {held.lsn} is held, {len(tables):,} table(s) are locked"
    )


def _slot_name(run: CopyRun) -> str:
    """Slots are named for a whole server: copies of other installations may be called the same."""
    ours = hashlib.sha256(f"{installation_id(run.context.connection)}/{run.copy_id}".encode()).hexdigest()[:8]
    return f"lakefork_{run.copy_id.lower().replace('-', '_')[:45]}_{ours}"


def _prepare_follow(run: CopyRun, tables: list[int]) -> None:
    with contextlib.closing(run.source.open_source(None)) as session, source_errors(run.source.name):
        require_followable(session, run.source.name, tables, full_identity=run.params.replica_identity_full)
    if run.params.replica_identity_full:
        with contextlib.closing(run.source.open_target()) as session, source_errors(run.source.name):
            give_full_identity(session, tables)


def _list_tables(run: CopyRun, snapshot: str | None) -> dict[int, str]:
    """Those with rows of their own, by id."""
    with contextlib.closing(run.source.open_source(snapshot)) as session, source_errors(run.source.name):
        listed, _ = select_relations(session, run.params)
        tables = {one.oid: one.qualified for one in listed if one.kind == "r"}
        if snapshot is None:
            require_lock_room(session, run.source.name, len(tables))
    return tables


def take_plan(run: CopyRun) -> Inventory:
    """The inventory under the copy's snapshot; the same each time, as long as that is the same."""
    started = time.monotonic()
    with contextlib.closing(run.open_source()) as session, source_errors(run.source.name):
        inventory = take_inventory(session, run.params, run.source_identity.version)
        split_tables(session, inventory, run.params.split_bytes)
    run.inventory = inventory
    run.context.progress(
        f"{len(inventory.tables):,} table(s), {sum(map(len, inventory.parts.values())):,} part(s), "
        f"{inventory.size_bytes / 1e6:,.0f} MB, {len(inventory.indexes):,} index(es) and keys, "
        f"found in {time.monotonic() - started:.1f} s"
    )
    for note in inventory.notes:
        run.context.progress(note)
    return inventory


def require_same_tables(run: CopyRun, inventory: Inventory) -> None:
    """Under a new snapshot: what is copied must still look as it was planned."""
    planned = state.planned_shapes(run.context.connection, run.copy_id)
    found = {table.oid: table.shape for table in inventory.tables}
    names = {table.oid: str(table) for table in inventory.tables}
    changed = [
        names.get(oid, f"the table with id {oid}")
        for oid in planned.keys() | found.keys()
        if planned.get(oid) != found.get(oid)
    ]
    if changed:
        raise InvalidInputError(
            f"{sorted(changed)[0]} was altered, created or dropped since the copy began: begin a new one"
        )


def run_steps(
    run: CopyRun,
    executor: Executor,
    tables: Mapping[int, Table],
    limits: Mapping[str, int],
    *,
    with_snapshot: bool = True,
) -> None:
    """Lets Spark do all steps that are not done."""
    spark = run.spark = run.spark or _start_spark(run.context)
    copy = run.copy or run.refresh()
    environment = TaskEnvironment(
        run.context.dsn,
        run.copy_id,
        run.context.run.job_id,
        run.source,
        copy.snapshot_name if with_snapshot else None,
        limits,
    )
    threads = list(enumerate(workers_of(limits, spark.defaultParallelism)))
    known = spark.broadcast(dict(tables))

    def work(task: tuple[int, int]) -> LakeforkError | None:
        # Only what other modules have: workers need not import this one with all that the driver needs.
        return attempt(lambda: run_workers(environment, executor, known.value, *task))

    with _progress(run):
        outcomes = spark.parallelize(threads, len(threads)).map(work).collect()
    known.destroy()
    for outcome in outcomes:
        unwrap(outcome)
    if (copy := run.refresh()).error:
        raise SetupError(copy.error)


def _start_spark(context: JobContext) -> Any:
    from pyspark import SparkContext

    started = time.monotonic()
    spark = SparkContext.getOrCreate()
    context.progress(f"Spark {spark.master} is up after {time.monotonic() - started:.1f} s")
    return spark


@contextlib.contextmanager
def _progress(run: CopyRun) -> Iterator[None]:
    """A line each second at most: tables, parts, bytes, what is being done, and how long it will take."""
    bar: list[Bar] = []

    def say() -> None:
        with (
            contextlib.suppress(psycopg.Error, LakeforkError),
            connect(run.context.dsn, check_version=False) as connection,
        ):
            row = connection.execute(SQL["copy_totals"], {"copy_id": run.copy_id}).fetchone()
            if row:
                bar[:] = bar or [run.context.bar(max(row["bytes"], 1))]
                running = row["running"] or []
                bar[0].reach(
                    row["bytes_done"],
                    f"{row['parts_done']:,} of {row['parts']:,} part(s), {row['rows_done']:,} rows, "
                    f"{row['bytes_done'] / 1e6:,.0f} of {row['bytes'] / 1e6:,.0f} MB "
                    f"({bar[0].per_second(row['bytes_done']) / 1e6:,.0f} MB/s), "
                    f"step {row['steps_done']:,} of {row['steps']:,}{': ' + running[0] if running else ''}",
                )

    with reporting(say, PROGRESS_SECONDS):
        yield


def _dry_run(context: JobContext, params: PostgresCopyParams, source: Endpoint, identity: Identity) -> dict[str, Any]:
    """The plan alone, under a snapshot of its own; nothing is written anywhere."""
    with contextlib.closing(source.open_source(None)) as session, source_errors(source.name), all_domain_errors():
        inventory = take_inventory(session, params, identity.version)
        split_tables(session, inventory, params.split_bytes)
    for line in plan_lines(inventory):
        context.progress(line)
    return {
        "tables": len(inventory.tables), "parts": sum(map(len, inventory.parts.values())),
        "bytes": inventory.size_bytes,
        "indexes": len(inventory.indexes), "large_objects": len(inventory.large_objects), "dry_run": True,
    }  # fmt: skip


def plan_lines(inventory: Inventory) -> list[str]:
    lines = [
        f"{table}: {table.size_bytes / 1e6:,.1f} MB in {len(parts)} part(s)"
        + (f", split by {_split_of(table, parts[0].kind)}" if len(parts) > 1 else "")
        for table, parts in sorted(
            ((table, inventory.parts[table.oid]) for table in inventory.tables), key=lambda one: -one[0].size_bytes
        )
    ]
    return lines + list(inventory.notes)


def _split_of(table: Table, kind: str) -> str:
    return f"the key {table.split_key}" if kind == "key" else "blocks"
