"""What the catalog knows of flushes: what is due, staged and published. Thin Python over functions/flush.sql."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.commits import Changes
from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.queries import load
from lakefork.tables import TableDefinition, definition_from_json

_SQL = load(__package__)

Table = tuple[int, int]  # catalog and table id


@dataclass(frozen=True)
class Due:
    """Rows of one user that are to be flushed; user_id is '' for a shared table."""

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
    def table(self) -> Table:
        return self.catalog_id, self.table_id

    @property
    def lease(self) -> str:
        return table_lease(self.catalog_id, self.table_id)

    def __str__(self) -> str:
        return f"{self.catalog_name}.{self.namespace}.{self.table_name}"


@dataclass(frozen=True)
class Paused:
    """A table that is left alone for a while because its audits fail."""

    catalog_id: int
    table_id: int
    catalog_name: str
    namespace: str
    table_name: str
    failures: int
    paused_until: datetime.datetime

    @property
    def table(self) -> Table:
        return self.catalog_id, self.table_id

    @property
    def next_try(self) -> str:
        until = self.paused_until.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"not before {until} UTC, or at once by FLUSH TABLE {self.namespace}.{self.table_name}"

    def __str__(self) -> str:
        name = f"{self.catalog_name}.{self.namespace}.{self.table_name}"
        return f"{name} failed its audit {self.failures:,} time(s) in a row: it is tried again {self.next_try}"


@dataclass(frozen=True)
class StagedPath:
    """A file that a run staged and has not published."""

    path: str
    catalog_id: int
    table_id: int
    job_id: str

    @property
    def table(self) -> Table:
        return self.catalog_id, self.table_id


@dataclass(frozen=True)
class FlushedBefore:
    """What an earlier attempt of the same run published."""

    catalog_id: int
    table_id: int
    counts: dict[str, Any]
    snapshot_id: int | None


@dataclass(frozen=True)
class Defined:
    """A table as it is defined now, and the definitions under which it may have hot rows."""

    definition: TableDefinition
    hot: tuple[TableDefinition, ...]


@dataclass(frozen=True)
class ReadSnapshot:
    """The Postgres snapshot under which a flush reads: the name for others to join, and what is visible in it."""

    name: str
    seen: str
    read_at: datetime.datetime


def table_lease(catalog_id: int, table_id: int) -> str:
    return f"table/{catalog_id}/{table_id}"


def work_lease(job: str, table: Table) -> str:
    """What a job must have to work on a table's files; flush and dedup do not keep each other from it."""
    return table_lease(*table) if job == "flush" else f"dedup/{table[0]}/{table[1]}"


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


def paused_flushes(connection: Connection) -> list[Paused]:
    """Tables that are not due although their rows may be, because their audits fail."""
    return [Paused(**row) for row in connection.execute(_SQL["paused_flushes"])]


def tables_with_leftovers(connection: Connection, job: str) -> set[Table]:
    """Tables of which dead runs of a job left files; some may be dropped."""
    rows = connection.execute(_SQL["staged_tables"], {"job": job})
    tables = {work_lease(job, table): table for table in ((row["catalog_id"], row["table_id"]) for row in rows)}
    held = connection.execute(_SQL["held_leases"], {"names": list(tables)})
    return set(tables.values()) - {tables[row["name"]] for row in held}


def tables_with_pending_manifests(connection: Connection) -> set[Table]:
    rows = connection.execute("SELECT DISTINCT catalog_id, table_id FROM lakefork.manifest_pending")
    return {(row["catalog_id"], row["table_id"]) for row in rows}


def count_owners_to_merge(connection: Connection, min_batches: int, file_mb: int) -> int:
    """Of tables that were just flushed: how many users or shared tables have so many batches of under half a file."""
    row = connection.execute(
        _SQL["owners_to_merge"], {"min_batches": min_batches, "file_bytes": file_mb * 2**20}
    ).fetchone()
    return int(row["owners"]) if row else 0


def flushed_before(connection: Connection, run_id: str) -> list[FlushedBefore]:
    return [FlushedBefore(**row) for row in connection.execute(_SQL["flushed_before"], {"run_id": run_id})]


def export_snapshot(connection: Connection) -> ReadSnapshot:
    """Begins the transaction that the snapshot lives in; it must stay open until all have read."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # It idles for as long as others read.
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0")
    row = connection.execute(_SQL["export_snapshot"]).fetchone()
    assert row is not None  # noqa: S101 - a query without FROM
    return ReadSnapshot(**row)


def waiting_versions(connection: Connection, due: Sequence[Due]) -> list[int]:
    rows = connection.execute(
        "SELECT versions FROM lakefork.waiting_versions(%s, %s, %s)",
        ([one.catalog_id for one in due], [one.table_id for one in due], [one.user_id for one in due]),
    )
    return [row["versions"] for row in rows]


def find_definitions(connection: Connection, tables: Sequence[Table]) -> dict[Table, Defined]:
    """Those of the tables (catalog and table id) that exist in this transaction, in one query."""
    found: dict[Table, list[TableDefinition]] = {}
    current: dict[Table, TableDefinition] = {}
    rows = connection.execute(
        _SQL["definitions"], {"catalogs": [one for one, _ in tables], "tables": [one for _, one in tables]}
    )
    for row in rows:
        table = row["catalog_id"], row["table_id"]
        definition = definition_from_json(
            row["catalog_id"], row["catalog_name"], row["definition_snapshot"], row["definition"]
        )
        if row["is_current"]:
            current[table] = definition
        if row["is_hot"]:
            found.setdefault(table, []).append(definition)
    return {table: Defined(definition, tuple(found.get(table, ()))) for table, definition in current.items()}


def reserve_batches(
    connection: Any, job_id: str, catalog_id: int, table_id: int, directories: Sequence[str], counts: Sequence[int]
) -> list[int]:
    """The first of the numbers for new files in each directory; the files count as staged from now on."""
    rows = connection.execute(
        "SELECT first_number FROM lakefork.reserve_batches(%s, %s, %s, %b::text[], %s)",
        (job_id, catalog_id, table_id, list(directories), list(counts)),
    )
    return [row["first_number"] for row in rows]


def staged_files(connection: Connection, job: str, tables: Sequence[Table]) -> list[StagedPath]:
    """Files of these tables that runs of a job staged and did not publish."""
    rows = connection.execute(
        _SQL["staged_files"],
        {"job": job, "catalogs": [one for one, _ in tables], "tables": [one for _, one in tables]},
    )
    return [StagedPath(**row) for row in rows]


def require_leases(connection: Connection, job_id: str, names: Sequence[str]) -> None:
    """Raises LeaseLostError unless the job has them; then nobody takes them until the transaction ends."""
    with domain_errors():
        connection.execute(_SQL["require_leases"], {"job_id": job_id, "names": list(names)})


def forget_staged(connection: Connection, paths: Sequence[str]) -> None:
    connection.execute("DELETE FROM lakefork.staged_file WHERE path = ANY (%s)", (list(paths),))


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


def note_clean(connection: Connection, tables: Sequence[Table]) -> None:
    """For after a publish is committed: stock DuckDB is shown it if it left the table clean (functions/clean.sql)."""
    connection.execute(
        "SELECT lakefork.note_last_publish(c, t) FROM unnest(%s::bigint[], %s::bigint[]) AS r (c, t)",
        ([one for one, _ in tables], [one for _, one in tables]),
    )
