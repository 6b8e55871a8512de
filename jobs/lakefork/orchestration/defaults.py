"""Defaults of all DAGs."""

from datetime import timedelta
from typing import Any

from airflow.sdk import CronTriggerTimetable

from lakefork.model.params import JobParams
from lakefork.orchestration.params import trigger_form

DUE_CHECK_TIMEOUT = timedelta(minutes=10)  # for tasks that only check whether there is work


def cron_schedule(cron: str) -> CronTriggerTimetable:
    """Returns a cron timetable in UTC that skips a run that was just missed, unlike Airflow's default."""
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta(0))


def dag_defaults(
    params: type[JobParams], docs: str | None, *, schedule: Any, max_active_runs: int = 1, tags: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the arguments of @dag; the module's docstring becomes the documentation in the UI."""
    return {
        "dag_id": params.job,
        "dag_display_name": params.job,
        "description": (docs or "").strip().splitlines()[0].lstrip("# ").split(": ", 1)[-1],
        "doc_md": docs,
        "schedule": schedule,
        "start_date": None,
        "catchup": False,
        "max_active_runs": max_active_runs,
        "tags": ["lakefork", *tags],
        "params": trigger_form(params),
        "render_template_as_native_obj": False,
        "default_args": {
            "owner": "lakefork",
            "retries": 1,  # safe: a repeated job finds what it committed
            "retry_delay": timedelta(minutes=1),
            "retry_exponential_backoff": True,
        },
    }
