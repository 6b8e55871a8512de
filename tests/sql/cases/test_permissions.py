"""Odd cases of users, roles and rules."""

from typing import Any

import pytest

from lakefork.errors import InvalidInputError, LakeforkError, NotFoundError, PermissionDeniedError
from lakefork.sql.results import Rows
from lakefork.sql.session import Role, Session
from support.sql_cases import add_user
from support.sql_lake import SqlLake, new_name, refuse


def test_a_user_without_a_row_in_system_users_has_own_rows_and_no_shared_table(
    lake: SqlLake, table: str, user_table: str
) -> None:
    assert lake.count(f"INSERT INTO {user_table} VALUES (1, 'mine')", user="stranger") == 1
    assert lake.rows(f"SELECT id, v FROM {user_table}", user="stranger") == [(1, "mine")]
    for text in (f"SELECT * FROM {table}", f"INSERT INTO {table} VALUES (1, 'a', 1)", f"UPDATE {table} SET n = 1", f"DELETE FROM {table}",
                 f"DESCRIBE TABLE {table}", f"SHOW TABLE STATS {table}", f"EXPLAIN SELECT * FROM {table}"):  # fmt: skip
        refuse(lake, PermissionDeniedError, "no rule", text, user="stranger")
    assert lake.rows("SELECT * FROM system.users", user="stranger") == []
    listed = lake.rows(f"SHOW TABLES IN {table.split('.')[0]}", user="stranger")
    assert [row[1] for row in listed] == ["mine"]


def test_current_user_without_a_user_is_refused(lake: SqlLake, table: str, user_table: str) -> None:
    for text in (
        f"SELECT * FROM {table}",
        f"SELECT * FROM {user_table}",
        "SELECT CURRENT_USER()",
        "SELECT current_user",
    ):
        refuse(lake, InvalidInputError, "needs a user", text, role=Role.USER)
    refuse(lake, InvalidInputError, "needs a user", f"INSERT INTO {user_table} VALUES (1, 'a')", role=Role.ADMIN)
    assert lake.rows("SELECT CURRENT_USER(), current_user", user="it's") == [("it's", "it's")]


def test_what_tells_of_the_session_is_lakeforks_and_never_the_query_engines(lake: SqlLake, table: str) -> None:
    ns = table.partition(".")[0]
    told = "CURRENT_USER, SESSION_USER, SESSION_USER(), CURRENT_ROLE(), CURRENT_CATALOG, current_database(), CURRENT_SCHEMA()"
    expected = ("ada", "ada", "ada", "service", lake.catalog.name, lake.catalog.name)
    for namespace in (None, ns):
        session = Session(lake.catalog.name, "ada", Role.SERVICE, namespace)
        (result,) = lake.engine.execute(session, f"SELECT {told}")
        assert isinstance(result, Rows) and result.rows == [(*expected, namespace)]
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    for name in (
        "user",
        "current_role",
        "current_schema",
        *(['"user"', '"current_user"', '"session_user"', '"current_role"']),
    ):
        for text in (f"SELECT {name}", f"SELECT {name} FROM {table}", f"UPDATE {table} SET v = {name}"):
            refuse(lake, InvalidInputError, f"no column {name.strip(chr(34))} here|does not exist", text, user=None)
    lake.run(f'CREATE SHARED TABLE {ns}.named (id BIGINT PRIMARY KEY, "user" TEXT, "current_role" TEXT)')
    lake.run(f"INSERT INTO {ns}.named VALUES (1, 'x', 'y')")
    assert lake.rows(f"SELECT user, current_role, named.user FROM {ns}.named") == [("x", "y", "x")]
    for default in ("SESSION_USER", "CURRENT_ROLE()", "current_database()", "CURRENT_USER", "user"):
        text = f"CREATE SHARED TABLE {ns}.told (id BIGINT PRIMARY KEY, v TEXT DEFAULT {default})"
        refuse(lake, InvalidInputError, "must be a constant or a function", text)


def test_a_pattern_of_a_namespace_does_not_match_another_that_starts_alike(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(
        f"CREATE NAMESPACE {ns}x; CREATE SHARED TABLE {ns}x.t (id BIGINT PRIMARY KEY); CREATE SHARED TABLE {ns}.t2 (id BIGINT PRIMARY KEY)"
    )
    user = add_user(lake, f"{ns}.*")
    assert lake.rows(f"SELECT id FROM {table}", user=user) == []
    assert lake.rows(f"SELECT id FROM {ns}.t2", user=user) == []
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT id FROM {ns}x.t", user=user)
    exact = add_user(lake, f"{ns}.t")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT id FROM {ns}.t2", user=exact)
    inner = add_user(lake, f"{ns[1:]}.*", "s*.t", f"{ns}.T")
    assert lake.rows(f"SELECT id FROM {table}", user=inner) == []
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT id FROM {ns}.t2", user=inner)


def test_overlapping_rules_allow_what_one_of_them_allows(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, NULL, NULL)")
    two = add_user(lake, f"{table}.v = 'a'", f"{table}.n > 2", f"{table}.nope = 1")
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id", user=two) == [(1,), (3,)]
    everything = add_user(lake, f"{table}.v = 'a'", f"{table.split('.')[0]}.*")
    assert lake.rows(f"SELECT count(*) FROM {table}", user=everything) == [(4,)]
    negated = add_user(lake, f"{table}.v <> 'a'")
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id", user=negated) == [(2,), (3,)]


def test_a_revoked_permission_holds_at_once(lake: SqlLake, table: str) -> None:
    user = add_user(lake, table)
    insert = f"INSERT INTO {table} (v) VALUES ('x')"
    for _ in range(3):
        assert lake.count(insert, user=user) == 1
    assert lake.rows(f"SELECT count(*) FROM {table}", user=user) == [(3,)]
    lake.run(f"UPDATE system.users SET permissions = [] WHERE user_id = '{user}'")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT count(*) FROM {table}", user=user)
    refuse(lake, PermissionDeniedError, "no rule", insert, user=user)


def test_a_row_filter_holds_for_the_old_and_the_new_row(lake: SqlLake, table: str) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, ?, 1), (2, 'other', 2), (3, NULL, 3)", user)
    for _ in range(2):
        assert lake.rows(f"SELECT id FROM {table}", user=user) == [(1,)]
        assert lake.count(f"UPDATE {table} SET n = n + 1", user=user) == 1
        assert lake.count(f"UPDATE {table} SET n = 0 WHERE id = 2", user=user) == 0
        assert lake.count(f"DELETE FROM {table} WHERE id IN (2, 3)", user=user) == 0
        refuse(
            lake,
            PermissionDeniedError,
            "would violate your rules",
            f"UPDATE {table} SET v = 'other' WHERE id = 1",
            user=user,
        )
        refuse(
            lake,
            PermissionDeniedError,
            "would violate your rules",
            f"INSERT INTO {table} VALUES (9, 'other', 1)",
            user=user,
        )
        refuse(
            lake,
            PermissionDeniedError,
            "would violate your rules",
            f"INSERT INTO {table} VALUES (8, CURRENT_USER(), 1), (9, NULL, 1)",
            user=user,
        )
        lake.flush_by_hand(table)
    assert lake.rows(f"SELECT id, n FROM {table} ORDER BY id") == [(1, 3), (2, 2), (3, 3)]


def test_a_row_that_was_handed_over_is_seen_by_its_new_owner_only(lake: SqlLake, table: str) -> None:
    one, two = add_user(lake, f"{table}.v = CURRENT_USER()"), add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, ?, 1)", one)
    lake.flush_by_hand(table)
    assert lake.count(f"UPDATE {table} SET v = ? WHERE id = 1", two) == 1
    for who, expected in ((one, []), (two, [(1,)])):
        assert lake.rows(f"SELECT id FROM {table}", user=who) == expected
        assert lake.rows(f"SELECT id FROM {table} WHERE _seq > 0", user=who) == expected
        assert lake.count(f"UPDATE {table} SET n = n WHERE id = 1", user=who) == len(expected)


def test_a_rule_on_a_renamed_or_dropped_column_grants_nothing(lake: SqlLake, table: str) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, 'other', 1)")
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO w")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT * FROM {table}", user=user)
    lake.run(f"ALTER TABLE {table} DROP COLUMN w")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT * FROM {table}", user=user)


def test_a_table_that_rules_name_can_be_dropped_and_recreated(lake: SqlLake, table: str) -> None:
    user = add_user(lake, table)
    lake.run(f"DROP TABLE {table}")
    refuse(lake, NotFoundError, "does not exist", f"SELECT * FROM {table}", user=user)
    lake.run(f"CREATE SHARED TABLE {table} (id BIGINT PRIMARY KEY)")
    assert lake.rows(f"SELECT id FROM {table}", user=user) == []


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "x",
        "a.b.c",
        "a.b.c = (SELECT 1)",
        "a.b.c = getenv('HOME')",
        "a.b.c = other",
        "a.b.*.d",
        "*.*.* = 1",
        "a.b.c = 1; DROP",
        "a.b.c IN (SELECT 1)",
    ],
)
def test_an_invalid_rule_is_refused_when_it_is_granted(lake: SqlLake, user: str, rule: str) -> None:
    refuse(lake, InvalidInputError, ".", "INSERT INTO system.users (user_id, permissions) VALUES ('never', ?)", [rule])
    refuse(lake, InvalidInputError, ".", f"UPDATE system.users SET permissions = [?] WHERE user_id = '{user}'", rule)
    assert lake.rows(f"SELECT permissions FROM system.users WHERE user_id IN ('{user}', 'never')") == [([],)]


@pytest.mark.parametrize("role", ["root", "", "Admin", "USER"])
def test_a_role_that_does_not_exist_is_refused_or_understood(lake: SqlLake, role: str) -> None:
    name = new_name("user")
    try:
        lake.run("INSERT INTO system.users (user_id, role) VALUES (?, ?)", name, role)
    except InvalidInputError:
        assert lake.rows(f"SELECT * FROM system.users WHERE user_id = '{name}'") == []
    else:
        assert lake.rows(f"SELECT role FROM system.users WHERE user_id = '{name}'") == [(role.lower(),)]


def named_role(lake: SqlLake, name: str) -> list[tuple[Any, ...]]:
    return lake.rows(f"SELECT role, username, deleted_at FROM system.users WHERE user_id = '{name}'")


@pytest.mark.parametrize("role", ["system", "SYSTEM", "System", "\u017fystem"])  # the last one has a long s
def test_nobody_can_grant_a_role_above_their_own(lake: SqlLake, user: str, role: str) -> None:
    for text in (
        "INSERT INTO system.users (user_id, role) VALUES ('never', ?)",
        "INSERT INTO system.users (user_id, role) VALUES ('never', 'user'), ('ever', ?)",
        "INSERT INTO system.users (user_id, role) SELECT 'never', ?",
        f"UPDATE system.users SET role = ? WHERE user_id = '{user}'",
        f"UPDATE system.users SET role = CASE WHEN user_id = '{user}' THEN ? ELSE role END",
    ):
        for session in ({"role": Role.ADMIN}, {"role": Role.ADMIN, "user": add_user(lake, role="admin")}):
            with pytest.raises((PermissionDeniedError, InvalidInputError)):
                lake.run(text, role, **session)
    assert named_role(lake, user) == [("user", None, None)]
    assert named_role(lake, "never") == []


def test_nobody_can_change_a_user_with_a_role_above_their_own(lake: SqlLake) -> None:
    chief = new_name("user")
    lake.run("INSERT INTO system.users (user_id, role) VALUES (?, 'system')", chief, role=Role.SYSTEM)
    for text in (
        f"UPDATE system.users SET username = 'x' WHERE user_id = '{chief}'",
        f"UPDATE system.users SET role = 'user' WHERE user_id = '{chief}'",
        f"UPDATE system.users SET deleted_at = now() WHERE user_id = '{chief}'",
        "UPDATE system.users SET username = 'x'",
        f"DELETE FROM system.users WHERE user_id = '{chief}'",
        "DELETE FROM system.users WHERE role = 'system'",
    ):
        refuse(lake, PermissionDeniedError, "a role above admin", text)
    assert named_role(lake, chief) == [("system", None, None)]
    assert lake.count(f"DELETE FROM system.users WHERE user_id = '{chief}'", role=Role.SYSTEM) == 1
    refuse(
        lake,
        PermissionDeniedError,
        "a role above admin",
        f"UPDATE system.users SET deleted_at = NULL WHERE user_id = '{chief}'",
    )


def test_parameters_of_a_change_of_system_users_are_counted_through_the_statement(lake: SqlLake, user: str) -> None:
    other = add_user(lake)
    lake.run("UPDATE system.users SET username = ?, role = ? WHERE user_id = ?", "Ann", "service", user)
    found = lake.rows(
        f"SELECT user_id, username, role FROM system.users WHERE user_id IN ('{user}', '{other}') ORDER BY username"
    )
    assert found == [(user, "Ann", "service"), (other, None, "user")]
    assert lake.count("DELETE FROM system.users WHERE user_id = ? AND role = ?", user, "service") == 1


def test_a_deleted_user_may_do_nothing_whatever_the_role_was(lake: SqlLake, table: str, user_table: str) -> None:
    user = add_user(lake, table)
    insert = f"INSERT INTO {user_table} (v) VALUES ('x')"
    for _ in range(2):
        assert lake.count(insert, user=user) == 1
    assert lake.count(f"DELETE FROM system.users WHERE user_id = '{user}'") == 1
    assert lake.count(f"DELETE FROM system.users WHERE user_id = '{user}'") == 0
    for text in (
        insert,
        f"SELECT * FROM {user_table}",
        f"SELECT * FROM {table}",
        f"DELETE FROM {user_table}",
        f"INSERT INTO {table} (v) VALUES ('x')",
    ):
        refuse(lake, PermissionDeniedError, "deleted", text, user=user)
    boss = add_user(lake, role="admin")
    assert lake.engine.role_of("main", boss) is Role.ADMIN
    lake.run(f"DELETE FROM system.users WHERE user_id = '{boss}'")
    try:
        role = lake.engine.role_of("main", boss)
    except LakeforkError:
        return
    assert role is Role.USER


def test_a_deleted_service_cannot_repeat_an_insert_that_was_quick(lake: SqlLake, table: str, copies: list[int]) -> None:
    service: dict[str, Any] = {"user": add_user(lake, role="service"), "role": Role.SERVICE}
    insert = f"INSERT INTO {table} (v) VALUES ('x')"
    for _ in range(2):
        assert lake.count(insert, **service) == 1
    assert copies == [1]  # the second was quick
    lake.run(f"DELETE FROM system.users WHERE user_id = '{service['user']}'")
    for _ in range(2):
        refuse(lake, PermissionDeniedError, "deleted", insert, **service)
    assert lake.rows(f"SELECT count(*) FROM {table}") == [(2,)]
    other = {**service, "user": add_user(lake, role="service")}
    assert lake.count(insert, **other) == 1
    assert copies == [1]


def test_users_see_own_rows_only_and_services_all(lake: SqlLake, user_table: str) -> None:
    for name in ("a", "b"):
        lake.run(f"INSERT INTO {user_table} VALUES (1, ?)", name, user=name)
    lake.flush_by_hand(user_table, "a")
    for name in ("a", "b"):
        assert lake.rows(f"SELECT id, v FROM {user_table}", user=name) == [(1, name)]
        assert lake.count(f"UPDATE {user_table} SET v = v || '!'", user=name) == 1
    assert lake.rows(f"SELECT _user_id, v FROM {user_table} ORDER BY 1", role=Role.SERVICE) == [
        ("a", "a!"),
        ("b", "b!"),
    ]
    assert len(lake.run(f"SELECT * FROM {user_table}", role=Role.SERVICE)[0].columns) == 4
    assert lake.rows(f"SELECT count(*) FROM {user_table} WHERE _user_id = 'a'", role=Role.SERVICE) == [(1,)]
