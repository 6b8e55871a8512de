"""Which batches are known to hold the only version of each of their keys."""

from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from lakefork.maintenance.clean import separate
from lakefork.maintenance.ranges import KeyRange


@dataclass(frozen=True)
class Batch:
    name: int
    owner: str | None
    key_range: KeyRange


def alone(*batches: tuple[str | None, int | None, int | None]) -> list[int]:
    found = separate(Batch(name, owner, KeyRange(low, high)) for name, (owner, low, high) in enumerate(batches))
    assert sorted(batch.name for batch in found.alone + found.contested) == list(range(len(batches)))
    return sorted(batch.name for batch in found.alone)


def test_ranges_that_do_not_meet_are_alone() -> None:
    assert alone() == []
    assert alone((None, 1, 3), (None, 4, 6), (None, 7, 7)) == [0, 1, 2]
    assert alone((None, 1, 4), (None, 4, 6), (None, 7, 7)) == [2], "a composite key may have the same first value"
    assert alone((None, 1, 9), (None, 2, 3), (None, 5, 6), (None, 10, 12)) == [3]


def test_owners_share_no_keys() -> None:
    assert alone(("a", 1, 3), ("b", 1, 3), ("", 1, 3), (None, 1, 3)) == [0, 1, 2, 3]
    assert alone(("a", 1, 3), ("b", 1, 3), ("a", 2, 5)) == [1]


def test_what_is_not_known_proves_nothing() -> None:
    assert alone(("a", None, None)) == [0], "a batch has one version per key"
    assert alone(("a", None, None), ("a", 1, 2), ("b", 1, 2)) == [2]
    assert alone(("a", 1, None), ("a", 5, 6)) == []


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 20), st.integers(0, 5))))
def test_no_two_batches_that_are_alone_share_a_key_with_any_other(ranges: list[tuple[str, int, int]]) -> None:
    batches = [(owner, low, low + length) for owner, low, length in ranges]
    found = set(alone(*batches))
    for (one, first), (other, second) in combinations(enumerate(batches), 2):
        if first[0] == second[0] and first[1] <= second[2] and second[1] <= first[2]:
            assert one not in found and other not in found
