"""A crash of Postgres empties the buffers, and everything goes on."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.errors import LakeforkError
from lakefork.settings import PostgresSettings, Settings
from support.faulty_server import Server
from support.sql_lake import SqlLake, open_lake


@pytest.fixture
def server(make_settings: Callable[..., Settings]) -> Iterator[Server]:
    settings = make_settings(postgres=PostgresSettings(shared_buffers="32MB", max_connections=40))
    postgres = EmbeddedPostgres(settings, server_options={"fsync": "off"})
    dsn = postgres.start()
    with connect(dsn, check_version=False) as connection:
        init_catalog(connection)
    yield Server(settings, postgres, dsn)
    postgres.stop()


def test_after_a_crash_the_buffer_is_empty_and_takes_events(server: Server, tmp_path: Path) -> None:
    with open_lake(server.dsn, tmp_path, server.settings) as lake:
        lake.run("CREATE NAMESPACE app; CREATE STREAM TABLE app.s (n BIGINT) WITH (retention = '2s')")
        lake.run("INSERT INTO app.s VALUES (?)", 1, user="ada")
        since = _value(lake, "SELECT pg_current_snapshot()::text")
        mark = _value(lake, "SELECT lakefork.ensure_crash_mark()")
        missed = (
            f"SELECT lakefork.missed_events(catalog_id, {lake.find('app.s').definition.table_id}, '{since}', '{mark}') "
        )
        missed += "FROM lakefork.visible_catalog() WHERE catalog_name = 'main'"
        assert _value(lake, missed) is None
        with psycopg.connect(server.dsn) as connection:  # if one backend dies, all others end, and Postgres recovers
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_sleep(30)")
        _run_again(lake, "SELECT * FROM app.s")
        assert lake.rows("SELECT * FROM app.s", user="ada") == []
        assert "crashed" in str(_value(lake, missed))
        lake.run("INSERT INTO app.s VALUES (?)", 2, user="ada")
        assert lake.rows("SELECT * FROM app.s", user="ada") == [(2,)]
        assert "crashed" in str(_value(lake, missed))
        time.sleep(2)
        _wait_until_evicted(lake)


def _value(lake: SqlLake, query: str) -> object:
    with psycopg.connect(lake.dsn) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[arg-type]
    assert row
    return row[0]


def _run_again(lake: SqlLake, text: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            lake.run(text, user="ada")
            return
        except LakeforkError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _wait_until_evicted(lake: SqlLake) -> None:
    """By the thread that was there before the crash."""
    deadline = time.monotonic() + 30
    while _value(lake, f"SELECT count(*) FROM stream.t{lake.find('app.s').definition.table_id}") != 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
