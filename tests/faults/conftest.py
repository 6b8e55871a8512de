"""A Postgres of these tests' own, which may be stopped, killed and started again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import PostgresSettings, Settings
from support.faulty_server import Server
from support.sql_lake import SqlLake, open_lake


@pytest.fixture(scope="module")
def started(make_settings: Callable[..., Settings]) -> Iterator[Server]:
    settings = make_settings(postgres=PostgresSettings(shared_buffers="32MB", max_connections=40))
    postgres = EmbeddedPostgres(settings, server_options={"fsync": "off"})
    dsn = postgres.start()
    with connect(dsn, check_version=False) as connection:
        init_catalog(connection)
    yield Server(settings, postgres, dsn)
    postgres.stop()


@pytest.fixture
def server(started: Server) -> Server:
    """Runs when a test begins, whatever the one before did to it."""
    started.postgres.start()
    return started


@pytest.fixture
def app(server: Server, tmp_path: Path) -> Iterator[SqlLake]:
    """A lake with a table that has hot rows and a batch."""
    with connect(server.dsn) as connection:
        connection.execute("DELETE FROM public.ducklake_catalog")
    with open_lake(server.dsn, tmp_path, server.settings) as lake:
        fill(lake)
        yield lake


def fill(lake: SqlLake) -> None:
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT); "
        "INSERT INTO app.t (id, v) VALUES (1, 'cold')"
    )
    lake.flush_by_hand("app.t")
    lake.run("INSERT INTO app.t (id, v) VALUES (2, 'hot')")
