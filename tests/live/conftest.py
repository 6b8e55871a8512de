"""One server for the tests of live queries; each works in a namespace of its own."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from lakefork.settings import Settings
from support.api_server import ApiServer, running_server
from support.live_client import LiveClient
from support.sql_lake import SqlLake, new_name, open_lake

LIMITS = {"LAKEFORK_SERVER__LIVE_BUFFER_KB": "64", "LAKEFORK_SERVER__LIVE_IDLE_SECONDS": "2"}
Connect = Callable[..., LiveClient]


@pytest.fixture(scope="session")
def shared(
    postgres: str, template: str, make_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApiServer, SqlLake]]:
    directory = tmp_path_factory.mktemp("live")
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE live TEMPLATE {template} STRATEGY FILE_COPY")
    dsn = f"{postgres.rpartition('/')[0]}/live"
    settings = make_settings()
    with open_lake(dsn, directory, settings) as lake, running_server(settings, dsn, directory, LIMITS) as server:
        yield server, lake


@pytest.fixture(scope="session")
def api(shared: tuple[ApiServer, SqlLake]) -> ApiServer:
    return shared[0]


@pytest.fixture(scope="session")
def lake(shared: tuple[ApiServer, SqlLake]) -> SqlLake:
    """The same catalog through an engine of the tests' own."""
    return shared[1]


@pytest.fixture
def ns(lake: SqlLake) -> str:
    name = new_name("live")
    lake.run(f"CREATE NAMESPACE {name}; CREATE USER TABLE {name}.t (id BIGINT PRIMARY KEY, v STRING, n INT)")
    return name


@pytest.fixture
def client(api: ApiServer) -> Iterator[Connect]:
    """Opens sockets that are closed with the test."""
    opened: list[LiveClient] = []

    def connect(user: str = "ada", role: str | None = None, **arguments: object) -> LiveClient:
        opened.append(LiveClient(api, api.token(user, role), **arguments))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()
