"""Hostile SQL that reaches for files, settings and the machine."""

from pathlib import Path
from typing import Any

import pytest

from lakefork.errors import LakeforkError
from support.sql_hostile import SECRET, refuse, state
from support.sql_lake import SqlLake

FILE = "/etc/passwd"
REACHING_OUT = [
    *(f"SELECT * FROM {name}('{FILE}')" for name in (
        "read_csv", "read_csv_auto", "read_parquet", "parquet_scan", "read_text", "read_blob", "read_json", "read_json_auto", "read_json_objects",
        "read_ndjson", "glob", "sniff_csv", "parquet_metadata", "parquet_schema", "parquet_file_metadata", "parquet_kv_metadata", "read_xlsx",
        "sqlite_scan", "postgres_scan", "iceberg_scan", "delta_scan", "READ_TEXT", "st_read", "read_duckdb")),
    f"SELECT * FROM '{FILE}'", f'SELECT * FROM "{FILE}"', "SELECT * FROM 'x.csv'", "SELECT * FROM 's3://b/x.parquet'", f"FROM '{FILE}'",
    f"SELECT * FROM app.open, '{FILE}'", f"SELECT (SELECT content FROM read_text('{FILE}'))", f"SELECT read_text('{FILE}')",
    f"SELECT * FROM app.open WHERE v IN (SELECT content FROM read_text('{FILE}'))", f"SELECT * FROM main.read_text('{FILE}')",
    f"SELECT * FROM system.main.read_text('{FILE}')", f"SELECT '{FILE}'.read_text()", f"SELECT * FROM (VALUES (1)) t, LATERAL read_text('{FILE}')",
    "SELECT current_setting('home_directory')", "SELECT main.current_setting('threads')", "SELECT 'threads'.current_setting()", "SELECT getenv('HOME')",
    "SELECT getvariable('x')", 'SELECT "current_setting"(\'threads\')', "SELECT * FROM duckdb_settings()", "SELECT * FROM duckdb_tables()",
    "SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_views", "SELECT * FROM main.duckdb_views", "SELECT * FROM duckdb_logs()", "SELECT * FROM pragma_version()",
    "SELECT * FROM pragma_database_list", "SELECT * FROM pragma_table_info('relation_0')", "SELECT * FROM query('SELECT 1')", "SELECT * FROM query_table('relation_0')",
    "SELECT * FROM query_table(['relation_0'])", "SELECT * FROM sqlite_master", "SELECT * FROM pg_catalog.pg_tables", "SELECT * FROM pg_tables",
    "SELECT pg_read_file('/etc/passwd')", "SELECT pg_sleep(1)", "SELECT * FROM pg_stat_activity", "SELECT * FROM public.ducklake_table", "SELECT * FROM lakefork.app_user",
    "SELECT * FROM hot.t1_1", "SELECT which_secret('x', 's3')", "SELECT json_serialize_sql('SELECT 1')", "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT * FROM seq_scan('x')", "SELECT * FROM arrow_scan(1, 2, 3)", "SELECT * FROM repeat_row(1, num_rows = 3)", "SELECT * FROM test_all_types()",
    "SELECT * FROM information_schema.duckdb_tables", "SELECT * FROM system.information_schema.tables", "SELECT nextval('s')", "SELECT write_log('x')",
    "COPY app.open TO '/tmp/lakefork-hostile'", f"COPY app.open FROM '{FILE}'", "COPY (SELECT 1) TO '/tmp/lakefork-hostile'", "ATTACH '/tmp/x.db' AS x",
    "DETACH memory", "INSTALL httpfs", "LOAD httpfs", "PRAGMA version", "PRAGMA enable_profiling", "SET threads = 1", "SET VARIABLE x = 1", "RESET threads", "USE app",
    "EXPORT DATABASE '/tmp/x'", "IMPORT DATABASE '/tmp/x'", "CHECKPOINT", "VACUUM", "CALL pragma_version()", "CREATE MACRO f() AS 1", "CREATE VIEW app.v AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1", "CREATE SECRET x (TYPE s3)", "CREATE TABLE app.x AS SELECT 1", "DROP SCHEMA main", "PREPARE p AS SELECT 1", "EXECUTE p", "BEGIN",
    "COMMIT", "GRANT ALL ON app.secret TO mallory", "TRUNCATE app.open", "MERGE INTO app.open USING app.secret ON true WHEN MATCHED THEN DELETE",
    "EXPLAIN ANALYZE SELECT 1", "EXPLAIN DELETE FROM app.open", "SUMMARIZE app.secret", "SELECT * FROM (SUMMARIZE app.secret)", "SELECT * FROM (DESCRIBE app.secret)",
    "SELECT * FROM (SHOW ALL TABLES)", "PIVOT app.secret ON v", "SELECT 1 INTO app.x", "WITH x AS (DELETE FROM app.open RETURNING id) SELECT * FROM x",
    "WITH x AS (INSERT INTO app.open VALUES (9, 'x') RETURNING id) SELECT * FROM x", "INSERT INTO app.open VALUES (9, 'x') RETURNING id",
    "INSERT OR REPLACE INTO app.open VALUES (1, 'x')", "INSERT INTO app.open VALUES (1, 'x') ON CONFLICT DO NOTHING", "DELETE FROM app.open USING app.secret WHERE true",
    "UPDATE app.open SET v = s.v FROM app.secret s", "ALTER TABLE app.secret RENAME TO app.open2", "SELECT * FROM app.open FOR UPDATE",
]  # fmt: skip


@pytest.mark.parametrize("who", [{"user": "mallory"}, {}], ids=["user", "admin"])
@pytest.mark.parametrize("text", REACHING_OUT)
def test_access_beyond_the_tables_is_refused(lake: SqlLake, text: str, who: dict[str, Any]) -> None:
    with pytest.raises(LakeforkError) as caught:
        lake.run(text, **who)
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    assert "root:" not in message


def test_none_of_these_changed_anything(lake: SqlLake) -> None:
    before = state(lake)
    for text in REACHING_OUT:
        with pytest.raises(LakeforkError):
            lake.run(text)
    assert state(lake) == before
    assert not Path("/tmp/lakefork-hostile").exists()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "where",
    [
        "DEFAULT read_text('/etc/passwd')",
        "DEFAULT current_setting('threads')",
        "DEFAULT (SELECT 1)",
        "DEFAULT '/etc/passwd'.read_text()",
    ],
)
def test_a_default_reaches_no_further(lake: SqlLake, where: str) -> None:
    refuse(lake, f"CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY, v STRING {where})")
    refuse(lake, f"ALTER TABLE app.open ADD COLUMN x STRING {where}")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "values",
    [
        "('x', (SELECT content FROM read_text('/etc/passwd')))",
        "('x', current_setting('threads'))",
        "('x', (SELECT v FROM app.secret))",
    ],
)
def test_values_of_system_tables_reach_no_further(lake: SqlLake, values: str) -> None:
    refuse(lake, f"INSERT INTO system.users (user_id, username) VALUES {values}")
    refuse(lake, "UPDATE system.users SET username = (SELECT name FROM duckdb_settings() LIMIT 1)")
    refuse(lake, "UPDATE system.users SET username = (SELECT table_name FROM duckdb_tables LIMIT 1)")


INNER = ["sqlite_master", "duckdb_databases"]
CTE_TRICKS = [
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q WHERE EXISTS (SELECT 1 FROM {i})",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q GROUP BY 1 HAVING (SELECT count(*) FROM {i}) > 0",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q ORDER BY (SELECT count(*) FROM {i})",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q LIMIT (SELECT count(*) + 1 FROM {i})",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q QUALIFY row_number() OVER (ORDER BY (SELECT count(*) FROM {i})) > 0",
    "SELECT q.x, (SELECT count(*) FROM {i}) FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q JOIN (VALUES (1)) r(y) ON (SELECT count(*) FROM {i}) > 0",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q, {i}",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q, LATERAL (SELECT * FROM {i}) l",
    "SELECT 1 FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q UNION ALL SELECT count(*) FROM {i}",
    "SELECT [y FOR y IN (SELECT list(1) FROM {i})] FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q",
    "WITH a AS (SELECT count(*) FROM {i}), {i} AS (SELECT 1 AS x) SELECT * FROM a",
    "WITH {i} AS (SELECT count(*) AS x FROM {i}) SELECT * FROM {i}",
    "SELECT * FROM app.open AT (VERSION => (SELECT count(*) + 90000000 FROM {i})), (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q",
    "SELECT * FROM (VALUES ((SELECT count(*) FROM {i}))) v, (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q",
    "SELECT q.x FROM (WITH {i} AS (SELECT 1 AS x) SELECT * FROM {i}) q WHERE (FROM {i} SELECT count(*)) > 0",
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("trick", CTE_TRICKS)
def test_a_subquery_named_like_an_inner_table_does_not_open_it(lake: SqlLake, trick: str) -> None:
    for inner in INNER:
        message = refuse(lake, trick.format(i=inner), user="mallory")
        assert "9000000" not in message
