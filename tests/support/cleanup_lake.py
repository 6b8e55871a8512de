"""Helpers for tests of retention and cleanup."""

from pathlib import Path
from typing import Any

from lakefork.catalog.connection import connect
from lakefork.model.params import FileCleanupParams, RetentionGcParams
from lakefork.upkeep.cleanup.run import run_file_cleanup
from lakefork.upkeep.retention.run import run_retention_gc
from support.flush_lake import FlushLake


def gc(lake: FlushLake, run_id: str | None = None, settings: Any = None, **params: Any) -> dict[str, Any]:
    with lake.context(run_id, settings, "retention_gc") as context:
        context.leases.take(context.connection, "retention_gc")
        return run_retention_gc(context, RetentionGcParams(**params))


def cleanup(lake: FlushLake, run_id: str | None = None, settings: Any = None, **params: Any) -> dict[str, Any]:
    with lake.context(run_id, settings, "file_cleanup") as context:
        context.leases.take(context.connection, "file_cleanup")
        return run_file_cleanup(context, FileCleanupParams(**params))


def age_schedule(lake: FlushLake) -> None:
    """As if the files had been given up two days ago."""
    execute(
        lake, "UPDATE ducklake_files_scheduled_for_deletion SET schedule_start = schedule_start - interval '2 days'"
    )


def execute(lake: FlushLake, statement: str, *parameters: Any) -> None:
    with connect(lake.lake.dsn) as connection:
        connection.execute(statement, parameters)


def gc_and_clean(lake: FlushLake, **params: Any) -> dict[str, Any]:
    """Everything that may go goes: only the last snapshot of each catalog is kept."""
    gc(lake, **{"retain_snapshots": 1, **params})
    age_schedule(lake)
    return cleanup(lake)


def scheduled(lake: FlushLake) -> set[str]:
    return {path for (path,) in lake.sql("SELECT path FROM ducklake_files_scheduled_for_deletion")}


def on_disk(root: Path) -> set[str]:
    return {str(path) for path in root.rglob("*.parquet")}


def referenced(lake: FlushLake) -> set[str]:
    return {path for (path,) in lake.sql("SELECT path FROM lakefork.file_reference")}
