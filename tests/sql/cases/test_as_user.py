"""Odd cases of writing for another user."""

from typing import Any

import pytest

from lakefork.errors import ConflictError, InvalidInputError, PermissionDeniedError
from lakefork.sql.session import Role
from support.sql_cases import add_user
from support.sql_lake import SqlLake, refuse


def test_as_user_writes_rows_that_belong_to_that_user(lake: SqlLake, user_table: str, user: str) -> None:
    service: dict[str, Any] = {"user": "bot", "role": Role.SERVICE}
    assert lake.count(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'a'), (2, 'b')", **service) == 2
    assert lake.count(f"INSERT INTO {user_table} (id, v) AS USER '{user}' VALUES (?, ?)", 3, "c", **service) == 1
    assert lake.count(f"INSERT INTO {user_table} AS USER '{user}' VALUES ($2, $1)", "d", 4, **service) == 1
    assert lake.count(f"INSERT INTO {user_table} (v) VALUES ('e'), ('f') AS USER '{user}'", **service) == 2
    assert lake.count(f"UPDATE {user_table} AS USER '{user}' SET v = ? WHERE id = ?", "B", 2, **service) == 1
    assert lake.count(f"DELETE FROM {user_table} AS USER '{user}' WHERE id = ?", 3, **service) == 1
    assert lake.count(f"UPDATE {user_table} SET v = 'not mine'", **service) == 0
    assert lake.rows(f"SELECT id, v FROM {user_table} WHERE id < 100 ORDER BY id", user=user) == [
        (1, "a"),
        (2, "B"),
        (4, "d"),
    ]
    assert lake.rows(f"SELECT count(*) FROM {user_table}", user="bot") == [(0,)]
    refuse(lake, ConflictError, "exists", f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'again')", **service)
    assert lake.count(f"INSERT INTO {user_table} AS USER '{add_user(lake)}' VALUES (1, 'other')", **service) == 1


def test_as_user_for_an_unknown_and_a_deleted_user_fails_with_the_same_words(
    lake: SqlLake, user_table: str, user: str
) -> None:
    lake.run(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'a')")
    lake.run(f"DELETE FROM system.users WHERE user_id = '{user}'")
    messages = set()
    for name in (user, "never-existed", user.upper(), f"{user} ", "'' OR true"):
        for text in (f"INSERT INTO {user_table} AS USER '{name}' VALUES (2, 'x')", f"UPDATE {user_table} AS USER '{name}' SET v = 'x'",
                     f"DELETE FROM {user_table} AS USER '{name}' WHERE id = 1"):  # fmt: skip
            messages.add(refuse(lake, PermissionDeniedError, "Invalid user_id for AS USER", text))
    assert len(messages) == 1
    assert lake.rows(f"SELECT id, v FROM {user_table}", role=Role.SERVICE) == [(1, "a")]


def test_as_user_is_refused_for_role_user_even_for_oneself(lake: SqlLake, user_table: str, user: str) -> None:
    for name in (user, "other"):
        for text in (f"INSERT INTO {user_table} AS USER '{name}' VALUES (1, 'x')", f"UPDATE {user_table} AS USER '{name}' SET v = 'x'",
                     f"DELETE FROM {user_table} AS USER '{name}'"):  # fmt: skip
            refuse(lake, PermissionDeniedError, "AS USER requires service/admin role", text, user=user)


def test_as_user_is_refused_for_shared_and_system_tables(lake: SqlLake, table: str, user: str) -> None:
    for text in (f"INSERT INTO {table} AS USER '{user}' VALUES (1, 'x', 1)", f"UPDATE {table} AS USER '{user}' SET v = 'x'",
                 f"DELETE FROM {table} AS USER '{user}'", f"INSERT INTO {table} AS USER 'nobody' VALUES (1, 'x', 1)"):  # fmt: skip
        refuse(lake, PermissionDeniedError, "AS USER clause not supported for SHARED tables", text)
    refuse(lake, PermissionDeniedError, "AS USER", f"INSERT INTO system.users (user_id) AS USER '{user}' VALUES ('x')")


@pytest.mark.parametrize("text", ["SELECT 1 AS USER 'x'", "INSERT INTO {t} AS USER VALUES (1, 'a')", "INSERT INTO {t} AS USER '' VALUES (1, 'a')",
                                  "INSERT INTO {t} AS USER 'a' VALUES (1, 'a') AS USER 'b'", "INSERT INTO {t} AS USER ? VALUES (1, 'a')",
                                  "UPDATE {t} SET v = 'x' AS USER 'a' WHERE id = 1", "DROP TABLE {t} AS USER 'a'"])  # fmt: skip
def test_as_user_in_the_wrong_place_is_a_syntax_error(lake: SqlLake, user_table: str, text: str) -> None:
    refuse(lake, InvalidInputError, ".", text.format(t=user_table), "u")


def test_as_user_is_audited_with_actor_and_subject(lake: SqlLake, user_table: str, user: str) -> None:
    lake.run(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'a'), (2, 'b')", user="bot", role=Role.SERVICE)
    lake.run(
        f"UPDATE {user_table} AS USER '{user}' SET v = 'c'; DELETE FROM {user_table} AS USER '{user}' WHERE id = 1"
    )
    lake.run(f"INSERT INTO {user_table} VALUES (7, 'own')", user=user)
    refuse(
        lake,
        ConflictError,
        "exists",
        f"INSERT INTO {user_table} AS USER '{user}' VALUES (2, 'again')",
        user="bot",
        role=Role.SERVICE,
    )
    audit = f"SELECT actor, role, subject, action, affected_rows FROM system.audit WHERE table_name = '{user_table}' ORDER BY occurred_at"
    expected = [
        ("bot", "service", user, "INSERT", 2),
        ("(admin)", "admin", user, "UPDATE", 2),
        ("(admin)", "admin", user, "DELETE", 1),
    ]
    assert lake.rows(audit) == expected
    assert lake.rows(audit, user=user) == expected
    assert lake.rows(audit, user="stranger") == []


def test_as_user_reads_what_that_user_may_read(lake: SqlLake, ns: str, user_table: str, user: str) -> None:
    other = add_user(lake)
    lake.run(f"CREATE USER TABLE {ns}.copy (id BIGINT PRIMARY KEY, v STRING)")
    lake.run(
        f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'mine'); INSERT INTO {user_table} AS USER '{other}' VALUES (2, 'theirs')"
    )
    lake.run(f"INSERT INTO {ns}.copy AS USER '{user}' SELECT id, v FROM {user_table}")
    assert lake.rows(f"SELECT id, v FROM {ns}.copy", user=user) == [(1, "mine")]


def test_current_user_in_as_user_is_the_subject(lake: SqlLake, user_table: str, user: str) -> None:
    lake.run(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, CURRENT_USER())", user="bot", role=Role.SERVICE)
    assert lake.rows(f"SELECT v FROM {user_table}", user=user) == [(user,)]
