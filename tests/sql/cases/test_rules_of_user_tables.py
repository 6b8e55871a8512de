"""Rules narrow what a user does with the own rows of USER tables, in every way to read and write them."""

from typing import Any

import pyarrow as pa
import pytest

from lakefork.errors import ConflictError, PermissionDeniedError
from lakefork.sql.session import Role
from support.sql_cases import add_user
from support.sql_lake import SqlLake, refuse


def set_rules(lake: SqlLake, user: str, *rules: str) -> None:
    lake.run("UPDATE system.users SET permissions = ? WHERE user_id = ?", list(rules), user)


@pytest.fixture
def filled(lake: SqlLake, user: str, user_table: str) -> str:
    """Rows of one user, in a batch and hot: (1, 'low'), (2, 'high'), (3, 'low'), (4, 'high'), (5, NULL)."""
    lake.run(f"INSERT INTO {user_table} VALUES (1, 'low'), (2, 'high')", user=user)
    lake.flush_by_hand(user_table, user)
    lake.run(f"INSERT INTO {user_table} VALUES (3, 'low'), (4, 'high'), (5, NULL)", user=user)
    return user_table


def test_a_row_filter_holds_for_reads_and_changes(lake: SqlLake, user: str, filled: str) -> None:
    set_rules(lake, user, f"{filled}.v = 'low'")
    mine: dict[str, Any] = {"user": user}
    assert lake.rows(f"SELECT id FROM {filled} ORDER BY id", **mine) == [(1,), (3,)]
    assert lake.rows(f"SELECT count(*) FROM {filled} WHERE _seq > 0", **mine) == [(2,)]
    assert lake.count(f"UPDATE {filled} SET v = v", **mine) == 2
    assert lake.count(f"UPDATE {filled} SET v = 'low' WHERE id = 2", **mine) == 0
    assert lake.count(f"DELETE FROM {filled} WHERE id = 4", **mine) == 0
    assert lake.count(f"DELETE FROM {filled} WHERE v = 'high'", **mine) == 0
    for text in (
        f"UPDATE {filled} SET v = 'high' WHERE id = 1",
        f"INSERT INTO {filled} VALUES (9, 'high')",
        f"INSERT INTO {filled} (v) VALUES ('high')",
        f"INSERT INTO {filled} SELECT 9, NULL",
        f"INSERT INTO {filled} VALUES (2, 'low')",
    ):
        refuse(lake, PermissionDeniedError, "would violate your rules", text, **mine)
    with pytest.raises(PermissionDeniedError, match="would violate your rules"):
        lake.engine.load(lake.session(user), filled, pa.table({"id": [9], "v": ["high"]}))
    with pytest.raises(ConflictError):
        lake.run(f"INSERT INTO {filled} VALUES (1, 'low')", **mine)
    refuse(lake, PermissionDeniedError, "statistics", f"SHOW TABLE STATS {filled}", **mine)
    assert lake.count(f"DELETE FROM {filled}", **mine) == 2
    assert lake.rows(f"SELECT id FROM {filled} ORDER BY id", role=Role.SERVICE) == [(2,), (4,), (5,)]


def test_a_rule_holds_at_once_for_inserts_that_were_quick(
    lake: SqlLake, user: str, user_table: str, copies: list[int]
) -> None:
    insert = f"INSERT INTO {user_table} (v) VALUES (?)"
    for _ in range(3):
        assert lake.count(insert, "x", user=user) == 1
    assert len(copies) == 1
    set_rules(lake, user, f"{user_table}.v = 'y'")
    for _ in range(2):
        refuse(lake, PermissionDeniedError, "would violate your rules", insert, "x", user=user)
        assert lake.count(insert, "y", user=user) == 1
    set_rules(lake, user, f"{user_table}.v = 'y'", f"{user_table}.v = 'x'")
    assert lake.count(insert, "x", user=user) == 1
    set_rules(lake, user)
    copies.clear()
    for _ in range(3):
        assert lake.count(insert, "z", user=user) == 1
    assert copies == [], "quick again"
    other = add_user(lake, "elsewhere.*", "elsewhere.t[0-9].v = 'x'")
    copies.clear()
    for _ in range(3):
        assert lake.count(insert, "z", user=other) == 1
    assert len(copies) == 1, "rules of other tables do not make it slow"


def test_a_rule_holds_at_once_for_writes_by_key(lake: SqlLake, user: str, user_table: str) -> None:
    lake.run(f"INSERT INTO {user_table} VALUES (1, 'a'), (2, 'b')", user=user)
    assert lake.count(f"UPDATE {user_table} SET v = 'a' WHERE id = 1", user=user) == 1
    set_rules(lake, user, f"{user_table}.v = 'b'")
    assert lake.count(f"UPDATE {user_table} SET v = 'b' WHERE id = 1", user=user) == 0
    assert lake.count(f"DELETE FROM {user_table} WHERE id = 1", user=user) == 0
    refuse(
        lake, PermissionDeniedError, "would violate your rules", f"INSERT INTO {user_table} VALUES (3, 'a')", user=user
    )
    set_rules(lake, user)
    assert lake.count(f"UPDATE {user_table} SET v = 'c' WHERE id = 1", user=user) == 1


def test_a_service_that_acts_for_a_user_is_held_by_the_users_rules(lake: SqlLake, user: str, filled: str) -> None:
    set_rules(lake, user, f"{filled}.v = 'low'")
    service: dict[str, Any] = {"user": "bot", "role": Role.SERVICE}
    assert lake.count(f"UPDATE {filled} AS USER '{user}' SET v = 'low' WHERE id = 2", **service) == 0
    assert lake.count(f"DELETE FROM {filled} AS USER '{user}'", **service) == 2
    refuse(
        lake,
        PermissionDeniedError,
        "would violate your rules",
        f"INSERT INTO {filled} AS USER '{user}' VALUES (9, 'high')",
        **service,
    )
    assert lake.count(f"INSERT INTO {filled} AS USER '{user}' VALUES (9, 'low')", **service) == 1
    assert lake.count(f"INSERT INTO {filled} VALUES (9, 'high')", **service) == 1, "own rows of a service"


def test_rules_are_or_ed_and_a_table_without_a_rule_is_the_users_own(
    lake: SqlLake, ns: str, user: str, filled: str
) -> None:
    count = f"SELECT count(*) FROM {filled}"
    for rules, expected in (
        ([], 5),
        ([f"{ns}.other.v = 'low'", "elsewhere.*"], 5),
        ([f"{ns}.*"], 5),
        ([f"{filled}.v = 'low'", f"{filled}.id = 2"], 3),
        ([f"{filled}.v = 'low'", f"{ns}.m*"], 5),
        ([f"{ns}.min[a-e].v = 'low'"], 2),
        ([f"{ns}.*.owner = CURRENT_USER()"], 5),  # a pattern is about tables that have the column
    ):
        set_rules(lake, user, *rules)
        assert lake.rows(count, user=user) == [(expected,)], rules


def test_a_rule_for_one_table_whose_column_is_gone_grants_nothing(
    lake: SqlLake, ns: str, user: str, filled: str
) -> None:
    set_rules(lake, user, f"{filled}.v = 'low'")
    lake.run(f"ALTER TABLE {filled} RENAME COLUMN v TO w")
    for text in (
        f"SELECT * FROM {filled}",
        f"INSERT INTO {filled} VALUES (9, 'x')",
        f"DELETE FROM {filled}",
        f"DESCRIBE TABLE {filled}",
    ):
        refuse(lake, PermissionDeniedError, "no rule", text, user=user)
    assert lake.rows(f"SHOW TABLES IN {ns}", user=user) == []
    assert lake.rows(f"SELECT * FROM system.tables WHERE namespace = '{ns}'", user=user) == []


def test_a_pattern_holds_once_a_table_gets_the_column(lake: SqlLake, ns: str, user: str, user_table: str) -> None:
    set_rules(lake, user, f"{ns}.*.owner = CURRENT_USER()")
    insert, by_key = f"INSERT INTO {user_table} (v) VALUES ('x')", f"INSERT INTO {user_table} (id, v) VALUES (?, 'x')"
    for number in range(3):
        assert lake.count(insert, user=user) == lake.count(by_key, number, user=user) == 1
    lake.run(f"ALTER TABLE {user_table} ADD COLUMN owner STRING")
    for number in range(3, 6):
        refuse(lake, PermissionDeniedError, "would violate your rules", insert, user=user)
        refuse(lake, PermissionDeniedError, "would violate your rules", by_key, number, user=user)
    assert lake.rows(f"SELECT * FROM {user_table}", user=user) == []


def test_a_rule_with_a_regular_expression_opens_shared_tables(lake: SqlLake, ns: str, user: str) -> None:
    for name in ("shared_table1", "shared_table2", "shared_table10", "shared_tablex"):
        lake.run(
            f"CREATE SHARED TABLE {ns}.{name} (id BIGINT PRIMARY KEY, v STRING); INSERT INTO {ns}.{name} VALUES (1, 'a'), (2, 'b')"
        )
    set_rules(lake, user, f"{ns}.shared_table[0-9]")
    assert [row[1] for row in lake.rows(f"SHOW TABLES IN {ns}", user=user)] == ["shared_table1", "shared_table2"]
    assert lake.rows(f"SELECT count(*) FROM {ns}.shared_table2", user=user) == [(2,)]
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT * FROM {ns}.shared_table10", user=user)
    set_rules(lake, user, f"{ns}.shared_table(1|10).v = 'a'")
    assert lake.rows(f"SELECT id FROM {ns}.shared_table10", user=user) == [(1,)]
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT * FROM {ns}.shared_table2", user=user)
