"""One catalog's tables, and all there is to know of one of them."""

import itertools
import json
from typing import Any

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.cold.statistics import bound_parser
from lakefork.column_types import column_type
from lakefork.errors import NotFoundError
from lakefork.maintenance.dedup import Candidate, Holds, superseded_at_most
from lakefork.maintenance.ranges import KeyRange
from lakefork.overview.lake import PAGE_SIZE, Page, Row, default_policy, page_of
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
    page = page_of(found, limit, "table")
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
    """Definition and history, policy and backlog, batches (at a snapshot, of a user), manifests, commits."""
    catalog_id = find_catalog(connection, catalog).catalog_id
    where = {"catalog_id": catalog_id, "namespace": namespace, "table": table, **default_policy(policy)}
    found = connection.execute(_SQL["table"], where).fetchone()
    if found is None:
        raise NotFoundError(f"there is no table {namespace}.{table} in catalog {catalog}")
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
        "superseded_share": _superseded_share(files, key["type"]),
    }


def _superseded_share(files: list[Row], kind: str) -> float | None:
    """The share of rows that may have a newer version in another batch of their owner, as snapshot_dedup sees it."""
    rows = sum(file["rows"] for file in files)
    bound = bound_parser(column_type(kind))
    doubled = 0.0
    for _, group in itertools.groupby(files, key=lambda file: file["user_id"]):
        batches = [
            Candidate(
                file["data_file_id"], file["published"], file["path"], file["rows"], file["bytes"], 0, None,
                KeyRange(bound(file["low"]), bound(file["high"])), Holds.BOTH,
            )
            for file in group
        ]  # fmt: skip
        doubled += superseded_at_most(batches) * sum(batch.rows for batch in batches)
    return round(doubled / rows, 3) if rows else None


def _first_key_column(definition: dict[str, Any]) -> dict[str, Any]:
    """Whose bounds are worth a picture: the first column of the key, or the first of all."""
    columns = definition["columns"]
    keys = json.loads(definition["tags"].get("primary_key", "[]"))
    return next((column for column in columns if column["column_id"] in keys[:1]), columns[0])
