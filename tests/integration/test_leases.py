"""Leases: one holder, renewed or lost; tokens only grow."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.leases import Leases
from lakefork.errors import LeaseHeldError, LeaseLostError
from support.lake import rows_of


def lease(connection: Connection, holder: str, name: str = "gc/main", seconds: float = 60) -> Leases:
    leases = Leases(holder, seconds)
    leases.take(connection, name)
    return leases


def token(connection: Connection) -> int:
    return int(rows_of(connection, "SELECT token FROM lakefork.lease WHERE name = 'gc/main'")[0][0])


def test_one_holder_at_a_time(connection: Connection) -> None:
    first = lease(connection, "one")
    with pytest.raises(LeaseHeldError, match="gc/main is being worked on by one since"):
        lease(connection, "two")
    lease(connection, "two", "gc/other")
    first.release(connection)
    lease(connection, "two")
    assert token(connection) == 2


def test_of_many_leases_the_free_ones_are_taken(connection: Connection) -> None:
    lease(connection, "one", "b")
    two = Leases("two", 60)
    assert two.acquire_available(connection, ["a", "b", "c"]) == {"a", "c"}
    two.renew(connection)
    two.release(connection)
    assert Leases("three", 60).acquire_available(connection, ["a", "b", "c"]) == {"a", "c"}


def test_a_lease_that_ran_out_is_lost_for_good(connection: Connection) -> None:
    first = lease(connection, "one", seconds=0.2)
    first.renew(connection)
    time.sleep(0.3)
    with pytest.raises(LeaseLostError):
        first.renew(connection)
    other = lease(connection, "two")
    with pytest.raises(LeaseLostError):
        first.renew(connection)
    first.release(connection)
    other.renew(connection)


def test_one_lost_lease_of_several_is_noticed(connection: Connection) -> None:
    leases = Leases("one", 60)
    leases.acquire_available(connection, ["a", "b"])
    connection.execute("UPDATE lakefork.lease SET holder = 'thief' WHERE name = 'b'")
    with pytest.raises(LeaseLostError, match="one lost its lease on a, b"):
        leases.renew(connection)


def test_racing_for_a_lease_has_one_winner(dsn: str) -> None:
    def race(number: int) -> int:
        with connect(dsn) as mine:
            try:
                lease(mine, f"racer {number}")
            except LeaseHeldError:
                return 0
            return token(mine)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(race, range(8))) == [0] * 7 + [1]


def test_released_leases_do_not_look_lost_to_the_heartbeat(dsn: str, connection: Connection) -> None:
    leases = Leases("one", 60)
    over = threading.Event()

    def beat() -> int:
        beats = 0
        with connect(dsn) as own:
            while not over.is_set():
                leases.renew(own)
                beats += 1
        return beats

    with ThreadPoolExecutor() as pool:
        beating = pool.submit(beat)
        for _ in range(200):
            leases.acquire_available(connection, ["a", "b", "c"])
            leases.release(connection)
        over.set()
        assert beating.result() > 10
