"""Finds tables by name; their definitions are kept, because a definition never changes, only which one holds."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from lakefork.column_types import TEXT
from lakefork.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.tables import HotTable
from lakefork.predicates import postgres_array, postgres_text
from lakefork.sql.session import Session
from lakefork.sql.statements import TableName
from lakefork.tables import TableDefinition, definition_from_json

KEPT_DEFINITIONS = 20_000


@dataclass(frozen=True)
class FoundTable:
    """A table as of now, or as of a snapshot; hot: where rows that are in no file may be."""

    definition: TableDefinition
    hot: tuple[HotTable, ...]
    has_files: bool


class Lookup:
    def __init__(self) -> None:
        self._definitions: OrderedDict[tuple[int, str, int, int], TableDefinition] = OrderedDict()
        self._lock = threading.Lock()

    def catalog_id(self, connection: ArrowConnection, session: Session, at: str | None = None) -> int:
        """The session's catalog, in which its user must not have been deleted; at: when, for lakefork.catalog_at."""
        name = postgres_text(session.catalog)
        live = f"public.ducklake_catalog c WHERE c.catalog_name = {name} AND c.end_snapshot IS NULL"
        user = postgres_text(session.user)
        found = connection.query(
            "SELECT c.catalog_id, EXISTS (SELECT FROM lakefork.app_user u WHERE u.catalog_id = c.catalog_id "
            f"AND u.user_id = {user} AND u.deleted_at IS NOT NULL) AS deleted "
            f"FROM {live if at is None else f'lakefork.catalog_at({name}, {at}) c'}"
        ).to_pylist()
        if not found:
            raise NotFoundError(f"there is no catalog {session.catalog!r}; `lakefork status` lists them")
        if found[0]["deleted"]:
            raise PermissionDeniedError(f"user {session.user!r} was deleted")
        return int(found[0]["catalog_id"])

    def find(
        self, connection: ArrowConnection, session: Session, name: TableName, snapshot: int | None = None
    ) -> FoundTable:
        return self.find_all(connection, session, [name], snapshot)[0]

    def find_all(
        self, connection: ArrowConnection, session: Session, names: Sequence[TableName], snapshot: int | None = None
    ) -> list[FoundTable]:
        catalog_id = self.catalog_id(connection, session, None if snapshot is None else f"{snapshot}, NULL")
        namespaces = postgres_array([namespace_of(name, session) for name in names], TEXT)
        tables = postgres_array([name.table for name in names], TEXT)
        at = "NULL" if snapshot is None else str(snapshot)
        found = connection.query(
            f"SELECT * FROM lakefork.find_tables({catalog_id}, {namespaces}, {tables}, {at})"
        ).to_pylist()
        rows = {row["place"]: row for row in found}
        for place, name in enumerate(names, 1):
            if place not in rows:
                when = "" if snapshot is None else f" at snapshot {snapshot}"
                raise NotFoundError(
                    f"there is no table {namespace_of(name, session)}.{name.table}{when}; SHOW TABLES lists them"
                )
        return [self._found(connection, session, catalog_id, rows[place]) for place in range(1, len(names) + 1)]

    def _found(
        self, connection: ArrowConnection, session: Session, catalog_id: int, row: dict[str, object]
    ) -> FoundTable:
        def definition(at: object) -> TableDefinition:
            return self.definition(connection, catalog_id, session.catalog, int(str(row["table_id"])), int(str(at)))

        hot = row["hot_snapshots"]
        return FoundTable(
            definition(row["definition_snapshot"]),
            tuple(HotTable(definition(at)) for at in (hot if isinstance(hot, list) else [])),
            bool(row["has_files"]),
        )

    def definition(
        self, connection: ArrowConnection, catalog_id: int, catalog: str, table_id: int, snapshot: int
    ) -> TableDefinition:
        """The definition that began at a snapshot."""
        key = (catalog_id, catalog, table_id, snapshot)
        with self._lock:
            if key in self._definitions:
                self._definitions.move_to_end(key)
                return self._definitions[key]
        found = connection.query(
            f"SELECT lakefork.table_definition({catalog_id}, {table_id}, {snapshot})::text AS definition"
        )
        definition = definition_from_json(catalog_id, catalog, snapshot, json.loads(found["definition"][0].as_py()))
        with self._lock:
            self._definitions[key] = definition
            while len(self._definitions) > KEPT_DEFINITIONS:
                self._definitions.popitem(last=False)
        return definition


def namespace_of(name: TableName, session: Session) -> str:
    namespace = name.namespace or session.namespace
    if namespace is None:
        raise InvalidInputError(f"table {name.table} needs a namespace: write namespace.{name.table}")
    return namespace
