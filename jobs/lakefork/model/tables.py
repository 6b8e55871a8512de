"""Definitions of tables at a snapshot: columns, key, kind and options."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from lakefork.model.column_types import BIGINT, BOOLEAN, TEXT, ColumnType, column_type
from lakefork.model.durations import seconds_of

SEQ, DELETED, USER_ID = "_seq", "_deleted", "_user_id"
DEFAULT_DELETED_RETENTION = "7d"
UPDATED = "_updated"  # derived from _seq
SUPERSEDED = "_superseded"  # there for those who name it, and who then get older versions, too
SYSTEM_COLUMN_IDS = {SEQ: 1, DELETED: 2, USER_ID: 3}
FIRST_COLUMN_ID = 4
SYSTEM_COLUMN_ORDER = 1_000_000  # after all user columns


class TableKind(StrEnum):
    USER = "USER"  # each row belongs to a user
    SHARED = "SHARED"  # rows belong to nobody
    STREAM = "STREAM"  # events, each of a user, that are delivered and not kept


class TableRef(NamedTuple):
    """A table of a catalog; forks have tables of the same id."""

    catalog_id: int
    table_id: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "TableRef":
        return cls(row["catalog_id"], row["table_id"])


@dataclass(frozen=True)
class Column:
    """A column. initial_default: the value in rows that were written before the column was added."""

    column_id: int
    name: str
    type: ColumnType
    nullable: bool = True
    initial_default: str | None = None
    default: str | None = None
    default_is_expression: bool = False
    order: int = field(default=0, compare=False)


def element_id(column_id: int) -> int:
    """Returns the column id of an array's elements."""
    return column_id + 1


def fold(name: str) -> str:
    """Folds a name for comparison: only A to Z, as in the catalog's indexes and in DuckDB."""
    return name.lower() if name.isascii() else name.translate(_ASCII_LOWER)


_ASCII_LOWER = {ord(upper): ord(upper) + 32 for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


@dataclass(frozen=True)
class TableDefinition:
    """The definition of a table from definition_snapshot on; version counts its definitions from 1."""

    catalog_id: int
    catalog: str
    table_id: int
    schema_id: int
    namespace: str
    name: str
    definition_snapshot: int
    version: int
    schema_version: int
    next_column_id: int
    path: str
    columns: tuple[Column, ...]
    tags: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def ref(self) -> TableRef:
        return TableRef(self.catalog_id, self.table_id)

    @functools.cached_property
    def kind(self) -> TableKind:
        return TableKind(self.tags.get("kind", TableKind.SHARED))

    @property
    def per_user(self) -> bool:
        return self.kind != TableKind.SHARED

    @functools.cached_property
    def key(self) -> tuple[Column, ...]:
        by_id = {column.column_id: column for column in self.columns}
        return tuple(by_id[column_id] for column_id in json.loads(self.tags.get("primary_key", "[]")))

    @functools.cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Returns columns by folded name."""
        return {fold(column.name): column for column in self.columns}

    @functools.cached_property
    def by_id(self) -> Mapping[int, Column]:
        return {column.column_id: column for column in self.columns}

    @property
    def options(self) -> dict[str, Any]:
        return {
            key.removeprefix("option."): json.loads(value)
            for key, value in self.tags.items()
            if key.startswith("option.")
        }

    @functools.cached_property
    def filtered_columns(self) -> frozenset[str]:
        """Returns the folded names of columns with bloom filters: the key, _seq, and those in the options."""
        wanted = [column.name for column in self.key] + [SEQ] + list(self.options.get("bloom_filters", []))
        return frozenset(map(fold, wanted)) - frozenset(map(fold, self.options.get("no_bloom_filters", [])))

    @property
    def deleted_retention(self) -> int | None:
        """Returns for how many seconds deleted rows are kept; None: for ever."""
        text = self.options.get("deleted_retention", DEFAULT_DELETED_RETENTION)
        return None if text == "off" else seconds_of(text, "deleted_retention")

    @functools.cached_property
    def system_columns(self) -> tuple[Column, ...]:
        if self.kind == TableKind.STREAM:
            return ()
        return system_columns(per_user=self.per_user)

    @functools.cached_property
    def system_names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.system_columns)

    @functools.cached_property
    def arrow_schema(self) -> Any:
        """Returns the schema of user columns, then system columns; built once per definition."""
        import pyarrow as pa

        return pa.schema([(column.name, column.type.arrow) for column in self.columns + self.system_columns])

    @functools.cached_property
    def row_schema(self) -> Any:
        """Returns the schema of the user columns."""
        import pyarrow as pa

        return pa.schema(list(self.arrow_schema)[: len(self.columns)])

    @functools.cached_property
    def key_schema(self) -> Any:
        import pyarrow as pa

        return pa.schema([self.arrow_schema.field(column.name) for column in self.key])


def system_columns(*, per_user: bool) -> tuple[Column, ...]:
    types = {SEQ: BIGINT, DELETED: BOOLEAN, **({USER_ID: TEXT} if per_user else {})}
    return tuple(Column(SYSTEM_COLUMN_IDS[name], name, kind, nullable=False) for name, kind in types.items())


def definition_from_json(
    catalog_id: int, catalog: str, definition_snapshot: int, found: Mapping[str, Any]
) -> TableDefinition:
    """Converts the result of lakefork.table_definition."""
    elements = {row["parent"]: row["type"] for row in found["columns"] if row["parent"] is not None}
    columns = tuple(
        Column(
            row["column_id"], row["name"],
            column_type(f"list<{elements[row['column_id']]}>" if row["type"] == "list" else row["type"]),
            row["nullable"] is not False, row["initial_default"], row["default"], row["default_type"] == "expression",
            row["order"],
        )
        for row in found["columns"]
        if row["parent"] is None and row["name"] not in SYSTEM_COLUMN_IDS
    )  # fmt: skip
    return TableDefinition(
        catalog_id, catalog, found["table_id"], found["schema_id"], found["namespace"], found["table_name"],
        definition_snapshot, found["versions"], found["schema_version"], found["next_column_id"], found["table_path"],
        columns,
        found["tags"],
    )  # fmt: skip
