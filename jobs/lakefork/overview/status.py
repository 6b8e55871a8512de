"""The text and JSON of `lakefork status`."""

import datetime
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.overview.lake import Page, Row, last_runs, list_catalogs, list_runs, list_waiting, read_totals
from lakefork.overview.superseded import with_superseded_share
from lakefork.settings import FlushSettings

COUNT_COLUMNS = ("tables", "hot", "files", "rows", "bytes")


@dataclass(frozen=True)
class Status:
    totals: Row
    catalogs: Page
    waiting: list[Row]
    jobs: list[Row]
    schedule: list[Row]

    def as_json(self) -> dict[str, Any]:
        catalogs = [{name: row[name] for name in ("name", *COUNT_COLUMNS)} for row in self.catalogs.rows]
        everything = {**vars(self), "catalogs": catalogs}
        return {key: to_json_value(value) for key, value in everything.items()}

    def as_text(self) -> str:
        parts = [self._catalogs_text(), self._waiting_text(), self._runs_text(), self._schedule_text()]
        return "\n\n".join(part for part in parts if part)

    def _catalogs_text(self) -> str:
        head = f"{'catalog':<24}{'tables':>8}{'hot':>12}{'files':>10}{'rows':>14}{'bytes':>12}"
        lines = [head, *(_counts_line(row["name"], row) for row in self.catalogs.rows)]
        if len(self.catalogs.rows) != 1:
            lines.append(_counts_line(f"{self.totals['catalogs']:,} catalog(s)", self.totals))
        return "\n".join(lines)

    def _waiting_text(self) -> str:
        if not self.waiting:
            return ""
        head = f"{'waiting for a flush':<44}{'versions':>12}{'oldest':>10}  flushed at"
        return "\n".join([head, *(_waiting_line(row) for row in self.waiting[:10])])

    def _runs_text(self) -> str:
        head = f"{'last runs':<24}{'status':<12}{'started (UTC)':<22}message"
        lines = [
            f"{job['job_type']:<24}{job['status']:<12}{job['start_time']:%Y-%m-%d %H:%M:%S}   "
            f"{job['error_message'] or ''}".rstrip()
            for job in self.jobs
        ]
        return "\n".join([head, *(lines or ["(none yet)"])])

    def _schedule_text(self) -> str:
        """Returns the scheduled runs; empty without Airflow."""
        planned = sorted((job for job in self.schedule if job["next_run"]), key=lambda job: job["next_run"])
        lines = [
            f"{job['job']:<24}{'paused' if job['is_paused'] else utc(job['next_run'])}"
            for job in [*planned, *(job for job in self.schedule if job["is_paused"] and not job["next_run"])]
        ]
        return "\n".join([f"{'next runs':<24}at (UTC)", *lines]) if lines else ""


def read_status(connection: Connection, policy: FlushSettings) -> Status:
    connection.execute("SET TIME ZONE 'UTC'")
    return Status(
        totals=read_totals(connection),
        catalogs=list_catalogs(connection),
        waiting=with_superseded_share(connection, list_waiting(connection, policy)),
        jobs=list_runs(connection, limit=10).rows,
        schedule=last_runs(connection),
    )


def to_json_value(value: Any) -> Any:
    """Converts a value for JSON: times become ISO 8601."""
    if isinstance(value, dict):
        return {key: to_json_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [to_json_value(one) for one in value]
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _counts_line(name: str, row: Row) -> str:
    counts = f"{row['tables']:>8}{row['hot']:>12}{row['files']:>10}{row['rows']:>14}"
    return f"{name:<24}{counts}{readable_bytes(row['bytes']):>12}"


def _waiting_line(row: Row) -> str:
    name = f"{row['catalog']}.{row['namespace']}.{row['table']}"
    limits = [f"{row['max_versions']:,} rows"] if row["max_versions"] else []
    limits += [readable_seconds(row["max_seconds"])] if row["max_seconds"] else []
    due = "  (due)" if row["is_due"] else ""
    return f"{name:<44}{row['versions']:>12,}{readable_seconds(row['oldest_seconds']):>10}  {' or '.join(limits)}{due}"


def utc(time: datetime.datetime | None) -> str:
    return f"{time.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}" if time else ""


def readable_seconds(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def readable_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
