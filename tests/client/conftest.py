"""What stock DuckDB needs, without a network."""

import pytest

from support.duckdb_client import ClientView, load_extensions
from support.flush_lake import FlushLake


@pytest.fixture(scope="session", autouse=True)
def extensions() -> None:
    load_extensions()


@pytest.fixture
def seen(flush_lake: FlushLake) -> ClientView:
    """Catalog main with a table of users and a shared one, both empty."""
    flush_lake.lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT NOT NULL); "
        "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)"
    )
    return ClientView(flush_lake)
