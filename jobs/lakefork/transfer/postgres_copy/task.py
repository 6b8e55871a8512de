"""What a Spark task of a copy does: takes steps until none are left, in as many threads as it was given."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.connection import open_connection
from lakefork.errors import DatabaseError, LakeforkError, LeaseLostError
from lakefork.transfer.postgres_copy.plan import MB, Table
from lakefork.transfer.postgres_copy.sessions import Endpoint, Session
from lakefork.transfer.postgres_copy.state import next_steps

POLL_SECONDS = 0.1
SMALL_BYTES = 1 * MB
MOST_STEPS = 40
ATTEMPTS = 4

Step = Mapping[str, Any]
Done = dict[str, Any]


@dataclass(frozen=True)
class TaskEnvironment:
    """What a task needs besides its steps. It holds connection strings: it goes to executors, and nowhere else."""

    dsn: str
    copy_id: str
    job_id: str
    source: Endpoint
    snapshot: str | None
    limits: Mapping[str, int]


class Executor(Protocol):
    """Does steps of a kind; into Postgres, or into the lake."""

    def do(self, worker: "Worker", kind: str, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
        """What is recorded of each step; done twice, it leaves what once would have left."""


@dataclass
class Worker:
    """A thread's connections; opened when they are needed, and again when they broke."""

    environment: TaskEnvironment
    name: str
    _source: Session | None = None
    _opened: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Session:
        if self._source is None or self._source.closed:
            self._source = self.environment.source.open_source(self.environment.snapshot)
        return self._source

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Something with close() that is made once."""
        if name not in self._opened:
            self._opened[name] = make()
        return self._opened[name]

    def close(self) -> None:
        for one in (self._source, *self._opened.values()):
            with contextlib.suppress(Exception):
                if one is not None:
                    one.close()
        self._source, self._opened = None, {}


def run_workers(
    environment: TaskEnvironment, executor: Executor, tables: Mapping[int, Table], task: int, threads: int
) -> None:
    """Returns when no steps are left; raises the first error of any thread."""
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            _work(environment, executor, tables, f"{environment.job_id}/{task}.{number}")
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise min(errors, key=lambda error: isinstance(error, LeaseLostError))


def _work(environment: TaskEnvironment, executor: Executor, tables: Mapping[int, Table], name: str) -> None:
    worker = Worker(environment, name)
    parent = os.getppid()
    try:
        done: list[Done] = []
        while os.getppid() == parent:
            steps, are_left = _next(worker, done)
            done = []
            if steps:
                done = _do_again(worker, executor, steps, tables)
            elif are_left:
                time.sleep(POLL_SECONDS)
            else:
                return
    except Exception as error:
        _report(environment, error)
        raise
    finally:
        worker.close()


def _next(worker: Worker, done: Sequence[Done]) -> tuple[list[dict[str, Any]], bool]:
    """Safe to ask again: what is done stays done, and steps that were given out in vain are given out once more."""
    environment = worker.environment
    for attempt in range(ATTEMPTS):
        try:
            catalog = worker.kept("catalog", lambda: open_connection(environment.dsn, autocommit=True))
            return next_steps(
                catalog,
                environment.copy_id,
                environment.job_id,
                worker.name,
                done,
                environment.limits,
                SMALL_BYTES,
                MOST_STEPS,
            )
        except psycopg.OperationalError:
            if attempt == ATTEMPTS - 1:
                raise
            worker.close()
            time.sleep(2**attempt)
    raise AssertionError("unreachable")


def _do_again(worker: Worker, executor: Executor, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
    """A connection that broke is opened again: under the same snapshot, and with what the target has by now."""
    for attempt in range(ATTEMPTS):
        try:
            return executor.do(worker, steps[0]["kind"], steps, tables)
        except DatabaseError:
            if attempt == ATTEMPTS - 1:
                raise
            worker.close()
            time.sleep(2**attempt)
    raise AssertionError("unreachable")


def _report(environment: TaskEnvironment, error: Exception) -> None:
    """Others stop as well: what is left can be resumed."""
    if isinstance(error, LeaseLostError):
        return  # the copy belongs to somebody else by now
    text = str(error) if isinstance(error, LakeforkError) else type(error).__name__
    with (
        contextlib.suppress(psycopg.Error),
        psycopg.connect(environment.dsn, autocommit=True, row_factory=dict_row) as catalog,
    ):
        catalog.execute(
            "UPDATE lakefork.copy SET status = 'failed', error = coalesce(error, %s) "
            "WHERE copy_id = %s AND status = 'running'",
            (text, environment.copy_id),
        )


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], float]]:
    started = time.monotonic()
    yield lambda: round(time.monotonic() - started, 3)
