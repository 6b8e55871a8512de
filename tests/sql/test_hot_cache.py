"""Hot rows that were read before are kept: later answers are those of the moment, and only what is new is read."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog
from lakefork.hot.rows import Moment, read_versions
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.read import hot_cache
from lakefork.sql.session import Role, Session
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake, open_lake

EVERYTHING = "SELECT id, v FROM app.t ORDER BY id"


@pytest.fixture
def app(lake: SqlLake, monkeypatch: pytest.MonkeyPatch) -> SqlLake:
    monkeypatch.setattr(hot_cache, "MIN_ROWS_TO_CACHE", 1)
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v INT); "
        "CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v INT); INSERT INTO app.t VALUES (1, 10), (2, 20), (3, 30)"
    )
    return lake


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many hot rows each reading took from Postgres."""
    counts: list[int] = []
    real = hot_cache.read_versions

    def counting(*arguments, **named):  # type: ignore[no-untyped-def]
        found = real(*arguments, **named)
        counts.append(found.num_rows)
        return found

    monkeypatch.setattr(hot_cache, "read_versions", counting)
    return counts


def hot_table(lake: SqlLake, name: str) -> str:
    return lake.find(name).hot[0].qualified


def test_only_what_is_new_is_read_again(app: SqlLake, read: list[int]) -> None:
    for _ in range(3):
        assert app.rows(EVERYTHING) == [(1, 10), (2, 20), (3, 30)]
    assert read == [3]
    app.run("UPDATE app.t SET v = 21 WHERE id = 2; INSERT INTO app.t VALUES (4, 40); DELETE FROM app.t WHERE id = 1")
    assert app.rows(EVERYTHING) == [(2, 21), (3, 30), (4, 40)]
    assert read == [3, 3]


def test_a_transaction_that_was_under_way_is_seen_once_it_commits(app: SqlLake, read: list[int]) -> None:
    with psycopg.connect(app.dsn) as late:
        late.execute(
            f"INSERT INTO {hot_table(app, 'app.t')} (catalog_id, _seq, _deleted, c4, c5) "
            f"VALUES ({app.catalog.catalog_id}, 1, false, 77, 7)"
        )
        assert app.rows(EVERYTHING) == [(1, 10), (2, 20), (3, 30)]
        app.run("INSERT INTO app.t VALUES (5, 50)")
        assert (77, 7) not in app.rows(EVERYTHING)
        late.commit()
    assert app.rows(EVERYTHING) == [(1, 10), (2, 20), (3, 30), (5, 50), (77, 7)]
    assert read == [3, 1, 1]


def test_an_older_transaction_does_not_get_rows_of_its_future(flush_lake: FlushLake, app: SqlLake) -> None:
    """As many rows are hot as before, but other ones: those that it saw were published and trimmed since."""
    resources = app.engine._resources
    hot = app.find("app.t").hot[0]
    columns = hot.definition.columns
    with resources.readers.transaction() as older:
        before = read_versions(older, hot, None, columns, batches_too=True)
        flush_lake.flush()
        app.run("INSERT INTO app.t VALUES (4, 40), (5, 50), (6, 60)")
        assert len(app.rows(EVERYTHING)) == 6
        found = resources.hot_cache.read(older, hot, None, columns, batches_too=True)
        assert found.to_pylist() == before.to_pylist()
    assert len(app.rows(EVERYTHING)) == 6


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ("10:20:", "10:15:", True), ("10:20:", "10:20:12", True), ("10:20:12", "10:20:", False), ("12:20:12", "12:20:12,15", True),
        ("10:15:", "10:20:", False), ("12:30:12,25", "12:20:12", True), ("12:30:18", "12:20:", False), ("12:30:18", "12:18:", True),
    ],
)  # fmt: skip
def test_comparing_two_moments(now: str, before: str, *, expected: bool) -> None:
    assert Moment(now, "a").sees_all_of(Moment(before, "a")) is expected
    assert not Moment(now, "a").sees_all_of(Moment(before, "b")), "another start of the server"


def test_threads_that_read_and_write_see_what_they_wrote(app: SqlLake) -> None:
    def work(first: int) -> None:
        for number in range(first, first + 15):
            app.run("INSERT INTO app.t VALUES (?, 1)", number)
            (mine,) = app.rows("SELECT list(id ORDER BY id) FROM app.t WHERE v = 1")[0]
            assert [one for one in mine if first <= one < first + 15] == list(range(first, number + 1))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, 100 * place) for place in range(1, 5)]:
            done.result()
    assert app.rows("SELECT count(*), count(DISTINCT id) FROM app.t") == [(63, 63)]
    cache = app.engine._resources.hot_cache
    assert cache._bytes == sum(one.rows.nbytes for one in cache._kept.values())


def test_rolled_back_rows_never_appear(app: SqlLake) -> None:
    assert len(app.rows(EVERYTHING)) == 3
    with psycopg.connect(app.dsn) as writer:
        writer.execute(
            f"INSERT INTO {hot_table(app, 'app.t')} (catalog_id, _seq, _deleted, c4, c5) "
            f"VALUES ({app.catalog.catalog_id}, 1, false, 77, 7)"
        )
        writer.rollback()
    app.run("INSERT INTO app.t VALUES (4, 40)")
    assert app.rows(EVERYTHING) == [(1, 10), (2, 20), (3, 30), (4, 40)]


def test_rows_that_went_into_batches_are_not_kept(flush_lake: FlushLake, app: SqlLake, read: list[int]) -> None:
    assert len(app.rows(EVERYTHING)) == 3
    flush_lake.flush()  # published, and still hot
    assert app.rows(EVERYTHING) == [(1, 10), (2, 20), (3, 30)]
    app.run("UPDATE app.t SET v = v + 1")
    assert app.rows(EVERYTHING) == [(1, 11), (2, 21), (3, 31)]
    flush_lake.flush()  # what was published first is trimmed
    app.run("DELETE FROM app.t WHERE id = 2")
    for _ in range(2):
        assert app.rows(EVERYTHING) == [(1, 11), (3, 31)]
    assert read[-1] == 1


def test_users_catalogs_and_columns_do_not_share(app: SqlLake) -> None:
    for user, value in (("ada", 1), ("bob", 2)):
        app.run(f"INSERT INTO app.mine VALUES (1, {value}), (2, {value})", user=user)
    with connect(app.dsn) as connection:
        fork_catalog(connection, app.catalog.name, "other")
    other = Session("other", role=Role.ADMIN)
    app.engine.execute(other, "UPDATE app.t SET v = 0")
    for _ in range(2):
        assert app.rows("SELECT v FROM app.mine", user="ada") == [(1,), (1,)]
        assert app.rows("SELECT v FROM app.mine", user="bob") == [(2,), (2,)]
        assert app.rows("SELECT sum(v) FROM app.mine") == [(6,)]
        assert app.rows(EVERYTHING) == [(1, 10), (2, 20), (3, 30)]
        assert app.rows("SELECT id FROM app.t ORDER BY id") == [(1,), (2,), (3,)]
        assert app.engine.execute(other, EVERYTHING)[0].rows == [(1, 0), (2, 0), (3, 0)]  # type: ignore[union-attr]


def test_another_definition_is_another_table(app: SqlLake) -> None:
    assert len(app.rows(EVERYTHING)) == 3
    app.run("ALTER TABLE app.t ADD COLUMN w INT DEFAULT 5; INSERT INTO app.t VALUES (4, 40, 6)")
    for _ in range(2):
        assert app.rows("SELECT id, v, w FROM app.t ORDER BY id") == [(1, 10, 5), (2, 20, 5), (3, 30, 5), (4, 40, 6)]


@pytest.fixture
def small(
    dsn: str, data_dir: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> Iterator[SqlLake]:
    """A lake whose cache holds one megabyte."""
    monkeypatch.setattr(hot_cache, "MIN_ROWS_TO_CACHE", 1)
    with open_lake(dsn, data_dir, make_settings(sql=SqlSettings(hot_cache_mb=1))) as lake:
        yield lake


def test_memory_is_bounded(small: SqlLake, read: list[int]) -> None:
    small.run("CREATE NAMESPACE app")
    for name in ("a", "b", "c"):
        small.run(f"CREATE SHARED TABLE app.{name} (id BIGINT PRIMARY KEY, v TEXT)")
        small.run(f"INSERT INTO app.{name} SELECT i, repeat('x', 50) FROM range(8000) r(i)")
    for name in ("a", "b", "a", "c"):
        assert small.rows(f"SELECT count(v) FROM app.{name}") == [(8000,)]
    assert small.engine._resources.hot_cache._bytes <= 1 << 20
    assert len(read) == 4, "there is room for one of them"
    small.rows("SELECT count(v) FROM app.c")
    assert len(read) == 4
