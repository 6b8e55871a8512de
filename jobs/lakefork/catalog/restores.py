"""What the catalog knows of restores: what is in the way or staged, and the one commit. See functions/restore.sql."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.backups import Table, find_tables
from lakefork.catalog.commits import Changes
from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.model.tables import fold
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class Restored:
    """The outcome of a restore; replayed: an earlier attempt of the same run had done it."""

    snapshot_id: int
    first_catalog_id: int
    replayed: bool

    def table_id(self, ref: int) -> int:
        return self.first_catalog_id - ref - 1


def existing_namespaces(connection: Connection, catalog_id: int) -> dict[str, int]:
    """Ids by folded name."""
    rows = connection.execute("SELECT schema_id, schema_name FROM lakefork.visible_schema(%s)", (catalog_id,))
    return {fold(row["schema_name"]): row["schema_id"] for row in rows}


def tables_in(connection: Connection, catalog_id: int, schema_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Namespace, id and name of the tables of some namespaces."""
    return connection.execute(
        _SQL["tables_in_namespaces"], {"catalog_id": catalog_id, "schema_ids": list(schema_ids)}
    ).fetchall()


def lock_definitions(connection: Connection, catalog_id: int, table_ids: Sequence[int]) -> None:
    """Nobody writes rows of these tables until the transaction ends."""
    connection.execute(
        "SELECT lakefork.lock_definition(%s, t) FROM (SELECT unnest(%s::bigint[]) AS t ORDER BY 1) o",
        (catalog_id, list(table_ids)),
    )


def restored_before(connection: Connection, key: str) -> Restored | None:
    """What an earlier attempt of the same run did."""
    row = connection.execute(
        "SELECT snapshot_id, first_catalog_id, true AS replayed FROM lakefork.commit_key WHERE commit_key = %s", (key,)
    ).fetchone()
    return Restored(**row) if row else None


@dataclass(frozen=True)
class Publication:
    """All that the commit of a restore needs; the files are staged."""

    catalog_id: int
    base_snapshot: int
    changes: Changes
    history: dict[str, int]
    files: int
    objects: list[dict[str, Any]]
    users: list[dict[str, Any]]
    locations: list[dict[str, Any]]
    manifests: list[dict[str, Any]]
    key: str
    message: str


def commit_restore(connection: Connection, job_id: str, run_id: str, publication: Publication) -> Restored:
    """In a transaction of the caller, in which all other commits wait."""
    changes = {**publication.changes.as_json(), "history": publication.history, "file_ids": publication.files}
    with domain_errors():
        row = connection.execute(
            "SELECT snapshot_id, first_catalog_id, replayed FROM lakefork.commit_restore(%s, %s, %s, %s, %s, %s, %s, "
            "%s, %s, 'namespace_restore', %s, %s)",
            (
                job_id, run_id, publication.catalog_id, publication.base_snapshot, Jsonb(changes),
                Jsonb(publication.objects), _json(publication.users), _json(publication.locations),
                Jsonb(publication.manifests), publication.message, publication.key,
            ),
        ).fetchone()  # fmt: skip
    assert row is not None  # noqa: S101 - the function returns one row or raises
    return Restored(**row)


def _json(rows: list[dict[str, Any]]) -> Jsonb:
    return Jsonb([{name: _plain(value) for name, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | list | int | float) else str(value)


def restored_tables(connection: Connection, catalog_id: int, table_ids: Sequence[int]) -> dict[int, Table]:
    """As a backup of now would find them, by id."""
    rows = connection.execute(_SQL["namespaces_of_tables"], {"catalog_id": catalog_id, "tables": list(table_ids)})
    found = find_tables(connection, catalog_id, [row["schema_id"] for row in rows])
    return {table.table_id: table for table in found if table.table_id in set(table_ids)}


def file_contents(
    connection: Connection, catalog_id: int, table_ids: Sequence[int]
) -> dict[int, list[tuple[str, int, str, int]]]:
    """Owner, snapshot, digest and rows of the files of each table."""
    rows = connection.execute("SELECT * FROM lakefork.file_contents(%s, %s)", (catalog_id, list(table_ids)))
    found: dict[int, list[tuple[str, int, str, int]]] = {}
    for row in rows:
        file = row["user_id"] or "", row["snapshot"], row["digest"], row["record_count"]
        found.setdefault(row["table_id"], []).append(file)
    return found


def dead_restores(connection: Connection, job_id: str) -> list[str]:
    """Restores that left something staged, and that nobody works on."""
    return [row["job_id"] for row in connection.execute(_SQL["dead_restores"], {"job_id": job_id})]


def lock_staged(connection: Connection, job_id: str, limit: int) -> list[tuple[str, str, int]]:
    """Path, digest and size of some files of a restore that are not published; they are not until we are done."""
    rows = connection.execute(_SQL["lock_staged_restore"], {"job_id": job_id, "limit": limit})
    return [(row["path"], row["digest"], row["file_size_bytes"]) for row in rows]


def forget_staged(connection: Connection, job_id: str, paths: Sequence[str] | None) -> None:
    """paths None: all that is left."""
    wanted = {"job_id": job_id, "paths": None if paths is None else list(paths)}
    connection.execute(_SQL["forget_staged_restore"], wanted)
    if paths is None:
        connection.execute("DELETE FROM lakefork.restore_file WHERE job_id = %s", (job_id,))
