"""One catalog for the cases of a module; each works in a namespace of its own."""

from collections.abc import Callable, Iterator

import pytest

from lakefork.settings import Settings
from sql_cases import add_user
from sql_lake import SqlLake, new_name, open_lake


@pytest.fixture(scope="module")
def lake(
    module_dsn: str, tmp_path_factory: pytest.TempPathFactory, make_settings: Callable[..., Settings]
) -> Iterator[SqlLake]:
    with open_lake(module_dsn, tmp_path_factory.mktemp("data"), make_settings()) as lake:
        yield lake


@pytest.fixture
def ns(lake: SqlLake) -> str:
    name = new_name("ns")
    lake.run(f"CREATE NAMESPACE {name}")
    return name


@pytest.fixture
def table(lake: SqlLake, ns: str) -> str:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v STRING, n INTEGER)")
    return f"{ns}.t"


@pytest.fixture
def user_table(lake: SqlLake, ns: str) -> str:
    lake.run(f"CREATE USER TABLE {ns}.mine (id BIGINT PRIMARY KEY, v STRING)")
    return f"{ns}.mine"


@pytest.fixture
def user(lake: SqlLake) -> str:
    """A user of system.users without any rule."""
    return add_user(lake)
