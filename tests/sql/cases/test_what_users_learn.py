"""What a user is told does not depend on rows of others, wherever it is asked."""

from typing import Any

import pyarrow as pa
import pytest

from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, PermissionDeniedError
from lakefork.sql.session import Role
from support.sql_cases import add_user
from support.sql_lake import SqlLake, refuse

RELATIONS = [
    "system.users",
    "system.catalogs",
    "system.tables",
    "system.jobs",
    "system.audit",
    "system.waiting",
    "system.live_queries",
    "information_schema.tables",
    "information_schema.columns",
    "information_schema.schemata",
]


def everything_told(lake: SqlLake, user: str, *tables: str) -> list[Any]:
    """The answers to all that a user may ask about tables."""
    texts = [f"SELECT * FROM {relation} ORDER BY ALL" for relation in RELATIONS]
    texts += ["SHOW NAMESPACES", "SHOW TABLES"]
    for table in tables:
        texts += [f"DESCRIBE TABLE {table}", f"SELECT * FROM {table}", f"EXPLAIN SELECT * FROM {table}"]
    return [lake.rows(text, user=user) for text in texts]


def test_every_relation_is_covered(lake: SqlLake) -> None:
    listed = lake.rows(
        "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE table_type = 'SYSTEM'"
    )
    denied = {
        "system.storage_locations",
        "system.manifest_cache",
        "system.deletions",
        "system.copies",
        "system.backups",
    }
    assert {name for (name,) in listed} == {*RELATIONS, *denied}
    for name in denied:
        refuse(lake, PermissionDeniedError, "admin", f"SELECT * FROM {name}", user="ada")


def test_admins_see_copies_into_their_own_catalog_only(lake: SqlLake) -> None:
    add = (
        "INSERT INTO lakefork.copy (copy_id, source, target, into_catalog, source_identity, setup, status, phase, run_id, "
        "started_at) VALUES (%s, 'shop', %s, %s, 'x', '{}', 'running', 'plan', 'r', now())"
    )
    with connect(lake.dsn) as connection:
        for copy in (("own", None, lake.catalog.name), ("theirs", None, "other"), ("away", "new", None)):
            connection.execute(add, copy)
    try:
        text = "SELECT copy_id FROM system.copies ORDER BY copy_id"
        assert lake.rows(text, role=Role.ADMIN) == [("own",)]
        assert lake.rows(text, role=Role.SYSTEM) == [("away",), ("own",), ("theirs",)]
    finally:
        with connect(lake.dsn) as connection:
            connection.execute("DELETE FROM lakefork.copy")


def test_rows_of_others_change_nothing_that_a_user_sees(lake: SqlLake, ns: str, table: str, user_table: str) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"CREATE SHARED TABLE {ns}.closed (id BIGINT PRIMARY KEY)")
    lake.run(f"INSERT INTO {table} VALUES (1, ?, 1)", user)
    lake.run(f"INSERT INTO {user_table} VALUES (1, 'mine')", user=user)
    lake.flush_by_hand(table)
    lake.flush_by_hand(user_table, user)
    before = everything_told(lake, user, table, user_table)
    lake.run(f"INSERT INTO {table} VALUES (2, 'other', 1), (3, NULL, 1); INSERT INTO {ns}.closed VALUES (1)")
    lake.run(f"INSERT INTO {user_table} VALUES (1, 'theirs'), (2, 'theirs')", user="other")
    assert everything_told(lake, user, table, user_table) == before
    lake.flush_by_hand(table)
    lake.flush_by_hand(user_table, "other")
    assert everything_told(lake, user, table, user_table) == before


def test_totals_are_for_services_and_admins(lake: SqlLake, ns: str, user_table: str) -> None:
    lake.run(f"INSERT INTO {user_table} VALUES (1, 'a'), (2, 'b')", user="other")
    lake.flush_by_hand(user_table, "other")
    totals = f"SELECT rows, bytes > 0, typeof(rows), typeof(bytes) FROM system.tables WHERE namespace = '{ns}'"
    assert lake.rows(totals, user="ada") == [(None, None, "BIGINT", "BIGINT")]
    for role in (Role.SERVICE, Role.ADMIN):
        assert lake.rows(totals, role=role, user="bot") == [(2, True, "BIGINT", "BIGINT")]
    assert lake.rows(f"SHOW TABLE STATS {user_table}", user="ada") == []


def answer(lake: SqlLake, user: str, text: str) -> str:
    with pytest.raises((PermissionDeniedError, ConflictError)) as caught:
        lake.run(text, user=user)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("flushed", [False, True])
def test_a_hidden_key_is_refused_as_any_row_that_rules_do_not_allow(lake: SqlLake, table: str, flushed: bool) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, ?, 1), (2, 'other', 1), (3, NULL, 1), (4, 'other', 1)", user)
    lake.run(f"DELETE FROM {table} WHERE id = 4")
    if flushed:
        lake.flush_by_hand(table)
    refused = answer(lake, user, f"INSERT INTO {table} VALUES (7, 'other', 1)")
    for text in (
        "VALUES (2, CURRENT_USER(), 1)",
        "VALUES (8, CURRENT_USER(), 1), (3, CURRENT_USER(), 1)",
        "VALUES (1, CURRENT_USER(), 1), (2, CURRENT_USER(), 1)",  # before what is known to be there
        "SELECT 2, CURRENT_USER(), 1",
        f"SELECT id + 1, v, n FROM {table}",
    ):
        assert answer(lake, user, f"INSERT INTO {table} {text}") == refused
    two = answer(lake, user, f"INSERT INTO {table} VALUES (7, 'other', 1), (8, 'other', 1)")
    assert answer(lake, user, f"INSERT INTO {table} VALUES (2, CURRENT_USER(), 1), (3, CURRENT_USER(), 1)") == two
    many = ", ".join(f"({key}, CURRENT_USER(), 1)" for key in range(2, 400) if key != 3)
    assert answer(lake, user, f"INSERT INTO {table} VALUES {many}") == refused
    assert "ConflictError" in answer(lake, user, f"INSERT INTO {table} VALUES (1, CURRENT_USER(), 1)")
    assert lake.count(f"INSERT INTO {table} VALUES (4, CURRENT_USER(), 1)", user=user) == 1
    for key in (2, 3, 99):
        assert lake.count(f"UPDATE {table} SET n = 1 // 0 WHERE id = {key}", user=user) == 0
        assert lake.count(f"DELETE FROM {table} WHERE id = {key}", user=user) == 0
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,), (4,)]


def test_loaded_rows_tell_no_more(lake: SqlLake, table: str) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (2, 'other', 1)")
    for rows in ({"id": [2], "v": [user]}, {"id": [7], "v": ["other"]}):
        with pytest.raises(PermissionDeniedError, match=r"1 row\(s\) would violate your rules"):
            lake.engine.load(lake.session(user), table, pa.table(rows))
