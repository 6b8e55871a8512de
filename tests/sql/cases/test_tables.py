"""Odd cases of making and dropping tables: keys, names, limits, options."""

import uuid

import pytest

from lakefork.errors import ConflictError, InvalidInputError, NotFoundError, PermissionDeniedError
from lakefork.sql.session import Role
from support.sql_cases import newest_snapshot
from support.sql_lake import SqlLake, refuse


@pytest.mark.parametrize("kind", ["USER", "SHARED", "STREAM"])
@pytest.mark.parametrize("columns", ["", "()"])
def test_a_table_without_columns_is_refused(lake: SqlLake, ns: str, kind: str, columns: str) -> None:
    refuse(lake, InvalidInputError, "column", f"CREATE {kind} TABLE {ns}.nothing {columns}")


@pytest.mark.parametrize("kind", ["USER", "SHARED", ""])
def test_a_table_without_a_primary_key_is_refused(lake: SqlLake, ns: str, kind: str) -> None:
    refuse(lake, InvalidInputError, "PRIMARY KEY", f"CREATE {kind} TABLE {ns}.nothing (id BIGINT)")


@pytest.mark.parametrize("role", [Role.USER, Role.SERVICE])
@pytest.mark.parametrize(
    "statement",
    ["CREATE NAMESPACE denied", "CREATE USER TABLE {t}2 (id BIGINT PRIMARY KEY)", "ALTER TABLE {t} ADD COLUMN x INT",
     "DROP TABLE {t}", "INSERT INTO system.users (user_id) VALUES ('x')", "UPDATE system.users SET role = 'admin' WHERE true",
     "DELETE FROM system.users WHERE true", "INSERT INTO system.storage_locations VALUES ('x', 'filesystem', '/tmp/x', NULL)"],
)  # fmt: skip
def test_a_user_or_service_without_the_right_to_define_tables_is_refused(
    lake: SqlLake, table: str, user: str, role: Role, statement: str
) -> None:
    refuse(lake, PermissionDeniedError, "needs role admin", statement.format(t=table), user=user, role=role)


@pytest.mark.parametrize("name", ["_seq", "_deleted", "_updated", "_user_id", "_superseded", '"_SEQ"'])
def test_system_column_names_are_reserved(lake: SqlLake, ns: str, table: str, name: str) -> None:
    refuse(lake, InvalidInputError, "reserved", f"CREATE SHARED TABLE {ns}.bad (id BIGINT PRIMARY KEY, {name} INT)")
    refuse(lake, InvalidInputError, "reserved", f"ALTER TABLE {table} ADD COLUMN {name} INT")
    refuse(lake, InvalidInputError, "reserved", f"ALTER TABLE {table} RENAME COLUMN v TO {name}")
    refuse(lake, InvalidInputError, "system", f"ALTER TABLE {table} DROP COLUMN {name}")
    refuse(lake, InvalidInputError, "system", f"ALTER TABLE {table} MODIFY COLUMN {name} BIGINT")
    refuse(lake, InvalidInputError, "system", f"ALTER TABLE {table} RENAME COLUMN {name} TO other")


@pytest.mark.parametrize(
    "name", ["_id", "id", "catalog_id", "_xid", "c4", "versions", "given", "relation_0", "wanted_keys", "user"]
)
def test_a_column_may_have_a_name_that_is_used_inside(lake: SqlLake, ns: str, name: str) -> None:
    lake.run(f'CREATE USER TABLE {ns}.t ("{name}" BIGINT PRIMARY KEY, other STRING, w STRING)')
    lake.run(f"INSERT INTO {ns}.t VALUES (1, 'a', 'b')", user="u")
    lake.flush_by_hand(f"{ns}.t", "u")
    assert lake.count(f'UPDATE {ns}.t SET other = other || w WHERE "{name}" = 1', user="u") == 1
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t VALUES (1, 'x', 'y')", user="u")
    assert lake.rows(f'SELECT "{name}", other FROM {ns}.t WHERE "{name}" = 1', user="u") == [(1, "ab")]


def test_a_generated_key_is_given_where_the_key_is_left_out_or_null(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE USER TABLE {ns}.n (id BIGINT PRIMARY KEY, v STRING); CREATE USER TABLE {ns}.u (id UUID PRIMARY KEY, v STRING)"
    )
    for name, kind in (("n", int), ("u", uuid.UUID)):
        for _ in range(3):
            assert lake.count(f"INSERT INTO {ns}.{name} (v) VALUES ('a')", user="u") == 1
        assert lake.count(f"INSERT INTO {ns}.{name} VALUES (NULL, 'b'), (NULL, 'c')", user="u") == 2
        keys = [row[0] for row in lake.rows(f"SELECT id FROM {ns}.{name}", user="u")]
        assert len(set(keys)) == 5
        assert all(type(key) is kind for key in keys)


@pytest.mark.parametrize("column", ["_seq", "_deleted", "_updated", "_user_id"])
def test_system_columns_cannot_be_set_by_hand(lake: SqlLake, user_table: str, column: str) -> None:
    refuse(lake, InvalidInputError, column, f"INSERT INTO {user_table} (id, {column}) VALUES (1, 1)", user="u")
    refuse(lake, InvalidInputError, column, f"UPDATE {user_table} SET {column} = 1 WHERE id = 1", user="u")
    refuse(lake, InvalidInputError, "column|values", f"INSERT INTO {user_table} VALUES (1, 'a', 5, false)", user="u")
    assert lake.rows(f"SELECT count(*) FROM {user_table}", user="u") == [(0,)]


def test_a_dropped_table_leaves_nothing_behind_for_a_new_one_of_its_name(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'old', 1)")
    before = newest_snapshot(lake)
    lake.run(f"DROP TABLE {table}")
    refuse(lake, NotFoundError, "does not exist", f"SELECT * FROM {table}")
    refuse(lake, NotFoundError, "does not exist", f"INSERT INTO {table} VALUES (1, 'x', 1)")
    lake.run(f"CREATE SHARED TABLE {table} (id BIGINT PRIMARY KEY, w STRING)")
    assert lake.rows(f"SELECT * FROM {table}") == []
    lake.run(f"INSERT INTO {table} VALUES (1, 'new')")
    assert lake.rows(f"SELECT id, w FROM {table}") == [(1, "new")]
    assert lake.rows(f"SELECT id, v FROM {table} AT (VERSION => {before})") == []


def test_drop_needs_the_right_kind_and_a_table_that_exists(lake: SqlLake, table: str) -> None:
    refuse(lake, InvalidInputError, "SHARED", f"DROP USER TABLE {table}")
    refuse(lake, InvalidInputError, "SHARED", f"DROP STREAM TABLE {table}")
    lake.run(f"DROP SHARED TABLE {table}; DROP TABLE IF EXISTS {table}")
    refuse(lake, NotFoundError, "does not exist", f"DROP TABLE {table}")


def test_a_table_with_more_columns_than_the_hot_store_can_hold_is_refused_when_made(lake: SqlLake, ns: str) -> None:
    columns = ", ".join(f"c{place} INT" for place in range(1_700))
    refuse(lake, InvalidInputError, "columns", f"CREATE SHARED TABLE {ns}.wide (id BIGINT PRIMARY KEY, {columns})")


def test_a_key_of_more_columns_than_the_hot_store_can_index_is_refused_when_made(lake: SqlLake, ns: str) -> None:
    names = [f"c{place}" for place in range(33)]
    columns = ", ".join(f"{name} INT" for name in names)
    refuse(
        lake, InvalidInputError, "key", f"CREATE SHARED TABLE {ns}.wide ({columns}, PRIMARY KEY ({', '.join(names)}))"
    )


@pytest.mark.parametrize(
    "policy",
    [
        "ROWS 0",
        "ROWS 10000001",
        "INTERVAL '0s'",
        "INTERVAL '31d'",
        "INTERVAL 'soon'",
        "INTERVAL '-5 minutes'",
        "ROWS 5 INTERVAL ''",
    ],
)
def test_flush_policies_out_of_bounds_are_refused(lake: SqlLake, ns: str, policy: str) -> None:
    refuse(lake, InvalidInputError, ".", f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) FLUSH POLICY {policy}")


def test_a_flush_policy_of_rows_and_interval_holds_both(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 5000 INTERVAL '1 minute' WITH (deleted_retention = 'off')"
    )
    described = {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {ns}.t")}
    assert described["flush_policy"] == "ROWS 5000 INTERVAL '1m'"
    assert described["deleted_retention"] == "off"
    lake.run(f"ALTER TABLE {ns}.t SET OPTIONS (deleted_retention = '30d'), SET FLUSH POLICY ROWS 10")
    described = {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {ns}.t")}
    assert (described["flush_policy"], described["deleted_retention"]) == ("ROWS 10", "30d")


@pytest.mark.parametrize("value", ["'soon'", "''", "'-1d'", "5", "true"])
def test_a_deleted_retention_that_is_no_duration_is_refused(lake: SqlLake, ns: str, value: str) -> None:
    refuse(
        lake,
        InvalidInputError,
        ".",
        f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) WITH (deleted_retention = {value})",
    )


def test_the_default_of_a_column_cannot_make_two_rows_of_one(lake: SqlLake, ns: str) -> None:
    refuse(
        lake,
        InvalidInputError,
        ".",
        f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v INT DEFAULT unnest([1, 2]))",
    )
