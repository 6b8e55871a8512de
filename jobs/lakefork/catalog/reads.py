"""What a reader needs to know of a table, now or at a snapshot: its definitions, its batches, where hot rows are."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.queries import load
from lakefork.tables import DELETED, SYSTEM_COLUMN_IDS, TableDefinition, definition_from_json

_SQL = load(__package__)

AsOf = int | datetime.datetime


@dataclass(frozen=True)
class BatchFile:
    """published: the snapshot; column_ids: of which columns there are statistics, which is all but arrays."""

    path: str
    owner: str | None
    published: int
    bounds: Mapping[int, tuple[str | None, str | None]]
    column_ids: frozenset[int]


@dataclass(frozen=True)
class TableToRead:
    """history: all definitions that are known, the oldest first, the one to read under last."""

    history: tuple[TableDefinition, ...]
    hot: tuple[TableDefinition, ...]
    batches: tuple[BatchFile, ...]

    @property
    def definition(self) -> TableDefinition:
        return self.history[-1]


def find_table_to_read(
    connection: Connection, catalog: str, namespace: str, table: str, user: str | None, as_of: AsOf | None
) -> TableToRead:
    """The caller's transaction makes all of it fit together, and fit the hot rows."""
    catalog_id = _catalog_id(connection, catalog, as_of)
    snapshot = None if as_of is None else snapshot_at(connection, catalog_id, as_of)
    at = {"catalog_id": catalog_id, "snapshot": snapshot}
    found = connection.execute(_SQL["find_table"], {**at, "namespace": namespace, "table": table}).fetchone()
    if found is None:
        when = "" if snapshot is None else f" at snapshot {snapshot}"
        raise NotFoundError(f"there is no table {namespace}.{table} in catalog {catalog!r}{when}")
    history = _history(connection, catalog_id, catalog, found["table_id"], found["definition_snapshot"])
    _require_readable(history[-1], user)
    hot = tuple(one for one in history if one.definition_snapshot in found["hot_snapshots"])
    return TableToRead(history, hot, _batches(connection, history[-1], user, snapshot))


def _catalog_id(connection: Connection, catalog: str, as_of: AsOf | None) -> int:
    """The live one of this name, or the one that had it then."""
    row = (
        None if as_of is None else connection.execute(_SQL["catalog_at"], {"name": catalog, **_when(as_of)}).fetchone()
    )
    return int(row["catalog_id"]) if row else find_catalog(connection, catalog).catalog_id


def snapshot_at(connection: Connection, catalog_id: int, as_of: AsOf) -> int:
    """A snapshot that the catalog retains: that of this id, or the last one at a time."""
    with domain_errors():
        row = connection.execute(_SQL["snapshot_at"], {"catalog_id": catalog_id, **_when(as_of)}).fetchone()
    return int(row["snapshot_id"]) if row else 0


def _when(as_of: AsOf) -> dict[str, Any]:
    if not isinstance(as_of, datetime.datetime):
        return {"id": as_of, "time": None}
    if as_of.tzinfo is None:
        raise InvalidInputError(f"as_of {as_of} needs a time zone, such as datetime.UTC")
    return {"id": None, "time": as_of}


def _history(
    connection: Connection, catalog_id: int, catalog: str, table_id: int, definition_snapshot: int
) -> tuple[TableDefinition, ...]:
    wanted = {"catalog_id": catalog_id, "table_id": table_id, "definition_snapshot": definition_snapshot}
    return tuple(
        definition_from_json(catalog_id, catalog, row["begin_snapshot"], row["definition"])
        for row in connection.execute(_SQL["definition_history"], wanted)
    )


def _require_readable(definition: TableDefinition, user: str | None) -> None:
    if definition.kind == "STREAM":
        raise InvalidInputError(f"{definition} is a STREAM table: it keeps no rows that could be read")
    if user is not None and not definition.per_user:
        raise InvalidInputError(f"{definition} is a SHARED table, whose rows belong to no user: leave out user")


def _batches(
    connection: Connection, definition: TableDefinition, user: str | None, snapshot: int | None
) -> tuple[BatchFile, ...]:
    columns = [SYSTEM_COLUMN_IDS[DELETED], *(column.column_id for column in definition.key[:1])]
    wanted = {
        "catalog_id": definition.catalog_id, "table_id": definition.table_id, "user": user, "columns": columns,
        "snapshot": snapshot,
    }  # fmt: skip
    return tuple(
        BatchFile(
            row["path"], row["owner"], row["published"],
            {int(column): (low, high) for column, (low, high, *_) in (row["bounds"] or {}).items()},
            frozenset(row["column_ids"]),
        )
        for row in connection.execute(_SQL["batches_to_read"], wanted)
    )  # fmt: skip
