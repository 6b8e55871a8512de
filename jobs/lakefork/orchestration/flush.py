"""When flush runs: a trigger that listens to Postgres, the asset that it updates, and the check for due tables."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from lakefork.orchestration.database import catalog_dsn, catalog_dsn_async
from lakefork.orchestration.defaults import cron_schedule
from lakefork.settings import load_settings

CHANNEL = "lakefork_flush"
FLUSHED = Asset("lakefork_flushed")  # changes with each flush that published something
LONGEST_WAIT = 60.0


class FlushRequestTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow is not typed for us
    """Fires when tables reach the row limit of their policy, or on FLUSH TABLE.

    Writers only append to counters. Twice a second the trigger has Postgres fold them, which notifies a channel of
    the tables that are due; the trigger listens there, also to notifications of others.
    """

    def __init__(self, fold_seconds: float = 0.5) -> None:
        super().__init__()
        self.fold_seconds = fold_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"fold_seconds": self.fold_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Runs for ever, and reconnects if the database is unreachable."""
        wait = 1.0
        while True:
            try:
                async for tables in self._listen(await catalog_dsn_async()):
                    wait = 1.0
                    yield TriggerEvent({"tables": tables})
            except psycopg.Error as error:
                self.log.warning("no connection to the catalog, retrying in %s s: %s", wait, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)

    async def _listen(self, dsn: str) -> AsyncIterator[list[str]]:
        default_rows = load_settings().flush.default_rows
        connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name="lakefork trigger")
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            while True:
                await connection.execute("SELECT lakefork.fold_counts(%s)", (default_rows,))
                tables = [note.payload async for note in connection.notifies(timeout=self.fold_seconds)]
                if tables:
                    yield sorted(set(tables))


def flush_schedule() -> AssetOrTimeSchedule:
    """Runs by event when a table reaches its row limit, and every minute for intervals and lost events."""
    watcher = AssetWatcher(name="row_limit_reached", trigger=FlushRequestTrigger())
    return AssetOrTimeSchedule(
        timetable=cron_schedule("* * * * *"),
        assets=[Asset("lakefork_flush_wanted", watchers=[watcher])],
    )


def is_flush_due(params: dict[str, Any]) -> bool:
    """Asks with one query whether anything is due, so that Spark is not started for nothing."""
    from lakefork.catalog.connection import connect
    from lakefork.catalog.flushes import find_due, paused_flushes, tables_with_pending_manifests
    from lakefork.catalog.staging import tables_with_leftovers
    from lakefork.catalog.streams import evict_all_events

    policy = load_settings().flush
    with connect(catalog_dsn()) as connection:
        evict_all_events(connection)
        due = find_due(
            connection, **params, default_rows=policy.default_rows, default_seconds=policy.default_interval_seconds
        )
        for reason in sorted({one.reason for one in due}):
            found = [one for one in due if one.reason == reason]
            tables, versions = {str(one) for one in found}, sum(one.versions for one in found)
            print(f"due ({reason}): {len(found):,} user(s) of {len(tables):,} table(s), {versions:,} versions")  # noqa: T201
        if not due:
            print("nothing is due")  # noqa: T201 - the task log
        for paused in paused_flushes(connection):
            print(paused)  # noqa: T201
        return bool(due or tables_with_pending_manifests(connection) or tables_with_leftovers(connection, "flush"))
