"""What a run of a job reports of itself, and the lease under which it works."""

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
    trace: str
    node_id: str


@dataclass(frozen=True)
class Lease:
    name: str
    holder: str
    token: int
    seconds: float


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


def take_lease(connection: Connection, name: str, holder: str, seconds: float) -> Lease:
    row = connection.execute("SELECT lakefork.take_lease(%s, %s, %s) AS token", (name, holder, seconds)).fetchone()
    if row is None or row["token"] is None:
        raise LeaseHeldError(f"{name} is being worked on by {_holder(connection, name)}: wait for it, or stop it")
    return Lease(name, holder, row["token"], seconds)


def _holder(connection: Connection, name: str) -> str:
    row = connection.execute(
        "SELECT holder, to_char(acquired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS since "
        "FROM lakefork.lease WHERE name = %s",
        (name,),
    ).fetchone()
    return f"{row['holder']} since {row['since']} UTC" if row else "another run"


def renew_lease(connection: Connection, lease: Lease) -> None:
    row = connection.execute(
        "SELECT lakefork.renew_lease(%s, %s, %s, %s) AS held", (lease.name, lease.holder, lease.token, lease.seconds)
    ).fetchone()
    if not row or not row["held"]:
        raise LeaseLostError(f"{lease.holder} lost its lease on {lease.name}: it stops here")


def release_lease(connection: Connection, lease: Lease) -> None:
    connection.execute("SELECT lakefork.release_lease(%s, %s, %s)", (lease.name, lease.holder, lease.token))
