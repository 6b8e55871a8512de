"""The lake that flushes are tested with, after several of them."""

import pytest

from flush_lake import Filled, FlushLake


@pytest.fixture
def flushed(flush_lake: FlushLake) -> Filled:
    """Three batches of each owner; rows were updated and deleted in between."""
    flush_lake.lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT NOT NULL); "
        "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)"
    )
    filled = Filled(flush_lake)
    for round_number in range(3):
        filled.write(round_number)
        flush_lake.flush()
    return filled
