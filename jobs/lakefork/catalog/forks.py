"""Forks: make them, one or many, and drop them."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.catalogs import Catalog, find_catalog
from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.queries import load

_SQL = load(__package__)
DROPPED_AT_ONCE = 100


@dataclass(frozen=True)
class Fork:
    name: str
    catalog_id: int
    snapshot_id: int


def fork_catalog(
    connection: Connection,
    parent: str,
    name: str,
    data_path: str | None = None,
    *,
    as_of: int | None = None,
    expires_after: datetime.timedelta | None = None,
    if_not_exists: bool = False,
) -> Catalog:
    with domain_errors(), connection.transaction():
        connection.execute(
            "SELECT * FROM ducklake_fork_catalog(%s, %s, %s, %s, %s, %s)",
            (parent, name, data_path, as_of, expires_after, if_not_exists),
        )
        return find_catalog(connection, name)


def fork_catalogs(
    connection: Connection,
    parent: str,
    data_paths: Mapping[str, str | None],
    *,
    as_of: int | None = None,
    expires_after: datetime.timedelta | None = None,
    author: str | None = None,
    run_id: str | None = None,
) -> list[Fork]:
    """Many at once, by name: all of them or none."""
    wanted = {
        "parent": parent, "names": list(data_paths), "data_paths": list(data_paths.values()), "as_of": as_of,
        "expires_after": expires_after, "author": author, "run_id": run_id,
    }  # fmt: skip
    with domain_errors():
        return [Fork(**row) for row in connection.execute(_SQL["fork_catalogs"], wanted)]


def check_forks(connection: Connection, parent: str, data_paths: Mapping[str, str | None]) -> None:
    """Raises what fork_catalogs would, for names and data paths that cannot be."""
    wanted = {"parent": parent, "names": list(data_paths), "data_paths": list(data_paths.values())}
    with domain_errors():
        connection.execute(_SQL["check_forks"], wanted)


def existing_catalogs(connection: Connection, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns which of these names exist, with their parent and the run that created them."""
    return {row["name"]: row for row in connection.execute(_SQL["existing_catalogs"], {"names": list(names)})}


def rows_per_fork(connection: Connection, parent_id: int) -> int:
    """About how many rows a fork of it consists of."""
    row = connection.execute(_SQL["rows_per_fork"], {"parent_id": parent_id}).fetchone()
    return int(row["rows"]) if row else 0


def catalogs_to_drop(connection: Connection, prefix: str, older_than: datetime.timedelta) -> list[Catalog]:
    """Returns forks with a name prefix and a minimum age, oldest first."""
    wanted = {"prefix": prefix, "older_than": older_than}
    return [Catalog(**row) for row in connection.execute(_SQL["forks_to_drop"], wanted)]


def drop_catalogs(connection: Connection, catalog_ids: Sequence[int], *, author: str | None = None) -> int:
    """Those that are still there; how many that were."""
    with domain_errors():
        return len(
            connection.execute("SELECT * FROM lakefork.drop_catalogs(%s, %s)", (list(catalog_ids), author)).fetchall()
        )


def drop_in_chunks(connection: Connection, catalog_ids: Sequence[int], author: str | None) -> Iterator[int]:
    """Drops some in each transaction, so that commits do not wait long; yields how many are done."""
    dropped = 0
    for start in range(0, len(catalog_ids), DROPPED_AT_ONCE):
        dropped += drop_catalogs(connection, catalog_ids[start : start + DROPPED_AT_ONCE], author=author)
        yield dropped
