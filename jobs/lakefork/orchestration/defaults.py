"""What every DAG of Lakefork has in common."""

from datetime import timedelta
from typing import Any

from airflow.sdk import CronTriggerTimetable

from lakefork.orchestration.params import trigger_form
from lakefork.params import JobParams


def dag_defaults(params: type[JobParams], docs: str | None, *, cron: str) -> dict[str, Any]:
    """Arguments of @dag: the module's docstring is the page that people read in the UI."""
    return {
        "dag_id": params.job,
        "dag_display_name": params.job,
        "description": (docs or "").strip().splitlines()[0].lstrip("# ").split(": ", 1)[-1],
        "doc_md": docs,
        # The first run is the next one of the schedule; by default Airflow makes up for one that was just missed.
        "schedule": CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta(0)),
        "start_date": None,
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["lakefork"],
        "params": trigger_form(params),
        "render_template_as_native_obj": False,
        "default_args": {
            "owner": "lakefork",
            "retries": 1,
            "retry_delay": timedelta(minutes=1),
            "retry_exponential_backoff": True,
        },
    }
