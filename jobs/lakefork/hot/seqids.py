"""Generates unique ids: a process leases a node and a span of time in Postgres."""

import operator
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
from lakefork.model.seqid import (
    END_MS,
    EPOCH,
    EPOCH_MS,
    MILLISECOND,
    NODES,
    SEQUENCE_BITS,
    SEQUENCES,
    TIME_SHIFT,
    SeqId,
    require_in_range,
)

RESERVE_MS = 60_000


def now_ms() -> int:
    """Returns the clock of this machine, in milliseconds since 2025."""
    return time.time_ns() // 1_000_000 - EPOCH_MS


@dataclass(frozen=True, slots=True)
class Reservation:
    """A node, and the milliseconds from `first_ms` up to but excluding `until_ms` in which its ids are ours."""

    node: int
    first_ms: int
    until_ms: int
    seconds: float  # how long the node is ours

    def first_slot(self, floor: int, ms: int) -> int:
        """Returns the first slot (millisecond and sequence as one number) from `ms` on whose id exceeds `floor`."""
        return max(_slot_after(floor, self.node), max(ms, self.first_ms) << SEQUENCE_BITS)

    def covers(self, slot: int, count: int) -> bool:
        return (slot + count - 1) >> SEQUENCE_BITS < min(self.until_ms, END_MS)


def _slot_after(floor: int, node: int) -> int:
    """Returns the first slot above an id; a floor of -1 is below every id."""
    ms, floor_node = floor >> TIME_SHIFT, floor >> SEQUENCE_BITS & NODES - 1
    if node == floor_node:
        return (ms << SEQUENCE_BITS | floor & SEQUENCES - 1) + 1
    return (ms if node > floor_node else ms + 1) << SEQUENCE_BITS


class NodeLease(Protocol):
    """The source of a generator's node and time, which must never be given out twice."""

    def reserve(self, holder: str, first_ms: int, reserve_ms: int) -> Reservation:
        """Reserves at least `reserve_ms` milliseconds, none before `first_ms`."""

    def release(self, holder: str, node: int, until_ms: int) -> None:
        """Releases the node; the holder generated no ids from `until_ms` on."""


class PostgresNodeLease:
    """Leases nodes from table lakefork.node. `connect` returns a connection for one call."""

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
            # In the caller's transaction the reservation could be rolled back after its ids were used.
            if connection.info.transaction_status != TransactionStatus.IDLE:
                raise InvalidInputError("a node must be leased in its own transaction, but this connection is in one")
            with (
                domain_errors(),
                connection.transaction(),
                connection.cursor(row_factory=tuple_row) as cursor,
            ):
                return cursor.execute(query, parameters).fetchall()[0]


class SeqIdGenerator:
    """Generates increasing ids; safe for threads, and for processes that fork.

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
        self._reset()
        _generators.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self) -> SeqId:
        return SeqId(_id(*self._allot(1, -1)))

    def next_many(self, count: int, after: SupportsIndex | None = None) -> npt.NDArray[np.int64]:
        """Returns `count` ids in increasing order, all larger than `after`."""
        count = operator.index(count)
        require_in_range("count", count, 1 << 63)
        floor = -1 if after is None else SeqId.parse(after)
        if count == 0:
            return np.empty(0, dtype=np.int64)
        slot, node = self._allot(count, floor)
        slots = np.arange(slot, slot + count, dtype=np.int64)
        ids = slots >> SEQUENCE_BITS
        ids <<= TIME_SHIFT
        ids |= node << SEQUENCE_BITS
        slots &= SEQUENCES - 1
        ids |= slots
        return ids

    def close(self) -> None:
        """Releases the node with its remaining time; later ids take a new lease."""
        with self._lock:
            held, self._reservation = self._reservation, None
            if held:
                self._lease.release(self._holder, held.node, (self._last >> TIME_SHIFT) + 1)

    def _reset(self) -> None:
        """Resets the generator in a forked child: the node is the parent's, and the lock may be held by a lost
        thread.
        """
        self._lock = threading.Lock()
        self._holder = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex}"
        self._reservation = None
        self._renew_at = 0.0

    def _allot(self, count: int, after: int) -> tuple[int, int]:
        """Allots `count` slots to the caller; returns the first, and the node."""
        with self._lock:
            floor = max(self._last, after)
            ms = max(self._clock_ms(), floor >> TIME_SHIFT, 0)
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
            raise _no_ids_left(count)  # before the node is marked as used up
        started = self._monotonic()
        held = self._lease.reserve(self._holder, ms, min(needed + RESERVE_MS, END_MS - ms))
        self._reservation, self._renew_at = held, started + held.seconds / 2
        return held


def _id(slot: int, node: int) -> int:
    return slot >> SEQUENCE_BITS << TIME_SHIFT | node << SEQUENCE_BITS | slot & SEQUENCES - 1


def _no_ids_left(count: int) -> InvalidInputError:
    end = EPOCH + END_MS * MILLISECOND
    return InvalidInputError(f"no {count} ids are left before {end:%Y-%m-%d}, the end of the id range")


_generators: WeakSet[SeqIdGenerator] = WeakSet()


def _reset_all() -> None:
    for generator in _generators:
        generator._reset()


# Not os.getpid() on use: two threads of the child could race, and process ids are reused.
os.register_at_fork(after_in_child=_reset_all)
