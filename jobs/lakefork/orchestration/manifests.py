"""When manifest_eviction runs, and whether there is anything to evict."""

from typing import Any

from lakefork.orchestration.database import catalog_dsn
from lakefork.orchestration.defaults import at
from lakefork.settings import load_settings

MINUTE, HOUR, DAY = 60, 3_600, 86_400


def eviction_schedule() -> Any:
    return at(cron_of(load_settings().manifest_cache.eviction_interval_seconds))


def cron_of(seconds: int) -> str:
    """Every so many minutes or hours, rounded up; once a day at most seldom."""
    if seconds <= 59 * MINUTE:
        return f"*/{-(-seconds // MINUTE)} * * * *"
    return f"0 */{-(-seconds // HOUR)} * * *" if seconds <= 23 * HOUR else "0 0 * * *"


def is_eviction_due() -> bool:
    """One query; a job is started only if it finds something."""
    from lakefork.catalog.connection import connect
    from lakefork.catalog.manifest_cache import count_evictable

    with connect(catalog_dsn()) as connection:
        entries = count_evictable(connection, load_settings().manifest_cache)
    print(f"{entries:,} cached manifest(s) are not needed any more")  # noqa: T201 - the task log is made of these
    return entries > 0
