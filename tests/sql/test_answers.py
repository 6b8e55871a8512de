"""Results that were once wrong: scopes, names, positions of columns, parameters, defaults."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from lakefork.errors import ConflictError, InvalidInputError, LakeforkError, LimitError, PermissionDeniedError
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from support.sql_lake import SqlLake


@pytest.fixture
def app(lake: SqlLake) -> SqlLake:
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.a (id BIGINT PRIMARY KEY, n INT); "
        "CREATE SHARED TABLE app.b (id BIGINT PRIMARY KEY, n INT); "
        "INSERT INTO app.a VALUES (1, 10), (2, 20); INSERT INTO app.b VALUES (1, 10), (2, 20)"
    )
    return lake


def test_the_same_text_twice_in_one_call_takes_its_own_parameters(lake: SqlLake) -> None:
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, n INT)")
    insert = "INSERT INTO app.t (n) VALUES (?)"
    for _ in range(2):
        lake.run(f"{insert}; {insert}", 1, 2)
    assert sorted(lake.rows("SELECT n FROM app.t")) == [(1,), (1,), (2,), (2,)]


def test_columns_keep_their_places(app: SqlLake) -> None:
    app.run(
        "ALTER TABLE app.a ADD COLUMN c INT; ALTER TABLE app.a ADD COLUMN d INT, ADD COLUMN e INT[]; ALTER TABLE app.a MODIFY COLUMN d BIGINT"
    )
    app.run(
        "ALTER TABLE app.a RENAME COLUMN n TO m, ADD COLUMN f INT; ALTER TABLE app.a DROP COLUMN c, ADD COLUMN c INT"
    )
    app.run("INSERT INTO app.a VALUES (3, 30, 40, [50], 60, 70)")
    (result,) = app.run("SELECT * FROM app.a WHERE id = 3")
    assert result.columns == ["id", "m", "d", "e", "f", "c", "_seq", "_deleted"]
    assert result.rows[0][:6] == (3, 30, 40, [50], 60, 70)
    places = app.rows(
        "SELECT column_name, ordinal_position FROM information_schema.columns WHERE table_name = 'a' ORDER BY 2"
    )
    assert places == [(name, place) for place, name in enumerate(result.columns, 1)]


def test_names_are_compared_as_in_the_catalog(lake: SqlLake) -> None:
    lake.run(
        'CREATE NAMESPACE app; CREATE USER TABLE app."Ä" (id BIGINT PRIMARY KEY, "Ö" INT); CREATE USER TABLE app."ä" (id BIGINT PRIMARY KEY, n INT)'
    )
    lake.run('INSERT INTO app."Ä" VALUES (1, 1)', user="ada")
    assert lake.count('DELETE FROM app."ä" WHERE id = 1', user="ada") == 0
    assert lake.rows('SELECT "Ö" FROM app."Ä"', user="ada") == [(1,)]
    lake.run(
        "CREATE SHARED TABLE app.ss (id BIGINT PRIMARY KEY); INSERT INTO system.users (user_id, permissions) VALUES ('ada', ['app.\"ß\"'])"
    )
    with pytest.raises(PermissionDeniedError):
        lake.run("SELECT * FROM app.ss", user="ada")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id FROM app.a WHERE id IN (SELECT id FROM app.b WHERE _deleted)", []),
        ("SELECT id FROM app.b WHERE _deleted", [(1,)]),
        ("SELECT id FROM app.a x WHERE EXISTS (SELECT 1 FROM app.b WHERE x._deleted AND app.b.id = 2)", [(1,)]),
        ("WITH Q AS (SELECT id FROM app.a) SELECT id FROM q", [(2,)]),
        ("WITH Q AS (SELECT id FROM app.a) SELECT q.id FROM q", [(2,)]),
        ("SELECT x.n FROM app.a AS x (n, id) WHERE x.id = 20", [(2,)]),
        ("SELECT x.n FROM app.a AS x (n, id) WHERE x.id = 2", []),
    ],
)
def test_scopes_and_aliases(app: SqlLake, text: str, expected: list[Any]) -> None:
    app.run("DELETE FROM app.a WHERE id = 1; DELETE FROM app.b WHERE id = 1")
    assert app.rows(text) == expected


def test_a_subquery_hides_a_table_of_the_session_whatever_its_case(app: SqlLake) -> None:
    session = Session("main", None, Role.ADMIN, namespace="app")
    assert app.engine.execute(session, "WITH A AS (SELECT 99 AS id) SELECT id FROM a")[0].rows == [(99,)]


def test_columns_by_number_are_refused(app: SqlLake) -> None:
    with pytest.raises(InvalidInputError, match="by name, not by #n"):
        app.run("SELECT #2 FROM app.a")


def test_changes_find_rows_by_the_whole_row(app: SqlLake) -> None:
    assert app.count("""UPDATE app.a SET n = 5 WHERE to_json(a)::VARCHAR LIKE '%"n":20%'""") == 1
    assert app.count("DELETE FROM app.a WHERE COLUMNS('n') = 5") == 1
    assert app.rows("SELECT id FROM app.a") == [(1,)]


def test_a_default_of_the_key_holds_each_time(lake: SqlLake) -> None:
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY DEFAULT 7, n INT)")
    lake.run("INSERT INTO app.t (n) VALUES (1)")
    for _ in range(2):
        with pytest.raises(ConflictError, match="id = 7"):
            lake.run("INSERT INTO app.t (n) VALUES (1)")


def test_a_default_can_be_removed_and_old_rows_keep_theirs(app: SqlLake) -> None:
    app.run("ALTER TABLE app.a ADD COLUMN f FLOAT DEFAULT 0.1; ALTER TABLE app.a MODIFY COLUMN f DOUBLE DEFAULT NULL")
    app.run("INSERT INTO app.a (id) VALUES (3)")
    assert app.rows("SELECT f FROM app.a ORDER BY id") == [(0.10000000149011612,), (0.10000000149011612,), (None,)]
    app.run("ALTER TABLE app.a MODIFY COLUMN n INT DEFAULT 4; ALTER TABLE app.a MODIFY COLUMN n INT DEFAULT NULL")
    app.run("INSERT INTO app.a (id) VALUES (4)")
    assert app.rows("SELECT n FROM app.a WHERE id = 4") == [(None,)]


def test_many_changes_with_subqueries_do_not_wait_for_each_other_for_ever(
    lake: SqlLake, make_settings: Callable[..., Settings]
) -> None:
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, n INT); INSERT INTO app.t VALUES (1, 0), (2, 0)"
    )
    with Engine(make_settings(sql=SqlSettings(connections=2)), lake.dsn) as engine:
        few = SqlLake(engine, lake.dsn, lake.catalog)
        text = "UPDATE app.t SET n = n + 1 WHERE n = (SELECT max(n) FROM app.t WHERE id = 1) AND id > 0"
        threads = [threading.Thread(target=lambda: few.run(text), daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)


def test_every_statement_has_a_limit_of_time(lake: SqlLake, make_settings: Callable[..., Settings]) -> None:
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, n INT)")
    with Engine(make_settings(sql=SqlSettings(statement_timeout_seconds=0.5)), lake.dsn) as engine:
        quick = SqlLake(engine, lake.dsn, lake.catalog)
        for _ in range(2):
            quick.run("INSERT INTO app.t (n) VALUES (1)")
        with psycopg.connect(lake.dsn) as connection:
            connection.execute("SELECT lakefork.lock_definition(catalog_id, table_id) FROM public.ducklake_table")
            for text in ("INSERT INTO app.t (n) VALUES (1)", "UPDATE app.t SET n = 2 WHERE id = 1"):
                with pytest.raises(LimitError, match="too long"):
                    quick.run(text)


def test_loads_report_broken_connections_as_errors_of_ours(app: SqlLake) -> None:
    rows = pa.table({"id": [5], "n": [1]})
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    try:
        app.engine.load(app.session(), "app.a", rows)
    except LakeforkError as error:
        assert error.retryable
        app.engine.load(app.session(), "app.a", rows)
    assert app.rows("SELECT n FROM app.a WHERE id = 5") == [(1,)]


def test_a_batch_shows_a_user_only_rows_that_say_so_themselves(lake: SqlLake) -> None:
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.u (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.u VALUES (1, 'of ada')", user="ada")
    lake.flush_by_hand("app.u", "ada")
    with psycopg.connect(lake.dsn, autocommit=True) as connection:
        connection.execute("UPDATE ducklake_file_partition_value SET partition_value = 'bob'")
    assert lake.rows("SELECT * FROM app.u", user="bob") == []
    with psycopg.connect(lake.dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM ducklake_file_partition_value")
    assert lake.rows("SELECT * FROM app.u", user="bob") == []


def test_locations_overlap_for_some_user(lake: SqlLake, tmp_path: Path) -> None:
    lake.run(
        f"CREATE NAMESPACE app; CREATE USER TABLE app.a (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/x/${{user_id}}/m'"
    )
    for kind, path in (("SHARED", "x/bob/m"), ("SHARED", "x/bob/m/deeper"), ("USER", "x/${user_id}"), ("SHARED", "x")):
        with pytest.raises(ConflictError, match=r"app\.a"):
            lake.run(f"CREATE {kind} TABLE app.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/{path}'")
    lake.run(f"CREATE USER TABLE app.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/x/${{user_id}}/n'")


def test_a_schema_file_that_was_not_written_comes_with_the_next(app: SqlLake) -> None:
    schemas = Path(app.catalog.data_path) / "configs" / "app" / "schemas" / "a"
    app.run("ALTER TABLE app.a ADD COLUMN c INT")
    (schemas / "schema_v2.json").unlink()
    app.run("ALTER TABLE app.a ADD COLUMN d INT")
    assert sorted(path.name for path in schemas.iterdir()) == [
        "current.json",
        "schema_v1.json",
        "schema_v2.json",
        "schema_v3.json",
    ]


def test_a_deleted_user_learns_nothing(app: SqlLake) -> None:
    app.run(
        "INSERT INTO system.users (user_id, permissions) VALUES ('ada', ['app.a']); DELETE FROM system.users WHERE user_id = 'ada'"
    )
    for role in (Role.USER, Role.SERVICE):
        for text in (
            "SHOW NAMESPACES",
            "SHOW TABLES",
            "DESCRIBE TABLE app.a",
            "SELECT * FROM system.users",
            "SELECT * FROM app.a",
        ):
            with pytest.raises(PermissionDeniedError, match="was deleted"):
                app.run(text, user="ada", role=role)


def test_users_see_only_what_concerns_them(app: SqlLake) -> None:
    app.run("INSERT INTO system.users (user_id, permissions) VALUES ('ada', ['app.a'])")
    assert [row[0::2] for row in app.rows("SHOW NAMESPACES", user="ada")] == [("app", 1)]
    assert [row[:4] for row in app.rows("SHOW TABLES", user="ada")] == [("app", "a", "SHARED", None)]
    described = {row[1]: row[2] for row in app.rows("DESCRIBE TABLE app.a", user="ada") if row[0] == "table"}
    assert described["storage_location"] is None
    assert app.catalog.data_path not in str(app.rows("SELECT * FROM system.tables", user="ada"))


def test_acting_for_a_user_is_audited_also_without_matching_rows(lake: SqlLake) -> None:
    lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.u (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO system.users (user_id) VALUES ('ada')"
    )
    lake.run("DELETE FROM app.u AS USER 'ada' WHERE v = 'x'", user="bot", role=Role.SERVICE)
    assert lake.rows("SELECT actor, subject, action, affected_rows FROM system.audit") == [("bot", "ada", "DELETE", 0)]
