"""Many sessions at once: one winner per key, no lost update, no row into a table that changed or went away."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from lakefork.errors import ConflictError, LakeforkError, NotFoundError
from lakefork.hot.seqids import SeqIdGenerator
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from support.sql_lake import SqlLake


@pytest.fixture
def lakes(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[list[SqlLake]]:
    """Two engines on one database, as two processes would have."""
    with Engine(make_settings(), lake.dsn) as other:
        lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, n BIGINT, v TEXT)")
        yield [lake, SqlLake(other, lake.dsn, lake.catalog)]


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """The results of all, or the errors that they raised."""
    barrier = threading.Barrier(len(work))

    def run(one: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return one()
        except LakeforkError as error:
            return error

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(run, work))


def test_of_two_sessions_that_insert_one_key_exactly_one_succeeds(lakes: list[SqlLake]) -> None:
    lakes[0].run("INSERT INTO app.t VALUES (0, 0, 'x')")
    for key in range(1, 16):
        results = at_once(
            *(lambda lake=lake, key=key: lake.count(f"INSERT INTO app.t VALUES ({key}, 1, 'x')") for lake in lakes * 2)
        )
        assert sorted(map(str, (type(one).__name__ for one in results))) == ["ConflictError"] * 3 + ["int"], key
    assert lakes[0].rows("SELECT count(*), count(DISTINCT id) FROM app.t") == [(16, 16)]


def test_the_first_writes_of_many_sessions_share_one_hot_table(lakes: list[SqlLake]) -> None:
    results = at_once(*(lambda lake=lake: lake.count("INSERT INTO app.t (n) VALUES (1)") for lake in lakes * 4))
    assert results == [1] * 8
    assert lakes[0].rows("SELECT count(*) FROM app.t") == [(8,)]


def test_increments_are_never_lost(lakes: list[SqlLake]) -> None:
    lakes[0].run("INSERT INTO app.t VALUES (1, 0, 'x'), (2, 0, 'y')")

    def work(lake: SqlLake, where: str) -> int:
        return sum(lake.count(f"UPDATE app.t SET n = n + 1 WHERE {where}") for _ in range(6))

    jobs = [
        lambda lake=lake, where=where: work(lake, where)
        for lake in lakes
        for where in ("id = 1", "id IN (1, 2)", "v = 'x'", "true")
    ]
    assert at_once(*jobs) == [6, 12, 6, 12] * 2
    assert sorted(lakes[0].rows("SELECT id, n, v FROM app.t")) == [(1, 48, "x"), (2, 24, "y")]


def test_a_bulk_update_and_single_updates_do_not_lose_each_other(lakes: list[SqlLake]) -> None:
    lakes[0].run("INSERT INTO app.t SELECT i, 0, 'x' FROM range(300) r(i)")
    one = lambda: sum(lakes[0].count("UPDATE app.t SET n = n + 1 WHERE id = 7") for _ in range(10))  # noqa: E731
    many = lambda: sum(lakes[1].count("UPDATE app.t SET n = n + 1 WHERE id >= 0") for _ in range(5))  # noqa: E731
    assert at_once(one, many) == [10, 1500]
    assert lakes[0].rows("SELECT n, count(*) FROM app.t GROUP BY n ORDER BY n") == [(5, 299), (15, 1)]


def test_delete_and_update_of_one_row_leave_it_deleted_or_never_touched_after(lakes: list[SqlLake]) -> None:
    for key in range(10):
        lakes[0].run(f"INSERT INTO app.t VALUES ({key}, 0, 'x')")
        deleted, updated = at_once(
            lambda key=key: lakes[0].count(f"DELETE FROM app.t WHERE id = {key}"),
            lambda key=key: lakes[1].count(f"UPDATE app.t SET n = 1 WHERE id = {key}"),
        )
        assert deleted == 1
        assert updated in (0, 1)
    assert lakes[0].rows("SELECT count(*) FROM app.t") == [(0,)]


def test_of_concurrent_alters_one_wins_and_the_others_get_a_conflict(lakes: list[SqlLake]) -> None:
    for number in range(5):
        results = at_once(
            *(
                lambda lake=lake, place=place, number=number: lake.run(
                    f"ALTER TABLE app.t ADD COLUMN c{number}_{place} INT"
                )
                for place, lake in enumerate(lakes * 2)
            )
        )
        failed = [one for one in results if isinstance(one, LakeforkError)]
        assert all(isinstance(one, ConflictError) and "app.t changed concurrently" in str(one) for one in failed)
        assert len(failed) < len(results)
    columns = [name for section, name, *_ in lakes[0].rows("DESCRIBE TABLE app.t") if section == "column"]
    assert len(columns) == len(set(columns))


def test_inserts_during_alters_all_stay(lakes: list[SqlLake]) -> None:
    def insert() -> int:
        return sum(lakes[0].count("INSERT INTO app.t (n) VALUES (?)", number) for number in range(60))

    def alter() -> None:
        for number in range(6):
            lakes[1].run(f"ALTER TABLE app.t ADD COLUMN extra_{number} INT DEFAULT {number}")

    assert at_once(insert, insert, alter) == [60, 60, None]
    assert lakes[1].rows("SELECT count(*), min(extra_0), max(extra_5) FROM app.t") == [(120, 0, 5)]


def test_a_write_to_a_dropped_table_is_refused(lakes: list[SqlLake]) -> None:
    lakes[0].run("INSERT INTO app.t (n) VALUES (1)")
    lakes[0].run("INSERT INTO app.t (n) VALUES (1)")
    lakes[1].run("DROP TABLE app.t")
    with pytest.raises(NotFoundError, match=r"table app\.t does not exist"):
        lakes[0].run("INSERT INTO app.t (n) VALUES (1)")
    lakes[1].run("CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, n BIGINT)")
    lakes[0].run("INSERT INTO app.t (n) VALUES (2)")
    assert lakes[1].rows("SELECT n FROM app.t") == [(2,)]


def test_drop_waits_for_a_writer_that_is_under_way(lakes: list[SqlLake]) -> None:
    lakes[0].run("INSERT INTO app.t (n) VALUES (1)")
    dropped = threading.Event()

    def drop() -> None:
        lakes[1].run("DROP TABLE app.t")
        dropped.set()

    with psycopg.connect(lakes[0].dsn) as writer:
        writer.execute(
            "SELECT pg_advisory_xact_lock_shared(lakefork.definition_lock(catalog_id, table_id)) FROM public.ducklake_table"
        )
        thread = threading.Thread(target=drop)
        thread.start()
        assert not dropped.wait(0.5)
        writer.commit()
        assert dropped.wait(5)
        thread.join()


def test_a_version_is_newer_than_the_one_it_replaces_whatever_the_clocks_say(lakes: list[SqlLake]) -> None:
    ahead, behind = lakes
    resources = ahead.engine._resources
    real = resources.seqids
    resources.seqids = SeqIdGenerator(real._lease, clock_ms=lambda: 120 * 365 * 86_400 // 10 * 1000)  # years ahead
    try:
        ahead.run("INSERT INTO app.t VALUES (1, 1, 'ahead')")
    finally:
        resources.seqids.close()
        resources.seqids = real
    (seq,) = behind.rows("SELECT _seq FROM app.t")[0]
    assert behind.count("UPDATE app.t SET v = 'behind' WHERE id = 1") == 1
    assert behind.rows("SELECT v, _seq > ? FROM app.t", seq) == [("behind", True)]
    assert behind.count("DELETE FROM app.t WHERE id = 1") == 1
    assert ahead.count("INSERT INTO app.t VALUES (1, 2, 'again')") == 1
    assert behind.rows("SELECT v, n FROM app.t") == [("again", 2)]


def test_a_renamed_catalog_gets_no_rows_under_its_old_name(lakes: list[SqlLake]) -> None:
    for _ in range(2):
        lakes[0].run("INSERT INTO app.t (n) VALUES (1)")
    with psycopg.connect(lakes[0].dsn, autocommit=True) as connection:
        connection.execute("SELECT lakefork.rename_catalog(%s, 'other')", (lakes[0].catalog.catalog_id,))
    with pytest.raises(NotFoundError, match="catalog 'main'"):
        lakes[0].run("INSERT INTO app.t (n) VALUES (1)")


def test_after_postgres_went_away_the_next_statement_but_one_works(lakes: list[SqlLake]) -> None:
    lake = lakes[0]
    statements = [
        "INSERT INTO app.t (n) VALUES (1)",
        "SELECT * FROM app.t",
        "UPDATE app.t SET n = 2 WHERE id = 1",
        "SHOW TABLES",
    ]
    for text in statements * 2:
        lake.run(text)
    at_once(*(lambda: lake.rows("SELECT count(*) FROM app.t") for _ in range(4)))
    for text in statements:
        with psycopg.connect(lake.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        try:
            lake.run(text)
        except LakeforkError as error:
            assert error.retryable, error
            assert len(str(error).splitlines()) == 1
            lake.run(text)
