"""The lake that dedup is tested with, after several flushes."""

import pytest

from support.cloned_lake import Cloned, three_flushes
from support.flush_lake import Filled


@pytest.fixture
def flushed(cloned: Cloned) -> Filled:
    """Three batches of each owner; rows were updated and deleted in between."""
    return Filled(cloned(three_flushes))
