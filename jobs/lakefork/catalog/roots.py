"""Roots: where files may be placed, and who owns directories. Thin Python over functions/roots.sql."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors

SAMPLES = 20


@dataclass(frozen=True)
class AllowedRoot:
    path: str
    added_at: datetime
    added_by: str | None
    tables: int  # that have a LOCATION there


def installation_id(connection: Any) -> str:
    row = connection.execute("SELECT lakefork.installation_id() AS id").fetchone()
    return str(row["id"])


def list_roots(connection: Connection) -> list[AllowedRoot]:
    return [AllowedRoot(**row) for row in connection.execute("SELECT * FROM lakefork.allowed_roots()")]


def add_root(connection: Connection, path: str, *, author: str | None = None) -> bool:
    """False if it was allowed before."""
    with domain_errors():
        row = connection.execute("SELECT lakefork.add_root(%s, %s) AS added", (path, author)).fetchone()
    return bool(row and row["added"])


def remove_root(connection: Connection, path: str) -> None:
    with domain_errors():
        connection.execute("SELECT lakefork.remove_root(%s)", (path,))


def allowed_root_above(connection: Connection, path: str) -> str | None:
    """The allowed root, or the data path, that holds a path."""
    row = connection.execute("SELECT lakefork.allowed_root_above(%s) AS root", (path,)).fetchone()
    return row["root"] if row else None


def data_paths(connection: Connection) -> list[tuple[int, str]]:
    """Of all catalogs that are not forgotten, with their ids."""
    rows = connection.execute("SELECT catalog_id, value FROM lakefork.catalog_setting WHERE key = 'data_path'")
    return [(row["catalog_id"], row["value"]) for row in rows]


def known_files(connection: Any, root: str) -> list[str]:
    """Some files that the catalog has, or had, in the directory of a table."""
    rows = connection.execute("SELECT path FROM lakefork.known_files_in(%s, %s)", (root, SAMPLES))
    return [row["path"] for row in rows]


def known_owner(connection: Any, root: str) -> tuple[int, int] | None:
    """Catalog and table id of a table with files in this directory."""
    row = connection.execute("SELECT catalog_id, table_id FROM lakefork.known_files_in(%s, 1)", (root,)).fetchone()
    return (row["catalog_id"], row["table_id"]) if row else None


def reserve_past_taken(
    connection: Any, job_id: str, catalog_id: int, table_id: int, directory: str, taken: int, found: Sequence[int]
) -> int:
    """Reserves another number for a batch whose name is taken by a foreign file; found: all numbers in storage."""
    row = connection.execute(
        "SELECT lakefork.reserve_past_taken(%s, %s, %s, %s, %s, %s::bigint[]) AS number",
        (job_id, catalog_id, table_id, directory, taken, list(found)),
    ).fetchone()
    return int(row["number"])


def note_foreign(connection: Any, job_id: str, paths: Sequence[str]) -> None:
    """Records files of somebody else, which are never removed."""
    connection.execute("SELECT lakefork.note_foreign(%s, %s)", (job_id, list(paths)))


def never_given_out(connection: Any, paths: Sequence[str]) -> set[str]:
    """Returns the batches whose numbers this installation never gave out."""
    rows = connection.execute("SELECT path FROM lakefork.never_given_out(%s)", (list(paths),))
    return {row["path"] for row in rows}
