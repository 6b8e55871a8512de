"""Hot tables: made by the first write, shaped for look-ups by key, only ever appended to, and asked for no more than needed."""

from typing import Any

import pyarrow as pa
import pytest

from lakefork.catalog.connection import Connection
from lakefork.hot.connections import COPY_ROWS
from support.lake import rows_of
from support.sql_lake import SqlLake


@pytest.fixture
def app(lake: SqlLake) -> SqlLake:
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v STRING, n INT); "
        "CREATE USER TABLE app.mine (a STRING, b BIGINT, v STRING, PRIMARY KEY (b, a))"
    )
    return lake


def hot_tables(connection: Connection) -> list[str]:
    return [name for (name,) in rows_of(connection, "SELECT tablename FROM pg_tables WHERE schemaname = 'hot'")]


def hot_name(lake: SqlLake, table: str) -> str:
    (hot,) = lake.find(table).hot
    return hot.qualified


def stored(connection: Connection, name: str) -> dict[str, tuple[Any, ...]]:
    """Every row by its place; whoever changes one in place marks it, or moves it."""
    found = rows_of(connection, f"SELECT ctid::text, xmin::text, xmax::text, h::text FROM {name} h")
    return {row[0]: row for row in found}


def index_columns(connection: Connection, name: str, *, primary: bool) -> list[list[str]]:
    return [
        columns
        for (columns,) in rows_of(
            connection,
            "SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indexrelid "
            "WHERE i.indrelid = %s::regclass AND i.indisprimary = %s GROUP BY i.indexrelid",
            name,
            primary,
        )
    ]


def test_a_hot_table_is_made_and_registered_by_the_first_write(app: SqlLake, connection: Connection) -> None:
    app.run("SELECT * FROM app.t; EXPLAIN SELECT * FROM app.t; DESCRIBE TABLE app.t; SHOW TABLE STATS app.t")
    registered = (
        "SELECT catalog_id, table_id, 'hot.' || table_name, schema_version FROM public.ducklake_inlined_data_tables"
    )
    assert hot_tables(connection) == []
    assert rows_of(connection, registered) == []
    for _ in range(3):
        app.run("INSERT INTO app.t (v) VALUES ('x')")
        (name,) = hot_tables(connection)
        definition = app.find("app.t").definition
        assert hot_name(app, "app.t") == f"hot.{name}"
        assert rows_of(connection, registered) == [
            (definition.catalog_id, definition.table_id, f"hot.{name}", definition.schema_version)
        ]


def test_the_first_write_under_a_new_definition_makes_a_hot_table_and_leaves_the_old_one(
    app: SqlLake, connection: Connection
) -> None:
    app.run("INSERT INTO app.t VALUES (1, 'a', 1)")
    old = hot_name(app, "app.t")
    before = stored(connection, old)
    app.run("ALTER TABLE app.t ADD COLUMN w INT")
    assert len(hot_tables(connection)) == 1
    app.run("UPDATE app.t SET w = 5 WHERE id = 1")
    assert len(hot_tables(connection)) == 2
    assert stored(connection, old) == before
    assert app.rows("SELECT id, v, w FROM app.t") == [(1, "a", 5)]


@pytest.mark.parametrize(
    ("table", "values", "owner", "key"),
    [("app.t", "(1, 'a', 1)", ["catalog_id"], ["c4"]), ("app.mine", "('a', 1, 'x')", ["catalog_id", "_user_id"], ["c5", "c4"])],
)  # fmt: skip
def test_a_hot_table_is_ordered_by_owner_and_indexed_by_key(
    app: SqlLake, connection: Connection, table: str, values: str, owner: list[str], key: list[str]
) -> None:
    app.run(f"INSERT INTO {table} VALUES {values}", user="ada", role=app.session().role)
    name = hot_name(app, table)
    assert index_columns(connection, name, primary=True) == [[*owner, "_seq"]]
    assert index_columns(connection, name, primary=False) == [[*owner, *key, "_seq"]]


def test_every_row_tells_the_transaction_that_wrote_it(app: SqlLake, connection: Connection) -> None:
    for _ in range(2):  # the second time by the quick way
        app.run("INSERT INTO app.t (v) VALUES ('x')")
    app.run("INSERT INTO app.t VALUES (1, 'a', 1), (2, 'b', 2); UPDATE app.t SET n = 3 WHERE id = 1; DELETE FROM app.t WHERE id = 2")  # fmt: skip
    found = rows_of(
        connection,
        "SELECT _xid::text, count(*), bool_and(_xid::xid = xmin) "
        f"FROM {hot_name(app, 'app.t')} GROUP BY _xid ORDER BY min(_seq)",
    )
    assert [(count, own) for _, count, own in found] == [(1, True), (1, True), (2, True), (1, True), (1, True)]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("UPDATE app.t SET n = n + 1 WHERE id = 2", 1),
        ("UPDATE app.t SET v = 'x' WHERE v <> 'b'", 2),
        ("UPDATE app.t SET v = v", 3),
        ("DELETE FROM app.t WHERE id IN (1, 3)", 2),
        ("DELETE FROM app.t WHERE n > 1", 2),
        ("DELETE FROM app.t", 3),
    ],
)
def test_update_and_delete_only_append(app: SqlLake, connection: Connection, text: str, changed: int) -> None:
    app.run("INSERT INTO app.t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    name = hot_name(app, "app.t")
    before = stored(connection, name)
    assert app.count(text) == changed
    after = stored(connection, name)
    assert {place: after.get(place) for place in before} == before
    assert len(after) == len(before) + changed
    deleted = rows_of(connection, f"SELECT count(*) FROM {name} WHERE _deleted")
    assert deleted == [(changed if text.startswith("DELETE") else 0,)]


def test_all_rows_of_a_statement_come_with_one_copy(app: SqlLake, connection: Connection, copies: list[int]) -> None:
    many = 3 * COPY_ROWS
    app.run("INSERT INTO app.t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    app.run(f"INSERT INTO app.t SELECT i, 'x', 0 FROM range(10, {10 + many}) r(i)")
    app.run("UPDATE app.t SET n = 7 WHERE id < 20")
    app.run("DELETE FROM app.t WHERE n = 7")
    app.engine.load(app.session(), "app.t", pa.table({"id": range(100_000, 100_000 + many)}))
    assert copies == [3, many, 13, 13, many]
    commands = rows_of(
        connection, f"SELECT count(*) FROM {hot_name(app, 'app.t')} GROUP BY _xid, cmin::text ORDER BY min(_seq)"
    )
    assert [count for (count,) in commands] == copies


@pytest.mark.parametrize(
    ("where", "versions"),
    [
        ("", 12),
        ("WHERE id = 3", 1),
        ("WHERE id = 2", 3),
        ("WHERE 4 = id", 1),
        ("WHERE id IN (1, 3, 99)", 2),
        ("WHERE id > 8", 2),
        ("WHERE id >= 3 AND 5 >= id AND v = 'x'", 3),
        ("WHERE id = 99", 0),
        ("WHERE _seq > {second}", 8 + 2),
        ("WHERE _seq >= {second} AND id = 2", 3),
        ("WHERE _seq > {second} AND id = 2", 2),
        # What the newest version must satisfy cannot be asked of older ones.
        ("WHERE _seq < {second}", 12),
        ("WHERE v = 'x'", 12),
        ("WHERE id = 3 OR v = 'y'", 12),
    ],
)  # fmt: skip
def test_only_versions_that_key_and_seq_allow_are_read_from_postgres(app: SqlLake, where: str, versions: int) -> None:
    app.run("INSERT INTO app.t SELECT i, 'x', 0 FROM range(1, 11) r(i) ORDER BY i")
    ((second,),) = app.rows("SELECT _seq FROM app.t WHERE id = 2")
    app.run("UPDATE app.t SET n = 1 WHERE id = 2; UPDATE app.t SET n = 2 WHERE id = 2")
    ((table, hot_versions, *_),) = app.rows(f"EXPLAIN SELECT * FROM app.t {where.format(second=second)}")
    assert (table, hot_versions) == ("app.t", versions)


def test_only_versions_of_the_user_are_read_from_postgres(app: SqlLake) -> None:
    for user in ("ada", "bob"):
        app.run("INSERT INTO app.mine VALUES ('a', 1, 'x'), ('a', 2, 'x'), ('b', 1, 'x')", user=user)
    for where, versions in (("", 3), ("WHERE b = 1", 2), ("WHERE b = 1 AND a = 'b'", 1), ("WHERE a > 'a'", 1)):
        ((_, hot_versions, *_),) = app.rows(f"EXPLAIN SELECT * FROM app.mine {where}", user="ada")
        assert hot_versions == versions, where


def test_keys_of_each_table_of_a_join_are_asked_of_that_table(app: SqlLake) -> None:
    app.run("CREATE SHARED TABLE app.other (id BIGINT PRIMARY KEY)")
    app.run(
        "INSERT INTO app.t SELECT i, 'x', 0 FROM range(10) r(i); INSERT INTO app.other SELECT i FROM range(10) r(i)"
    )
    found = app.rows("EXPLAIN SELECT * FROM app.t JOIN app.other o ON app.t.id = o.id WHERE t.id = 3 AND o.id > 7")
    assert {table: versions for table, versions, *_ in found} == {"app.t": 1, "app.other": 2}
