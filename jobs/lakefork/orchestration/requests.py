"""Jobs that somebody asked for by a statement: a trigger that listens to Postgres, and runs of the DAG for each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Asset, AssetWatcher, Param, task
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from lakefork.model.params import JobParams
from lakefork.orchestration.database import catalog_dsn, catalog_dsn_async
from lakefork.orchestration.defaults import DUE_CHECK_TIMEOUT, cron_schedule
from lakefork.orchestration.params import trigger_form
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.settings import load_settings

LONGEST_WAIT = 60.0
LOOK_SECONDS = 30.0  # in case a notification was lost


class JobRequestTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow is not typed for us
    """Fires when a statement such as BACKUP DATABASE has asked for a job."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self.job = job

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"job": self.job}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Runs for ever, and reconnects if the database is unreachable."""
        wait = 1.0
        while True:
            try:
                async for requests in self._listen(await catalog_dsn_async()):
                    wait = 1.0
                    yield TriggerEvent({"requests": requests})
            except psycopg.Error as error:
                self.log.warning("no connection to the catalog, retrying in %s s: %s", wait, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)

    async def _listen(self, dsn: str) -> AsyncIterator[list[str]]:
        """New requests, each time there are some that were not there before."""
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name="lakefork trigger")
        known: set[str] = set()
        async with connection:
            await connection.execute(f"LISTEN lakefork_{self.job}")
            while True:
                rows = await connection.execute(
                    "SELECT request_id FROM lakefork.job_request WHERE job = %s", (self.job,)
                )
                found = {request_id async for (request_id,) in rows}
                if found - known:
                    yield sorted(found - known)
                known = found
                async for _ in connection.notifies(timeout=LOOK_SECONDS, stop_after=1):
                    pass


def backup_schedule() -> Any:
    return cron_schedule(load_settings().backup.schedule)


def requests_of(job: str) -> Asset:
    """Changes when somebody asks for the job."""
    watcher = AssetWatcher(name=f"{job}_requested", trigger=JobRequestTrigger(job))
    return Asset(f"lakefork_{job}_wanted", watchers=[watcher])


def form_without_required(params: type[JobParams], name: str) -> dict[str, Param]:
    """Runs by event and by schedule come without parameters; `name` is what the job itself requires."""
    form = trigger_form(params)
    field = form[name]
    return {**form, name: Param(default=None, title=name, description=field.description, type=["string", "null"])}


def run_requests(params: type[JobParams], required: str) -> None:
    """A run with parameters does the job; one without starts a run for each request, and for what is configured."""
    job = params.job

    @task.branch(execution_timeout=DUE_CHECK_TIMEOUT)  # type: ignore[untyped-decorator]  # Airflow is not typed for us
    def choose(params: dict[str, Any]) -> str:
        return job if params[required] else "find"

    @task(execution_timeout=DUE_CHECK_TIMEOUT)  # type: ignore[untyped-decorator]
    def find(dag_run: Any) -> list[dict[str, Any]]:
        return find_runs(job, dag_run.run_type, dag_run.run_id)

    found = find()
    TriggerDagRunOperator.partial(
        task_id="start", trigger_dag_id=job, skip_when_already_exists=True, execution_timeout=DUE_CHECK_TIMEOUT
    ).expand_kwargs(found)
    choose() >> [LakeforkJobOperator(task_id=job, job=job), found]


def find_runs(job: str, run_type: str, run_id: str) -> list[dict[str, Any]]:
    """What TriggerDagRunOperator takes for each run. The same request has the same run id, so that it runs once."""
    from lakefork.catalog.connection import connect

    with connect(catalog_dsn()) as connection:
        rows = connection.execute(
            "SELECT request_id, params FROM lakefork.job_request WHERE job = %s ORDER BY requested_at", (job,)
        ).fetchall()
    found = [
        {"trigger_run_id": f"request__{row['request_id'].rpartition('/')[2]}", "conf": row["params"]} for row in rows
    ]
    if job == "namespace_backup" and run_type == "scheduled":
        found += [
            {"trigger_run_id": f"{run_id}__{number}", "conf": conf} for number, conf in enumerate(configured_backups())
        ]
    print(f"{len(found):,} run(s) to start")  # noqa: T201 - the task log
    return found


def configured_backups() -> list[dict[str, Any]]:
    """By the settings backup.*; none without a place."""
    wanted = load_settings().backup
    if not wanted.to:
        return []
    names: list[str | None] = [name.strip() for name in wanted.namespaces.split(",") if name.strip()]
    common = {"catalog": wanted.catalog, "to": wanted.to, "incremental": wanted.incremental, "keep": wanted.keep}
    return [{**common, "namespace": name} for name in names or [None]]
