"""When file_cleanup runs: nightly, and after a retention_gc if scheduled files are old enough."""

from typing import Any

from airflow.sdk import Asset, AssetOrTimeSchedule

from lakefork.model.durations import seconds_of
from lakefork.orchestration.database import catalog_dsn
from lakefork.orchestration.defaults import cron_schedule
from lakefork.settings import load_settings

EXPIRED = Asset("lakefork_given_up")  # changes with each retention_gc


def cleanup_schedule() -> AssetOrTimeSchedule:
    return AssetOrTimeSchedule(timetable=cron_schedule("30 3 * * *"), assets=[EXPIRED])


def is_cleanup_due(dag_run: Any) -> bool:
    """Returns True for scheduled and manual runs; after retention_gc, asks whether any file is old enough."""
    if dag_run.run_type != "asset_triggered":
        return True
    from lakefork.catalog.connection import connect
    from lakefork.removal.plans import has_files_to_clean

    older_than = load_settings().cleanup.older_than
    with connect(catalog_dsn()) as connection:
        is_due = has_files_to_clean(connection, seconds_of(older_than, "cleanup.older_than"))
    words = "some" if is_due else "no"
    print(f"{words} files were given up more than {older_than} ago, or left by an earlier run")  # noqa: T201 - the task log
    return is_due
