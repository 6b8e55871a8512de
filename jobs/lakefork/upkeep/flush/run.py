"""Runs a flush: leases due tables, has Spark write their rows, audits and publishes them, writes the manifests."""

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lakefork.catalog.connection import connect
from lakefork.catalog.flushes import Due, find_due, flushed_before, paused_flushes, tables_with_pending_manifests
from lakefork.catalog.leases import table_lease
from lakefork.catalog.roots import installation_id
from lakefork.catalog.staging import tables_with_leftovers
from lakefork.cold.batch_files import Destination
from lakefork.errors import JobFailedError, LakeforkError, LeaseHeldError, StorageError
from lakefork.garbage import garbage_collection_paused
from lakefork.model.params import FlushParams
from lakefork.model.tables import TableRef
from lakefork.progress import reporting
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import attempt, unwrap
from lakefork.upkeep.flush.facts import MB, Work, plan_flush
from lakefork.upkeep.flush.plan import FlushTask
from lakefork.upkeep.flush.publish import Audit, Totals, publish_all, sync_manifests
from lakefork.upkeep.flush.task import TaskEnvironment, TaskReport, run_task
from lakefork.upkeep.flush.trim import trim_idle_tables, trim_tables
from lakefork.upkeep.staging import discard_leftovers

PROGRESS_SECONDS = 2.0


@garbage_collection_paused()
def run_flush(context: JobContext, params: FlushParams, audit: Audit) -> dict[str, Any]:
    totals = Totals()
    finished = _published_before(context, totals)
    unfinished = _wait_and_repeat(context, lambda: _flush_free_tables(context, params, audit, totals, finished))
    trim_idle_tables(context)
    if totals.failed:
        problems = totals.failed + totals.unwritten + [str(one) for one in unfinished]
        raise JobFailedError("; ".join(problems), totals.as_result())
    if totals.unwritten:
        raise StorageError("; ".join(totals.unwritten))
    if unfinished:
        raise unfinished[0]
    if not totals.tables:
        context.progress("nothing is due")
    return totals.as_result()


def _wait_and_repeat(context: JobContext, flush_free_tables: Callable[[], dict[str, str]]) -> list[LeaseHeldError]:
    """Repeats the flush until no requested table is held by another run; raises if that run continues."""
    while held := flush_free_tables():
        try:
            context.wait_for_leases(held)
        except LeaseHeldError as error:
            return [error]
    return []


def _flush_free_tables(
    context: JobContext, params: FlushParams, audit: Audit, totals: Totals, finished: set[TableRef]
) -> dict[str, str]:
    """Flushes the tables that no other run works on, and adds them to finished; returns the leases of the others that
    were asked for, with the tables' names.
    """
    asked_at = None if params.user_id is not None else _now(context)
    due = [one for one in _find_due(context, params) if one.table not in finished]
    left = tables_with_pending_manifests(context.connection) | tables_with_leftovers(context.connection, "flush")
    leased = _lease(context, due, left)
    mine = [one for one in due if one.table in leased]
    finished |= leased
    discard_leftovers(context, sorted(leased))
    if mine:
        _flush(context, mine, audit, totals, asked_at)
    sync_manifests(context, sorted(leased), totals)
    return _held(context, params, [one for one in due if one.table not in leased])


def _held(context: JobContext, params: FlushParams, others: Sequence[Due]) -> dict[str, str]:
    """Returns the leases of requested tables that other runs hold; merely due ones are left to those runs."""
    everything = params.force or params.is_targeted
    asked_for = [one for one in others if everything or one.reason == "requested"]
    for name in sorted({str(one) for one in others} - {str(one) for one in asked_for}):
        context.progress(f"{name} is being worked on by another run: skipped")
    return {one.lease: str(one) for one in asked_for}


def _now(context: JobContext) -> datetime.datetime:
    """Returns the time of Postgres."""
    row = context.connection.execute("SELECT clock_timestamp() AS now").fetchone()
    assert row is not None  # noqa: S101 - a query without FROM
    now: datetime.datetime = row["now"]
    return now


def _published_before(context: JobContext, totals: Totals) -> set[TableRef]:
    """Returns the tables that an earlier attempt of this run published; new work needs a new run."""
    done: set[TableRef] = set()
    for before in flushed_before(context.connection, context.run.run_id):
        done.add(TableRef(before.catalog_id, before.table_id))
        totals.add(before.counts, before.snapshot_id)
    if done:
        context.progress(f"{len(done)} table(s) were published by an earlier attempt of this run")
    return done


def _find_due(context: JobContext, params: FlushParams) -> list[Due]:
    policy = context.settings.flush
    found = find_due(
        context.connection, catalog=params.catalog, namespace=params.namespace, table=params.table,
        user_id=params.user_id, force=params.force, default_rows=policy.default_rows,
        default_seconds=policy.default_interval_seconds,
    )  # fmt: skip
    if not params.force:
        _report_paused(context, {one.table for one in found})
    return found


def _report_paused(context: JobContext, due: set[TableRef]) -> None:
    for paused in paused_flushes(context.connection):
        if paused.table not in due:
            context.progress(str(paused))


def _lease(context: JobContext, due: Sequence[Due], left: set[TableRef]) -> set[TableRef]:
    """Leases the free tables until the run ends. left: tables with staged files of earlier runs."""
    names = {table_lease(*table): table for table in {one.table for one in due} | left}
    return {names[name] for name in context.leases.acquire_available(context.connection, names)}


def _flush(
    context: JobContext, due: Sequence[Due], audit: Audit, totals: Totals, asked_at: datetime.datetime | None
) -> None:
    trimming = _Background(lambda: trim_tables(context, sorted({one.table for one in due})))
    spark = _start_spark(context)
    trimming.wait()
    reading = connect(context.dsn, check_version=False)
    try:
        work = plan_flush(context.settings.flush, reading, due, spark.defaultParallelism, asked_at)
        context.progress(f"to flush: {work}")
        reports = _run_tasks(context, spark, work) if work.tasks else []
    finally:
        reading.close()  # nothing to commit
    context.check_leases()
    publish_all(context, work, reports, audit, totals)


class _Background:
    """Work in a thread; wait() returns when it is done, or raises its error."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error


def _start_spark(context: JobContext) -> Any:
    from pyspark import SparkContext

    started = time.monotonic()
    spark = SparkContext.getOrCreate()
    context.progress(f"Spark {spark.master} is up after {time.monotonic() - started:.1f} s")
    return spark


def _run_tasks(context: JobContext, spark: Any, work: Work) -> list[TaskReport]:
    settings = context.settings.flush
    destination = Destination(
        context.run.job_id, installation_id(context.connection), context.storage, settings.file_mb * MB,
        settings.bloom_filter_fpp,
    )  # fmt: skip
    environment = TaskEnvironment(context.dsn, work.read.name, settings.slice_mb * MB, destination)
    tables = spark.broadcast(work.tables)
    done = [spark.accumulator(0) for _ in range(4)]

    def flush(task: FlushTask) -> TaskReport | LakeforkError:
        # Uses only other modules, so that workers need not import this one.
        report = attempt(lambda: run_task(environment, tables.value, task))
        if isinstance(report, TaskReport):
            for counter, amount in zip(done, report.amounts, strict=True):
                counter.add(amount)
        return report

    with _live_line(context, work, done):
        reports: list[TaskReport | LakeforkError] = spark.parallelize(work.tasks, len(work.tasks)).map(flush).collect()
    done_reports = [unwrap(report) for report in reports]
    for line in (line for report in done_reports for line in report.said):
        context.progress(line)
    return done_reports


@contextlib.contextmanager
def _live_line(context: JobContext, work: Work, done: Sequence[Any]) -> Iterator[None]:
    """Logs progress every few seconds; Spark reports a task only when it ends."""
    bar = context.bar(work.versions)

    def say() -> None:
        users, read, rows, files = (counter.value for counter in done)
        bar.reach(
            read,
            f"{len(work.tables):,} table(s), {users:,} of {work.users:,} user(s): {read:,} of {work.versions:,} "
            f"versions read ({bar.per_second(read):,.0f} rows/s), {rows:,} rows in {files:,} file(s) written",
        )

    with reporting(say, PROGRESS_SECONDS):
        yield
