"""The engine's pool of workers; a worker is killed and replaced when its statement must end."""

import contextlib
import contextvars
import json
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakefork.errors import (
    CancelledError,
    InvalidInputError,
    LakeforkError,
    LimitError,
    PermissionDeniedError,
    SetupError,
    StorageError,
    TooLongError,
)
from lakefork.sql.results import joined
from lakefork.sql.workers.launch import Zygote
from lakefork.sql.workers.messages import (
    END,
    ERROR,
    ROWS,
    ClosedError,
    Probe,
    Request,
    receive,
    rows_of,
    send_request,
)
from lakefork.storage import StorageOptions
from lakefork.watchdog import TimeLimit, time_limit

STORAGE_VARIABLES = ("AWS_", "LAKEFORK_S3_")
SECONDS_IN_TRANSACTION = 1.0  # limit for users' expressions while a transaction or a lock is held
TIMEOUT_MESSAGE = "the statement took too long and was stopped (setting sql.statement_timeout_seconds)"
WORKER_START_SECONDS = 60.0  # of a worker; they do not count for the statement
ANSWER_SECONDS = 5.0  # for Postgres, beyond the time of a statement and after it was cancelled
END_REPORT_SECONDS = 5.0  # until the zygote reports the end of a worker
_BY_CODE = {
    error.code: error for error in (InvalidInputError, LimitError, PermissionDeniedError, SetupError, StorageError)
}


@dataclass(frozen=True)
class WorkerConfig:
    storage: StorageOptions
    memory_mb: int
    threads: int
    hot_cache_mb: int
    timeout_seconds: float

    def as_json(self) -> str:
        environment = {name: value for name, value in os.environ.items() if name.startswith(STORAGE_VARIABLES)}
        return json.dumps({**asdict(self), "environment": environment})


class Worker:
    """A worker process; it serves one statement at a time."""

    def __init__(self, sock: socket.socket, report: socket.socket) -> None:
        self.sock = sock
        self._report = report
        self._pidfd: int | None = None
        self._is_ready = False
        self.pid: int | None = None

    def wait_until_ready(self) -> float:
        """Waits until a new worker has started; returns the seconds it took."""
        started = time.monotonic()
        if not self._is_ready:
            self.sock.settimeout(WORKER_START_SECONDS)
            try:
                receive(self.sock)
            except TimeoutError:
                raise WorkerLostError("no query worker could be started; is the machine overloaded?") from None
            self._is_ready = True
        return time.monotonic() - started

    def is_alive(self) -> bool:
        """Tells whether an idle worker is alive: it must not have sent anything except that it is ready."""
        self.sock.setblocking(False)
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def kill(self) -> None:
        self._identify()
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)

    def ended_by(self) -> Mapping[str, int]:
        """Returns the signal that ended it and its peak growth in KB; empty if unknown."""
        self._identify()
        text = self._said()
        return json.loads(text) if text else {}

    def close(self) -> None:
        self.sock.close()
        self._report.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _identify(self) -> None:
        if self.pid is not None or not self._is_told():
            return
        text, fds, _, _ = socket.recv_fds(self._report, 64, 1)
        if text:
            self.pid, self._pidfd = int(text), next(iter(fds), None)

    def _said(self) -> bytes:
        return self._report.recv(1024) if self._is_told() else b""

    def _is_told(self) -> bool:
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        return bool(poll.poll(END_REPORT_SECONDS * 1000))


class Killable(Protocol):
    def kill(self) -> None: ...


class _Query:
    """What Postgres does for a statement. A server that hangs does not even answer whoever cancels it."""

    def __init__(self, cancel: Callable[[], None], shut: Callable[[], None], limit: TimeLimit) -> None:
        self._cancel, self._shut, self._limit = cancel, shut, limit
        self._cancelling: threading.Thread | None = None

    def kill(self) -> None:
        self._limit.shorten(ANSWER_SECONDS)
        self._cancelling = threading.Thread(target=self._cancel, name="cancelling", daemon=True)
        self._cancelling.start()

    def settle(self) -> None:
        """A cancellation that is still on its way must not hit the connection's next statement."""
        if self._cancelling is not None and not self._limit.is_over:
            self._cancelling.join(ANSWER_SECONDS)
            if self._cancelling.is_alive():
                self._shut()


class Cancellation:
    """Ends a statement from another thread: whatever worker or connection it uses is stopped, and it uses no other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[Killable] = []
        self.is_cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            for worker in self._workers:
                worker.kill()

    @contextlib.contextmanager
    def watch(self, worker: Killable) -> Iterator[None]:
        with self._lock:
            self.check()
            self._workers.append(worker)
        try:
            yield
        finally:
            with self._lock:
                self._workers.remove(worker)

    def check(self) -> None:
        if self.is_cancelled:
            raise CancelledError("the statement was cancelled")


_cancellation: contextvars.ContextVar[Cancellation | None] = contextvars.ContextVar("cancellation", default=None)
_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("deadline", default=math.inf)


@contextlib.contextmanager
def statement_limits(seconds: float, cancellation: Cancellation | None) -> Iterator[None]:
    """Limits everything inside the block to a time, and to the cancellation of its statement."""
    cancelled, timed = _cancellation.set(cancellation), _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _cancellation.reset(cancelled)
        _deadline.reset(timed)


@contextlib.contextmanager
def cancelling(cancel: Callable[[], None], shut: Callable[[], None]) -> Iterator[None]:
    """Whoever cancels the statement also cancels what it asks of Postgres, which has some seconds to answer.

    The same at the end of its time, as Postgres itself does not keep to its time limits while it hangs.
    """
    cancellation = _cancellation.get()
    with time_limit(_deadline.get() + ANSWER_SECONDS, shut) as limit:
        if cancellation is None:
            yield
            return
        query = _Query(cancel, shut, limit)
        try:
            with cancellation.watch(query):
                yield
        finally:
            query.settle()


def check_time() -> None:
    """Raises if the statement has no time left."""
    if time.monotonic() > _deadline.get():
        raise TooLongError(TIMEOUT_MESSAGE)


class QueryWorkers:
    """A pool with a maximum number of processes, started on demand."""

    def __init__(self, config: WorkerConfig, most: int) -> None:
        """Starts the first worker at once, because the process that it is forked from takes a while."""
        self._config, self._most = config, most
        self._changed = threading.Condition()
        self._idle: list[Worker] = [] if Zygote.has_forked() else [self._fork()]
        self._busy: set[Worker] = set()
        self._is_closed = False

    def run(self, request: Request | Probe, *, seconds: float | None = None) -> pa.Table:
        """Returns all rows of the result. seconds: a time limit below that of the statement."""
        return joined(list(self.stream(request, seconds=seconds)))

    def stream(self, request: Request | Probe, *, seconds: float | None = None) -> Generator[pa.Table, None, None]:
        """Yields rows as they arrive; stopping early or an interrupt kills the worker."""
        check_time()
        deadline = min(time.monotonic() + (seconds or self._config.timeout_seconds), _deadline.get())
        is_begun = False
        try:
            with contextlib.closing(self._stream(request, deadline)) as parts:
                for rows in parts:
                    is_begun = True
                    yield rows
        except WorkerLostError:
            if is_begun:
                raise
            yield from self._stream(request, deadline)  # on another worker

    def _stream(self, request: Request | Probe, deadline: float) -> Generator[pa.Table, None, None]:
        cancellation = _cancellation.get() or Cancellation()
        worker = self._acquire(deadline)
        is_reusable = False
        try:
            with cancellation.watch(worker):
                error = None
                waited = worker.wait_until_ready()
                deadline += waited
                _deadline.set(_deadline.get() + waited)
                worker.sock.settimeout(_left(deadline))
                send_request(worker.sock, request)
                while (frame := _next_frame(worker, deadline)).kind != END:
                    if frame.kind == ROWS:
                        yield rows_of(frame.body)
                    elif frame.kind == ERROR:
                        error = self._error(frame.json["code"], frame.json["message"])
            is_reusable = not frame.json["retired"]
            if error:
                raise error
        except TimeoutError:
            raise TooLongError(TIMEOUT_MESSAGE) from None
        except ClosedError:
            cancellation.check()
            raise self._reason_of_end(worker) from None
        finally:
            self._release(worker, is_reusable=is_reusable)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            for worker in self._busy:
                worker.kill()
            for worker in self._idle:
                worker.close()  # it ends when it notices
            self._idle.clear()
            self._changed.notify_all()

    def _fork(self) -> Worker:
        return Worker(*Zygote.fork(self._config.as_json()))

    def _acquire(self, deadline: float) -> Worker:
        """Acquires the most recently used worker, because its caches are the warmest."""
        with self._changed:
            while not self._is_closed:
                if self._idle:
                    worker = self._idle.pop()
                    if not worker.is_alive():
                        worker.close()
                        continue
                elif len(self._busy) < self._most:
                    worker = self._fork()
                else:
                    if not self._changed.wait(max(0, deadline - time.monotonic())):
                        raise TooLongError(
                            f"all {self._most} query workers are busy: try again, or raise the setting sql.workers"
                        )
                    continue
                self._busy.add(worker)
                return worker
        raise LakeforkError("the engine was closed")

    def _release(self, worker: Worker, *, is_reusable: bool) -> None:
        """Returns a worker to the pool; replaces one that cannot be reused."""
        if not is_reusable:
            worker.kill()
        with self._changed:
            self._busy.discard(worker)
            if self._is_closed or not is_reusable:
                worker.close()
            elif is_reusable:
                self._idle.append(worker)
            if not self._is_closed and not is_reusable:
                self._idle.insert(0, self._fork())
            self._changed.notify()

    def _error(self, code: str, message: str) -> LakeforkError:
        if code == "out_of_memory":
            return self._too_much_memory()
        return _BY_CODE.get(code, LakeforkError)(message)

    def _too_much_memory(self) -> LimitError:
        return LimitError(f"the statement needed more than {self._config.memory_mb} MB (setting sql.memory_mb)")

    def _reason_of_end(self, worker: Worker) -> LakeforkError:
        ended = worker.ended_by()
        if ended.get("signal") == signal.SIGXCPU:
            return TooLongError(TIMEOUT_MESSAGE)
        if ended.get("grown_kb", 0) >> 10 > self._config.memory_mb:
            return self._too_much_memory()
        if ended.get("signal", signal.SIGKILL) == signal.SIGKILL:
            return WorkerLostError("the process that ran the statement was killed from outside; try again")
        return EngineCrashedError("the statement crashed the query engine, which was restarted; change the statement")


class WorkerLostError(LakeforkError):
    """The worker was killed from outside, perhaps while idle."""

    code = "worker_lost"
    retryable = True


class EngineCrashedError(LakeforkError):
    """DuckDB crashed its process; the statement had no effect."""

    code = "engine_crashed"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _next_frame(worker: Worker, deadline: float) -> Any:
    worker.sock.settimeout(_left(deadline))
    return receive(worker.sock)
