"""Builds the changes of a commit for the definition of a table."""

from collections.abc import Mapping

from lakefork.catalog.commits import Changes
from lakefork.model.tables import (
    SYSTEM_COLUMN_ORDER,
    USER_ID,
    Column,
    TableDefinition,
    TableKind,
    element_id,
    system_columns,
)
from lakefork.sql.ddl.options import static_part
from lakefork.storage.paths import path_part


def table_changes(
    schema_id: int, name: str, kind: TableKind, columns: tuple[Column, ...], tags: Mapping[str, str]
) -> Changes:
    changes = Changes()
    add_table(changes, schema_id, name, kind, columns, tags)
    return changes


def add_table(
    changes: Changes, schema_id: int, name: str, kind: TableKind, columns: tuple[Column, ...], tags: Mapping[str, str]
) -> int:
    """Adds a table to a commit and returns its placeholder."""
    table_id = changes.new_id()
    path = {"path": path_part(name), "path_is_relative": True}
    if "location" in tags:
        path = {"path": static_part(tags["location"]), "path_is_relative": False}
    changes.add("ducklake_table", table_id=table_id, schema_id=schema_id, table_name=name, **path)
    for order, column in enumerate(columns, 1):
        _add_column(changes, table_id, column, order)
    system = () if kind is TableKind.STREAM else system_columns(per_user=kind is TableKind.USER)
    for column in system:
        _add_column(changes, table_id, column, SYSTEM_COLUMN_ORDER + column.column_id)
        if column.name == USER_ID:
            partition_id = changes.new_id()
            changes.add("ducklake_partition_info", partition_id=partition_id, table_id=table_id)
            changes.add(
                "ducklake_partition_column", partition_id=partition_id, table_id=table_id, partition_key_index=0,
                column_id=column.column_id, transform="identity",
            )  # fmt: skip
    for key, value in tags.items():
        changes.add("ducklake_tag", object_id=table_id, key=key, value=value)
    return table_id


def _add_column(changes: Changes, table_id: int, column: Column, order: int) -> None:
    element = column.type.element
    default = {} if column.default is None else {
        "default_value": column.default,
        "default_value_type": "expression" if column.default_is_expression else "literal",
        "default_value_dialect": "duckdb",
    }  # fmt: skip
    changes.add(
        "ducklake_column", table_id=table_id, column_id=column.column_id, column_order=order, column_name=column.name,
        column_type="list" if element else column.type.name, nulls_allowed=column.nullable,
        initial_default=column.initial_default, **default,
    )  # fmt: skip
    if element:
        changes.add(
            "ducklake_column", table_id=table_id, column_id=element_id(column.column_id), column_order=order,
            column_name="element",
            column_type=element.name, nulls_allowed=True, parent_column=column.column_id,
        )  # fmt: skip


def change_columns(changes: Changes, definition: TableDefinition, columns: tuple[Column, ...]) -> None:
    """Ends and adds only columns that differ; new columns come last."""
    kept = {column.column_id: column for column in columns}
    for column in definition.columns:
        if kept.get(column.column_id) == column:
            continue
        changes.end("ducklake_column", table_id=definition.table_id, column_id=column.column_id)
        if column.type.element:
            changes.end("ducklake_column", table_id=definition.table_id, column_id=element_id(column.column_id))
    last = max(column.order for column in definition.columns)
    for column in columns:
        last += column.column_id not in definition.by_id
        if definition.by_id.get(column.column_id) != column:
            _add_column(changes, definition.table_id, column, column.order or last)
