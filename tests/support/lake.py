"""Small builders of catalogs, tables and files for tests."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from psycopg.rows import tuple_row

from lakefork.catalog.catalogs import Catalog, create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, Committed, commit
from lakefork.catalog.connection import Connection
from lakefork.cold.batch import BatchLayout, with_field_ids, write_batch
from lakefork.storage import StorageOptions

LOCAL = StorageOptions()
COLUMNS = (("id", "int64"), ("name", "varchar"), ("amount", "float64"), ("level", "int32"), ("day", "date"))


@dataclass(frozen=True)
class Table:
    catalog: Catalog
    schema_id: int
    table_id: int


def resolved_id(done: Committed, placeholder: int) -> int:
    return done.first_catalog_id - placeholder - 1


def resolved_file_id(done: Committed, placeholder: int) -> int:
    return done.first_file_id - placeholder - 1


def make_catalog(connection: Connection, name: str = "main", data_path: str | None = None) -> Catalog:
    return create_catalog(connection, name, data_path or f"/lake/{name}")


def make_table(connection: Connection, catalog: Catalog, name: str = "t", namespace: str = "app") -> Table:
    changes = Changes()
    found = connection.execute(
        "SELECT schema_id FROM lakefork.visible_schema(%s) WHERE schema_name = %s", (catalog.catalog_id, namespace)
    ).fetchone()
    schema_id = found["schema_id"] if found else changes.new_id()
    table_id = changes.new_id()
    if not found:
        changes.add(
            "ducklake_schema", schema_id=schema_id, schema_name=namespace, path=namespace, path_is_relative=True
        )
    changes.add(
        "ducklake_table", table_id=table_id, schema_id=schema_id, table_name=name, path=name, path_is_relative=True
    )
    for column_id, (column, kind) in enumerate(COLUMNS, 1):
        add_column(changes, table_id, column_id, column, kind)
    done = commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
    return Table(catalog, resolved_id(done, schema_id) if not found else schema_id, resolved_id(done, table_id))


def add_column(changes: Changes, table_id: int, column_id: int, name: str, kind: str) -> None:
    changes.add(
        "ducklake_column", table_id=table_id, column_id=column_id, column_order=column_id, column_name=name,
        column_type=kind, nulls_allowed=True,
    )  # fmt: skip


def file_changes(table: Table, path: str, *, rows: int = 10, size: int = 1000, low: int = 1, high: int = 9) -> Changes:
    """One file with statistics of five columns."""
    changes = Changes()
    file_id = changes.new_file_id()
    changes.add(
        "ducklake_data_file", data_file_id=file_id, table_id=table.table_id, path=path, path_is_relative=True,
        record_count=rows, file_size_bytes=size, footer_size=100,
        statistics=[(column_id, rows, 0, str(low), str(high), None) for column_id in range(1, 6)],
    )  # fmt: skip
    return changes


def add_file(connection: Connection, table: Table, path: str = "shared/batch-0.parquet", **facts: Any) -> Committed:
    base = newest_snapshot(connection)
    return commit(connection, table.catalog.catalog_id, base, file_changes(table, path, **facts))


def add_real_file(
    connection: Connection, table: Table, name: str, rows: int = 100, storage: StorageOptions = LOCAL
) -> str:
    """Writes a real batch below the catalog's data path and commits it; returns its path."""
    path = f"{table.catalog.data_path}/app/t/{name}"
    content = pa.table({"id": pa.array(range(rows), pa.int64()), "name": [f"n{row:05}" for row in range(rows)]})
    facts = write_batch(path, content, BatchLayout(with_field_ids(content.schema, {"id": 1, "name": 2})), storage)
    changes = Changes()
    changes.add_batch(table.table_id, name, facts)
    commit(connection, table.catalog.catalog_id, newest_snapshot(connection), changes)
    return path


def files_at(connection: Connection, table: Table, snapshot: int | None = None) -> list[str]:
    rows = connection.execute(
        "SELECT path FROM lakefork.visible_data_file(%s, %s) WHERE table_id = %s ORDER BY data_file_id",
        (table.catalog.catalog_id, snapshot, table.table_id),
    )
    return [row["path"] for row in rows]


def rows_of(connection: Connection, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query, parameters).fetchall()
