"""Hot tables: one Postgres table per table and definition, shared by the catalogs that have that definition."""

from dataclasses import dataclass
from typing import Any

from lakefork.model.predicates import quoted
from lakefork.model.tables import DELETED, SEQ, USER_ID, Column, TableDefinition

SCHEMA = "hot"


@dataclass(frozen=True)
class HotTable:
    """A hot table, with the rows written under one definition; its columns are named by column id."""

    definition: TableDefinition

    @property
    def name(self) -> str:
        return f"t{self.definition.table_id}_{self.definition.definition_snapshot}"

    @property
    def qualified(self) -> str:
        return f"{SCHEMA}.{self.name}"

    @property
    def owner_columns(self) -> tuple[str, ...]:
        return ("catalog_id", USER_ID) if self.definition.per_user else ("catalog_id",)

    def of(self, user_id: str | None) -> str:
        """Returns the condition for the rows of this catalog and, if given, user."""
        mine = f"catalog_id = {self.definition.catalog_id}"
        return mine if user_id is None else f"{mine} AND {USER_ID} = {quoted(user_id)}"

    def create_statements(self) -> list[str]:
        """Returns the DDL. The inserting transaction is recorded, so that a flush knows exactly which rows it saw."""
        owner = {"catalog_id": "bigint", USER_ID: 'text COLLATE "C"'}
        columns = [f"{name} {owner[name]} NOT NULL" for name in self.owner_columns]
        columns += [f"{SEQ} bigint NOT NULL", f"{DELETED} boolean NOT NULL"]
        columns += ["_xid xid8 NOT NULL DEFAULT pg_current_xact_id()"]
        columns += [column_definition(column) for column in self.definition.columns]
        owners = ", ".join(self.owner_columns)
        key = ", ".join(hot_column(column) for column in self.definition.key)
        return [
            f"CREATE TABLE IF NOT EXISTS {self.qualified} ({', '.join(columns)}, PRIMARY KEY ({owners}, {SEQ}))",
            f"CREATE INDEX IF NOT EXISTS {self.name}_key ON {self.qualified} ({owners}, {key}, {SEQ})",
        ]


def create_hot_table(connection: Any, hot: HotTable) -> None:
    """Creates a hot table at the first write under a definition; safe to race, as forks and processes share it.

    The caller registers it with the catalog in the same transaction.
    """
    connection.execute("SELECT pg_advisory_xact_lock(lakefork.hot_table_lock(%s))", (hot.name,))
    for statement in hot.create_statements():
        connection.execute(statement)


def hot_column(column: Column) -> str:
    return f"c{column.column_id}"


def column_definition(column: Column) -> str:
    collation = ' COLLATE "C"' if column.type.name == "varchar" else ""  # the order of files and of DuckDB
    return f"{hot_column(column)} {column.type.postgres}{collation}{'' if column.nullable else ' NOT NULL'}"
