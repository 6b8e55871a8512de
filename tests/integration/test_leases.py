"""Leases: one holder, renewed or lost; tokens only grow."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.jobs import release_lease, renew_lease, take_lease
from lakefork.errors import LeaseHeldError, LeaseLostError


def test_one_holder_at_a_time(connection: Connection) -> None:
    lease = take_lease(connection, "gc/main", "one", 60)
    with pytest.raises(LeaseHeldError, match="gc/main is being worked on by one since"):
        take_lease(connection, "gc/main", "two", 60)
    take_lease(connection, "gc/other", "two", 60)
    release_lease(connection, lease)
    assert take_lease(connection, "gc/main", "two", 60).token == lease.token + 1


def test_a_lease_that_ran_out_is_lost_for_good(connection: Connection) -> None:
    lease = take_lease(connection, "gc/main", "one", 0.2)
    renew_lease(connection, lease)
    time.sleep(0.3)
    with pytest.raises(LeaseLostError):
        renew_lease(connection, lease)
    other = take_lease(connection, "gc/main", "two", 60)
    with pytest.raises(LeaseLostError):
        renew_lease(connection, lease)
    release_lease(connection, lease)
    renew_lease(connection, other)


def test_racing_for_a_lease_has_one_winner(dsn: str) -> None:
    def race(number: int) -> int:
        with connect(dsn) as mine:
            try:
                return take_lease(mine, "gc/main", f"racer {number}", 60).token
            except LeaseHeldError:
                return 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(race, range(8))) == [0] * 7 + [1]
