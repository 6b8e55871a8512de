"""What a buffer holds: readers see it at once, and eviction follows."""

import time
from collections.abc import Callable

import pytest
from psycopg import sql

from lakefork.catalog.connection import connect
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from streams.conftest import Make, Stored
from support.fork_lake import fork
from support.sql_lake import SqlLake


def test_expired_events_are_gone_for_readers_at_once_and_then_evicted(
    lake: SqlLake, stream: Make, stored: Stored
) -> None:
    table = stream(retention="10s")
    lake.run(f"INSERT INTO {table} VALUES (1), (2), (3)", user="ada")
    stored.age(table, 9, "c4 = 1")
    stored.age(table, 10, "c4 = 2")
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n", user="ada") == [(1,), (3,)]
    assert stored.count(table) == 3
    stored.evict()
    assert stored.count(table) == 2
    assert lake.rows(f"SELECT count(*) FROM {table}", user="ada") == [(2,)]


def test_max_buffer_counts_the_newest_events_of_all_users(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream(max_buffer=3)
    for number, user in enumerate(("ada", "ada", "bob", "ada", "bob")):
        lake.run(f"INSERT INTO {table} VALUES ({number})", user=user)
    for _ in range(2):
        assert lake.rows(f"SELECT n FROM {table} ORDER BY n") == [(2,), (3,), (4,)]
        assert lake.rows(f"SELECT n FROM {table}", user="ada") == [(3,)]
        assert lake.rows(f"SELECT n FROM {table} ORDER BY n", user="bob") == [(2,), (4,)]
        stored.evict()
    assert stored.count(table) == 3
    lake.run(f"INSERT INTO {table} SELECT 10 + range FROM range(5)", user="ada")
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n") == [(12,), (13,), (14,)]
    stored.age(table, 4000, "c4 <= 12")  # expired ones do not count
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n") == [(13,), (14,)]


def test_options_that_change_hold_for_buffered_events(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream(retention="5m", max_buffer=100)
    lake.run(f"INSERT INTO {table} VALUES (1), (2), (3), (4)", user="ada")
    stored.age(table, 100, "c4 < 3")
    stored.evict()
    lake.run(f"ALTER TABLE {table} SET (retention = '1m')")
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n", user="ada") == [(3,), (4,)]
    lake.run(f"ALTER TABLE {table} SET (retention = '5m')")  # what is not evicted yet is back
    assert lake.count(f"INSERT INTO {table} VALUES (5)", user="ada") == 1
    assert lake.rows(f"SELECT count(*) FROM {table}", user="ada") == [(5,)]
    lake.run(f"ALTER TABLE {table} SET (max_buffer = 2)")
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n", user="ada") == [(4,), (5,)]
    stored.value("SELECT lakefork.evict_events(1000)")  # ALTER asked for it
    assert stored.count(table) == 2


def test_an_ephemeral_table_without_subscribers_keeps_nothing(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream(ephemeral=True)
    for _ in range(2):  # the second is of a known form
        assert lake.count(f"INSERT INTO {table} VALUES (?)", 1, user="ada") == 1
        assert lake.count(f"INSERT INTO {table} VALUES (1), (2)", user="ada") == 2
    assert stored.count(table) == 0
    lake.run(f"ALTER TABLE {table} SET (ephemeral = false)")
    lake.run(f"INSERT INTO {table} VALUES (?)", 3, user="ada")
    assert lake.rows(f"SELECT n FROM {table}", user="ada") == [(3,)]


def test_events_of_forks_count_and_expire_apart(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream(max_buffer=2)
    lake.run(f"INSERT INTO {table} VALUES (1), (2)", user="ada")
    forked = fork(lake, table.replace(".", "_"))
    forked.run(f"INSERT INTO {table} VALUES (5), (6), (7)", user="ada")
    forked.run(f"ALTER TABLE {table} SET (max_buffer = 1)")
    stored.evict()
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n", user="ada") == [(1,), (2,)]
    assert forked.rows(f"SELECT n FROM {table}", user="ada") == [(7,)]
    with connect(lake.dsn) as connection:
        connection.execute("SELECT lakefork.drop_catalog(%s)", (forked.catalog.catalog_id,))
    stored.evict()
    ref = lake.find(table).definition.ref
    assert stored.value(f"SELECT count(*) FROM stream.t{ref.table_id}") == 2


def test_a_process_that_writes_events_evicts_them_within_a_second(
    lake: SqlLake, stream: Make, stored: Stored, make_settings: Callable[..., Settings]
) -> None:
    table = stream(retention="1s", max_buffer=2)
    with Engine(make_settings(), lake.dsn) as engine:
        for number in range(4):
            engine.execute(lake.session("ada"), f"INSERT INTO {table} VALUES ({number})")
        written = time.monotonic()
        _wait_until(lambda: stored.count(table) == 2, 30)
        _wait_until(lambda: stored.count(table) == 0, 30)
        assert time.monotonic() - written > 1
    assert lake.rows("SELECT count(*) FROM system.jobs WHERE job_type = 'evict_events'") == [(0,)]


def _wait_until(is_true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failing_eviction_is_a_failed_job_and_stops_no_other(lake: SqlLake, stream: Make, stored: Stored) -> None:
    broken, sound = stream(retention="1s"), stream(retention="1s")
    for table in (broken, sound):
        lake.run(f"INSERT INTO {table} VALUES (1)", user="ada")
        stored.age(table, 100)
    name = sql.SQL(f"stream.t{lake.find(broken).definition.table_id}")
    with connect(lake.dsn) as connection:
        connection.execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'disk on fire'; END $$"
        )
        connection.execute(
            sql.SQL("CREATE TRIGGER t BEFORE DELETE ON {} EXECUTE FUNCTION public.refuse()").format(name)
        )
    for _ in range(2):  # it is recorded once
        stored.evict()
        assert (stored.count(broken), stored.count(sound)) == (1, 0)
    jobs = "SELECT status, error_message, namespace, table_name FROM system.jobs WHERE job_type = 'evict_events'"
    assert lake.rows(jobs) == [("failed", "disk on fire", broken.removesuffix(".s"), "s")]
    with connect(lake.dsn) as connection:
        connection.execute(sql.SQL("DROP TRIGGER t ON {}").format(name))
    stored.evict()
    assert stored.count(broken) == 0


@pytest.mark.parametrize("is_retained", [True, False])
def test_the_postgres_table_goes_when_no_catalog_can_have_it_again(
    lake: SqlLake, stream: Make, stored: Stored, is_retained: bool
) -> None:
    table = stream()
    lake.run(f"INSERT INTO {table} VALUES (1)", user="ada")
    table_id = lake.find(table).definition.table_id
    lake.run(f"DROP STREAM TABLE {table}")
    if not is_retained:
        with connect(lake.dsn) as connection:
            connection.execute("DELETE FROM public.ducklake_table WHERE table_id = %s", (table_id,))
    assert stored.value("SELECT lakefork.drop_unused_streams()") == (0 if is_retained else 1)
    assert (stored.value(f"SELECT to_regclass('stream.t{table_id}')") is None) is not is_retained
