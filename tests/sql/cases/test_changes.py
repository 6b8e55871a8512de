"""What a client that keeps a copy gets when it selects changes."""

import datetime

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.sql.session import Role
from support.sql_lake import SqlLake, refuse


def seq(lake: SqlLake, table: str, key: int) -> int:
    return int(lake.rows(f"SELECT _seq FROM {table} WHERE id = {key} AND _deleted IN (true, false)")[0][0])


def test_changes_by_time_show_deleted_rows_as_those_by_seq_do(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} (id, v) VALUES (1, 'a'), (2, 'b'); DELETE FROM {table} WHERE id = 1")
    start = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    by_seq = lake.rows(f"SELECT id, _deleted FROM {table} WHERE _seq > 0 ORDER BY id")
    assert by_seq == [(1, True), (2, False)]
    for condition in ("_updated > ?", "_updated >= ?", "? < _updated", "x._updated > ? AND id > 0"):
        assert lake.rows(f"SELECT id, _deleted FROM {table} x WHERE {condition} ORDER BY id", start) == by_seq, (
            condition
        )
    for condition in (
        "_updated BETWEEN '2025-01-01' AND '2100-01-01'",
        "_seq BETWEEN 1 AND 9223372036854775807",
    ):
        assert lake.rows(f"SELECT id, _deleted FROM {table} WHERE {condition} ORDER BY id") == by_seq, condition
    for condition in ("_updated < '2100-01-01'", "_updated > ? OR id = 1", "_seq < 9223372036854775807"):
        given = [start] if "?" in condition else []
        assert lake.rows(f"SELECT id, _deleted FROM {table} WHERE {condition} ORDER BY id", *given) == [(2, False)]


def test_older_versions_are_returned_on_request(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} (id, v) VALUES (1, 'a'), (2, 'x')")
    first = seq(lake, table, 2)
    lake.run(
        f"UPDATE {table} SET v = 'b' WHERE id = 1; UPDATE {table} SET v = 'c' WHERE id = 1; DELETE FROM {table} WHERE id = 2"
    )
    query = f"SELECT id, v, _deleted, _superseded FROM {table} WHERE _seq > {{}} AND _superseded IN (true, false) ORDER BY _seq"
    everything = [
        (1, "a", False, True), (2, "x", False, True), (1, "b", False, True), (1, "c", False, False), (2, "x", True, False),
    ]  # fmt: skip
    assert lake.rows(query.format(0)) == everything
    assert lake.rows(query.format(first)) == everything[2:]
    assert lake.rows(f"SELECT id, v FROM {table} WHERE _seq > 0 ORDER BY id") == [(1, "c"), (2, "x")], (
        "unasked, the newest"
    )
    assert lake.rows(f"SELECT v FROM {table} WHERE id = 1 AND NOT _superseded") == [("c",)]
    assert lake.rows(f"SELECT v FROM {table} WHERE v = 'b' AND _superseded") == [("b",)], (
        "what was asked is no older row"
    )
    assert lake.rows(f"SELECT count(*), count(*) FILTER (WHERE _superseded) FROM {table}") == [(5, 3)]


def test_a_version_that_is_hot_and_in_a_batch_is_returned_once(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} (id, v) VALUES (1, 'a'); UPDATE {table} SET v = 'b' WHERE id = 1")
    lake.flush_by_hand(table, trim=False)
    query = f"SELECT v, _superseded FROM {table} WHERE _superseded IS NOT NULL ORDER BY _seq"
    assert lake.rows(query) == [("a", True), ("b", False)], "still hot"
    lake.run(f"UPDATE {table} SET v = 'c' WHERE id = 1")
    assert lake.rows(query) == [("a", True), ("b", True), ("c", False)]
    lake.flush_by_hand(table)
    assert lake.rows(query) == [("b", True), ("c", False)], "what no batch has goes when hot rows are trimmed"


def test_users_see_older_versions_of_their_own_rows_only(lake: SqlLake, user_table: str) -> None:
    for user in ("ada", "bob"):
        lake.run(
            f"INSERT INTO {user_table} (id, v) VALUES (1, '{user}'); UPDATE {user_table} SET v = v || '+'", user=user
        )
    query = f"SELECT v, _superseded FROM {user_table} WHERE _superseded IS NOT NULL ORDER BY _seq"
    assert lake.rows(query, user="ada") == [("ada", True), ("ada+", False)]
    assert len(lake.rows(query, role=Role.SERVICE)) == 4
    refuse(lake, InvalidInputError, "_superseded", f"ALTER TABLE {user_table} ADD COLUMN _superseded BOOLEAN")


def test_users_with_row_filters_get_no_older_versions(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} (id, v) VALUES (1, 'secret'); UPDATE {table} SET v = 'open' WHERE id = 1")
    lake.run(
        "INSERT INTO system.users (user_id, permissions) VALUES ('rita', ?)",
        [f"{table}.v = 'open'"],
    )
    assert lake.rows(f"SELECT v FROM {table}", user="rita") == [("open",)]
    refuse(lake, PermissionDeniedError, "_superseded", f"SELECT v FROM {table} WHERE _superseded", user="rita")
