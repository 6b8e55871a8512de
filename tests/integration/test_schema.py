"""The schema files: what the forking document asks for, in both dialects, and the check of the version."""

import re
import subprocess
from pathlib import Path

import duckdb
import pytest
from psycopg.conninfo import conninfo_to_dict

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.schema import init_catalog
from lakefork.catalog.scripts import SCHEMA_FILE
from lakefork.embedded.postgres import binaries
from lakefork.errors import CatalogVersionError, InvalidInputError, SetupError
from lakefork.transfer.dump import DUCKDB_SCHEMA, catalog_tables, dump_catalog
from support.lake import add_file, make_catalog, make_table, rows_of

KEYS = {
    "ducklake_snapshot": "snapshot_id",
    "ducklake_snapshot_changes": "snapshot_id",
    "ducklake_catalog": "catalog_id, begin_snapshot",
    "ducklake_schema": "catalog_id, schema_id, begin_snapshot",
    "ducklake_table": "catalog_id, table_id, begin_snapshot",
    "ducklake_view": "catalog_id, view_id, begin_snapshot",
    "ducklake_table_stats": "catalog_id, table_id",
    "ducklake_partition_info": "catalog_id, partition_id",
    "ducklake_schema_versions": "catalog_id, begin_snapshot, table_id",
    "ducklake_macro": "catalog_id, macro_id, begin_snapshot",
    "ducklake_data_file": "catalog_id, data_file_id",
    "ducklake_delete_file": "catalog_id, delete_file_id",
    "ducklake_column": "catalog_id, table_id, column_id, begin_snapshot",
    "ducklake_file_column_stats": "catalog_id, data_file_id, column_id",
    "ducklake_table_column_stats": "catalog_id, table_id, column_id",
    "ducklake_partition_column": "catalog_id, partition_id, partition_key_index",
    "ducklake_file_partition_value": "catalog_id, data_file_id, partition_key_index",
    "ducklake_column_mapping": "catalog_id, mapping_id",
    "ducklake_name_mapping": "catalog_id, mapping_id, column_id",
    "ducklake_tag": "catalog_id, object_id, key, begin_snapshot",
    "ducklake_column_tag": "catalog_id, table_id, column_id, key, begin_snapshot",
    "ducklake_inlined_data_tables": "catalog_id, table_id, schema_version",
    "ducklake_macro_impl": "catalog_id, macro_id, impl_id",
    "ducklake_macro_parameters": "catalog_id, macro_id, impl_id, column_id",
}
REQUIRED_INDEXES = {
    "idx_data_file_catalog", "idx_table_catalog", "idx_schema_catalog", "idx_snapshot_global", "idx_data_file_snapshot",
    "idx_data_file_id",
}  # fmt: skip


def test_every_table_has_its_composite_key(connection: Connection) -> None:
    found = dict(
        rows_of(
            connection,
            "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p' "
            "AND connamespace = 'public'::regnamespace",
        )
    )
    for table, key in KEYS.items():
        assert found[table] == f"PRIMARY KEY ({key})", table


def test_the_required_indexes_are_there(connection: Connection) -> None:
    found = dict(rows_of(connection, "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"))
    assert set(found) >= REQUIRED_INDEXES
    live = [name for name, text in found.items() if "WHERE (end_snapshot IS NULL)" in text]
    assert {"ducklake_catalog_live_name", "ducklake_table_live", "ducklake_column_live", "idx_delete_file_live"} <= set(
        live
    )


def test_an_entity_is_described_for_every_table_with_a_catalog(connection: Connection) -> None:
    with_catalog = {
        table for (table,) in rows_of(
            connection, "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'catalog_id'"
        )
    }  # fmt: skip
    kept_by_functions = {
        "ducklake_catalog", "ducklake_snapshot_changes", "ducklake_table_stats", "ducklake_table_column_stats",
        "ducklake_schema_versions", "ducklake_files_scheduled_for_deletion",
    }  # fmt: skip
    assert {e for (e,) in rows_of(connection, "SELECT entity FROM lakefork.entity")} == with_catalog - kept_by_functions


def test_both_schema_files_hold_the_same_tables(connection: Connection) -> None:
    postgres = {
        (schema, table, column): (_plain_type(kind), nullable == "NO")
        for schema, table, column, kind, nullable in rows_of(
            connection,
            "SELECT CASE table_schema WHEN 'public' THEN 'main' ELSE table_schema END, table_name, column_name, "
            "CASE data_type WHEN 'ARRAY' THEN udt_name ELSE data_type END, is_nullable "
            "FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name) "
            "JOIN pg_class p ON p.oid = (quote_ident(table_schema) || '.' || quote_ident(table_name))::regclass "
            "WHERE table_schema IN ('public', 'lakefork') AND table_type = 'BASE TABLE' AND p.relpersistence = 'p'",
        )
    }
    with duckdb.connect() as duck:
        duck.execute(DUCKDB_SCHEMA.read_text())
        found = duck.execute(
            "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
        duck_columns = {
            (schema, table, column): (_plain_type(kind), not null) for schema, table, column, kind, null in found
        }
        order = {row[0]: row[1] for row in duck.execute(
            "SELECT table_name, string_agg(column_name, ',' ORDER BY column_index) FROM duckdb_columns() WHERE NOT internal GROUP BY 1"
        ).fetchall()}  # fmt: skip
        keys = dict(duck.execute(
            "SELECT table_name, array_to_string(constraint_column_names, ', ') FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY'"
        ).fetchall())  # fmt: skip
        assert duck.execute("SELECT value FROM ducklake_metadata WHERE key = 'version'").fetchall() == [("0.5-dev1",)]
    assert duck_columns == postgres
    assert {table["table"]: ",".join(table["columns"]) for table in catalog_tables(connection)} == order
    assert {table: keys[table] for table in KEYS} == KEYS


def _plain_type(kind: str) -> str:
    names = {
        "character varying": "VARCHAR", "bigint": "BIGINT", "integer": "INTEGER", "boolean": "BOOLEAN", "uuid": "UUID",
        "timestamp with time zone": "TIMESTAMP WITH TIME ZONE", "jsonb": "JSON", "_varchar": "VARCHAR[]",
        "double precision": "DOUBLE",
    }  # fmt: skip
    return names.get(kind, kind)


def test_a_dump_reads_back_equal(connection: Connection, dsn: str, tmp_path: Path) -> None:
    table = make_table(connection, make_catalog(connection, "ünicode".replace("ü", "u")), 'odd "name"')
    add_file(connection, table)
    connection.execute(
        "INSERT INTO lakefork.job_run VALUES ('j', 'job', 'r', 'cli', '{\"a\": [1, null]}', 'running', now(), now(), "
        "NULL, NULL, NULL, NULL, 5, 1.5, 'node')"
    )
    said: list[str] = []
    copied = dump_catalog(dsn, tmp_path / "dump.duckdb", said.append)
    assert said[-1].startswith(f"[####################] 100% {len(copied)} of {len(copied)} tables, ")
    with duckdb.connect(str(tmp_path / "dump.duckdb"), read_only=True) as duck:
        duck.execute("SET TimeZone = 'UTC'")
        connection.execute("SET TIME ZONE 'UTC'")
        for described in catalog_tables(connection):
            columns = ", ".join(f'"{column}"::text' for column in described["columns"])
            theirs = rows_of(connection, f'SELECT {columns} FROM {described["schema"]}."{described["table"]}"')
            schema = "main" if described["schema"] == "public" else described["schema"]
            ours = duck.execute(f'SELECT {columns} FROM {schema}."{described["table"]}"').fetchall()
            assert sorted(map(_comparable, ours)) == sorted(map(_comparable, theirs)), described["table"]
            assert copied[f"{described['schema']}.{described['table']}"] == len(theirs)


def _comparable(row: tuple[str | None, ...]) -> list[str]:
    """Both print the same values, but for brackets and blanks in arrays, JSON and booleans."""
    words = {"t": "true", "f": "false"}
    return [words.get(str(value), re.sub(r"[{}\[\]\s\"]", "", str(value))) for value in row]


def test_a_dump_never_overwrites(dsn: str, tmp_path: Path) -> None:
    target = tmp_path / "x.duckdb"
    target.write_text("precious")
    with pytest.raises(InvalidInputError, match="already exists"):
        dump_catalog(dsn, target)
    assert target.read_text() == "precious"
    with pytest.raises(InvalidInputError, match="not a directory"):
        dump_catalog(dsn, tmp_path / "no" / "x.duckdb")


def test_psql_alone_can_set_it_up(empty_dsn: str) -> None:
    parts = conninfo_to_dict(empty_dsn)
    environment = {
        "PGHOST": parts["host"], "PGPORT": parts["port"], "PGUSER": parts["user"], "PGPASSWORD": parts["password"],
        "PGDATABASE": parts["dbname"],
    }  # fmt: skip
    done = subprocess.run(
        [binaries() / "psql", "-X", "-q", "-f", SCHEMA_FILE], env=environment, capture_output=True, text=True, cwd="/"
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    with connect(empty_dsn) as connection:
        make_table(connection, make_catalog(connection))
        assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def test_init_refuses_a_database_that_is_not_empty_and_changes_nothing(empty_dsn: str, dsn: str) -> None:
    with connect(empty_dsn, check_version=False) as connection:
        connection.execute("CREATE TABLE precious (x int)")
        with pytest.raises(SetupError, match=r"not empty \(it has public.precious\)"):
            init_catalog(connection)
        assert rows_of(connection, "SELECT count(*) FROM pg_namespace WHERE nspname IN ('lakefork', 'system')") == [
            (0,)
        ]
    with connect(dsn) as connection, pytest.raises(SetupError, match="holds a Lakefork catalog already"):
        init_catalog(connection)


def test_a_missing_or_wrong_version_names_the_way_out(empty_dsn: str, dsn: str) -> None:
    with pytest.raises(CatalogVersionError, match="run `lakefork init` first"):
        connect(empty_dsn)
    with connect(dsn) as connection:
        connection.execute("UPDATE ducklake_metadata SET value = '0.4' WHERE key = 'version'")
    with pytest.raises(CatalogVersionError, match=r"version 0\.4, and this Lakefork needs 0\.5-dev1"):
        connect(dsn)
    with connect(dsn, check_version=False) as connection:
        connection.execute("DELETE FROM ducklake_metadata WHERE key = 'version'")
    with pytest.raises(CatalogVersionError, match="holds no Lakefork catalog"):
        connect(dsn)


def test_visible_functions_are_inlined_so_that_indexes_are_used(connection: Connection) -> None:
    for snapshot in ("NULL", "5"):
        plan = "\n".join(
            row[0]
            for row in rows_of(
                connection, f"EXPLAIN SELECT * FROM lakefork.visible_data_file(1, {snapshot}) WHERE table_id = 3"
            )
        )
        assert "Function Scan" not in plan and "Index" in plan, plan
