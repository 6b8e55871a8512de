"""Tables as the catalog defines them at a snapshot: columns, key, kind and options."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakefork.column_types import BIGINT, BOOLEAN, TEXT, ColumnType, column_type
from lakefork.durations import seconds_of

SEQ, DELETED, USER_ID = "_seq", "_deleted", "_user_id"
DEFAULT_DELETED_RETENTION = "7d"
UPDATED = "_updated"  # derived from _seq
SYSTEM_COLUMN_IDS = {SEQ: 1, DELETED: 2, USER_ID: 3}
FIRST_COLUMN_ID = 4
SYSTEM_COLUMN_ORDER = 1_000_000  # after all columns of users


@dataclass(frozen=True)
class Column:
    """initial_default: what rows have that were written before the column was there."""

    column_id: int
    name: str
    type: ColumnType
    nullable: bool = True
    initial_default: str | None = None
    default: str | None = None
    default_is_expression: bool = False
    order: int = field(default=0, compare=False)


def element_id(column_id: int) -> int:
    """The column id of what an array holds."""
    return column_id + 1


def fold(name: str) -> str:
    """Names that are equal after this are one name: only A to Z, as in the catalog's indexes and in DuckDB."""
    return name.lower() if name.isascii() else name.translate(_ASCII_LOWER)


_ASCII_LOWER = {ord(upper): ord(upper) + 32 for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


@dataclass(frozen=True)
class TableDefinition:
    """A table from definition_snapshot on; version counts its definitions from 1."""

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
    def kind(self) -> str:
        return self.tags.get("kind", "SHARED")

    @property
    def per_user(self) -> bool:
        return self.kind == "USER"

    @functools.cached_property
    def key(self) -> tuple[Column, ...]:
        by_id = {column.column_id: column for column in self.columns}
        return tuple(by_id[column_id] for column_id in json.loads(self.tags.get("primary_key", "[]")))

    @functools.cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by folded name."""
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
        """The folded names of columns that batches have bloom filters for: the key, _seq, and what the options say."""
        wanted = [column.name for column in self.key] + [SEQ] + list(self.options.get("bloom_filters", []))
        return frozenset(map(fold, wanted)) - frozenset(map(fold, self.options.get("no_bloom_filters", [])))

    @property
    def deleted_retention(self) -> int | None:
        """For how many seconds deleted rows are kept; None: for ever."""
        text = self.options.get("deleted_retention", DEFAULT_DELETED_RETENTION)
        return None if text == "off" else seconds_of(text, "deleted_retention")

    @functools.cached_property
    def system_columns(self) -> tuple[Column, ...]:
        if self.kind == "STREAM":
            return ()
        return system_columns(per_user=self.per_user)

    @functools.cached_property
    def system_names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.system_columns)

    @functools.cached_property
    def arrow_schema(self) -> Any:
        """User columns by name, then the system columns; built once per definition."""
        import pyarrow as pa

        return pa.schema([(column.name, column.type.arrow) for column in self.columns + self.system_columns])

    @functools.cached_property
    def row_schema(self) -> Any:
        """The same without the system columns."""
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
    """What lakefork.table_definition returns, as an object."""
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
