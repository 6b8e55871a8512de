"""Catalogs: create, rename, drop, find."""

from dataclasses import dataclass
from uuid import UUID

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import NotFoundError
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class Catalog:
    catalog_id: int
    name: str
    catalog_uuid: UUID
    data_path: str
    begin_snapshot: int


def create_catalog(connection: Connection, name: str, data_path: str, *, author: str | None = None) -> Catalog:
    with domain_errors(), connection.transaction():
        connection.execute("SELECT * FROM lakefork.create_catalog(%s, %s, %s)", (name, data_path, author))
        return find_catalog(connection, name)


def check_data_path(connection: Connection, path: str) -> None:
    """Raises if a new catalog cannot have it: not well formed, or it overlaps another one's."""
    with domain_errors():
        connection.execute("SELECT lakefork.check_data_path(%s)", (path,))


def rename_catalog(connection: Connection, catalog: Catalog, name: str, *, author: str | None = None) -> Catalog:
    with domain_errors(), connection.transaction():
        connection.execute("SELECT lakefork.rename_catalog(%s, %s, %s)", (catalog.catalog_id, name, author))
        return find_catalog(connection, name)


def drop_catalog(connection: Connection, catalog: Catalog, *, author: str | None = None) -> None:
    with domain_errors():
        connection.execute("SELECT lakefork.drop_catalog(%s, %s)", (catalog.catalog_id, author))


def find_catalog(connection: Connection, name: str, *, snapshot: int | None = None) -> Catalog:
    row = connection.execute(_SQL["find_catalog"], {"name": name, "snapshot": snapshot}).fetchone()
    if row is None:
        when = "" if snapshot is None else f" at snapshot {snapshot}"
        raise NotFoundError(f"catalog {name!r} does not exist{when}; `lakefork status` lists catalogs")
    return Catalog(**row)


def list_catalogs(connection: Connection, *, snapshot: int | None = None) -> list[Catalog]:
    return [Catalog(**row) for row in connection.execute(_SQL["list_catalogs"], {"snapshot": snapshot})]


def newest_snapshot(connection: Connection) -> int:
    row = connection.execute("SELECT lakefork.newest_snapshot() AS snapshot").fetchone()
    assert row is not None  # noqa: S101 - an aggregate always returns a row
    return int(row["snapshot"])
