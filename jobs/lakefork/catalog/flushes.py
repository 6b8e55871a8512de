"""Flushes in the catalog: what is due and what was published. Thin Python over functions/flush.sql."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.commits import Changes
from lakefork.catalog.connection import Connection
from lakefork.catalog.leases import table_lease
from lakefork.catalog.snapshots import ReadSnapshot
from lakefork.database_errors import domain_errors
from lakefork.model.tables import TableDefinition, TableRef
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class Due:
    """Rows of one user to flush; user_id is '' for a shared table."""

    catalog_id: int
    catalog_name: str
    namespace: str
    table_name: str
    table_id: int
    user_id: str
    versions: int
    oldest_at: datetime.datetime
    reason: str

    @property
    def table(self) -> TableRef:
        return TableRef(self.catalog_id, self.table_id)

    @property
    def lease(self) -> str:
        return table_lease(self.catalog_id, self.table_id)

    def __str__(self) -> str:
        return f"{self.catalog_name}.{self.namespace}.{self.table_name}"


@dataclass(frozen=True)
class PausedTable:
    """A table that is left alone for a while because its audits fail."""

    catalog_id: int
    table_id: int
    catalog_name: str
    namespace: str
    table_name: str
    failures: int
    paused_until: datetime.datetime

    @property
    def table(self) -> TableRef:
        return TableRef(self.catalog_id, self.table_id)

    @property
    def next_try(self) -> str:
        until = self.paused_until.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"not before {until} UTC, or at once by FLUSH TABLE {self.namespace}.{self.table_name}"

    def __str__(self) -> str:
        name = f"{self.catalog_name}.{self.namespace}.{self.table_name}"
        return f"{name} failed its audit {self.failures:,} time(s) in a row: the next try is {self.next_try}"


@dataclass(frozen=True)
class FlushedBefore:
    """What an earlier attempt of the same run published."""

    catalog_id: int
    table_id: int
    counts: dict[str, Any]
    snapshot_id: int | None


def find_due(
    connection: Connection,
    *,
    catalog: str | None,
    namespace: str | None,
    table: str | None,
    user_id: str | None,
    force: bool,
    default_rows: int,
    default_seconds: int,
) -> list[Due]:
    rows = connection.execute(
        _SQL["due_flushes"],
        {
            "catalog": catalog, "namespace": namespace, "table": table, "user": user_id, "force": force,
            "default_rows": default_rows, "default_seconds": default_seconds,
        },
    )  # fmt: skip
    return [Due(**row) for row in rows]


def paused_flushes(connection: Connection) -> list[PausedTable]:
    """Tables that are not due although their rows may be, because their audits fail."""
    return [PausedTable(**row) for row in connection.execute(_SQL["paused_flushes"])]


def tables_with_pending_manifests(connection: Connection) -> set[TableRef]:
    rows = connection.execute("SELECT DISTINCT catalog_id, table_id FROM lakefork.manifest_pending")
    return set(map(TableRef.of, rows))


def count_owners_to_merge(connection: Connection, min_batches: int, file_mb: int) -> int:
    """Counts the owners in just flushed tables that have at least min_batches small batches (under half a file)."""
    row = connection.execute(
        _SQL["owners_to_merge"], {"min_batches": min_batches, "file_bytes": file_mb * 2**20}
    ).fetchone()
    return int(row["owners"]) if row else 0


def flushed_before(connection: Connection, run_id: str) -> list[FlushedBefore]:
    return [FlushedBefore(**row) for row in connection.execute(_SQL["flushed_before"], {"run_id": run_id})]


def waiting_versions(connection: Connection, due: Sequence[Due]) -> list[int]:
    rows = connection.execute(
        "SELECT versions FROM lakefork.waiting_versions(%s, %s, %s)",
        ([one.catalog_id for one in due], [one.table_id for one in due], [one.user_id for one in due]),
    )
    return [row["versions"] for row in rows]


@dataclass(frozen=True)
class Publication:
    """All that one transaction publishes of a table."""

    definition: TableDefinition
    hot_snapshots: Sequence[int]
    changes: Changes
    users: Sequence[str]
    versions: Sequence[int]
    directories: Sequence[str | None]
    paths: Sequence[str]
    counts: dict[str, Any]
    requested_before: datetime.datetime | None


def publish(
    connection: Connection, job_id: str, run_id: str, read: ReadSnapshot, publication: Publication
) -> int | None:
    """Returns the snapshot, or None if there was nothing to add. The same run again gets the first answer."""
    definition = publication.definition
    with domain_errors():
        row = connection.execute(
            _SQL["publish_flush"],
            {
                "job_id": job_id, "run_id": run_id, "catalog_id": definition.catalog_id,
                "table_id": definition.table_id,
                "changes": Jsonb(publication.changes.as_json()), "hot_snapshots": list(publication.hot_snapshots),
                "users": list(publication.users), "versions": list(publication.versions),
                "directories": list(publication.directories), "seen": read.seen, "read_at": read.read_at,
                "requested_before": publication.requested_before,
                "paths": list(publication.paths), "counts": Jsonb(publication.counts),
            },
        ).fetchone()  # fmt: skip
    assert row is not None  # noqa: S101 - the function returns one row or raises
    snapshot_id: int | None = row["snapshot_id"]
    return snapshot_id
