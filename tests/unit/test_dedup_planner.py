"""Which batches are merged: what overlaps and what is small, in groups of bounded size; never one batch twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefork.model.batches import BatchContent, Candidate, max_superseded_share
from lakefork.model.key_ranges import KeyRange, touching
from lakefork.upkeep.dedup.plan import Limits, _may_hold_expired, plan_groups

LIMITS = Limits(min_batches=4, superseded_share=0.5, target_bytes=100, group_bytes=1_000)


def batch(
    number: int,
    low: Any,
    high: Any,
    *,
    size: int = 10,
    rows: int = 10,
    content: BatchContent = BatchContent.LIVE,
    born: int | None = None,
) -> Candidate:
    return Candidate(
        number,
        number if born is None else born,
        f"batch-{number}",
        rows,
        size,
        number,
        KeyRange(low, high),
        content,
    )


def planned(batches: list[Candidate], limits: Limits = LIMITS, forget_before: int | None = None) -> list[list[int]]:
    return [sorted(one.file_id for one in group.batches) for group in plan_groups(batches, limits, forget_before)]


def test_small_neighbours_are_merged_when_there_are_enough() -> None:
    assert planned([batch(n, n * 10, n * 10 + 9) for n in range(3)]) == []
    assert planned([batch(n, n * 10, n * 10 + 9) for n in range(4)]) == [[0, 1, 2, 3]]


def test_batches_that_are_large_enough_and_overlap_nothing_stay() -> None:
    assert planned([batch(n, n * 10, n * 10 + 9, size=60) for n in range(9)]) == []


def test_few_batches_are_merged_when_much_may_be_superseded() -> None:
    assert planned([batch(1, 0, 9), batch(2, 0, 9)]) == [[1, 2]]
    assert planned([batch(1, 0, 9), batch(2, 9, 19, rows=4)]) == []
    assert max_superseded_share([batch(1, 0, 9), batch(2, 9, 19, rows=4)]) == 4 / 14


def test_unknown_keys_may_be_anywhere() -> None:
    assert planned([batch(1, None, None), batch(2, 100, 109), batch(3, 0, 9)]) == [[1, 2, 3]]


def test_what_dedup_leaves_is_not_merged_again() -> None:
    live, dead = batch(1, 0, 99, born=5), batch(2, 5, 7, content=BatchContent.TOMBSTONES, born=5)
    assert planned([live, dead], Limits(2, 0.01, 100, 1_000)) == []
    assert planned([live, dead], Limits(2, 0.01, 100, 1_000), forget_before=2) == []
    assert planned([live, dead], forget_before=3) == [[1, 2]], "tombstones that are old enough go"
    assert planned([live, dead, batch(3, 0, 9)], Limits(2, 0.9, 100, 1_000)) == [[1, 2, 3]]


def test_too_much_for_one_group_is_merged_oldest_first() -> None:
    batches = [batch(n, 0, 100, size=300) for n in (5, 3, 1, 2, 4)]
    groups = plan_groups(batches, LIMITS)
    assert [[one.file_id for one in group.batches] for group in groups] == [[1, 2, 3], [4, 5]]
    assert not any(group.alone for group in groups), "others hold keys of theirs"
    assert plan_groups(batches[:3], LIMITS)[0].alone


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        low = draw(st.integers(0, 30) | st.none())
        high = None if low is None else low + draw(st.integers(0, 8))
        found.append(
            batch(number, low, high, size=draw(st.integers(1, 400)), content=draw(st.sampled_from(BatchContent)))
        )  # fmt: skip
    return found


@given(candidates(), st.integers(2, 5), st.none() | st.integers(0, 12))
def test_groups_do_not_share_batches_and_alone_means_alone(
    batches: list[Candidate], min_batches: int, forget_before: int | None
) -> None:
    groups = plan_groups(batches, Limits(min_batches, 0.5, 100, 1_000), forget_before)
    ids = [one.file_id for group in groups for one in group.batches]
    assert len(ids) == len(set(ids))
    for group in groups:
        inside = {one.file_id for one in group.batches}
        expired = [one for one in group.batches if _may_hold_expired(one, forget_before)]
        assert group.size_bytes <= 1_000 or len(group.batches) == 1 or (group.alone and expired)
        for other in batches if group.alone else ():
            if other.file_id not in inside:
                assert not any(one.key.overlaps(other.key) for one in expired)
    expired_ids = {one.file_id for one in batches if _may_hold_expired(one, forget_before)}
    assert expired_ids <= {one.file_id for group in groups if group.alone for one in group.batches}


@given(candidates())
def test_no_key_can_be_in_two_groups_that_do_not_touch(batches: list[Candidate]) -> None:
    groups = list(touching(batches, lambda one: one.key))
    assert sorted(one.file_id for group in groups for one in group) == sorted(one.file_id for one in batches)
    for place, group in enumerate(groups):
        for other in groups[place + 1 :]:
            assert not any(a.key.overlaps(b.key) for a in group for b in other)


@pytest.mark.parametrize("batches", [[], [batch(1, 0, 1)]])
def test_nothing_to_merge(batches: list[Candidate]) -> None:
    assert planned(batches) == []


def test_a_lone_batch_with_rows_and_tombstones_is_split() -> None:
    for size in (10, 500):
        assert planned([batch(1, 0, 9, size=size, content=BatchContent.BOTH)]) == [[1]]
        assert (
            planned([batch(1, 0, 9, size=size)])
            == planned([batch(1, 0, 9, size=size, content=BatchContent.TOMBSTONES)])
            == []
        )
    assert planned([batch(1, 0, 9, content=BatchContent.BOTH), batch(2, 10, 19)]) == [], "left to the next merge"


@pytest.mark.parametrize("size", [10, 60, 5_000])
def test_a_single_batch_of_old_tombstones_is_removed(size: int) -> None:
    dead = batch(1, 0, 9, size=size, content=BatchContent.TOMBSTONES)
    assert planned([dead], forget_before=2) == [[1]]
    assert planned([dead], forget_before=1) == planned([dead]) == []
    beside = batch(2, 100, 109, size=60)
    assert planned([dead, beside], forget_before=2) == [[1]], "what is large enough beside it stays"
    over = batch(3, 0, 9, size=5_000)
    assert planned([dead, over], forget_before=2) == [[1, 3]], "an older row may be there"


def test_expired_tombstones_are_merged_with_what_they_delete_however_few() -> None:
    old, mixed = batch(1, 0, 99, rows=100), batch(2, 7, 200, rows=2, content=BatchContent.BOTH)
    assert planned([old, mixed], forget_before=2) == [], "they have not expired yet"
    assert planned([old, mixed], forget_before=3) == [[1, 2]]


def test_expired_tombstones_and_what_they_delete_are_one_group_at_any_size() -> None:
    large = [batch(n, 0, 100, size=600) for n in (1, 2)]
    expired = batch(3, 40, 50, content=BatchContent.TOMBSTONES)
    elsewhere = [batch(n, 90, 300, size=900) for n in (4, 5)]
    groups = plan_groups([*large, expired, *elsewhere], LIMITS, forget_before=4)
    assert [one.file_id for one in groups[0].batches] == [1, 2, 3]
    assert groups[0].alone
    assert not any(group.alone for group in groups[1:])


def test_only_expired_leaves_everything_else() -> None:
    many = [batch(n, 0, 9) for n in range(9)]
    assert plan_groups(many, LIMITS, forget_before=100, only_expired=True) == []
    expired = batch(9, 0, 9, content=BatchContent.BOTH)
    assert len(plan_groups([*many, expired], LIMITS, forget_before=100, only_expired=True)) == 1
