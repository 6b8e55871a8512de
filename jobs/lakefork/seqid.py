"""SeqId, the value of `_seq`: 41 bits of milliseconds since 2025, 10 bits of node, 12 bits of sequence."""

import operator
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, Self, SupportsIndex
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from lakefork.database_errors import domain_errors
from lakefork.errors import InvalidInputError

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
TIME_BITS, NODE_BITS, SEQUENCE_BITS = 41, 10, 12
NODES, SEQUENCES = 1 << NODE_BITS, 1 << SEQUENCE_BITS
END_MS = 1 << TIME_BITS
RESERVE_MS = 60_000

_EPOCH_MS = int(EPOCH.timestamp()) * 1000
_MILLISECOND = timedelta(milliseconds=1)
_TIME_SHIFT = NODE_BITS + SEQUENCE_BITS


class SeqId(int):
    """An id that grows with time; ids of different nodes in one millisecond are ordered by node."""

    __slots__ = ()

    @classmethod
    def of(cls, milliseconds: int, node: int, sequence: int) -> Self:
        _require("milliseconds", milliseconds, END_MS)
        _require("node", node, NODES)
        _require("sequence", sequence, SEQUENCES)
        return cls(milliseconds << _TIME_SHIFT | node << SEQUENCE_BITS | sequence)

    @classmethod
    def parse(cls, value: SupportsIndex) -> Self:
        try:
            number = operator.index(value)
        except TypeError:
            raise InvalidInputError(f"_seq is an integer, not {value!r}") from None
        _require("_seq", number, 1 << 63)
        return cls(number)

    @classmethod
    def first_at(cls, moment: datetime) -> Self:
        """The smallest id whose timestamp is not before `moment`: rows with a smaller one are older."""
        if moment.tzinfo is None:
            raise InvalidInputError(f"{moment.isoformat()} has no time zone")
        return cls.of(max(0, -((EPOCH - moment) // _MILLISECOND)), 0, 0)

    @property
    def milliseconds(self) -> int:
        return self >> _TIME_SHIFT

    @property
    def timestamp(self) -> datetime:
        return EPOCH + self.milliseconds * _MILLISECOND

    @property
    def node(self) -> int:
        return self >> SEQUENCE_BITS & NODES - 1

    @property
    def sequence(self) -> int:
        return self & SEQUENCES - 1


def _require(name: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise InvalidInputError(f"{name} = {value} lies outside of 0 … {end - 1}")


def now_ms() -> int:
    """The clock of this machine, in milliseconds since 2025."""
    return time.time_ns() // 1_000_000 - _EPOCH_MS


@dataclass(frozen=True, slots=True)
class Reservation:
    """A node, and the milliseconds from `first_ms` until before `until_ms` in which its ids are ours alone."""

    node: int
    first_ms: int
    until_ms: int
    seconds: float  # how long nobody else gets the node

    def first_slot(self, floor: int, ms: int) -> int:
        """The first slot (millisecond and sequence as one number), from `ms` on, whose id exceeds `floor`."""
        return max(_slot_after(floor, self.node), max(ms, self.first_ms) << SEQUENCE_BITS)

    def covers(self, slot: int, count: int) -> bool:
        return (slot + count - 1) >> SEQUENCE_BITS < min(self.until_ms, END_MS)


def _slot_after(floor: int, node: int) -> int:
    """A floor of -1 is exceeded by every id."""
    ms, floor_node = floor >> _TIME_SHIFT, floor >> SEQUENCE_BITS & NODES - 1
    if node == floor_node:
        return (ms << SEQUENCE_BITS | floor & SEQUENCES - 1) + 1
    return (ms if node > floor_node else ms + 1) << SEQUENCE_BITS


class NodeLease(Protocol):
    """Where a generator gets its node and its time from; nobody else may ever get the same."""

    def reserve(self, holder: str, first_ms: int, reserve_ms: int) -> Reservation:
        """At least `reserve_ms` milliseconds, none before `first_ms`."""

    def release(self, holder: str, node: int, until_ms: int) -> None:
        """The holder makes no more ids with this node, and made none from `until_ms` on."""


class PostgresNodeLease:
    """Nodes from table lakefork.node. `connect` gives a connection for one call, of its own or from a pool."""

    def __init__(
        self, connect: Callable[[], AbstractContextManager[psycopg.Connection[Any]]], node_id: str, seconds: float = 60
    ) -> None:
        self._connect = connect
        self._node_id = node_id
        self._seconds = seconds

    def reserve(self, holder: str, first_ms: int, reserve_ms: int) -> Reservation:
        node, first, until = self._call(
            "SELECT node, first_ms, until_ms FROM lakefork.lease_node(%s, %s, %s, %s, %s)",
            (self._node_id, holder, first_ms, reserve_ms, self._seconds),
        )
        return Reservation(node, first, until, self._seconds)

    def release(self, holder: str, node: int, until_ms: int) -> None:
        self._call("SELECT lakefork.release_node(%s, %s, %s)", (node, holder, until_ms))

    def _call(self, query: str, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
        with self._connect() as connection:
            # Inside somebody's transaction the reservation could be rolled back after its ids were used.
            if connection.info.transaction_status != TransactionStatus.IDLE:
                raise InvalidInputError("a node is leased in a transaction of its own, and this connection is in one")
            with (
                domain_errors(),
                connection.transaction(),
                connection.cursor(row_factory=tuple_row) as cursor,
            ):
                return cursor.execute(query, parameters).fetchall()[0]


class SeqIdGenerator:
    """Makes ids, each larger than all that it made before; for threads, and for processes that fork.

    Time stands still while the clock is behind, and runs ahead of it when a millisecond's ids are used up.
    It never leaves what the lease reserved, so ids are unique whatever clocks say.
    """

    _reservation: Reservation | None

    def __init__(
        self,
        lease: NodeLease,
        *,
        clock_ms: Callable[[], int] = now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease = lease
        self._clock_ms = clock_ms
        self._monotonic = monotonic
        self._last = -1
        self._start_afresh()
        _generators.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self) -> SeqId:
        return SeqId(_id(*self._allot(1, -1)))

    def next_after(self, seq: SupportsIndex) -> SeqId:
        """Exceeds `seq` too, which another node may have made with a clock that is ahead."""
        return SeqId(_id(*self._allot(1, SeqId.parse(seq))))

    def next_many(self, count: int, after: SupportsIndex | None = None) -> npt.NDArray[np.int64]:
        """`count` ids in increasing order, all larger than `after`."""
        count = operator.index(count)
        _require("count", count, 1 << 63)
        floor = -1 if after is None else SeqId.parse(after)
        if count == 0:
            return np.empty(0, dtype=np.int64)
        slot, node = self._allot(count, floor)
        slots = np.arange(slot, slot + count, dtype=np.int64)
        ids = slots >> SEQUENCE_BITS
        ids <<= _TIME_SHIFT
        ids |= node << SEQUENCE_BITS
        slots &= SEQUENCES - 1
        ids |= slots
        return ids

    def close(self) -> None:
        """Gives the node back with the time that is left; ids made later take a new lease."""
        with self._lock:
            held, self._reservation = self._reservation, None
            if held:
                self._lease.release(self._holder, held.node, (self._last >> _TIME_SHIFT) + 1)

    def _start_afresh(self) -> None:
        """In a forked child the node is the parent's, and a thread that is not here may hold the lock."""
        self._lock = threading.Lock()
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex}"
        self._reservation = None
        self._renew_at = 0.0

    def _allot(self, count: int, after: int) -> tuple[int, int]:
        """The first of `count` slots that are the caller's now, and the node."""
        with self._lock:
            floor = max(self._last, after)
            ms = max(self._clock_ms(), floor >> _TIME_SHIFT, 0)
            held = self._reservation
            if (
                held is None
                or not held.covers(slot := held.first_slot(floor, ms), count)
                or self._monotonic() >= self._renew_at
            ):
                held = self._reserve(ms, count)
                slot = held.first_slot(floor, ms)
            if not held.covers(slot, count):
                raise _no_ids_left(count)
            self._last = _id(slot + count - 1, held.node)
            return slot, held.node

    def _reserve(self, ms: int, count: int) -> Reservation:
        needed = count // SEQUENCES + 2
        if ms + needed > END_MS:
            raise _no_ids_left(count)  # before a node is marked as used up
        started = self._monotonic()
        held = self._lease.reserve(self._holder, ms, min(needed + RESERVE_MS, END_MS - ms))
        self._reservation, self._renew_at = held, started + held.seconds / 2
        return held


def _id(slot: int, node: int) -> int:
    return slot >> SEQUENCE_BITS << _TIME_SHIFT | node << SEQUENCE_BITS | slot & SEQUENCES - 1


def _no_ids_left(count: int) -> InvalidInputError:
    end = EPOCH + END_MS * _MILLISECOND
    return InvalidInputError(f"there is no room for {count} ids before {end:%Y-%m-%d}, and later ones do not exist")


_generators: WeakSet[SeqIdGenerator] = WeakSet()


def _start_all_afresh() -> None:
    for generator in _generators:
        generator._start_afresh()


# Not os.getpid() on use: two threads of the child could notice at once, and process ids come back.
os.register_at_fork(after_in_child=_start_all_afresh)
