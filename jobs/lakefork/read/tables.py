"""Tables as readers find them, by name, now or at a snapshot; definitions are kept, because one never changes."""

import datetime
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from lakefork.errors import InvalidInputError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.tables import HotTable
from lakefork.model.column_types import TEXT
from lakefork.model.predicates import postgres_array, postgres_text, quoted
from lakefork.model.tables import TableDefinition, definition_from_json
from lakefork.queries import load

CACHED_DEFINITIONS = 20_000
_SQL = load(__package__)

AsOf = int | datetime.datetime


@dataclass(frozen=True)
class FoundTable:
    """A table, now or at a snapshot; hot: its hot tables."""

    definition: TableDefinition
    hot: tuple[HotTable, ...]
    has_files: bool


class Definitions:
    """Definitions by catalog, table and the snapshot that began them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str, int, int], TableDefinition] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, connection: ArrowConnection, catalog_id: int, catalog: str, table_id: int, snapshot: int
    ) -> TableDefinition:
        key = (catalog_id, catalog, table_id, snapshot)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = connection.query(
            f"SELECT lakefork.table_definition({catalog_id}, {table_id}, {snapshot})::text AS definition"
        )
        definition = definition_from_json(catalog_id, catalog, snapshot, json.loads(found["definition"][0].as_py()))
        with self._lock:
            self._kept[key] = definition
            while len(self._kept) > CACHED_DEFINITIONS:
                self._kept.popitem(last=False)
        return definition

    def find_tables(
        self,
        connection: ArrowConnection,
        catalog_id: int,
        catalog: str,
        names: Sequence[tuple[str, str]],
        snapshot: int | None = None,
    ) -> list[FoundTable | None]:
        """names: of namespace and table; None for those that do not exist."""
        found = connection.query(
            _SQL["find_tables"].format(
                catalog_id=catalog_id,
                namespaces=postgres_array([namespace for namespace, _ in names], TEXT),
                tables=postgres_array([table for _, table in names], TEXT),
                snapshot="NULL" if snapshot is None else snapshot,
            )
        ).to_pylist()
        rows = {row["place"]: row for row in found}

        def table(place: int) -> FoundTable | None:
            row = rows.get(place)
            if row is None:
                return None
            definition, *hot = (
                self.get(connection, catalog_id, catalog, row["table_id"], at)
                for at in (row["definition_snapshot"], *row["hot_snapshots"])
            )
            return FoundTable(definition, tuple(map(HotTable, hot)), row["has_files"])

        return [table(place) for place in range(1, len(names) + 1)]


def find_history(connection: ArrowConnection, definition: TableDefinition) -> tuple[TableDefinition, ...]:
    """Returns the definitions that a table had up to one of them, the oldest first."""
    catalog_id, table_id = definition.ref
    found = connection.query(
        _SQL["definition_history"].format(
            catalog_id=catalog_id, table_id=table_id, snapshot=definition.definition_snapshot
        )
    )
    return tuple(
        definition_from_json(catalog_id, definition.catalog, row["begin_snapshot"], json.loads(row["definition"]))
        for row in found.to_pylist()
    )


def live_catalog(connection: ArrowConnection, name: str) -> int:
    found = connection.query(f"SELECT lakefork.live_catalog_id({postgres_text(name)}) AS catalog_id")
    return int(found["catalog_id"][0].as_py())


def catalog_at(connection: ArrowConnection, name: str, moment: str) -> int | None:
    """Returns the live catalog of this name, or the one that had it then. moment: see moment_of."""
    found = connection.query(_SQL["catalog_at"].format(name=postgres_text(name), moment=moment)).to_pylist()
    return found[0]["catalog_id"] if found else None


def snapshot_at(connection: ArrowConnection, catalog_id: int, moment: str) -> int:
    """Returns a snapshot that the catalog retains: that of an id, or the last one at a time."""
    found = connection.query(_SQL["snapshot_at"].format(catalog_id=catalog_id, moment=moment))
    return int(found["snapshot_id"][0].as_py())


def moment_of(as_of: AsOf | str) -> str:
    """What catalog_at and snapshot_at take: a snapshot id, or a time with its zone, also as text."""
    if isinstance(as_of, int):
        return f"{as_of}, NULL"
    if isinstance(as_of, datetime.datetime):
        if as_of.tzinfo is None:
            raise InvalidInputError(f"as_of {as_of} needs a time zone, such as datetime.UTC")
        as_of = as_of.isoformat()
    return f"NULL, {quoted(as_of)}::timestamptz"
