"""When file_cleanup runs: every night, and after a retention_gc if files wait that are old enough to go."""

from typing import Any

from airflow.sdk import Asset, AssetOrTimeSchedule

from lakefork.durations import seconds_of
from lakefork.orchestration.database import catalog_dsn
from lakefork.orchestration.defaults import at
from lakefork.settings import load_settings

GIVEN_UP = Asset("lakefork_given_up")  # changes with each retention_gc


def cleanup_schedule() -> AssetOrTimeSchedule:
    return AssetOrTimeSchedule(timetable=at("30 3 * * *"), assets=[GIVEN_UP])


def is_cleanup_due(dag_run: Any) -> bool:
    """Whoever asks for a run gets one; after retention_gc, one query says whether anything is old enough to go."""
    if dag_run.run_type != "asset_triggered":
        return True
    from lakefork.catalog.cleanup import has_files_to_clean
    from lakefork.catalog.connection import connect

    older_than = load_settings().cleanup.older_than
    with connect(catalog_dsn()) as connection:
        is_due = has_files_to_clean(connection, seconds_of(older_than, "cleanup.older_than"))
    words = "some" if is_due else "no"
    print(f"{words} files were given up longer than {older_than} ago, or left by an earlier run")  # noqa: T201 - the task log
    return is_due
