"""What is there, at a glance: the text and JSON of `lakefork status`."""

from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.queries import load

_SQL = load(__package__)
SHOWN = 50


@dataclass(frozen=True)
class Status:
    catalogs: list[dict[str, Any]]
    jobs: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        jobs = [
            {key: value.isoformat() if hasattr(value, "isoformat") else value for key, value in job.items()}
            for job in self.jobs
        ]
        return {"catalogs": self.catalogs, "jobs": jobs}

    def as_text(self) -> str:
        lines = [f"{'catalog':<24}{'tables':>8}{'hot':>12}{'files':>10}{'rows':>14}{'bytes':>12}"]
        lines += [
            f"{row['name']:<24}{row['tables']:>8}{row['hot']:>12}{row['files']:>10}{row['rows']:>14}{_bytes(row['bytes']):>12}"
            for row in self.catalogs
        ]
        lines += ["", f"{'last runs':<24}{'status':<12}{'started (UTC)':<22}what it says"]
        lines += [
            f"{job['job_type']:<24}{job['status']:<12}{job['start_time']:%Y-%m-%d %H:%M:%S}   "
            f"{job['error_message'] or ''}"
            for job in self.jobs
        ]
        return "\n".join(lines if self.jobs else [*lines, "(none yet)"])


def read_status(connection: Connection) -> Status:
    connection.execute("SET TIME ZONE 'UTC'")
    catalogs = [
        {key: value if key == "name" else int(value) for key, value in row.items()}
        for row in connection.execute(_SQL["status"], {"limit": SHOWN})
    ]
    return Status(catalogs, connection.execute(_SQL["recent_jobs"], {"limit": 10}).fetchall())


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
