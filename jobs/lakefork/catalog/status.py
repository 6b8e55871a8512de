"""What is there, at a glance: the text and JSON of `lakefork status`."""

import datetime
from collections.abc import Mapping, Sequence
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


def forks_text(forks: Sequence[Mapping[str, Any]]) -> str:
    """The tree, one line per catalog, forks below their parents."""
    lines = [f"{'catalog':<36}{'created (UTC)':<18}{'of snapshot':>12}{'own':>10}{'shared':>10}{'rows':>14}  expires"]
    for fork in forks:
        name = f"{'  ' * fork['depth']}{fork['name']}"
        when = f"{fork['created_at'].astimezone(datetime.UTC):%Y-%m-%d %H:%M}" if fork["created_at"] else ""
        expires = f"{fork['expires_at'].astimezone(datetime.UTC):%Y-%m-%d %H:%M}" if fork["expires_at"] else ""
        lines.append(
            f"{name:<36}{when:<18}{fork['forked_at_snapshot'] or '':>12}{_bytes(fork['own_bytes']):>10}"
            f"{_bytes(fork['shared_bytes']):>10}{fork['own_rows'] + fork['shared_rows']:>14}  {expires}".rstrip()
        )
    return "\n".join(lines)


def reclaim_text(found: Sequence[Mapping[str, Any]]) -> str:
    freed = [row for row in found if row["pinned_by"] is None]
    files, size = (freed[0]["files"], freed[0]["bytes"]) if freed else (0, 0)
    lines = [f"dropping it would free {files:,} file(s), {_bytes(size)}, once its snapshots have expired"]
    lines += [
        f"kept by {row['pinned_by']}: {row['files']:,} file(s), {_bytes(row['bytes'])}"
        for row in found
        if row["pinned_by"] is not None
    ]
    return "\n".join(lines)


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
