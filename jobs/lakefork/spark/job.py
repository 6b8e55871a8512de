"""Runs a job: parameters, lease, heartbeat, result line, report and exit code."""

import argparse
import contextlib
import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import psycopg

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.jobs import JobRun, Usage, beat_job, finish_job, start_job
from lakefork.catalog.leases import HeldLease, Leases, find_held
from lakefork.database_errors import DRIVER_ERRORS, all_domain_errors, database_error
from lakefork.errors import (
    DatabaseError,
    JobFailedError,
    LakeforkError,
    LeaseLostError,
    SetupError,
    StorageError,
    UnexpectedError,
    os_reason,
)
from lakefork.model.params import JobParams, parse_params
from lakefork.progress import Bar
from lakefork.settings import Settings, load_settings
from lakefork.spark.lease_wait import LeaseWait
from lakefork.spark.usage import UsageMeter
from lakefork.storage import StorageOptions
from lakefork.storage.installation import Installation

Params = TypeVar("Params", bound=JobParams)
Result = TypeVar("Result")
SAMPLE_SECONDS = 1.0
MOST_SILENT_SECONDS = 30.0  # lakefork.status_of_silent considers a job dead after two minutes
ATTEMPTS = 6


@dataclass
class JobContext:
    """The connection, settings and Spark session of a job, and its leases."""

    run: JobRun
    settings: Settings
    dsn: str
    connection: Connection
    leases: Leases
    lease_lost: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._lease_wait = LeaseWait(self._find_held, lambda line: self.progress(line), self.leases.seconds)

    @property
    def installation(self) -> Installation:
        return Installation(self.dsn, self.settings)

    @property
    def storage(self) -> StorageOptions:
        return self.installation.storage

    def progress(self, line: str) -> None:
        print(f"{self.run.job}: {line}", flush=True)  # noqa: T201 - the task log

    def bar(self, total: int) -> Bar:
        return Bar(self.progress, total)

    def reconnect(self) -> None:
        """Connects again after the connection broke; waits for a Postgres that restarts."""
        self.connection.close()
        for wait in (0.1, 0.5, 1, 2, 4, 8):
            with contextlib.suppress(SetupError):
                self.connection = connect(self.dsn, check_version=False)
                return
            time.sleep(wait)
        try:
            self.connection = connect(self.dsn, check_version=False)
        except SetupError as error:  # it was reachable when the job began
            raise DatabaseError(str(error)) from error

    def commit_idempotently(self, publish: Callable[[], Result]) -> Result:
        """Commits with a key; if the connection breaks at COMMIT, commits again, which returns the first result or
        writes.
        """
        return self.with_reconnect("publishing", publish)

    def with_reconnect(self, what: str, action: Callable[[], Result]) -> Result:
        """Repeats an idempotent operation on a new connection if the connection broke while it was idle."""
        for _ in range(ATTEMPTS - 1):
            try:
                return action()
            except psycopg.OperationalError as error:
                self.progress(f"retrying after a problem while {what}: {database_error(error)}")
                self.reconnect()
        with all_domain_errors():
            return action()

    def take_lease(self, name: str) -> None:
        """Takes the lease; waits for another holder for as long as it may be dead."""
        while not self.leases.acquire_available(self.connection, [name]):
            self._lease_wait.until_free({name: name})

    def wait_for_leases(self, names: Mapping[str, str]) -> None:
        """Releases the leases of this run, to avoid deadlocks, and waits until these are free. names: lease names, each
        with the text for people.
        """
        self.leases.release(self.connection)
        self._lease_wait.until_free(names)

    def _find_held(self, names: Iterable[str]) -> list[HeldLease]:
        return self.with_reconnect("waiting for leases", lambda: find_held(self.connection, names))

    def check_leases(self) -> None:
        """Raises unless the leases are held; call it before anything that changes or deletes."""
        if self.lease_lost.is_set():
            raise LeaseLostError(f"{self.run.job} lost its lease and stops")
        self.with_reconnect("renewing its leases", lambda: self.leases.renew(self.connection))


def run_job(params_class: type[Params], action: Callable[[JobContext, Params], dict[str, Any]]) -> NoReturn:
    """Runs the main function of every jobs/*.py; ends the process."""
    arguments = _parse_arguments()
    try:
        result = _run(params_class, arguments, action)
    except Exception as error:
        _fail(params_class.job, str(_as_one_sentence(error)))
    print(json.dumps(result), flush=True)  # noqa: T201 - the contract: one JSON line, last on stdout
    _exit(0)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--params", default="{}", help="the parameters as one JSON object")
    parser.add_argument("--run-id", default=f"cli__{time.strftime('%Y%m%dT%H%M%S')}_{uuid.uuid4().hex[:8]}")
    return parser.parse_args()


def _run(
    params_class: type[Params], arguments: argparse.Namespace, action: Callable[[JobContext, Params], dict[str, Any]]
) -> dict[str, Any]:
    settings = load_settings()
    if settings.dsn is None:
        raise SetupError("LAKEFORK_DSN is not set: start jobs with `lakefork run` or through Airflow")
    job = params_class.job
    job_id = f"{job}/{arguments.run_id}/{uuid.uuid4().hex[:8]}"
    trace = os.environ.get("LAKEFORK_TRACE", f"cli/{job_id}")
    run = JobRun(job_id, job, arguments.run_id, trace, settings.node_id)
    started = time.monotonic()
    leases = Leases(job_id, settings.jobs.lease_seconds)
    context = JobContext(run, settings, settings.dsn, connect(settings.dsn), leases)
    # The report starts first, so that it can also record why the job did not begin.
    start_job(context.connection, run, _as_given(arguments.params))
    with contextlib.ExitStack() as stack:
        meter = stack.enter_context(_Heartbeat(context))
        stack.callback(lambda: _release(context))
        try:
            params = parse_params(job, arguments.params)
            assert isinstance(params, params_class)  # noqa: S101 - parse_params looks it up by the same name
            if name := params.lease_name():
                context.take_lease(name)
            counts = action(context, params)
        except Exception as error:
            translated = _as_one_sentence(error)
            _report_failure(context, meter.usage, translated)
            raise translated from error
        except BaseException:
            _report_failure(context, meter.usage, UnexpectedError("it was interrupted"))
            raise
        usage = meter.usage
        result = {
            "run_id": run.run_id,
            "job": run.job,
            **counts,
            "seconds": round(time.monotonic() - started, 3),
            "peak_memory_mb": usage.peak_memory_mb,
        }
        context.with_reconnect("reporting", lambda: finish_job(context.connection, run, usage, result=result))
        return result


def _release(context: JobContext) -> None:
    """Releases the leases; a failure does not fail the job, because leases expire by themselves."""
    try:
        context.leases.release(context.connection)
    except (psycopg.Error, LakeforkError) as error:
        context.progress(f"its leases will expire by themselves: {_as_one_sentence(error)}")


def _as_given(text: str) -> dict[str, Any]:
    """Returns the parameters as given for the report; parse_params refuses what is not an object."""
    with contextlib.suppress(ValueError):
        given = json.loads(text)
        if isinstance(given, dict):
            return given
    return {}


def _as_one_sentence(error: Exception) -> LakeforkError:
    """Translates any error to one sentence; the traceback is in the log above."""
    if isinstance(error, LakeforkError):
        return error
    if isinstance(error, DRIVER_ERRORS):
        return database_error(error)
    if isinstance(error, OSError):
        return StorageError(f"a file cannot be read or written: {os_reason(error)}")
    traceback.print_exception(error)
    return UnexpectedError(f"unexpected error in Spark or Lakefork ({_reason(error)}): see above")


def _reason(error: Exception) -> str:
    """Returns the first informative line; Spark begins with the name of the call."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("An error occurred while calling")] or lines
    return lines[0].rstrip(":.") if lines else type(error).__name__


def _report_failure(context: JobContext, usage: Usage, error: LakeforkError) -> None:
    """Reports the failure if possible; an unreachable Postgres must not hide the reason."""
    failed = error.result if isinstance(error, JobFailedError) else None
    try:
        if context.connection.broken:
            context.reconnect()
        finish_job(context.connection, context.run, usage, result=failed, error=str(error), retryable=error.retryable)
    except (psycopg.Error, LakeforkError) as problem:
        context.progress(f"the failure could not be reported to Postgres: {_as_one_sentence(problem)}")


class _Heartbeat:
    """Renews the leases and reports usage from a thread with its own connection."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._meter = UsageMeter()
        self._parent = os.getppid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.usage = self._meter.sample()

    def __enter__(self) -> "_Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        context = self._context
        renewed = time.monotonic()
        while not self._stop.is_set():
            try:
                with connect(context.dsn, check_version=False) as connection:
                    for moment in self._beats(connection):
                        renewed = moment
            except (psycopg.Error, SetupError) as error:  # a restarting Postgres comes back
                self._leave_with_spark()
                if time.monotonic() - renewed < context.leases.seconds and not self._stop.wait(SAMPLE_SECONDS):
                    continue
                self._give_up(error)
                return
            except Exception as error:
                self._give_up(error)
                return

    def _beats(self, connection: Connection) -> Iterator[float]:
        """Yields the time of each renewal of the leases."""
        context = self._context
        next_report = time.monotonic()
        while not self._stop.wait(SAMPLE_SECONDS):
            self._leave_with_spark()
            self.usage = self._meter.sample()
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + min(context.leases.seconds / 4, MOST_SILENT_SECONDS)
                context.leases.renew(connection)
                beat_job(connection, context.run, self.usage)
                yield time.monotonic()

    def _leave_with_spark(self) -> None:
        """Ends the process when its JVM dies, because killing a job kills the JVM that started this process."""
        if os.getppid() != self._parent:
            os._exit(1)

    def _give_up(self, error: Exception) -> None:
        self._context.lease_lost.set()
        self._context.progress(f"the heartbeat stopped: {_as_one_sentence(error)}")


def _fail(job: str, message: str) -> NoReturn:
    print(f"{job} failed: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the one line that matters, last
    _exit(1)


def _exit(code: int) -> NoReturn:
    """Exits at once, because an orderly stop of Spark's gateway takes a second and may hang after a lost JVM."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
