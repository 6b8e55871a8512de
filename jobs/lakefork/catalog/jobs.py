"""Reports of jobs."""

from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
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


def take_request(connection: Connection, request_id: str | None) -> None:
    """A job that somebody asked for by a statement has begun."""
    if request_id is not None:
        connection.execute("DELETE FROM lakefork.job_request WHERE request_id = %s", (request_id,))
