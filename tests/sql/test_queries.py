"""Joins, windows and aggregates over two tables: the same rows wherever the versions are."""

from typing import Any

import pytest

from support.sql_lake import SqlLake

PEOPLE = "(1, 'ada'), (2, 'bob'), (3, 'cyd')"
SALES = "(10, 1, 5), (11, 1, 7), (12, 2, 3), (13, 2, NULL), (14, 9, 8)"


@pytest.fixture(scope="module", params=["hot", "batches", "hot_and_batches", "old_and_new"])
def ns(module_lake: SqlLake, request: pytest.FixtureRequest) -> str:
    """A namespace with the same rows, kept in different places."""
    lake, ns = module_lake, str(request.param)
    lake.run(
        f"CREATE NAMESPACE {ns}; CREATE SHARED TABLE {ns}.people (id BIGINT PRIMARY KEY, name STRING); "
        f"CREATE SHARED TABLE {ns}.sales (id BIGINT PRIMARY KEY, person BIGINT, amount INT)"
    )
    if ns in ("hot", "old_and_new"):
        write_in_steps(lake, ns, with_batches=ns == "old_and_new")
        return ns
    lake.run(f"INSERT INTO {ns}.people VALUES {PEOPLE}; INSERT INTO {ns}.sales VALUES {SALES}")
    lake.flush_by_hand(f"{ns}.sales")
    if ns == "batches":
        lake.flush_by_hand(f"{ns}.people")
    return ns


def write_in_steps(lake: SqlLake, ns: str, *, with_batches: bool) -> None:
    """With old versions, and rows that go again; in batches they are partly hot as well."""
    lake.run(f"INSERT INTO {ns}.people VALUES (1, 'old'), (2, 'bob'), (4, 'dan')")
    lake.run(f"INSERT INTO {ns}.sales VALUES (10, 1, 5), (11, 2, 100), (12, 2, 3), (15, 1, 1000)")
    if with_batches:
        lake.flush_by_hand(f"{ns}.people")
        lake.flush_by_hand(f"{ns}.sales", trim=False)
    lake.run(f"UPDATE {ns}.people SET name = 'ada' WHERE id = 1; INSERT INTO {ns}.people VALUES (3, 'cyd')")
    lake.run(f"UPDATE {ns}.sales SET person = 1, amount = 7 WHERE id = 11; DELETE FROM {ns}.sales WHERE amount = 1000")
    lake.run(f"DELETE FROM {ns}.people WHERE id = 4; INSERT INTO {ns}.sales VALUES (13, 2, NULL), (14, 9, 8)")


JOINS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("SELECT s.id, p.name FROM {ns}.sales s JOIN {ns}.people p ON p.id = s.person ORDER BY 1", [(10, "ada"), (11, "ada"), (12, "bob"), (13, "bob")]),
    ("SELECT s.id, p.name FROM {ns}.sales s LEFT JOIN {ns}.people p ON p.id = s.person WHERE s.id > 12 ORDER BY 1", [(13, "bob"), (14, None)]),
    ("SELECT s.id, p.name FROM {ns}.sales s RIGHT JOIN {ns}.people p ON p.id = s.person ORDER BY 2, 1", [(10, "ada"), (11, "ada"), (12, "bob"), (13, "bob"), (None, "cyd")]),
    ("SELECT s.id, p.id FROM {ns}.sales s FULL JOIN {ns}.people p ON p.id = s.person WHERE s.id IS NULL OR p.id IS NULL ORDER BY 1", [(14, None), (None, 3)]),
    ("SELECT name FROM {ns}.people p SEMI JOIN {ns}.sales s ON s.person = p.id ORDER BY 1", [("ada",), ("bob",)]),
    ("SELECT name FROM {ns}.people p WHERE NOT EXISTS (SELECT 1 FROM {ns}.sales s WHERE s.person = p.id)", [("cyd",)]),
    ("SELECT count(*) FROM {ns}.sales, {ns}.people", [(15,)]),
    ("SELECT a.id, b.id FROM {ns}.sales a JOIN {ns}.sales b ON a.person = b.person AND a.id < b.id ORDER BY 1", [(10, 11), (12, 13)]),
    ("SELECT p.name, s.amount FROM {ns}.people p JOIN {ns}.sales s ON s.person = p.id WHERE p.id = 1 AND s.id = 11", [("ada", 7)]),
]  # fmt: skip

AGGREGATES: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("SELECT name, count(*), count(amount), sum(amount), avg(amount) FROM {ns}.sales s JOIN {ns}.people p ON p.id = s.person GROUP BY name ORDER BY 1", [("ada", 2, 2, 12, 6.0), ("bob", 2, 1, 3, 3.0)]),
    ("SELECT name, coalesce(sum(amount), 0) FROM {ns}.people p LEFT JOIN {ns}.sales s ON p.id = s.person GROUP BY ALL ORDER BY 1", [("ada", 12), ("bob", 3), ("cyd", 0)]),
    ("SELECT name FROM {ns}.people p JOIN {ns}.sales s ON p.id = s.person GROUP BY name HAVING sum(amount) > 5", [("ada",)]),
    ("SELECT name, max(amount) FROM {ns}.people p JOIN {ns}.sales s ON p.id = s.person GROUP BY ROLLUP (name) ORDER BY 1", [("ada", 7), ("bob", 3), (None, 7)]),
    ("SELECT (SELECT count(*) FROM {ns}.people), (SELECT min(amount) FROM {ns}.sales), (SELECT sum(amount) FROM {ns}.sales WHERE person = 1)", [(3, 3, 12)]),
    ("SELECT count(DISTINCT person), string_agg(id::VARCHAR, ',' ORDER BY id DESC) FROM {ns}.sales", [(3, "14,13,12,11,10")]),
]  # fmt: skip

WINDOWS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("SELECT s.id, row_number() OVER (PARTITION BY name ORDER BY s.id DESC) FROM {ns}.sales s JOIN {ns}.people p ON p.id = s.person ORDER BY 1", [(10, 2), (11, 1), (12, 2), (13, 1)]),
    ("SELECT id, sum(amount) OVER (PARTITION BY person ORDER BY id), lag(id) OVER (ORDER BY id) FROM {ns}.sales ORDER BY 1", [(10, 5, None), (11, 12, 10), (12, 3, 11), (13, 3, 12), (14, 8, 13)]),
    ("SELECT name, amount FROM {ns}.people p JOIN {ns}.sales s ON p.id = s.person QUALIFY rank() OVER (PARTITION BY name ORDER BY amount DESC NULLS LAST) = 1 ORDER BY 1", [("ada", 7), ("bob", 3)]),
    ("SELECT name, sum(amount) AS total, rank() OVER (ORDER BY sum(amount) DESC) FROM {ns}.people p JOIN {ns}.sales s ON p.id = s.person GROUP BY name ORDER BY 3", [("ada", 12, 1), ("bob", 3, 2)]),
    ("WITH totals AS (SELECT person, sum(amount) AS total FROM {ns}.sales GROUP BY person) SELECT name, total * 100 // sum(total) OVER () FROM totals t JOIN {ns}.people p ON p.id = t.person ORDER BY 1", [("ada", 80), ("bob", 20)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), JOINS)
def test_joins_find_the_newest_rows_of_both_tables(
    module_lake: SqlLake, ns: str, text: str, expected: list[Any]
) -> None:
    assert module_lake.rows(text.format(ns=ns)) == expected


@pytest.mark.parametrize(("text", "expected"), AGGREGATES)
def test_aggregates_count_each_row_once(module_lake: SqlLake, ns: str, text: str, expected: list[Any]) -> None:
    assert module_lake.rows(text.format(ns=ns)) == expected


@pytest.mark.parametrize(("text", "expected"), WINDOWS)
def test_windows_see_each_row_once(module_lake: SqlLake, ns: str, text: str, expected: list[Any]) -> None:
    assert module_lake.rows(text.format(ns=ns)) == expected
