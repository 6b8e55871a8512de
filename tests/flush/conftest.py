"""A lake with one table of each kind, and rows whose newest versions are known."""

import pytest

from flush_lake import Filled, FlushLake


@pytest.fixture
def filled(flush_lake: FlushLake) -> Filled:
    flush_lake.lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT NOT NULL); "
        "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)"
    )
    filled = Filled(flush_lake)
    filled.write(0)
    return filled
