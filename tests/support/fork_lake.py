"""Helpers for tests of forks: the same tables in a catalog and in its fork."""

from typing import Any

from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog
from support.flush_lake import FlushLake
from support.lake import rows_of
from support.sql_lake import SqlLake

COPIED = {  # of the forking document's table: all that is copied, with what names a row besides the catalog
    "ducklake_schema": "schema_id", "ducklake_table": "table_id", "ducklake_view": "view_id",
    "ducklake_macro": "macro_id", "ducklake_macro_impl": "macro_id, impl_id",
    "ducklake_macro_parameters": "macro_id, impl_id, column_id", "ducklake_column": "table_id, column_id",
    "ducklake_data_file": "data_file_id", "ducklake_delete_file": "delete_file_id",
    "ducklake_file_column_stats": "data_file_id, column_id", "ducklake_table_stats": "table_id",
    "ducklake_partition_info": "partition_id", "ducklake_partition_column": "partition_id, partition_key_index",
    "ducklake_file_partition_value": "data_file_id, partition_key_index", "ducklake_tag": "object_id, key",
    "ducklake_column_tag": "table_id, column_id, key", "ducklake_column_mapping": "mapping_id",
    "ducklake_name_mapping": "mapping_id, column_id", "ducklake_inlined_data_tables": "table_id, schema_version",
    "ducklake_schema_versions": "begin_snapshot, table_id",
}  # fmt: skip


def fork(lake: SqlLake, name: str, data_path: str | None = None, **options: Any) -> SqlLake:
    """A fork of the lake's catalog, used through the same engine."""
    with connect(lake.dsn) as connection:
        return SqlLake(lake.engine, lake.dsn, fork_catalog(connection, lake.catalog.name, name, data_path, **options))


def upkeep(lake: FlushLake, fork: SqlLake) -> FlushLake:
    """Flush and dedup for a fork."""
    return FlushLake(fork, lake.settings, lake.expectations)


def sql(lake: SqlLake, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connect(lake.dsn) as connection:
        return rows_of(connection, query, *parameters)


def counts(lake: SqlLake, catalog: Catalog) -> dict[str, int]:
    """How many rows a catalog has in each table."""
    return {
        table: int(sql(lake, f"SELECT count(*) FROM {table} WHERE catalog_id = %s", catalog.catalog_id)[0][0])
        for table in COPIED
    }


def no_findings(lake: SqlLake) -> bool:
    found = sql(lake, "SELECT * FROM lakefork.fsck()")
    assert found == []
    return True
