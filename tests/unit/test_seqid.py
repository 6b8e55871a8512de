"""SeqId: always larger than before, never outside of what is reserved, whatever the clock does."""

import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import SupportsIndex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefork.errors import InvalidInputError
from lakefork.hot.seqids import Reservation, SeqIdGenerator, now_ms
from lakefork.model.seqid import END_MS, EPOCH, SEQUENCES, SeqId

LARGEST = 2**63 - 1


class Clock:
    """A wall clock in milliseconds and a monotonic one in seconds, both moved by hand."""

    def __init__(self, ms: int = 1_000_000) -> None:
        self.ms = ms
        self.seconds = 0.0

    def tick(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self.seconds += seconds


class Lease:
    """What lakefork.node does, in memory: ranges of one node never overlap, unless their holder is the same."""

    def __init__(self, node: int = 5, seconds: float = 60) -> None:
        self.node = node
        self.seconds = seconds
        self.marks: dict[int, tuple[str, int, int]] = {}
        self.granted: list[Reservation] = []
        self.holders: list[str] = []
        self.released: list[tuple[str, int, int]] = []
        self.before_reserve: Callable[[], object] = lambda: None

    def reserve(self, holder: str, first_ms: int, reserve_ms: int) -> Reservation:
        self.before_reserve()
        owner, first, until = self.marks.get(self.node, (holder, 0, 0))
        first = max(first, first_ms) if owner == holder else max(until, first_ms)
        until = max(until, first + reserve_ms)
        self.marks[self.node] = (holder, first, until)
        self.holders.append(holder)
        self.granted.append(Reservation(self.node, first, until, self.seconds))
        return self.granted[-1]

    def release(self, holder: str, node: int, until_ms: int) -> None:
        self.released.append((holder, node, until_ms))

    def covers(self, seq: int) -> bool:
        made = SeqId(seq)
        return any(r.node == made.node and r.first_ms <= made.milliseconds < r.until_ms for r in self.granted)


def make(clock: Clock, lease: Lease | None = None) -> SeqIdGenerator:
    return SeqIdGenerator(lease or Lease(), clock_ms=lambda: clock.ms, monotonic=lambda: clock.seconds)


def next_after(generator: SeqIdGenerator, seq: SupportsIndex) -> SeqId:
    return SeqId(generator.next_many(1, after=SeqId.parse(seq))[0])


def assert_increasing(ids: list[int] | np.ndarray) -> None:
    assert all(a < b for a, b in pairwise(ids))


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("clock"), st.integers(-(10**9), 10**9)),
        st.tuples(st.just("tick"), st.sampled_from([0, 1, 29, 31, 61])),
        st.tuples(st.just("lose the node"), st.integers(0, 1023)),
        st.tuples(st.just("next"), st.just(0)),
        st.tuples(st.just("next_many"), st.integers(0, 3 * SEQUENCES)),
        st.tuples(st.just("next_after"), st.integers(-(10**12), 10**15)),
        st.tuples(st.just("next_many after"), st.integers(-(10**12), 10**15)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=40,
)


@given(CALLS)
def test_ids_grow_and_stay_in_their_ranges_whatever_happens(calls: list[tuple[str, int]]) -> None:
    clock, lease = Clock(), Lease()
    generator, last = make(clock, lease), -1
    for call, number in calls:
        after, made = max(0, last + number), []
        if call == "clock":
            clock.ms += number
        elif call == "tick":
            clock.tick(number)
        elif call == "lose the node":
            lease.marks[lease.node] = ("somebody else", 0, max(clock.ms, last >> 22) + 60_000)
            lease.node = number
        elif call == "close":
            generator.close()
        elif call == "next":
            made = [generator.next()]
        elif call == "next_many":
            made = generator.next_many(number).tolist()
            assert len(made) == number
        elif call == "next_after":
            made = [next_after(generator, after)]
            assert made[0] > after
        else:
            made = generator.next_many(SEQUENCES + 1, after=after).tolist()
            assert made[0] > after
        assert_increasing([last, *made])
        assert all(lease.covers(seq) and seq >> 22 >= clock.ms for seq in (made[:1] + made[-1:]))
        last = made[-1] if made else last


def test_a_clock_that_steps_back_does_not_take_ids_back() -> None:
    clock = Clock()
    generator = make(clock)
    first = generator.next()
    clock.ms -= 500_000
    second, many = generator.next(), generator.next_many(3)
    assert (second, many.tolist()) == (first + 1, [first + 2, first + 3, first + 4])
    clock.ms += 500_001
    assert generator.next() == SeqId.of(clock.ms, 5, 0)


def test_a_clock_before_2025_counts_as_2025() -> None:
    assert make(Clock(-5)).next() == SeqId.of(0, 5, 0)


def test_a_full_millisecond_continues_in_the_next() -> None:
    clock = Clock()
    generator = make(clock)
    one_by_one = [generator.next() for _ in range(SEQUENCES + 2)]
    assert_increasing(one_by_one)
    assert one_by_one[-3:] == [SeqId.of(clock.ms, 5, 4095), SeqId.of(clock.ms + 1, 5, 0), SeqId.of(clock.ms + 1, 5, 1)]
    assert SeqId(generator.next_many(2 * SEQUENCES)[-1]) == SeqId.of(clock.ms + 3, 5, 1)


def test_ten_million_at_once() -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    many = generator.next_many(10_000_000)
    assert many.dtype == np.int64 and len(many) == 10_000_000
    assert (np.diff(many) > 0).all()
    assert lease.covers(many[0]) and lease.covers(many[-1])
    assert generator.next() > many[-1]


def test_more_ids_than_the_usual_reservation_holds() -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    generator.next()
    first, node = generator._allot(70_000 * SEQUENCES, -1)
    assert lease.granted[-1].covers(first, 70_000 * SEQUENCES) and node == 5
    assert len(lease.granted) == 2


@pytest.mark.parametrize("clock_ms", [now_ms, lambda: 7])
def test_threads_never_get_the_same_id(clock_ms: Callable[[], int]) -> None:
    generator = SeqIdGenerator(Lease(), clock_ms=clock_ms)
    start = threading.Barrier(8)

    def work(number: int) -> list[int]:
        start.wait()
        mine: list[int] = []
        for turn in range(300):
            mine += [
                generator.next(),
                *generator.next_many(turn).tolist(),
                next_after(generator, mine[-1] if mine else 0),
            ]
        assert_increasing(mine)
        return mine

    with ThreadPoolExecutor(8) as pool:
        ids = [seq for mine in pool.map(work, range(8)) for seq in mine]
    assert len(ids) == len(set(ids)) == 8 * (300 * 2 + sum(range(300)))


@pytest.mark.parametrize("node", [4, 5, 6])
@pytest.mark.parametrize("sequence", [0, 4095])
@pytest.mark.parametrize("ahead_ms", [-1000, 0, 1, 1000, 90_000, 40 * 24 * 3_600_000])
def test_ids_exceed_what_they_replace(node: int, sequence: int, ahead_ms: int) -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    before = generator.next()
    after = SeqId.of(clock.ms + ahead_ms, node, sequence)
    made = next_after(generator, after)
    assert made > max(before, after) and lease.covers(made)
    assert made.milliseconds <= max(clock.ms, after.milliseconds + 1), "no later than it must be"
    many = generator.next_many(10, after=SeqId.of(made.milliseconds + 500_000, node, sequence))
    assert_increasing(many)
    assert many[0] > made and all(lease.covers(seq) for seq in many)
    assert generator.next() == many[-1] + 1, "time stays where it was moved to"


def test_asking_again_does_not_push_time_ahead() -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    for _ in range(3600):
        clock.tick(1)
        assert generator.next().milliseconds == clock.ms
    assert len(lease.granted) == 120, "once per half a lease"


def test_ids_within_a_reservation_need_no_call() -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    for _ in range(29):
        clock.tick(1)
        generator.next_many(100_000)
    assert len(lease.granted) == 1


def test_a_node_lost_while_paused_is_replaced() -> None:
    clock, lease = Clock(), Lease(node=9)
    generator = make(clock, lease)
    first = generator.next()
    lease.node = 3
    clock.seconds += 31
    second = generator.next()
    assert (first.node, second.node) == (9, 3)
    assert second > first


def test_a_lease_that_fails_gives_no_id_and_breaks_nothing() -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    first = generator.next()

    def fail() -> None:
        raise UnreachableError

    lease.before_reserve = fail
    clock.tick(100)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            generator.next()
    lease.before_reserve = lambda: None
    assert generator.next() == SeqId.of(clock.ms, 5, 0) > first


class UnreachableError(Exception):
    pass


def test_a_lease_that_reserves_too_little_gives_no_id() -> None:
    class Stingy(Lease):
        def reserve(self, holder: str, first_ms: int, reserve_ms: int) -> Reservation:
            return Reservation(1, first_ms, first_ms + 1, 60)

    generator = make(Clock(), Stingy())
    assert len(generator.next_many(SEQUENCES)) == SEQUENCES
    with pytest.raises(InvalidInputError, match="no 1 ids are left"):
        generator.next()


def test_closing_returns_the_rest_of_the_range() -> None:
    clock, lease = Clock(), Lease()
    with make(clock, lease) as generator:
        last = generator.next_many(5000)[-1]
    generator.close()
    assert lease.released == [(lease.holders[0], 5, clock.ms + 2)]
    assert generator.next() > last


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_holder_of_its_own_even_if_the_lock_was_held() -> None:
    clock, lease = Clock(), Lease()
    generator = make(clock, lease)
    before = generator.next()
    asking, answer = threading.Event(), threading.Event()
    lease.before_reserve = lambda: (asking.set(), answer.wait())
    clock.tick(100)
    with ThreadPoolExecutor(1) as pool:
        parents = pool.submit(generator.next)
        asking.wait()
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)  # a child that waits for the lock waits forever
            lease.before_reserve = lambda: None
            os.write(write, f"{generator.next()} {lease.holders[-1]}".encode())
            os._exit(0)
        os.close(write)
        answer.set()
        assert parents.result() > before
    with os.fdopen(read) as pipe:
        made, holder = pipe.read().split(" ")
    os.waitpid(child, 0)
    assert int(made) > before
    assert set(lease.holders) == {lease.holders[0]} and holder != lease.holders[0]


KNOWN = [
    (0, 0, 0, 0, "2025-01-01T00:00:00+00:00"),
    (1, 0, 0, 1, "2025-01-01T00:00:00+00:00"),
    (4096, 0, 1, 0, "2025-01-01T00:00:00+00:00"),
    (4194304, 1, 0, 0, "2025-01-01T00:00:00.001000+00:00"),
    (132271571464118279, 31536000124, 6, 7, "2026-01-01T00:00:00.124000+00:00"),
    (LARGEST, 2199023255551, 1023, 4095, "2094-09-07T15:47:35.551000+00:00"),
]


@pytest.mark.parametrize(("value", "milliseconds", "node", "sequence", "timestamp"), KNOWN)
def test_the_layout(value: int, milliseconds: int, node: int, sequence: int, timestamp: str) -> None:
    seq = SeqId.parse(value)
    assert (seq.milliseconds, seq.node, seq.sequence) == (milliseconds, node, sequence)
    assert seq.timestamp == datetime.fromisoformat(timestamp) and seq.timestamp.tzinfo is UTC
    assert SeqId.of(milliseconds, node, sequence) == seq == value
    assert pickle.loads(pickle.dumps(seq)) == seq and type(pickle.loads(pickle.dumps(seq))) is SeqId  # noqa: S301
    assert not hasattr(seq, "__dict__")


def test_the_time_of_a_new_id_is_now() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert before < SeqIdGenerator(Lease()).next().timestamp <= datetime.now(UTC)


@pytest.mark.parametrize("parts", [(-1, 0, 0), (END_MS, 0, 0), (0, -1, 0), (0, 1024, 0), (0, 0, -1), (0, 0, 4096)])
def test_parts_out_of_range_are_refused(parts: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInputError, match="is out of range: 0 …"):
        SeqId.of(*parts)


@pytest.mark.parametrize("value", [-1, 2**63, 1.5, "7", None])
def test_invalid_ids_are_refused(value: object) -> None:
    generator = make(Clock())
    with pytest.raises(InvalidInputError, match="_seq"):
        SeqId.parse(value)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="_seq"):
        next_after(generator, value)  # type: ignore[arg-type]


def test_a_count_below_zero_is_refused_and_none_is_none() -> None:
    lease = Lease()
    generator = make(Clock(), lease)
    with pytest.raises(InvalidInputError, match="count"):
        generator.next_many(-1)
    assert generator.next_many(0).tolist() == [] and lease.granted == []
    assert generator.next_many(np.int64(2), after=np.int64(1)).dtype == np.int64  # type: ignore[arg-type]


def test_nothing_exceeds_the_largest_id_and_no_node_is_spent_on_trying() -> None:
    lease = Lease()
    generator = make(Clock(), lease)
    with pytest.raises(InvalidInputError, match="no 1 ids are left before 2094-09-07"):
        next_after(generator, LARGEST)
    assert lease.granted == []
    assert generator.next().milliseconds == 1_000_000


@given(st.datetimes(datetime(2025, 1, 1), datetime(2094, 9, 7)), st.integers(0, 1023), st.integers(0, 4095))
def test_the_first_id_of_a_moment_divides_older_from_newer(moment: datetime, node: int, sequence: int) -> None:
    moment = moment.replace(tzinfo=UTC)
    first = SeqId.first_at(moment)
    at = SeqId.of(first.milliseconds, node, sequence)
    assert at >= first and at.timestamp >= moment
    if first.milliseconds:
        before = SeqId.of(first.milliseconds - 1, node, sequence)
        assert before < first and before.timestamp < moment


def test_first_at_knows_zones_and_times_before_2025() -> None:
    assert SeqId.first_at(datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert SeqId.first_at(EPOCH - timedelta(days=1)) == 0
    with pytest.raises(InvalidInputError, match="has no time zone"):
        SeqId.first_at(datetime(2025, 1, 1))
    with pytest.raises(InvalidInputError, match="milliseconds"):
        SeqId.first_at(datetime(2095, 1, 1, tzinfo=UTC))
