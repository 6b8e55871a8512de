"""What every DAG of Lakefork has in common."""

from datetime import timedelta
from typing import Any

from airflow.sdk import CronTriggerTimetable

from lakefork.orchestration.params import trigger_form
from lakefork.params import JobParams

LOOKS_FOR = timedelta(minutes=10)  # how long a task that only looks whether there is work may take


def at(cron: str) -> CronTriggerTimetable:
    """The first run is the next one of the schedule; by default Airflow makes up for one that was just missed."""
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta(0))


def dag_defaults(
    params: type[JobParams], docs: str | None, *, schedule: Any, max_active_runs: int = 1, tags: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Arguments of @dag: the module's docstring is the page that people read in the UI."""
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
            "retries": 1,  # safe: a job that is done again finds what it committed
            "retry_delay": timedelta(minutes=1),
            "retry_exponential_backoff": True,
        },
    }
