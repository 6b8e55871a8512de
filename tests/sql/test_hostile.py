"""Hostile SQL: nobody reads or changes anything but what the session may, and every refusal is one line."""

import contextlib
import datetime
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import InvalidInputError, LakeforkError, LimitError, NotFoundError, PermissionDeniedError
from lakefork.settings import Settings, SqlSettings
from lakefork.sql import engine as engine_module
from lakefork.sql.engine import Engine
from lakefork.sql.results import Rows
from lakefork.sql.session import Role, Session
from sql_lake import SqlLake

DATABASE = "sql_hostile"
SECRET = "TOPSECRET"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def lake(
    postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory, make_settings: Callable[..., Settings]
) -> Iterator[SqlLake]:
    """mallory may use app.open, own rows of app.mine and those of app.filtered; all that others have says TOPSECRET."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {template} STRATEGY FILE_COPY")
        dsn = f"{postgres.rpartition('/')[0]}/{DATABASE}"
        root = tmp_path_factory.mktemp("data")
        with connect(dsn) as connection:
            catalog = create_catalog(connection, "main", str(root / "main"))
            create_catalog(connection, "rival", str(root / "rival"))
        with Engine(make_settings(), dsn) as engine:
            lake = SqlLake(engine, dsn, catalog)
            _fill(lake)
            yield lake
        _watching(dsn).close()
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


def _fill(lake: SqlLake) -> None:
    lake.run(
        f"""
        CREATE NAMESPACE app; CREATE NAMESPACE other;
        CREATE SHARED TABLE app.open (id BIGINT PRIMARY KEY, v STRING);
        CREATE SHARED TABLE app.secret (id BIGINT PRIMARY KEY, owner STRING, v STRING);
        CREATE SHARED TABLE app.filtered (id BIGINT PRIMARY KEY, owner STRING, v STRING, n BIGINT);
        CREATE SHARED TABLE app.mixed (id BIGINT PRIMARY KEY, code STRING);
        CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v STRING);
        CREATE SHARED TABLE other.t (id BIGINT PRIMARY KEY, v STRING);
        INSERT INTO app.open VALUES (1, 'open'), (2, 'open');
        INSERT INTO app.secret VALUES (1, 'alice', '{SECRET}'), (2, 'mallory', '{SECRET}');
        INSERT INTO app.filtered VALUES (1, 'mallory', 'own', 1), (2, 'alice', '{SECRET}', 0), (3, NULL, '{SECRET}', 0);
        INSERT INTO app.mixed VALUES (1, '5'), (2, '{SECRET}');
        INSERT INTO other.t VALUES (1, '{SECRET}');
        INSERT INTO system.users (user_id, permissions) VALUES ('alice', []),
            ('mallory', ['app.open', 'app.filtered.owner = CURRENT_USER()', 'app.mixed.code = 5', 'other.nothing']);
        """
    )
    lake.run(f"INSERT INTO app.mine VALUES (1, '{SECRET}'), (2, '{SECRET}')", user="alice")
    lake.run("INSERT INTO app.mine VALUES (1, 'own')", user="mallory")
    rival = Session("rival", role=Role.ADMIN)
    lake.engine.execute(
        rival,
        f"CREATE NAMESPACE app; CREATE SHARED TABLE app.rivals (id BIGINT PRIMARY KEY, v STRING); INSERT INTO app.rivals VALUES (1, '{SECRET}')",
    )
    lake.flush_by_hand("app.secret")
    lake.flush_by_hand("app.filtered")
    lake.flush_by_hand("app.mine", "alice")


@functools.cache
def _watching(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True)


def state(lake: SqlLake) -> Any:
    """All that a statement could change."""
    connection = _watching(lake.dsn)
    tables = [
        row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hot' ORDER BY 1")
    ]
    counts = " UNION ALL ".join(f"SELECT '{name}', count(*), max(_seq) FROM hot.{name}" for name in tables)
    rest = connection.execute(
        "SELECT (SELECT max(snapshot_id) FROM public.ducklake_snapshot), (SELECT count(*) FROM lakefork.storage_location), "
        "(SELECT jsonb_agg(u ORDER BY user_id) FROM lakefork.app_user u), (SELECT count(*) FROM lakefork.audit)"
    ).fetchone()
    return sorted(connection.execute(counts).fetchall()), rest  # type: ignore[call-overload]


@pytest.fixture
def unchanged(lake: SqlLake) -> Iterator[None]:
    """The test leaves all as it was."""
    before = state(lake)
    yield
    assert state(lake) == before


@pytest.fixture
def own_rows(lake: SqlLake) -> Iterator[None]:
    """Whatever the test writes to mallory's table goes, and what was there stays."""
    yield
    lake.run("DELETE FROM app.mine WHERE id <> 1", user="mallory")
    assert lake.rows("SELECT id, v FROM app.mine", user="mallory") == [(1, "own")]


def refuse(lake: SqlLake, text: str, *parameters: Any, kind: type[LakeforkError] = LakeforkError, **who: Any) -> str:
    """Fails with one line that tells no secret; returns it."""
    with pytest.raises(kind) as caught:
        lake.run(text, *parameters, **who)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert SECRET not in message
    return message


def survives(lake: SqlLake, text: str, *parameters: Any, **who: Any) -> list[Any] | None:
    """Answers, or fails with one line; what it answers can be shown as JSON."""
    try:
        results = lake.run(text, *parameters, **who)
    except LakeforkError as error:
        assert "\n" not in str(error)
        return None
    for result in results:
        json.dumps(result.as_json(), allow_nan=False)
    return results


# Files, settings, the machine

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
def test_what_reaches_beyond_the_tables_is_refused(lake: SqlLake, text: str, who: dict[str, Any]) -> None:
    with pytest.raises(LakeforkError) as caught:
        lake.run(text, **who)
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    assert "root:" not in message


def test_nothing_of_all_that_changed_anything(lake: SqlLake) -> None:
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


# Tables that the user may not see

POSITIONS = [
    "SELECT * FROM {s}", "SELECT count(*) FROM {s}", "SELECT 1 FROM {s} LIMIT 0", "SELECT * FROM {s} WHERE false", "FROM {s}", "TABLE {s}", "(SELECT * FROM {s})",
    "SELECT * FROM ({s})", "SELECT * FROM (SELECT * FROM {s}) x", "SELECT (SELECT v FROM {s} LIMIT 1)", "SELECT * FROM app.open WHERE EXISTS (SELECT 1 FROM {s})",
    "SELECT * FROM app.open o WHERE EXISTS (SELECT 1 FROM {s} x WHERE x.id = o.id)", "SELECT * FROM app.open WHERE id IN (SELECT id FROM {s})", "SELECT * FROM app.open WHERE id = ANY (SELECT id FROM {s})",
    "SELECT * FROM app.open JOIN {s} USING (id)", "SELECT * FROM app.open LEFT JOIN {s} x ON false", "SELECT * FROM app.open SEMI JOIN {s} USING (id)", "SELECT * FROM app.open ANTI JOIN {s} USING (id)",
    "SELECT * FROM app.open POSITIONAL JOIN {s}", "SELECT * FROM app.open ASOF JOIN {s} x ON x.id >= app.open.id", "SELECT * FROM app.open, {s}", "SELECT * FROM app.open, LATERAL (SELECT * FROM {s}) x",
    "SELECT id FROM app.open UNION SELECT id FROM {s}", "SELECT id FROM app.open UNION ALL BY NAME SELECT id FROM {s}", "SELECT id FROM app.open EXCEPT SELECT id FROM {s}", "SELECT id FROM app.open INTERSECT SELECT id FROM {s}",
    "WITH x AS (SELECT * FROM {s}) SELECT * FROM x", "WITH x AS (SELECT * FROM {s}) SELECT 1", "WITH x AS MATERIALIZED (SELECT * FROM {s}) SELECT * FROM app.open, x", "WITH open AS (SELECT * FROM {s}) SELECT * FROM open",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r, {s} WHERE i < 3) SELECT * FROM r", "WITH secret AS (SELECT 1 AS id) SELECT * FROM secret, {s} y", "SELECT * FROM app.open ORDER BY (SELECT max(id) FROM {s})",
    "SELECT * FROM app.open LIMIT (SELECT count(*) FROM {s})", "SELECT count(*) FROM app.open GROUP BY (SELECT max(id) FROM {s})", "SELECT count(*) FROM app.open HAVING count(*) > (SELECT count(*) FROM {s})",
    "SELECT id FROM app.open QUALIFY row_number() OVER (ORDER BY (SELECT count(*) FROM {s})) = 1", "SELECT sum(id) OVER (PARTITION BY (SELECT 1 FROM {s})) FROM app.open", "SELECT CASE WHEN (SELECT count(*) FROM {s}) > 0 THEN 1 END",
    "SELECT count(*) FILTER (WHERE id IN (SELECT id FROM {s})) FROM app.open", "SELECT ARRAY(SELECT v FROM {s})", "SELECT [x FOR x IN (SELECT list(v) FROM {s})]", "SELECT list_transform([1], lambda x: (SELECT max(id) FROM {s}))",
    "VALUES ((SELECT v FROM {s} LIMIT 1))", "SELECT * FROM (VALUES ((SELECT count(*) FROM {s}))) x", "SELECT * FROM app.open AT (VERSION => (SELECT max(id) FROM {s}))", "SELECT * FROM {s} AT (VERSION => 1)", "SELECT * FROM {s} AT (TIMESTAMP => now())",
    "SELECT * FROM {s} TABLESAMPLE 50%", "SELECT * FROM {s} PIVOT (count(*) FOR id IN (1))", "SELECT * FROM (PIVOT {s} ON id)", "SELECT * FROM {s} UNPIVOT (x FOR y IN (id))", "SELECT * FROM range((SELECT max(id) FROM {s}))", "SELECT * FROM unnest((SELECT list(v) FROM {s}))",
    "EXPLAIN SELECT * FROM {s}", "DESCRIBE TABLE {s}", "SHOW TABLE STATS {s}", "INSERT INTO app.open SELECT id + 100, v FROM {s}", "INSERT INTO app.open VALUES (100, (SELECT v FROM {s} LIMIT 1))", "INSERT INTO app.mine SELECT id + 100, v FROM {s}",
    "UPDATE app.open SET v = (SELECT max(v) FROM {s})", "UPDATE app.open SET v = 'x' WHERE id IN (SELECT id FROM {s})", "UPDATE app.open SET v = 'x' WHERE id = 1 AND EXISTS (SELECT 1 FROM {s})", "DELETE FROM app.open WHERE id IN (SELECT id FROM {s})",
    "DELETE FROM app.mine WHERE id = 1 AND (SELECT count(*) FROM {s}) > 0", "INSERT INTO {s} VALUES (9, 'mallory', 'x')", "INSERT INTO {s} (v) VALUES ('x')", "UPDATE {s} SET v = 'x'", "DELETE FROM {s} WHERE owner = 'mallory'",
]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("position", POSITIONS)
def test_a_shared_table_without_a_rule_is_closed_in_every_position(lake: SqlLake, position: str) -> None:
    message = refuse(lake, position.format(s="app.secret"), user="mallory")
    assert "alice" not in message


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["main.app.open", "rival.app.rivals", "memory.main.relation_0", "app.open.x.y", "app.rivals", "rival.rivals", "main.relation_0", "temp.relation_0",
                                  "relation_0", "relation_1", "changed_table", "hot_0", "given", "versions", "wanted_keys", "new_rows", "found_rows", "other.t", "system.secret"])  # fmt: skip
def test_other_catalogs_and_inner_names_are_not_tables(lake: SqlLake, name: str) -> None:
    for text in (f"SELECT * FROM {name}", f"SELECT * FROM app.open o, {name}", f"SELECT (SELECT count(*) FROM {name}) FROM app.open", f"INSERT INTO app.open SELECT 50, 'x' FROM {name}",
                 f"UPDATE app.open SET v = (SELECT count(*) FROM {name})", f"UPDATE app.open SET v = (SELECT count(*) FROM {name}) WHERE id = 1",
                 f"DELETE FROM app.mine WHERE id IN (SELECT id FROM {name})"):  # fmt: skip
        refuse(lake, text, user="mallory")


@pytest.mark.usefixtures("unchanged")
def test_one_query_uses_one_namespace(lake: SqlLake) -> None:
    refuse(lake, "SELECT * FROM app.open, other.t", kind=InvalidInputError)
    refuse(lake, "SELECT * FROM app.open WHERE id IN (SELECT id FROM other.t)", kind=InvalidInputError)
    refuse(lake, "INSERT INTO app.open SELECT id, v FROM other.nothing", kind=LakeforkError)


@pytest.mark.parametrize("name", ["relation_0", "relation_1", "changed_table", "RELATION_0"])
def test_a_subquery_named_like_an_inner_relation_is_itself_and_the_table_is_the_table(lake: SqlLake, name: str) -> None:
    assert lake.rows(f"WITH {name} AS (SELECT 77 AS id) SELECT o.id FROM app.open o ORDER BY 1") == [(1,), (2,)]
    assert lake.rows(f"WITH {name} AS (SELECT 77 AS id) SELECT o.id, r.id FROM app.open o, {name} r ORDER BY 1") == [
        (1, 77),
        (2, 77),
    ]
    assert lake.rows(
        f"SELECT * FROM (WITH {name} AS (SELECT 77 AS id) SELECT id FROM {name} UNION ALL SELECT id FROM app.open) q ORDER BY 1"
    ) == [(1,), (2,), (77,)]
    assert lake.rows(
        "WITH open AS (SELECT 5 AS id) SELECT id FROM open UNION ALL SELECT id FROM app.open ORDER BY 1"
    ) == [(1,), (2,), (5,)]


def test_other_catalogs_are_not_there(lake: SqlLake) -> None:
    for catalog in (
        "nope",
        "main'--",
        'main"',
        "main; DROP TABLE x",
        "",
        "../main",
        "MAIN",
        "a\nb",
        "main\0x",
        "\ud800",
    ):
        with pytest.raises(LakeforkError) as caught:
            lake.engine.execute(Session(catalog, "mallory", Role.ADMIN), "SELECT * FROM app.open")
        assert "\n" not in str(caught.value)
        with pytest.raises(LakeforkError):
            lake.engine.execute(Session(catalog, "mallory", Role.ADMIN), "CREATE NAMESPACE x")
    rows = lake.engine.execute(Session("rival", "mallory", Role.ADMIN), "SELECT * FROM system.users")[0]
    assert isinstance(rows, Rows)
    assert rows.rows == []
    assert "rival" not in str(lake.rows("SELECT * FROM system.catalogs"))


def test_system_tables_tell_a_user_nothing_of_others(lake: SqlLake) -> None:
    who: dict[str, Any] = {"user": "mallory"}
    assert [row[0] for row in lake.rows("SELECT user_id FROM system.users", **who)] == ["mallory"]
    refuse(lake, "SELECT * FROM system.storage_locations", kind=PermissionDeniedError, **who)
    assert lake.rows("SELECT data_path FROM system.catalogs", **who) == [(None,)]
    for text in ("SELECT table_name FROM system.tables", "SELECT table_name FROM information_schema.tables WHERE table_type <> 'SYSTEM'",
                 "SELECT DISTINCT table_name FROM information_schema.columns"):  # fmt: skip
        assert {row[0] for row in lake.rows(text, **who)} == {"open", "filtered", "mixed", "mine"}
    assert {row[1] for row in lake.rows("SHOW TABLES", **who)} == {"open", "filtered", "mixed", "mine"}
    assert lake.rows("SELECT * FROM system.audit", **who) == []


# Rows that the user may not see

FILTERED = [
    ("SELECT id FROM app.filtered", [(1,)]), ("SELECT count(*), max(v), min(n) FROM app.filtered", [(1, "own", 1)]), ("SELECT id FROM app.filtered WHERE owner = 'alice' OR true", [(1,)]),
    ("SELECT id FROM app.filtered WHERE id = 2", []), ("SELECT id FROM app.filtered WHERE id IN (1, 2, 3)", [(1,)]), ("SELECT owner, count(*) FROM app.filtered GROUP BY ALL HAVING count(*) > 0", [("mallory", 1)]),
    ("SELECT count(*) OVER (), lag(v) OVER (ORDER BY id), lead(v) OVER (ORDER BY id) FROM app.filtered", [(1, None, None)]), ("SELECT a.id, b.id FROM app.filtered a, app.filtered b", [(1, 1)]),
    ("SELECT o.id, f.v FROM app.open o LEFT JOIN app.filtered f ON f.id = o.id ORDER BY 1", [(1, "own"), (2, None)]), ("SELECT o.id, f.v FROM app.open o FULL JOIN app.filtered f USING (id) ORDER BY 1", [(1, "own"), (2, None)]),
    ("SELECT EXISTS (SELECT 1 FROM app.filtered WHERE owner = 'alice')", [(False,)]), ("SELECT id FROM app.open o WHERE NOT EXISTS (SELECT 1 FROM app.filtered f WHERE f.id = o.id)", [(2,)]),
    ("SELECT CASE WHEN v <> 'own' THEN error('seen') ELSE v END FROM app.filtered", [("own",)]), ("SELECT 10 // n FROM app.filtered", [(10,)]), ("SELECT CAST(v AS INT) FROM app.filtered WHERE v <> 'own'", []),
    ("SELECT id FROM app.filtered WHERE CASE WHEN v = 'TOPSECRET' THEN error('seen') ELSE true END", [(1,)]), ("WITH x AS (SELECT * FROM app.filtered) SELECT id FROM x", [(1,)]), ("SELECT id FROM (SELECT * FROM app.filtered) AS filtered", [(1,)]),
    ("SELECT id FROM app.filtered WHERE _deleted OR NOT _deleted", [(1,)]), ("SELECT id FROM app.filtered WHERE _seq > 0", [(1,)]), ("SELECT approx_count_distinct(v), list(v), string_agg(v, ',') FROM app.filtered", [(1, ["own"], "own")]),
    ("SELECT id FROM app.filtered AS app", [(1,)]), ("SELECT owner FROM app.filtered AS x (owner, id)", [(1,)]), ("SELECT id FROM (SELECT 'mallory' AS owner) s, app.filtered f WHERE f.id > 0", [(1,)]), ("SELECT count(*) FROM app.filtered TABLESAMPLE 100%", [(1,)]),
    ("SELECT id FROM app.filtered UNION SELECT id FROM app.filtered WHERE owner <> 'mallory'", [(1,)]), ("SELECT v FROM app.mine", [("own",)]), ("SELECT v FROM app.mine WHERE id = 2 OR id = 1", [("own",)]), ("SELECT a.v FROM app.mine a JOIN app.mine b ON true", [("own",)]),
    ("SELECT (SELECT string_agg(v, '') FROM app.mine)", [("own",)]), ("SELECT v FROM app.mine WHERE _seq > 0", [("own",)]), ("SELECT v FROM app.mine WHERE _deleted IS NOT NULL", [("own",)]), ("SELECT count(*) FROM (FROM app.mine)", [(1,)]),
    ("SELECT id FROM app.filtered AT (TIMESTAMP => now())", [(1,)]), ("SELECT v FROM app.mine AT (TIMESTAMP => now())", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FILTERED)
def test_row_filters_hold_in_every_query(lake: SqlLake, text: str, expected: list[Any]) -> None:
    assert lake.rows(text, user="mallory") == expected


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "text",
    ["SELECT _user_id FROM app.mine", "SELECT _USER_ID FROM app.mine", 'SELECT "_user_id" FROM app.mine', "SELECT m._user_id FROM app.mine m", "SELECT id FROM app.mine WHERE _user_id = 'alice'", "SELECT count(*) FROM app.mine GROUP BY _user_id",
     "SELECT id FROM app.mine ORDER BY _user_id", "SELECT * EXCLUDE (_user_id) FROM app.mine", "SELECT id FROM app.mine WHERE _user_id = 'mallory' OR true", "INSERT INTO app.mine (id, v, _user_id) VALUES (5, 'x', 'alice')", "UPDATE app.mine SET _user_id = 'alice'"],
)  # fmt: skip
def test_the_owner_of_a_row_is_not_for_users(lake: SqlLake, text: str) -> None:
    refuse(lake, text, user="mallory")


@pytest.mark.parametrize(
    "star",
    [
        "*",
        "m.*",
        "COLUMNS('.*')",
        "COLUMNS(*)",
        "m",
        "to_json(m)",
        "* EXCLUDE (id)",
        "* REPLACE (1 AS id)",
        "struct_pack(m)",
    ],
)
def test_no_form_of_star_shows_the_owner(lake: SqlLake, star: str) -> None:
    results = survives(lake, f"SELECT {star} FROM app.mine m", user="mallory")
    assert results is None or ("_user_id" not in str(results[0].as_json()) and SECRET not in str(results[0].as_json()))


def test_changes_do_not_reach_rows_of_others(lake: SqlLake) -> None:
    who: dict[str, Any] = {"user": "mallory"}
    before = lake.rows("SELECT _user_id, id, v, _seq FROM app.mine WHERE _user_id = 'alice' ORDER BY id")
    filtered = lake.rows("SELECT id, owner, v, n, _seq FROM app.filtered WHERE id > 1 ORDER BY id")
    for text in ("UPDATE app.mine SET v = v WHERE true", "UPDATE app.mine SET v = (SELECT max(v) FROM app.mine)", "UPDATE app.mine m SET v = 'own' WHERE id IN (SELECT id FROM app.mine)",
                 "DELETE FROM app.mine WHERE id = 2", "DELETE FROM app.mine WHERE id IN (2, 3) OR v = 'TOPSECRET'", "UPDATE app.filtered SET v = 'own'", "UPDATE app.filtered SET v = 'own' WHERE id IN (1, 2, 3)",
                 "DELETE FROM app.filtered WHERE id > 1", "DELETE FROM app.filtered WHERE owner IS NULL", "INSERT INTO app.mine SELECT id + 10, v FROM app.mine", "DELETE FROM app.mine WHERE id > 10",
                 "UPDATE app.mine SET v = 'own' WHERE _user_id = 'alice' OR true"):  # fmt: skip
        survives(lake, text, **who)
    assert lake.rows("SELECT _user_id, id, v, _seq FROM app.mine WHERE _user_id = 'alice' ORDER BY id") == before
    assert lake.rows("SELECT id, owner, v, n, _seq FROM app.filtered WHERE id > 1 ORDER BY id") == filtered
    assert lake.rows("SELECT id, v FROM app.mine", **who) == [(1, "own")]
    refuse(lake, "UPDATE app.filtered SET owner = 'alice'", kind=PermissionDeniedError, **who)
    refuse(lake, "INSERT INTO app.filtered VALUES (9, 'alice', 'x', 1)", kind=PermissionDeniedError, **who)
    refuse(lake, "UPDATE app.filtered SET v = error(v) WHERE v <> 'own' OR error(v) IS NULL", **who)


def test_explain_and_statistics_do_not_tell_of_rows_outside_the_filter(lake: SqlLake) -> None:
    lake.run(f"INSERT INTO app.filtered VALUES (40, 'alice', '{SECRET}', 0)")
    there = lake.rows("EXPLAIN SELECT * FROM app.filtered WHERE id = 40", user="mallory")
    missing = lake.rows("EXPLAIN SELECT * FROM app.filtered WHERE id = 41", user="mallory")
    lake.run("DELETE FROM app.filtered WHERE id = 40")
    assert [row[1] for row in there] == [row[1] for row in missing]


def test_an_error_in_a_row_filter_does_not_show_the_rows_that_it_hides(lake: SqlLake) -> None:
    for text in ("SELECT id FROM app.mixed", "UPDATE app.mixed SET code = code", "DELETE FROM app.mixed WHERE id = 2"):
        try:
            lake.run(text, user="mallory")
        except LakeforkError as error:
            assert SECRET not in str(error)
    assert lake.rows("SELECT id, code FROM app.mixed WHERE id = 2") == [(2, SECRET)]


# Texts


def test_statements_after_the_first_error_are_not_done(lake: SqlLake) -> None:
    outcome = lake.engine.run(
        lake.session("mallory"),
        "INSERT INTO app.mine VALUES (60, 'a'); SELECT * FROM app.secret; DELETE FROM app.mine; INSERT INTO app.mine VALUES (61, 'b')",
    )
    assert len(outcome.results) == 1
    assert isinstance(outcome.error, PermissionDeniedError)
    assert lake.rows("SELECT id FROM app.mine ORDER BY id", user="mallory") == [(1,), (60,)]
    lake.run("DELETE FROM app.mine WHERE id = 60", user="mallory")
    refuse(lake, "INSERT INTO app.mine VALUES (62, 'a'); DROP TABLE app.mine; SELEC 1", user="mallory")
    refuse(lake, "INSERT INTO app.mine VALUES (62, 'a'); SELECT 'open", user="mallory")
    for text in ("", ";", ";;;", "-- nothing", "/* nothing */", " \n\t "):
        assert lake.run(text) == []


NESTED = {
    "brackets": "SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "subqueries": "SELECT " + "(SELECT " * 2_000 + "1" + ")" * 2_000, "from": "SELECT * FROM " + "(SELECT * FROM " * 500 + "app.open" + ")" * 500,
    "not": "SELECT " + "NOT " * 20_000 + "true", "minus": "SELECT " + "- " * 20_000 + "1", "case": "SELECT " + "CASE WHEN true THEN " * 2_000 + "1" + " END" * 2_000, "arrays": "SELECT " + "[" * 5_000 + "]" * 5_000,
    "structs": "SELECT " + "{'a': " * 3_000 + "1" + "}" * 3_000, "functions": "SELECT " + "abs(" * 3_000 + "1" + ")" * 3_000, "casts": "SELECT 1" + "::INT" * 20_000, "sum": "SELECT 1" + " + 1" * 10_000, "mixed": "SELECT 1" + " + 1 - 1 * 2" * 4_000,
    "concat": "SELECT 'a'" + " || 'a'" * 10_000, "or": "SELECT id FROM app.open WHERE " + " OR ".join(f"id = {i}" for i in range(10_000)), "and": "SELECT id FROM app.open WHERE " + " AND ".join(f"id <> {i}" for i in range(10_000)),
    "in": f"SELECT id FROM app.open WHERE id IN ({','.join(map(str, range(20_000)))})", "unions": " UNION ALL ".join(["SELECT 1"] * 2_000), "excepts": " EXCEPT ".join(["SELECT 1"] * 1_000), "ctes": "WITH " + ", ".join(f"c{i} AS (SELECT {i})" for i in range(1_000)) + " SELECT 1",
    "chain": "WITH c0 AS (SELECT 1 AS x), " + ", ".join(f"c{i} AS (SELECT * FROM c{i - 1})" for i in range(1, 1_000)) + " SELECT * FROM c999", "joins": "SELECT 1 FROM range(1) " + "".join(f", range(1) r{i}" for i in range(2_000)), "columns": "SELECT " + ", ".join(["1"] * 20_000),
    "dots": "SELECT a" + ".a" * 5_000, "members": "SELECT 'a'" + ".upper()" * 1_000, "index": "SELECT [1]" + "[1]" * 1_000, "arrows": "SELECT '{}'" + "->'a'" * 10_000, "between": "SELECT 1" + " BETWEEN 1 AND 1" * 5_000, "lambda": "SELECT " + "list_transform([1], lambda x: " * 500 + "1" + ")" * 500,
    "parameters": "SELECT " + ", ".join(["?"] * 10_000), "statements": "SELECT 1;" * 300, "comments": "/*" * 100_000 + "*/" * 100_000, "quotes": "SELECT '" + "''" * 200_000 + "'", "types": "SELECT CAST(NULL AS " + "STRUCT(a " * 2_000 + "INT" + ")" * 2_000 + ")",
    "arraytypes": "SELECT CAST(NULL AS INT" + "[]" * 20_000 + ")", "interval": "SELECT " + "INTERVAL 1 DAY + " * 5_000 + "INTERVAL 1 DAY", "is": "SELECT 1" + " IS NULL" * 10_000, "tables": " UNION ALL ".join(["SELECT id FROM app.open"] * 60), "windows": "SELECT " + ", ".join(["sum(1) OVER ()"] * 1_000),
    "folded list": "SELECT len(range(40000000))",
}  # fmt: skip


PATIENCE = 25  # seconds: several times the statement timeout


class Victim:
    """An engine in a process of its own, which a text could kill; a new one takes its place."""

    CODE = """
import json, sys
from lakefork.errors import LakeforkError
from lakefork.settings import Settings
from lakefork.sql import engine as engine_module
from lakefork.sql.engine import Engine
from lakefork.sql.session import Session
with Engine(Settings(), sys.argv[1]) as engine:
    for line in sys.stdin:
        try:
            for result in engine.execute(Session("main", "mallory"), json.loads(line)):
                json.dumps(result.as_json(), allow_nan=False)
            answer = "answered"
        except LakeforkError as error:
            answer = "one line" if "\\n" not in str(error) else "several lines: " + str(error)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(answer), flush=True)
"""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._process: subprocess.Popen[str] | None = None

    def run(self, text: str) -> str:
        process = self._process
        if process is None:
            paths = os.pathsep.join([str(Path(engine_module.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", self.CODE, self._dsn],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": paths},
            )
        assert process.stdin
        assert process.stdout
        patience = threading.Timer(PATIENCE, process.kill)
        patience.start()
        try:
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            patience.cancel()
        if line:
            return str(json.loads(line))
        code = self.close()
        return f"the process died: {code}"

    def close(self) -> int | None:
        if self._process is None:
            return None
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=30)
        code = self._process.returncode
        self._process = None
        return code


@pytest.fixture(scope="module")
def victim(lake: SqlLake) -> Iterator[Victim]:
    victim = Victim(lake.dsn)
    yield victim
    victim.close()


@pytest.mark.parametrize("name", NESTED)
def test_deep_long_and_wide_texts_are_answered_or_refused(lake: SqlLake, victim: Victim, name: str) -> None:
    assert victim.run(NESTED[name]) in ("answered", "one line")
    if name in ("sum", "in", "unions", "from", "tables", "case"):
        assert victim.run(
            f"INSERT INTO app.mine SELECT 1, CAST(x AS VARCHAR) FROM ({NESTED[name]}) q (x) WHERE false"
        ) in ("answered", "one line")
    assert lake.rows("SELECT count(*) FROM app.mine", user="mallory") == [(1,)]


def test_a_text_of_one_megabyte_is_read_and_a_longer_one_refused(lake: SqlLake) -> None:
    big = "ü" * 1_000_000
    assert lake.rows(f"SELECT length('{big}')") == [(1_000_000,)]
    assert lake.count(f"INSERT INTO app.mine VALUES (70, '{big}')", user="mallory") == 1
    assert lake.count("UPDATE app.mine SET v = ? WHERE id = 70", big * 3, user="mallory") == 1
    assert lake.rows("SELECT length(v) FROM app.mine WHERE id = 70", user="mallory") == [(3_000_000,)]
    lake.run("DELETE FROM app.mine WHERE id = 70", user="mallory")
    refuse(lake, f"SELECT '{'x' * 1_048_576}'", kind=InvalidInputError)
    name = "n" * 100_000
    refuse(lake, f'SELECT "{name}" FROM app.open')
    refuse(lake, f"SELECT * FROM app.{name}", kind=NotFoundError)
    refuse(lake, f"CREATE NAMESPACE {name}", kind=InvalidInputError)
    survives(lake, f'SELECT 1 AS "{name}"')


@pytest.mark.parametrize("text", ["SELECT 'a\0b'", "SELECT 1 \0; DROP TABLE app.open", "SELECT '\ud800'", 'SELECT * FROM app."a\0"', "\0", "\ufeffSELECT 1", "SELECT\u00a01", "SELECT ‘a’", "ＳＥＬＥＣＴ 1", "SELECT \u202e1", "SELECT '\u2028'",
                                  "SELECT U&'\\0000'", "SELECT E'\\000'", "SELECT x'zz'", "SELECT $$a$$", "SELECT $a$ x $a$", "SELECT 1 -- '\n; DROP TABLE app.secret", "SELECT 1 /* ; */ ; DROP TABLE app.secret", "SELECT '\\'; DROP TABLE app.secret; --'",
                                  "SELECT E'\\'; DROP TABLE app.secret; --'", "SELECT {# ' #} 1; DROP TABLE app.secret", "SELECT @x", "SELECT :x", "SELECT #1", "SELECT %s", "SELECT {x}", "SELECT * FROM IDENTIFIER('app.secret')", "SELECT 1 AS \"a\nb\", error('c\nd')"])  # fmt: skip
def test_strange_characters_and_quotes_do_no_harm(lake: SqlLake, text: str) -> None:
    survives(lake, text, user="mallory")
    assert lake.rows("SELECT count(*) FROM app.secret") == [(2,)]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("text", ["SELECT * FROM app.\"a\nb\"", "SELECT * FROM \"a\nb\".t", "SELECT \"a\nb\" FROM app.open", "SELECT error('a\nb')", "SELECT CAST('a\nb' AS INT)", "CREATE SHARED TABLE \"a\nb\".t (id BIGINT PRIMARY KEY)", "DROP TABLE app.\"a\nb\"",
                                  "ALTER TABLE app.open DROP COLUMN \"a\nb\"", "INSERT INTO app.open (\"a\nb\") VALUES (1)", "UPDATE app.open SET \"a\nb\" = 1", "INSERT INTO system.users (user_id, role) VALUES ('x', 'a\nb')", "DESCRIBE TABLE app.\"a\nb\"",
                                  "CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) LOCATION 'a\nb'", "CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) WITH (\"a\nb\" = 1)", "CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'a\nb'",
                                  "SELECT * FROM app.open AT (VERSION => 'a\nb')", "SELECT \"a\nb\"(1)", "DROP NAMESPACE \"a\nb\"", "INSERT INTO app.open VALUES (1, 'x'), (1, 'a\nb')"])  # fmt: skip
def test_a_message_stays_one_line_whatever_the_names_in_it(lake: SqlLake, text: str) -> None:
    refuse(lake, text)


def test_a_duplicate_key_with_a_line_break_is_reported_in_one_line(lake: SqlLake) -> None:
    lake.run("CREATE SHARED TABLE app.lines (k STRING PRIMARY KEY); INSERT INTO app.lines VALUES ('a\nb')")
    refuse(lake, "INSERT INTO app.lines VALUES ('a\nb')")
    refuse(lake, "INSERT INTO app.lines VALUES ('c\nd'), ('c\nd')")
    lake.run("DROP TABLE app.lines")


# Values


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "surrogate": "\ud800", "nul": "a\0b", "huge integer": 10**5_000, "small huge integer": -(10**5_000), "integer": 2**64, "decimal": Decimal("1E+5000"), "nan": Decimal("NaN"), "infinity": Decimal("-Infinity"), "float": float("nan"), "set": {1}, "object": object(), "dictionary": {"a": {1}},
    "surrogate key": {"\ud800": "\0"}, "mixed list": [1, "x", None, [2]], "list": [], "nested list": nested_list(5_000), "nul bytes": b"\0", "duration": datetime.timedelta(days=1), "range": range(3), "quote": "'; DROP TABLE app.secret; --", "backslash": "\\'; DROP TABLE app.secret; --",
    "type": int, "zone": datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14))), "last": datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.timezone(-datetime.timedelta(hours=12))), "surrogate list": ["\ud800"], "nul list": ["\0"],
}  # fmt: skip


@pytest.mark.usefixtures("own_rows")
@pytest.mark.parametrize("name", VALUES)
def test_any_value_can_be_a_parameter_or_is_refused(lake: SqlLake, name: str) -> None:
    value = VALUES[name]
    for text in ("SELECT ?", "SELECT id FROM app.mine WHERE id = ? OR v = $1".replace("$1", "'x'"), "SELECT id FROM app.mine WHERE v = ?", "UPDATE app.mine SET v = v WHERE v = ?", "DELETE FROM app.mine WHERE id = ?",
                 "SELECT id FROM app.mine AT (VERSION => ?)", "SELECT id FROM app.mine LIMIT ?"):  # fmt: skip
        survives(lake, text, value, user="mallory")
    for _ in range(2):
        survives(lake, "INSERT INTO app.mine (v) VALUES (?)", value, user="mallory")
        survives(lake, "INSERT INTO app.mine (id, v) VALUES (?, 'x')", value, user="mallory")
    survives(lake, "INSERT INTO system.users (user_id, username, permissions) VALUES ('never', ?, ['x'])", value)
    assert lake.rows("SELECT count(*) FROM app.secret") == [(2,)]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("text", "parameters"), [("SELECT ?, ?", [1]), ("SELECT $2", [1]), ("SELECT ?", []), ("INSERT INTO app.mine VALUES (?, ?)", [7]), ("UPDATE app.mine SET v = ? WHERE id = ?", ["x"]), ("DELETE FROM app.mine WHERE id = ? OR id = ?", [1]),
                                                  ("INSERT INTO app.mine (v) VALUES ($3)", ["x"]), ("SELECT $0", [1]), ("SELECT $99999", [1]), ("SELECT ?, $1", [1, 2]), ("SELECT $x", [1])])  # fmt: skip
def test_too_few_parameters_are_refused(lake: SqlLake, text: str, parameters: list[Any]) -> None:
    refuse(lake, text, *parameters, user="mallory", kind=InvalidInputError)


@pytest.mark.usefixtures("unchanged")
def test_too_many_parameters_are_refused(lake: SqlLake) -> None:
    refuse(lake, "SELECT ?", 1, 2, kind=InvalidInputError)
    refuse(lake, "DELETE FROM app.mine", 1, user="mallory", kind=InvalidInputError)


DIGITS = "9" * 5_000
LITERALS = [
    f"SELECT {DIGITS}", f"INSERT INTO app.mine VALUES ({DIGITS}, 'x')", f"INSERT INTO app.mine VALUES (-{DIGITS}, 'x')", f"INSERT INTO app.mine (v) VALUES ({DIGITS})", f"SELECT * FROM app.mine WHERE id = {DIGITS}", f"UPDATE app.mine SET v = {DIGITS} WHERE id = {DIGITS}",
    f"DELETE FROM app.mine WHERE id IN (7, {DIGITS})", f"SELECT * FROM app.mine LIMIT {DIGITS}", f"SELECT * FROM app.mine AT (VERSION => {DIGITS})", "SELECT 1e999999", f"SELECT {DIGITS}.{DIGITS}", f"SHOW TABLES LIMIT {DIGITS}", "SELECT * FROM app.mine WHERE id = ١",
    "SELECT * FROM app.mine AT (TIMESTAMP => 'infinity')", "SELECT * FROM app.mine AT (TIMESTAMP => '-infinity')", "SELECT * FROM app.mine AT (TIMESTAMP => '290000-01-01')", "SELECT * FROM app.mine AT (VERSION => -1)", "SELECT * FROM app.mine AT (VERSION => NULL)",
    "SELECT * FROM app.mine AT (VERSION => id)", "SELECT * FROM app.mine AT (TIMESTAMP => 'x')", "SELECT * FROM app.mine AT (VERSION => unnest([1, 2]))", "SELECT * FROM app.mine AT (VERSION => (SELECT 1 WHERE false))", "SELECT * FROM app.mine LIMIT -1",
    "SELECT unnest([1, 2]), * FROM app.mine WHERE unnest([true])", "SELECT repeat('x', -1)", "SELECT range(0, 10, 0)", "SELECT * FROM range(0, 10, 0)", "SELECT 1 // 0, 1 / 0, 1 % 0", "SELECT chr(0)", "SELECT chr(55296)", "SELECT chr(-1)", "SELECT current_query()", "SELECT 'a' COLLATE x",
]  # fmt: skip


@pytest.mark.usefixtures("own_rows")
@pytest.mark.parametrize("text", LITERALS)
def test_literals_beyond_all_bounds_are_answered_or_refused(lake: SqlLake, text: str) -> None:
    survives(lake, text, user="mallory")


ANSWERS = ["TIMESTAMP 'infinity'", "TIMESTAMPTZ '-infinity'", "DATE 'infinity'", "DATE '5877642-06-25 (BC)'", "TIMESTAMP '290000-01-01'", "TIME '24:00:00'", "TIMETZ '12:00:00+15'", "INTERVAL 1 MONTH", "170141183460469231731687303715884105727::HUGEINT", "1::UHUGEINT", "18446744073709551615::UBIGINT",
           "1::UTINYINT", "'101'::BIT", "'a'::ENUM('a', 'b')", "{'a': 1, 'b': [NULL]}", "MAP {'a': 1}", "union_value(a := 1)", "[]", "NULL", "[[1], NULL]", "'\\xFF'::BLOB", "uuid()", "'{}'::JSON", "1.5::DECIMAL(38, 10)", "'nan'::DOUBLE", "TIMESTAMP_NS '2020-01-01 00:00:00.123456789'",
           "TIMESTAMP_S '2020-01-01'", "1::BIGNUM", "[1, 2]::INT[2]", "sum(1)", "[TIMESTAMP 'infinity']", "{'a': TIMESTAMP 'infinity'}", "MAP {DATE 'infinity': 1}", "x'ff'", "row(1, 'a')", "[170141183460469231731687303715884105727::HUGEINT]", "current_date", "now()"]  # fmt: skip


@pytest.mark.parametrize("value", ANSWERS)
def test_every_answer_can_be_shown(lake: SqlLake, value: str) -> None:
    results = survives(lake, f"SELECT {value} AS x, 1 AS x")
    if results is not None:
        assert isinstance(results[0].rows, list)


UNHOLDABLE = [("STRING[]", "[chr(0)]"), ("STRING[]", "['a', NULL, 'b' || chr(0)]"), ("JSON[]", "['\"' || chr(0) || '\"']"), ("DATE[]", "[DATE 'infinity']"), ("DATE[]", "[DATE '0044-03-15 (BC)']"), ("TIMESTAMP[]", "[TIMESTAMP 'infinity']"), ("TIMESTAMPTZ[]", "[TIMESTAMPTZ '290000-01-01']"),
              ("TIME", "'24:00:00'"), ("TIME[]", "[TIME '24:00:00']"), ("STRING", "chr(55296)"), ("STRING", "chr(0)"), ("JSON", "'\"' || chr(0) || '\"'"), ("TIMESTAMPTZ", "'infinity'"), ("UUID", "''"), ("BYTES", "'\\x'"), ("BIGINT[]", "[[1]]"), ("DECIMAL(4,2)", "'nan'"), ("DOUBLE", "'x'")]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), UNHOLDABLE)
def test_values_that_the_store_cannot_hold_are_refused_in_arrays_too(lake: SqlLake, kind: str, value: str) -> None:
    name = f"app.v{next(_numbers)}"
    lake.run(f"CREATE SHARED TABLE {name} (id BIGINT PRIMARY KEY, v {kind})")
    refuse_insert(lake, name, value)
    lake.run(f"DROP TABLE {name}")


def refuse_insert(lake: SqlLake, table: str, value: str) -> None:
    """The first write makes the hot table, which is all that may remain."""
    with pytest.raises(LakeforkError) as caught:
        lake.run(f"INSERT INTO {table} VALUES (1, NULL), (2, {value})")
    assert "\n" not in str(caught.value)
    assert lake.rows(f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("column", ["user_id", "username", "permissions"])
def test_characters_that_postgres_cannot_hold_are_refused_in_system_users(lake: SqlLake, column: str) -> None:
    values = {"user_id": "'never'", "username": "'x'", "permissions": "['a.b']"}
    for bad in ("chr(0)", "'a' || chr(0)"):
        values[column] = f"[{bad}]" if column == "permissions" else bad
        refuse(lake, f"INSERT INTO system.users (user_id, username, permissions) VALUES ({', '.join(values.values())})")


def test_an_alias_of_a_system_table_may_hold_quotes(lake: SqlLake) -> None:
    before = lake.rows("SELECT * FROM system.users")
    for alias in ('a""b', "x WHERE true --", "a b", "a;b"):
        survives(lake, f"UPDATE system.users AS \"{alias}\" SET username = 'x' WHERE user_id = 'nobody'")
        survives(lake, f"DELETE FROM system.users \"{alias}\" WHERE user_id = 'nobody'")
    assert lake.rows("SELECT * FROM system.users") == before


# Names and user ids

NAMES = ["a/b", "..", "../../x", "a.b", 'a"b', "a'b", "a;b", "%2e%2e", "🦆", "SELECT", "a\\b", "a\nb", "ü" * 200, "shared", "configs", "${user_id}", "'; DROP TABLE app.secret; --", " "]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_up_to_200_characters_names_a_namespace_table_and_column(lake: SqlLake, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    table = f"{quoted}.{quoted}"
    outside = set(Path(lake.catalog.data_path).parent.iterdir()) | {
        path for path in Path(lake.catalog.data_path).iterdir() if path.is_file()
    }
    lake.run(f"CREATE NAMESPACE {quoted}; CREATE SHARED TABLE {table} ({quoted} STRING PRIMARY KEY, v STRING)")
    lake.run(f"INSERT INTO {table} VALUES (?, 'a'), ('k', 'b')", name)
    assert lake.count(f"UPDATE {table} SET v = 'c' WHERE {quoted} = ?", name) == 1
    assert lake.rows(f"SELECT {quoted}, {quoted}.{quoted}, v FROM {table} WHERE {quoted} = ?", name) == [
        (name, name, "c")
    ]
    assert lake.rows(f"SELECT x.{quoted} FROM {table} AS x WHERE x.{quoted} IS NOT NULL ORDER BY 1") == sorted(
        [(name,), ("k",)]
    )
    lake.run(
        f"ALTER TABLE {table} ADD COLUMN w INT; DESCRIBE TABLE {table}; SHOW TABLE STATS {table}; SHOW TABLES IN {quoted}"
    )
    lake.run(f"DROP TABLE {table}; DROP NAMESPACE {quoted}")
    now = set(Path(lake.catalog.data_path).parent.iterdir()) | {
        path for path in Path(lake.catalog.data_path).iterdir() if path.is_file()
    }
    assert now == outside


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 201])
def test_names_that_are_empty_or_too_long_are_refused(lake: SqlLake, name: str) -> None:
    refuse(lake, f'CREATE NAMESPACE "{name}"', kind=InvalidInputError)
    refuse(lake, f'CREATE SHARED TABLE app."{name}" (id BIGINT PRIMARY KEY)', kind=InvalidInputError)
    refuse(lake, f'CREATE SHARED TABLE app.x ("{name}" BIGINT PRIMARY KEY)', kind=InvalidInputError)


USERS = ["../x", "a/b", "%2e", "..", "x" * 300, "🦆" * 100, "'; DROP TABLE app.secret; --", "' OR '1'='1", 'a"b', "a\\", "a\nb", "alice ", "ALICE", "${user_id}", "shared"]  # fmt: skip


@pytest.mark.parametrize("name", USERS)
def test_any_user_id_has_rows_of_its_own(lake: SqlLake, name: str) -> None:
    root = Path(lake.catalog.data_path)
    insert = "INSERT INTO app.mine (v) VALUES ('x')"
    for _ in range(2):
        assert lake.count(insert, user=name) == 1
    assert lake.count("INSERT INTO app.mine VALUES (1, CURRENT_USER())", user=name) == 1
    before = set(root.rglob("*.parquet"))
    assert lake.flush_by_hand("app.mine", name) == 3
    (new,) = set(root.rglob("*.parquet")) - before
    assert new.resolve().parent.parent == root / "app" / "mine"
    assert lake.count("UPDATE app.mine SET v = v || '!' WHERE v = 'x'", user=name) == 2
    assert lake.count("DELETE FROM app.mine WHERE v = 'x!'", user=name) == 2
    assert lake.rows("SELECT id, v FROM app.mine", user=name) == [(1, name)]
    assert lake.rows("SELECT v FROM app.mine WHERE _user_id = ? AND id = 1", name) == [(name,)]
    lake.run(
        "INSERT INTO system.users (user_id, permissions) VALUES (?, ['app.filtered.owner = CURRENT_USER()'])", name
    )
    assert lake.rows("SELECT * FROM app.filtered", user=name) == []
    quoted = name.replace("'", "''")
    assert lake.count(f"UPDATE app.mine AS USER '{quoted}' SET v = 'by admin' WHERE id = 1") == 1
    assert lake.rows("SELECT v FROM app.mine", user=name) == [("by admin",)]
    assert lake.rows("SELECT subject FROM system.audit WHERE subject = ?", name) == [(name,)]
    assert lake.count("DELETE FROM app.mine", user=name) == 1
    assert lake.rows("SELECT v FROM app.mine", user="mallory") == [("own",)]


def test_user_ids_that_cannot_be_are_refused(lake: SqlLake) -> None:
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000))  # noqa: S311
    insert = "INSERT INTO app.mine (v) VALUES ('not there')"
    lake.run(insert, user="somebody")
    lake.run(insert, user="somebody")
    for name in ("", "a\0b", "\ud800", long):
        for text in (
            insert,
            "SELECT * FROM app.secret",
            "UPDATE app.mine SET v = 'x' WHERE id = 1; SELECT * FROM app.secret",
        ):
            with pytest.raises(LakeforkError) as caught:
                lake.engine.execute(Session("main", name, Role.USER), text)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        "app.mine; DROP TABLE app.secret",
        "app.mine AS x",
        "",
        "app.nothing",
        "(SELECT 1)",
        "main.app.mine",
        "app.secret",
        "system.users",
        "app.mine --",
        "'app.mine'",
    ],
)
def test_bulk_loads_take_nothing_but_a_table(lake: SqlLake, table: str) -> None:
    before = state(lake)
    with pytest.raises(LakeforkError):
        lake.engine.load(lake.session("mallory"), table, pa.table({"id": [90], "owner": ["mallory"], "v": ["x"]}))
    assert state(lake) == before


BAD_LOADS: dict[str, pa.Table] = {
    "no columns": pa.table({}), "unknown": pa.table({"id": [90], "x": [1]}), "twice": pa.table([pa.array([90]), pa.array([91])], names=["id", "ID"]), "struct": pa.table({"id": [{"a": 1}]}), "text": pa.table({"id": ["x"]}), "nul": pa.table({"id": [90], "v": ["a\0"]}), "key": pa.table({"id": [1], "v": ["x"]}),
    "seq": pa.table({"id": [90], "_seq": [1]}), "owner": pa.table({"id": [90], "_user_id": ["alice"]}), "repeated": pa.table({"id": [90, 90]}), "range": pa.table({"id": pa.array([2**64 - 1], pa.uint64())}), "bytes": pa.table({"id": [90], "v": pa.array([b"\xff"]).cast(pa.large_binary())}),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BAD_LOADS if name != "bytes"])
def test_bulk_loads_of_nonsense_are_refused(lake: SqlLake, name: str) -> None:
    before = state(lake)
    with pytest.raises(LakeforkError) as caught:
        lake.engine.load(lake.session("mallory"), "app.mine", BAD_LOADS[name])
    assert "\n" not in str(caught.value)
    assert state(lake) == before


# Limits


def limited(lake: SqlLake, make_settings: Callable[..., Settings], **limits: Any) -> Iterator[SqlLake]:
    settings = make_settings(sql=SqlSettings(max_rows=1_000, max_changed_rows=100, threads=1, **limits))
    with Engine(settings, lake.dsn) as engine:
        yield SqlLake(engine, lake.dsn, lake.catalog)


@pytest.fixture(scope="module")
def small(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    yield from limited(lake, make_settings, statement_timeout_seconds=20, memory_mb=64)


@pytest.fixture(scope="module")
def hurried(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    yield from limited(lake, make_settings, statement_timeout_seconds=0.3, memory_mb=512)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "text",
    ["SELECT count(*) FROM range(1000000000000)", "SELECT i FROM range(1000000000000) r(i) WHERE i % 7 = 8", "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE (i * j) % 7 = 8", "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r",
     "INSERT INTO app.open SELECT i, 'x' FROM range(1000000000000) r(i) WHERE i % 7 = 8", "UPDATE app.open SET v = (SELECT count(*) FROM range(1000000000000))", "DELETE FROM app.open WHERE (SELECT count(*) FROM range(1000000000000)) > 0 AND id = 1",
     "INSERT INTO app.open VALUES (80, (SELECT count(*) FROM range(1000000000000)))", "SELECT * FROM app.open AT (VERSION => (SELECT count(*) FROM range(1000000000000)))",],
)  # fmt: skip
def test_a_statement_that_takes_too_long_is_stopped(hurried: SqlLake, text: str) -> None:
    started = time.monotonic()
    assert "took too long" in refuse(hurried, text, kind=LimitError)
    assert time.monotonic() - started < 3


def test_answers_of_too_many_rows_are_refused(small: SqlLake) -> None:
    assert len(small.rows("SELECT * FROM range(1000)")) == 1_000
    for text in ("SELECT * FROM range(1001)", "SELECT * FROM range(10000000)", "SELECT unnest(range(2000))"):
        refuse(small, text, kind=LimitError)


def test_changes_of_too_many_rows_are_refused(small: SqlLake) -> None:
    small.run("CREATE SHARED TABLE app.many (id BIGINT PRIMARY KEY, v STRING)")
    try:
        for start in (0, 60):
            small.run(f"INSERT INTO app.many SELECT i, 'x' FROM range({start}, {start + 60}) r(i)")
        keys = ", ".join(map(str, range(110)))
        rows = ", ".join(f"({key}, 'x')" for key in range(1_000, 1_101))
        for text in (
            "INSERT INTO app.many SELECT i + 1000, 'x' FROM range(101) r(i)",
            "UPDATE app.many SET v = 'y'",
            "DELETE FROM app.many",
            f"DELETE FROM app.many WHERE id IN ({keys})",
            f"INSERT INTO app.many VALUES {rows}",
        ):
            assert "max_changed_rows" in refuse(small, text, kind=LimitError)
    finally:
        small.run("DROP TABLE app.many")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "text",
    ["SELECT sum(len(l)) FROM (SELECT i, list(j) AS l FROM range(4000) a(i), range(4000) b(j) GROUP BY i)", "SELECT length(repeat('x', 100000000) || 'y')", "SELECT count(DISTINCT hash(i)) FROM range(30000000) r(i)",
     "SELECT repeat('x', 1000000) || i FROM range(300) r(i)", "SELECT string_agg(repeat('x', 1000000)) FROM range(300)", "SELECT repeat('x', 1000000) FROM range(300)"],
)  # fmt: skip
def test_a_statement_that_needs_too_much_memory_is_refused(small: SqlLake, text: str) -> None:
    assert "memory" in refuse(small, text, kind=LimitError)


@pytest.mark.usefixtures("unchanged")
def test_an_error_late_in_a_long_answer_is_an_error_of_ours(lake: SqlLake) -> None:
    refuse(
        lake,
        "SELECT CASE WHEN i = 800000 THEN error('late\nline') ELSE i::VARCHAR END FROM range(900000) r(i)",
        kind=InvalidInputError,
    )
    refuse(
        lake,
        "SELECT CAST(CASE WHEN i = 800000 THEN 'x' ELSE '1' END AS INT) FROM range(900000) r(i)",
        kind=InvalidInputError,
    )
    refuse(
        lake,
        "INSERT INTO app.open SELECT i + 100, CASE WHEN i = 90000 THEN error('late') ELSE 'x' END FROM range(100000) r(i)",
        kind=InvalidInputError,
    )


def test_the_engine_works_as_before_after_all_of_it(lake: SqlLake, small: SqlLake) -> None:
    for one in (lake, small):
        assert one.rows("SELECT id FROM app.open ORDER BY id", user="mallory") == [(1,), (2,)]
        assert one.rows("SELECT count(*) FROM app.secret") == [(2,)]
