"""The tables of a catalog, and the details of one table."""

import json
from typing import Any

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.errors import NotFoundError
from lakefork.overview.lake import PAGE_SIZE, Page, Row, default_policy, make_page
from lakefork.overview.superseded import FILES_PER_TABLE, superseded_shares
from lakefork.queries import load
from lakefork.settings import FlushSettings

_SQL = load(__package__)
FILES_SHOWN = 400
SNAPSHOTS_SHOWN = 50


def list_tables(
    connection: Connection, catalog: str, search: str | None = None, after: str | None = None, limit: int = PAGE_SIZE
) -> Page:
    found = connection.execute(
        _SQL["tables"],
        {
            "catalog_id": find_catalog(connection, catalog).catalog_id, "search": search or None, "after": after,
            "limit": limit + 1,
        },
    ).fetchall()  # fmt: skip
    page = make_page(found, limit, "table")
    last = page.rows[-1] if page.next else None
    return Page(page.rows, f"{last['namespace']}.{last['table']}" if last else None)


def read_table(
    connection: Connection,
    catalog: str,
    namespace: str,
    table: str,
    policy: FlushSettings,
    *,
    snapshot: int | None = None,
    user: str | None = None,
) -> Row:
    """Returns definition and history, policy and waiting rows, batches (at a snapshot, of a user), manifests and
    commits.
    """
    catalog_id = find_catalog(connection, catalog).catalog_id
    where = {"catalog_id": catalog_id, "namespace": namespace, "table": table, **default_policy(policy)}
    found = connection.execute(_SQL["table"], where).fetchone()
    if found is None:
        raise NotFoundError(f"table {namespace}.{table} does not exist in catalog {catalog}")
    key = _first_key_column(found["definition"])
    about = {"catalog_id": catalog_id, "table_id": found["table_id"]}
    files = connection.execute(
        _SQL["files_of_table"],
        {**about, "user": user, "snapshot": snapshot, "column_id": key["column_id"], "limit": FILES_SHOWN + 1},
    ).fetchall()
    return {
        **found,
        "key": {"name": key["name"], "type": key["type"]},
        "versions": connection.execute(_SQL["versions_of_table"], about).fetchall(),
        "snapshots": connection.execute(_SQL["snapshots_of_table"], {**about, "limit": SNAPSHOTS_SHOWN}).fetchall(),
        "batches": files[:FILES_SHOWN],
        "more_batches": len(files) > FILES_SHOWN,
        "superseded_share": superseded_shares(connection, [(catalog_id, found["table_id"])]).get(
            (catalog_id, found["table_id"])
        ),
        "superseded_files": min(found["files"], FILES_PER_TABLE),
    }


def _first_key_column(definition: dict[str, Any]) -> dict[str, Any]:
    """Returns the column whose bounds are shown: the first key column, or the first column."""
    columns = definition["columns"]
    keys = json.loads(definition["tags"].get("primary_key", "[]"))
    return next((column for column in columns if column["column_id"] in keys[:1]), columns[0])
