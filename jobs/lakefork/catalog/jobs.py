"""What a run of a job reports of itself, and the lease under which it works."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
from lakefork.errors import LeaseHeldError, LeaseLostError
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class Usage:
    peak_memory_mb: int
    cpu_seconds: float


@dataclass(frozen=True)
class JobRun:
    job_id: str
    job: str
    run_id: str
    trace: str  # unique: 'cli/' and the job's id, or DAG/run/task/try of Airflow
    node_id: str


@dataclass(frozen=True)
class HeldLease:
    """What another run may work on; seconds_left: for so long, if it does not renew it."""

    name: str
    holder: str
    since: str
    seconds_left: float

    def __str__(self) -> str:
        return f"{self.holder} since {self.since} UTC"


class Leases:
    """What one job may work on exclusively, for as long as it renews them all together."""

    def __init__(self, holder: str, seconds: float) -> None:
        self.holder = holder
        self.seconds = seconds
        self.names: set[str] = set()
        self._lock = threading.Lock()  # the heartbeat must not miss what is being given back

    def take(self, connection: Connection, name: str) -> None:
        if not self.take_free(connection, [name]):
            held = find_held(connection, [name])
            holder = held[0] if held else "another run"
            raise LeaseHeldError(f"{name} is being worked on by {holder}: wait for it, or stop it")

    def take_free(self, connection: Connection, names: Iterable[str]) -> set[str]:
        """Those of the leases that nobody else holds; they are this job's from now on."""
        rows = connection.execute(
            "SELECT lakefork.take_leases(%s, %s, %s) AS name", (list(names), self.holder, self.seconds)
        )
        taken = {row["name"] for row in rows}
        self.names |= taken
        return taken

    def renew(self, connection: Connection) -> None:
        with self._lock:
            expected = len(self.names)  # before asking: others may be taken meanwhile
            row = connection.execute(
                "SELECT lakefork.renew_leases(%s, %s) AS held", (self.holder, self.seconds)
            ).fetchone()
        if row is None or row["held"] < expected:
            raise LeaseLostError(f"{self.holder} lost its lease on {', '.join(sorted(self.names))}: it stops here")

    def release(self, connection: Connection) -> None:
        with self._lock:
            connection.execute("SELECT lakefork.release_leases(%s)", (self.holder,))
            self.names.clear()


def find_held(connection: Connection, names: Iterable[str]) -> list[HeldLease]:
    """Those of the leases that somebody has."""
    return [HeldLease(**row) for row in connection.execute(_SQL["held_leases"], {"names": list(names)})]


def start_job(connection: Connection, run: JobRun, params: dict[str, Any]) -> None:
    connection.execute(_SQL["start_job"], {**vars(run), "params": Jsonb(params)})


def beat_job(connection: Connection, run: JobRun, usage: Usage) -> None:
    connection.execute(_SQL["beat_job"], {"job_id": run.job_id, **vars(usage)})


def finish_job(
    connection: Connection,
    run: JobRun,
    usage: Usage,
    *,
    result: dict[str, Any] | None,
    error: str | None = None,
    retryable: bool | None = None,
) -> None:
    connection.execute(
        _SQL["finish_job"],
        {
            "job_id": run.job_id,
            "status": "failed" if error else "completed",
            "result": None if result is None else Jsonb(result),
            "error": error,
            "retryable": retryable,
            **vars(usage),
        },
    )
