"""Odd cases of rows: keys of every type, many versions of a row, concurrent changes."""

import datetime
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from lakefork.errors import ConflictError, InvalidInputError
from lakefork.model.tables import UPDATED
from support.sql_lake import SqlLake, refuse


@pytest.mark.parametrize("flushed", [False, True])
def test_a_duplicate_key_is_refused_and_nothing_is_written(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")
    if flushed:
        lake.flush_by_hand(table)
    refuse(lake, ConflictError, "id = 2", f"INSERT INTO {table} VALUES (3, 'c', 3), (2, 'x', 2)")
    refuse(lake, ConflictError, "twice", f"INSERT INTO {table} VALUES (4, 'c', 3), (4, 'x', 2)")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {table} SELECT id, v, n FROM {table}")
    assert lake.rows(f"SELECT id, v FROM {table} ORDER BY id") == [(1, "a"), (2, "b")]


KEYS: dict[str, tuple[Any, Any]] = {
    "SMALLINT": (-1, 1),
    "DECIMAL(20, 3)": (Decimal("-0.001"), Decimal("99999999999999999.999")),
    "BOOLEAN": (False, True),
    "STRING": ("", "ü🦆'\\"),
    "BYTES": (b"", b"\x00\xff'"),
    "DATE": (datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    "TIME": (datetime.time(0), datetime.time(23, 59, 59, 999999)),
    "TIMESTAMP": (datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "TIMESTAMPTZ": (
        datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC),
        datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC),
    ),
    "UUID": (uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_found_in_hot_rows_and_batches(lake: SqlLake, ns: str, kind: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (k {kind} PRIMARY KEY, v STRING)")
    one, two = KEYS[kind]
    lake.run(f"INSERT INTO {ns}.t VALUES (?, 'a'), (?, 'b')", one, two)
    for _ in range(2):
        for key in (one, two):
            refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t VALUES (?, 'x')", key)
        assert lake.count(f"UPDATE {ns}.t SET v = v || '!' WHERE k = ?", one) == 1
        assert lake.count(f"DELETE FROM {ns}.t WHERE k = ?", two) == 1
        assert lake.count(f"DELETE FROM {ns}.t WHERE k = ?", two) == 0
        assert lake.count(f"INSERT INTO {ns}.t VALUES (?, 'b')", two) == 1
        lake.flush_by_hand(f"{ns}.t")
    assert lake.rows(f"SELECT k, v FROM {ns}.t WHERE k = ?", one) == [(one, "a!!")]
    assert lake.rows(f"SELECT k, v FROM {ns}.t ORDER BY v") == [(one, "a!!"), (two, "b")]


def test_a_composite_key_tells_rows_apart_by_all_its_columns(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (a STRING, b BIGINT, v STRING, PRIMARY KEY (b, a))")
    lake.run(f"INSERT INTO {ns}.t VALUES ('x', 1, '1'), ('x', 2, '2'), ('y', 1, '3')")
    lake.flush_by_hand(f"{ns}.t")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t VALUES ('y', 1, '?')")
    refuse(lake, InvalidInputError, "NULL", f"INSERT INTO {ns}.t (a, v) VALUES ('z', '?')")
    assert lake.count(f"INSERT INTO {ns}.t VALUES ('y', 2, '4')") == 1
    assert lake.count(f"UPDATE {ns}.t SET v = 'u' WHERE a IN ('x', 'y') AND b IN (1)") == 2
    assert lake.count(f"DELETE FROM {ns}.t WHERE a = 'x' AND b = 2") == 1
    assert lake.rows(f"SELECT a, b, v FROM {ns}.t ORDER BY a, b") == [("x", 1, "u"), ("y", 1, "u"), ("y", 2, "4")]
    refuse(lake, InvalidInputError, "key", f"UPDATE {ns}.t SET a = 'q' WHERE b = 1")


def test_many_keys_are_checked_against_hot_rows_and_batches(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (k STRING PRIMARY KEY, n INT)")
    lake.run(f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(0, 2000, 2) r(i)")
    lake.flush_by_hand(f"{ns}.t")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(1001, 1502) r(i)")
    assert lake.count(f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(1, 1001, 2) r(i)") == 500
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(1, 2000, 2) r(i)")
    assert lake.count(f"UPDATE {ns}.t SET n = n + 1") == 1500
    assert lake.count(f"DELETE FROM {ns}.t WHERE n % 2 = 0") == 500
    assert lake.rows(f"SELECT count(*), sum(n)::BIGINT FROM {ns}.t") == [(1000, sum(range(0, 2000, 2)) + 1000)]


@pytest.mark.parametrize("flushed", [False, True])
def test_update_and_delete_keep_the_columns_that_they_do_not_name(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 10), (2, 'b', 20), (3, NULL, NULL)")
    if flushed:
        lake.flush_by_hand(table)
    assert lake.count(f"UPDATE {table} SET n = n + 1 WHERE v = 'a' OR n IS NULL") == 2
    assert lake.count(f"DELETE FROM {table} WHERE n = 20") == 1
    assert lake.rows(f"SELECT id, v, n FROM {table} ORDER BY id") == [(1, "a", 11), (3, None, None)]
    assert lake.rows(f"SELECT id, v, n, _deleted FROM {table} WHERE _deleted") == [(2, "b", 20, True)]


def test_three_updates_each_flushed_give_one_row_with_the_last_value(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'v0', 0)")
    lake.flush_by_hand(table)
    seqs = [lake.rows(f"SELECT _seq FROM {table}")[0][0]]
    for number in range(1, 4):
        assert lake.count(f"UPDATE {table} SET v = 'v{number}' WHERE v = 'v{number - 1}'") == 1
        assert lake.count(f"UPDATE {table} SET n = {number} WHERE v = 'v{number - 1}'") == 0
        lake.flush_by_hand(table)
        assert lake.rows(f"SELECT id, v, n FROM {table}") == [(1, f"v{number}", 0)]
        seqs += [row[0] for row in lake.rows(f"SELECT _seq FROM {table}")]
    assert seqs == sorted(set(seqs))
    for old in ("v = 'v0'", f"_seq = {seqs[0]}", f"_seq < {seqs[3]}", "v IN ('v1', 'v2')"):
        assert lake.rows(f"SELECT * FROM {table} WHERE {old}") == []


def test_a_row_with_a_hundred_versions_is_one_row(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    for _ in range(100):
        assert lake.count(f"UPDATE {table} SET n = n + 1 WHERE id = 1") == 1
    assert lake.rows(f"SELECT id, n FROM {table}") == [(1, 100)]


@pytest.mark.parametrize("flushed", [False, True])
def test_concurrent_updates_of_one_row_lose_nothing(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    if flushed:
        lake.flush_by_hand(table)

    def update(_: int) -> int:
        return lake.count(f"UPDATE {table} SET n = n + 1 WHERE v = 'a'")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(update, range(24))) == [1] * 24
    assert lake.rows(f"SELECT n FROM {table}") == [(24,)]


def test_of_concurrent_inserts_of_one_key_exactly_one_succeeds(lake: SqlLake, table: str) -> None:
    def insert(place: int) -> int:
        try:
            return lake.count(f"INSERT INTO {table} VALUES (?, 'x', ?)", place % 3, place)
        except ConflictError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(insert, range(24))) == 3
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id") == [(0,), (1,), (2,)]


def test_an_update_that_would_make_two_rows_of_one_is_refused(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    refuse(lake, InvalidInputError, ".", f"UPDATE {table} SET n = unnest([1, 2]) WHERE id = 1")
    refuse(lake, InvalidInputError, ".", f"UPDATE {table} SET n = (SELECT i FROM range(2) r(i)) WHERE id = 1")
    assert lake.rows(f"SELECT id, n FROM {table}") == [(1, 0)]


def test_update_can_set_a_column_to_its_default(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v STRING DEFAULT 'd', n INT)")
    lake.run(f"INSERT INTO {ns}.t VALUES (1, 'a', 1), (2, DEFAULT, 2)")
    assert lake.count(f"UPDATE {ns}.t SET v = DEFAULT, n = DEFAULT WHERE id = 1") == 1
    assert lake.rows(f"SELECT id, v, n FROM {ns}.t ORDER BY id") == [(1, "d", None), (2, "d", 2)]


@pytest.mark.parametrize(
    "query", ["SELECT b FROM {t} AS x (a, b)", "SELECT b FROM (SELECT * FROM {t}) AS x (a, b)", "SELECT x.v FROM {t} x"]
)
def test_columns_that_are_renamed_by_the_alias_of_a_table_are_the_right_ones(
    lake: SqlLake, table: str, query: str
) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7)")
    assert lake.rows(query.format(t=table)) == [("a",)]


def test_a_whole_row_has_all_its_columns(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7)")
    (row,) = lake.rows(f"SELECT to_json(x)::VARCHAR FROM {table} x")
    assert {key: value for key, value in json.loads(row[0]).items() if not key.startswith("_")} == {
        "id": 1,
        "v": "a",
        "n": 7,
    }


def test_update_and_delete_understand_when_a_row_was_updated(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7)")
    assert lake.rows(f"SELECT id FROM {table} WHERE {UPDATED} > now() - INTERVAL 1 HOUR") == [(1,)]
    assert lake.count(f"DELETE FROM {table} WHERE {UPDATED} < now() - INTERVAL 1 HOUR") == 0
    assert lake.count(f"DELETE FROM {table} WHERE {UPDATED} > now() - INTERVAL 1 HOUR") == 1


def test_a_sum_of_whole_numbers_is_a_number(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7), (2, 'b', 8)")
    assert lake.rows(f"SELECT sum(n), sum(id), avg(n) FROM {table}") == [(15, 3, 7.5)]
    assert lake.run(f"SELECT sum(id) FROM {table}")[0].as_json()["rows"] == [[3]]
