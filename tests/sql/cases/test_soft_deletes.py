"""Odd cases of deleted rows, which stay as versions."""

import pytest

from lakefork.errors import ConflictError
from support.sql_lake import SqlLake, refuse


@pytest.mark.parametrize("flushed", [False, True])
def test_an_update_or_second_delete_of_a_deleted_row_changes_nothing(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")
    assert lake.count(f"DELETE FROM {table} WHERE id = 1") == 1
    if flushed:
        lake.flush_by_hand(table)
    for where in ("id = 1", "v = 'a'", "_deleted", "id = 1 AND _deleted"):
        assert lake.count(f"UPDATE {table} SET v = 'x' WHERE {where}") == 0
        assert lake.count(f"DELETE FROM {table} WHERE {where}") == 0
    assert lake.count(f"UPDATE {table} SET v = 'x' WHERE id = 99") == 0
    assert lake.rows(f"SELECT id, v FROM {table}") == [(2, "b")]


def test_a_deleted_row_stays_hidden_when_the_delete_is_flushed_after_the_row(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    lake.flush_by_hand(table)
    assert lake.count(f"DELETE FROM {table} WHERE v = 'a'") == 1
    assert lake.rows(f"SELECT * FROM {table}") == []
    assert lake.flush_by_hand(table) == 1
    assert lake.rows(f"SELECT * FROM {table}") == []
    assert lake.rows(f"SELECT * FROM {table} WHERE id = 1") == []
    assert lake.rows(f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_deleted_rows_are_seen_where_deleted_is_named(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2); DELETE FROM {table} WHERE id = 1")
    if flushed:
        lake.flush_by_hand(table)
    assert lake.rows(f"SELECT id FROM {table}") == [(2,)]
    assert lake.rows(f"SELECT id, _deleted FROM {table}") == [(2, False)]
    assert lake.rows(f"SELECT id FROM {table} WHERE _deleted") == [(1,)]
    assert lake.rows(f"SELECT id FROM {table} t WHERE t._deleted = true AND v = 'a'") == [(1,)]
    assert lake.rows(f"SELECT id FROM {table} WHERE _deleted OR NOT _deleted ORDER BY id") == [(1,), (2,)]
    assert lake.rows(f"SELECT id FROM {table} WHERE NOT _deleted") == [(2,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_inserted_again_after_its_delete_is_newer(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1); DELETE FROM {table} WHERE id = 1")
    if flushed:
        lake.flush_by_hand(table)
    deleted = lake.rows(f"SELECT _seq FROM {table} WHERE _deleted")[0][0]
    assert lake.count(f"INSERT INTO {table} VALUES (1, 'b', NULL)") == 1
    ((seq, v, n),) = lake.rows(f"SELECT _seq, v, n FROM {table}")
    assert (v, n) == ("b", None)
    assert seq > deleted
    lake.flush_by_hand(table)
    assert lake.rows(f"SELECT v FROM {table}") == [("b",)]
    refuse(lake, ConflictError, "exists", f"INSERT INTO {table} VALUES (1, 'c', 1)")


@pytest.mark.parametrize("form", ["{seq}", "'{seq}'", "{seq} + 0", "CAST('{seq}' AS BIGINT)", "?"])
def test_changes_since_a_seq_show_deleted_rows_however_the_seq_is_written(lake: SqlLake, table: str, form: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")
    seq = max(row[0] for row in lake.rows(f"SELECT _seq FROM {table}"))
    lake.run(f"DELETE FROM {table} WHERE id = 1; UPDATE {table} SET v = 'c' WHERE id = 2")
    parameters = [str(seq)] if form == "?" else []
    found = lake.rows(
        f"SELECT id, v, _deleted FROM {table} WHERE _seq > {form.format(seq=seq)} ORDER BY id", *parameters
    )
    assert found == [(1, "a", True), (2, "c", False)]
