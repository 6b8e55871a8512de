"""Look-ups and changes that namespaces and tables share."""

from collections.abc import Mapping

from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.commits import Changes
from lakefork.catalog.connection import Connection
from lakefork.errors import InvalidInputError, NotFoundError


def check_name(what: str, name: str) -> None:
    if not name or len(name) > 200 or "\0" in name:
        raise InvalidInputError(f"a {what} name has 1 to 200 characters")


def find_namespace(connection: Connection, catalog: Catalog, name: str) -> int | None:
    row = connection.execute(
        "SELECT schema_id FROM lakefork.visible_schema(%s) "
        'WHERE lower(schema_name COLLATE "C") = lower(%s::text COLLATE "C")',
        (catalog.catalog_id, name),
    ).fetchone()
    return int(row["schema_id"]) if row else None


def namespace_id(connection: Connection, catalog: Catalog, name: str) -> int:
    found = find_namespace(connection, catalog, name)
    if found is None:
        raise NotFoundError(f"namespace {name} does not exist; create it with CREATE NAMESPACE {name}")
    return found


def tags_of(connection: Connection, catalog: Catalog, object_id: int) -> dict[str, str]:
    rows = connection.execute(
        "SELECT key, value FROM lakefork.visible_tag(%s) WHERE object_id = %s", (catalog.catalog_id, object_id)
    )
    return {row["key"]: row["value"] for row in rows}


def change_tags(changes: Changes, object_id: int, now: Mapping[str, str], wanted: Mapping[str, str | None]) -> None:
    for key, value in wanted.items():
        if now.get(key) == value:
            continue
        if key in now:
            changes.end("ducklake_tag", object_id=object_id, key=key)
        if value is not None:
            changes.add("ducklake_tag", object_id=object_id, key=key, value=value)
