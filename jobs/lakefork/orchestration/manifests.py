"""When manifest_eviction runs, and whether there is anything to evict."""

from typing import Any

from lakefork.orchestration.database import catalog_dsn
from lakefork.orchestration.defaults import cron_schedule
from lakefork.settings import load_settings

MINUTE, HOUR, DAY = 60, 3_600, 86_400


def eviction_schedule() -> Any:
    return cron_schedule(cron_of(load_settings().manifest_cache.eviction_interval_seconds))


def cron_of(seconds: int) -> str:
    """Returns a cron expression for an interval, rounded up to minutes or hours, at most a day."""
    if seconds <= 59 * MINUTE:
        return f"*/{-(-seconds // MINUTE)} * * * *"
    return f"0 */{-(-seconds // HOUR)} * * *" if seconds <= 23 * HOUR else "0 0 * * *"


def is_eviction_due() -> bool:
    """Asks with one query whether anything can be evicted, so that no job is started for nothing."""
    from lakefork.catalog.connection import connect
    from lakefork.manifests.cache_table import count_evictable

    with connect(catalog_dsn()) as connection:
        entries = count_evictable(connection, load_settings().manifest_cache)
    print(f"{entries:,} cached manifest(s) can be evicted")  # noqa: T201 - the task log
    return entries > 0
