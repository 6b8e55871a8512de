"""What every DAG of Lakefork has in common."""

from datetime import timedelta
from typing import Any

from lakefork.orchestration.params import trigger_form
from lakefork.params import JobParams


def dag_defaults(params: type[JobParams], docs: str | None, *, schedule: Any) -> dict[str, Any]:
    """Arguments of @dag: the module's docstring is the page that people read in the UI."""
    return {
        "dag_id": params.job,
        "dag_display_name": params.job,
        "description": (docs or "").strip().splitlines()[0].lstrip("# ").split(": ", 1)[-1],
        "doc_md": docs,
        "schedule": schedule,
        "start_date": None,  # the first run is the next one of the schedule, not one that was missed before
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
