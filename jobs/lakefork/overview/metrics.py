"""Metrics in Prometheus' text format."""

from collections.abc import Iterable
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.overview.gc import read_cleanup_totals
from lakefork.overview.lake import Row, last_runs, list_waiting, read_totals
from lakefork.queries import load
from lakefork.settings import FlushSettings

_SQL = load(__package__)
TABLES_WITH_SERIES = 100  # of the longest waiting; all tables of 100,000 catalogs would be too many

Sample = tuple[dict[str, str], float | None]


def read_metrics(connection: Connection, policy: FlushSettings) -> str:
    totals = read_totals(connection)
    waiting = list_waiting(connection, policy, TABLES_WITH_SERIES)
    attempts = connection.execute(_SQL["job_counts"]).fetchall()
    runs = last_runs(connection)
    lines = [*_gauges(_TOTALS, totals), *_gauges(_CLEANUP, read_cleanup_totals(connection))]
    lines += _gauge(
        "lakefork_oldest_hot_seconds", "How long the oldest row has waited for a flush", [({}, _oldest(waiting))]
    )
    lines += _gauge(
        "lakefork_table_hot_rows",
        "Versions that wait for a flush, for the longest waiting tables",
        _per_table(waiting, "versions"),
    )
    lines += _gauge(
        "lakefork_table_oldest_hot_seconds",
        "How long the oldest of them has waited",
        _per_table(waiting, "oldest_seconds"),
    )
    lines += _gauge(
        "lakefork_job_attempts",
        "Recorded attempts of jobs, by status",
        [({"job": row["job_type"], "status": row["status"]}, row["attempts"]) for row in attempts],
    )
    lines += _gauge(
        "lakefork_job_last_start_seconds", "When a job was last started, in seconds since 1970", _starts(runs)
    )
    lines += _gauge("lakefork_job_last_failed", "1: the last attempt of a job failed", _failures(runs))
    lines += _followed(connection.execute(_SQL["followed"]).fetchall())
    return "\n".join([*lines, ""])


def _followed(rows: list[Row]) -> list[str]:
    described = {
        "lakefork_follow_drained_seconds": ("How long ago a followed copy had all of its source", "seconds"),
        "lakefork_follow_wal_bytes": ("WAL that the source keeps for it", "wal_kept"),
        "lakefork_follow_in_trouble": ("1: its last run failed, or the slot is in danger", "in_trouble"),
    }
    return [
        line
        for name, (about, key) in described.items()
        for line in _gauge(name, about, [({"copy": row["copy_id"]}, row[key]) for row in rows])
    ]


_TOTALS = {
    "lakefork_catalogs": ("Catalogs, forks included", "catalogs"),
    "lakefork_forks": ("Catalogs that are forks", "forks"),
    "lakefork_tables": ("Tables of all catalogs", "tables"),
    "lakefork_files": ("Parquet files in use; forks count what they share", "files"),
    "lakefork_rows": ("Rows in these files", "rows"),
    "lakefork_bytes": ("Bytes of these files", "bytes"),
    "lakefork_hot_rows": ("Versions that wait for a flush", "hot"),
    "lakefork_newest_snapshot": ("The newest snapshot", "newest_snapshot"),
    "lakefork_manifests_pending": ("Manifests that do not show the last publish yet", "manifests_pending"),
    "lakefork_jobs_running": ("Jobs that are running", "running"),
    "lakefork_live_queries": ("Live queries on all API servers", "live_queries"),
    "lakefork_live_messages_per_second": ("Messages that they are sent", "live_rate"),
    "lakefork_live_resyncs": ("How often one had to read everything again", "live_resyncs"),
    "lakefork_live_look_seconds": ("The longest of the last looks at changes", "live_look_seconds"),
}


_CLEANUP = {
    "lakefork_files_to_remove": ("Files scheduled for deletion by file_cleanup", "files"),
    "lakefork_bytes_to_free": ("Their bytes", "bytes"),
    "lakefork_removed_files": ("Files that file_cleanup has deleted", "removed_files"),
    "lakefork_freed_bytes": ("Their bytes", "removed_bytes"),
}


def _gauges(described: dict[str, tuple[str, str]], found: Row) -> list[str]:
    return [line for name, (about, key) in described.items() for line in _gauge(name, about, [({}, found[key])])]


def _gauge(name: str, help_text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
    return lines + [f"{name}{_labels(labels)} {value}" for labels, value in samples if value is not None]


def _labels(labels: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _oldest(waiting: list[Row]) -> float:
    return max((row["oldest_seconds"] for row in waiting), default=0.0)


def _per_table(waiting: list[Row], key: str) -> list[Sample]:
    return [({name: row[name] for name in ("catalog", "namespace", "table")}, row[key]) for row in waiting]


def _starts(runs: list[Row]) -> list[Sample]:
    return [({"job": row["job"]}, _seconds(row["start_time"])) for row in runs]


def _failures(runs: list[Row]) -> list[Sample]:
    return [({"job": row["job"]}, float(row["status"] == "failed")) for row in runs if row["status"]]


def _seconds(time: Any) -> float | None:
    return None if time is None else float(time.timestamp())
