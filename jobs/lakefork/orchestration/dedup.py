"""When snapshot_dedup runs: nightly, and after a flush that left enough batches to merge."""

from typing import Any

from airflow.sdk import AssetOrTimeSchedule

from lakefork.orchestration.database import catalog_dsn
from lakefork.orchestration.defaults import cron_schedule
from lakefork.orchestration.flush import FLUSHED
from lakefork.settings import load_settings


def dedup_schedule() -> AssetOrTimeSchedule:
    return AssetOrTimeSchedule(timetable=cron_schedule("30 1 * * *"), assets=[FLUSHED])


def is_dedup_due(dag_run: Any) -> bool:
    """Returns True for scheduled and manual runs; after a flush, asks whether a merge is worthwhile."""
    if dag_run.run_type != "asset_triggered":
        return True
    from lakefork.catalog.connection import connect
    from lakefork.catalog.flushes import count_owners_to_merge

    limits = load_settings().dedup
    with connect(catalog_dsn()) as connection:
        owners = count_owners_to_merge(connection, limits.min_batches, limits.file_mb)
    print(f"{owners:,} owner(s) of freshly flushed tables have enough batches to merge")  # noqa: T201 - the task log
    return owners > 0
