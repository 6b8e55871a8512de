"""Statements that need too much time, memory or rows."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakefork.errors import InvalidInputError, LimitError
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.engine import Engine
from support.sql_hostile import PATIENCE, refuse
from support.sql_lake import SqlLake


def limited(lake: SqlLake, make_settings: Callable[..., Settings], **limits: Any) -> Iterator[SqlLake]:
    settings = make_settings(sql=SqlSettings(max_rows=1_000, max_changed_rows=100, threads=1, **limits))
    with Engine(settings, lake.dsn) as engine:
        yield SqlLake(engine, lake.dsn, lake.catalog)


@pytest.fixture(scope="module")
def small(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    yield from limited(lake, make_settings, statement_timeout_seconds=PATIENCE, memory_mb=64)


@pytest.fixture(scope="module")
def hurried(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    yield from limited(lake, make_settings, statement_timeout_seconds=0.3, memory_mb=512)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "text",
    ["SELECT count(*) FROM range(1000000000000)", "SELECT i FROM range(1000000000000) r(i) WHERE i % 7 = 8", "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE (i * j) % 7 = 8", "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r",
     "INSERT INTO app.open SELECT i, 'x' FROM range(1000000000000) r(i) WHERE i % 7 = 8", "UPDATE app.open SET v = (SELECT count(*) FROM range(1000000000000))", "DELETE FROM app.open WHERE (SELECT count(*) FROM range(1000000000000)) > 0 AND id = 1",
     "INSERT INTO app.open VALUES (80, (SELECT count(*) FROM range(1000000000000)))", "SELECT * FROM app.open AT (VERSION => (SELECT count(*) FROM range(1000000000000)))",],
)  # fmt: skip
def test_a_statement_that_takes_too_long_is_stopped(hurried: SqlLake, text: str) -> None:
    started = time.monotonic()
    assert "took too long" in refuse(hurried, text, kind=LimitError)
    assert time.monotonic() - started < 15


def test_answers_of_too_many_rows_are_refused(small: SqlLake) -> None:
    assert len(small.rows("SELECT * FROM range(1000)")) == 1_000
    for text in ("SELECT * FROM range(1001)", "SELECT * FROM range(10000000)", "SELECT unnest(range(2000))"):
        refuse(small, text, kind=LimitError)


def test_changes_of_too_many_rows_are_refused(small: SqlLake) -> None:
    small.run("CREATE SHARED TABLE app.many (id BIGINT PRIMARY KEY, v STRING)")
    try:
        for start in (0, 60):
            small.run(f"INSERT INTO app.many SELECT i, 'x' FROM range({start}, {start + 60}) r(i)")
        keys = ", ".join(map(str, range(110)))
        rows = ", ".join(f"({key}, 'x')" for key in range(1_000, 1_101))
        for text in (
            "INSERT INTO app.many SELECT i + 1000, 'x' FROM range(101) r(i)",
            "UPDATE app.many SET v = 'y'",
            "DELETE FROM app.many",
            f"DELETE FROM app.many WHERE id IN ({keys})",
            f"INSERT INTO app.many VALUES {rows}",
        ):
            assert "max_changed_rows" in refuse(small, text, kind=LimitError)
    finally:
        small.run("DROP TABLE app.many")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "text",
    ["SELECT sum(len(l)) FROM (SELECT i, list(j) AS l FROM range(4000) a(i), range(4000) b(j) GROUP BY i)", "SELECT length(repeat('x', 100000000) || 'y')", "SELECT count(DISTINCT hash(i)) FROM range(30000000) r(i)",
     "SELECT repeat('x', 1000000) || i FROM range(300) r(i)", "SELECT string_agg(repeat('x', 1000000)) FROM range(300)", "SELECT repeat('x', 1000000) FROM range(300)"],
)  # fmt: skip
def test_a_statement_that_needs_too_much_memory_is_refused(small: SqlLake, text: str) -> None:
    assert "memory" in refuse(small, text, kind=LimitError)


@pytest.mark.usefixtures("unchanged")
def test_an_error_late_in_a_long_answer_is_an_error_of_ours(lake: SqlLake) -> None:
    refuse(
        lake,
        "SELECT CASE WHEN i = 800000 THEN error('late\nline') ELSE i::VARCHAR END FROM range(900000) r(i)",
        kind=InvalidInputError,
    )
    refuse(
        lake,
        "SELECT CAST(CASE WHEN i = 800000 THEN 'x' ELSE '1' END AS INT) FROM range(900000) r(i)",
        kind=InvalidInputError,
    )
    refuse(
        lake,
        "INSERT INTO app.open SELECT i + 100, CASE WHEN i = 90000 THEN error('late') ELSE 'x' END FROM range(100000) r(i)",
        kind=InvalidInputError,
    )


def test_the_engine_works_as_before_after_all_of_it(lake: SqlLake, small: SqlLake) -> None:
    for one in (lake, small):
        assert one.rows("SELECT id FROM app.open ORDER BY id", user="mallory") == [(1,), (2,)]
        assert one.rows("SELECT count(*) FROM app.secret") == [(2,)]
