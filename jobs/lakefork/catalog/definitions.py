"""How tables are defined now, and under which definitions they may have hot rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakefork.catalog.connection import Connection
from lakefork.model.tables import TableDefinition, TableRef, definition_from_json
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class DefinedTable:
    """A table as it is defined now, and the definitions under which it may have hot rows."""

    definition: TableDefinition
    hot: tuple[TableDefinition, ...]


def find_definitions(connection: Connection, tables: Sequence[TableRef]) -> dict[TableRef, DefinedTable]:
    """Those of the tables that exist in this transaction, in one query."""
    found: dict[TableRef, list[TableDefinition]] = {}
    current: dict[TableRef, TableDefinition] = {}
    rows = connection.execute(
        _SQL["definitions"], {"catalogs": [one for one, _ in tables], "tables": [one for _, one in tables]}
    )
    for row in rows:
        table = TableRef.of(row)
        definition = definition_from_json(
            row["catalog_id"], row["catalog_name"], row["definition_snapshot"], row["definition"]
        )
        if row["is_current"]:
            current[table] = definition
        if row["is_hot"]:
            found.setdefault(table, []).append(definition)
    return {table: DefinedTable(definition, tuple(found.get(table, ()))) for table, definition in current.items()}
