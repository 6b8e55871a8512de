"""Hostile SQL that reaches for tables that the user may not see."""

from typing import Any

import pytest

from lakefork.errors import InvalidInputError, LakeforkError, PermissionDeniedError
from lakefork.sql.results import Rows
from lakefork.sql.session import Role, Session
from support.sql_hostile import refuse
from support.sql_lake import SqlLake

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


def test_system_tables_reveal_nothing_of_others(lake: SqlLake) -> None:
    who: dict[str, Any] = {"user": "mallory"}
    assert [row[0] for row in lake.rows("SELECT user_id FROM system.users", **who)] == ["mallory"]
    refuse(lake, "SELECT * FROM system.storage_locations", kind=PermissionDeniedError, **who)
    assert lake.rows("SELECT data_path FROM system.catalogs", **who) == [(None,)]
    for text in ("SELECT table_name FROM system.tables", "SELECT table_name FROM information_schema.tables WHERE table_type <> 'SYSTEM'",
                 "SELECT DISTINCT table_name FROM information_schema.columns"):  # fmt: skip
        assert {row[0] for row in lake.rows(text, **who)} == {"open", "filtered", "mixed", "mine"}
    assert {row[1] for row in lake.rows("SHOW TABLES", **who)} == {"open", "filtered", "mixed", "mine"}
    assert lake.rows("SELECT * FROM system.audit", **who) == []
