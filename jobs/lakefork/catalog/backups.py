"""What the catalog says of backups: what there is to keep, what was made where. See functions/backup.sql."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class Namespace:
    """A namespace as it is; dates: when each of its definitions was made, and by whom."""

    schema_id: int
    name: str
    tags: dict[str, str]
    dates: list[dict[str, Any]]


@dataclass(frozen=True)
class Table:
    """A table as it is and as it was; is_clean: its files have one version per key."""

    table_id: int
    schema_id: int
    name: str
    kind: str
    columns: list[dict[str, Any]]
    column_tags: list[dict[str, Any]]
    tags: dict[str, str]
    partitions: list[dict[str, Any]]
    history: list[dict[str, Any]]
    dates: list[dict[str, Any]]
    is_clean: bool


def find_namespaces(connection: Connection, catalog_id: int, namespace: str | None) -> list[Namespace]:
    rows = connection.execute("SELECT * FROM lakefork.backup_namespaces(%s, %s)", (catalog_id, namespace))
    return [Namespace(**row) for row in rows]


def find_tables(connection: Connection, catalog_id: int, schema_ids: Sequence[int]) -> list[Table]:
    rows = connection.execute("SELECT * FROM lakefork.backup_tables(%s, %s)", (catalog_id, list(schema_ids)))
    return [Table(**row) for row in rows]


def find_users(connection: Connection, catalog_id: int) -> list[dict[str, Any]]:
    return connection.execute(_SQL["backup_users"], {"catalog_id": catalog_id}).fetchall()


def find_locations(connection: Connection, catalog_id: int) -> list[dict[str, Any]]:
    return connection.execute(_SQL["backup_locations"], {"catalog_id": catalog_id}).fetchall()


def location_credentials(connection: Connection, catalog_id: int, path: str) -> str | None:
    """The name of the credentials of the storage location that holds a path; the nearest one counts."""
    row = connection.execute(_SQL["location_credentials"], {"catalog_id": catalog_id, "path": path}).fetchone()
    return row["credentials_ref"] if row else None


def overlapping_data(connection: Connection, path: str) -> str | None:
    """What a place of backups would share a directory with: a catalog, or a table with a LOCATION."""
    row = connection.execute(_SQL["overlapping_data"], {"path": path}).fetchone()
    return row["what"] if row else None


@dataclass(frozen=True)
class Begun:
    """A backup that has an id, and pins a snapshot under that name."""

    backup_id: str
    catalog_id: int
    catalog_name: str
    namespace: str | None
    place: str
    job_id: str
    run_id: str
    taken_at: datetime.datetime
    snapshot_id: int


def end_dead_backups(connection: Connection, place: str, job_id: str) -> list[str]:
    rows = connection.execute("SELECT backup_id FROM lakefork.end_dead_backups(%s, %s)", (place, job_id))
    return [row["backup_id"] for row in rows]


def begin_backup(connection: Connection, begun: Begun) -> None:
    """Pins the snapshot too; fails if its snapshot is no longer complete."""
    with domain_errors(), connection.transaction():
        connection.execute(_SQL["begin_backup"], vars(begun))
        connection.execute(
            "SELECT lakefork.tag_snapshot(%s, %s, %s, %s)",
            (begun.catalog_name, begun.snapshot_id, begun.backup_id, "namespace_backup"),
        )


def finish_backup(connection: Connection, begun: Begun, **found: Any) -> None:
    """Says how it ended, and lets go of the snapshot. To say it again changes nothing."""
    names = (
        "status", "error", "base_id", "table_count", "file_count", "row_count", "size_bytes", "copied_files",
        "copied_bytes",
    )  # fmt: skip
    values = {name: found.get(name) for name in names}
    with connection.transaction():
        connection.execute(_SQL["finish_backup"], {"backup_id": begun.backup_id, **values})
        connection.execute(
            "DELETE FROM lakefork.snapshot_tag WHERE catalog_id = %s AND name = %s",
            (begun.catalog_id, begun.backup_id),
        )


def complete_backups(connection: Connection, place: str, catalog: str, namespace: str | None) -> list[str]:
    """Those that this installation made of something at a place, and did not remove; the newest last."""
    wanted = {"place": place, "catalog": catalog, "namespace": namespace}
    return [row["backup_id"] for row in connection.execute(_SQL["complete_backups"], wanted)]


def remember_digests(connection: Connection, digests: Iterable[tuple[int, str, int]]) -> None:
    """File id, digest and size."""
    files, contents, sizes = zip(*digests, strict=True) if (digests := list(digests)) else ((), (), ())
    connection.execute(
        "SELECT lakefork.remember_digests(%s::bigint[], %b::text[], %s::bigint[])",
        (list(files), list(contents), list(sizes)),
    )


def record_removals(
    connection: Connection,
    run: tuple[str, str, str],
    catalog: str,
    files: Sequence[tuple[str, int]],
    reason: str,
) -> dict[int, str]:
    """Paths by the number of their entry in the ledger; run: run, job and plan."""
    rows = connection.execute(
        "SELECT * FROM lakefork.record_backup_removals(%s, %s, %s, %s, %s, %s, %s)",
        (*run, catalog, [path for path, _ in files], [size for _, size in files], reason),
    )
    return {row["deletion_id"]: row["path"] for row in rows}


def open_removals(connection: Connection, place: str) -> dict[int, str]:
    """What a run wrote down and was cut off before it removed."""
    rows = connection.execute(_SQL["open_backup_removals"], {"place": place})
    return {row["deletion_id"]: row["path"] for row in rows}


def save_plan(connection: Connection, plan_id: str, run_id: str, params: dict[str, Any]) -> None:
    connection.execute(_SQL["save_backup_plan"], {"plan_id": plan_id, "run_id": run_id, "params": Jsonb(params)})


def note_removed(connection: Connection, backup_ids: Sequence[str]) -> None:
    connection.execute(_SQL["note_removed_backups"], {"backup_ids": list(backup_ids)})


def note_verified(connection: Connection, backup_id: str, percent: float, problems: int) -> None:
    wanted = {"backup_id": backup_id, "percent": percent, "problems": problems}
    connection.execute(_SQL["note_verified_backup"], wanted)


def known_problems(connection: Connection, backup_id: str) -> int:
    """How many problems the last look at a backup found."""
    row = connection.execute("SELECT problem_count FROM lakefork.backup WHERE backup_id = %s", (backup_id,)).fetchone()
    return int(row["problem_count"] or 0) if row else 0


def backups_being_restored(connection: Connection, place: str) -> set[str]:
    """Backups at a place that somebody reads now."""
    prefix = f"{reading_lease(place, '', '').rstrip('/')}/"
    rows = connection.execute(_SQL["backups_being_restored"], {"prefix": prefix})
    return {row["name"].removeprefix(prefix).partition("/")[0] for row in rows}


def reading_lease(place: str, backup_id: str, job_id: str) -> str:
    return f"restore/{place}/backups/{backup_id}/{job_id}"
