"""One catalog for the cases of a module; each works in a namespace of its own."""

import pytest

from support.sql_cases import add_user
from support.sql_lake import SqlLake, new_name


@pytest.fixture(scope="module")
def lake(module_lake: SqlLake) -> SqlLake:
    return module_lake


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
