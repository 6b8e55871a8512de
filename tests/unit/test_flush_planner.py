"""The plan of a flush: everything is read once, users stay whole, slices stay small."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefork.model.slices import Slice
from lakefork.upkeep.flush.plan import Limits, Share, parts_of, plan_tasks, rows_per_slice


def shares() -> st.SearchStrategy[list[Share]]:
    one = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 5_000))
    return st.lists(one, min_size=1, max_size=60, unique_by=lambda found: found[:2]).map(
        lambda found: [Share(table, f"user {user}", versions) for table, user, versions in sorted(found)]
    )


@given(shares(), st.integers(1, 2_000))
def test_every_user_is_read_once_and_by_one_task(waiting: list[Share], slice_rows: int) -> None:
    samples = {(one.table, one.user_id): [(str(key),) for key in range(100)] for one in waiting}
    tasks = plan_tasks(waiting, dict.fromkeys(range(4), slice_rows), samples)
    read = Counter(
        (table, user) for task in tasks for table, users in {(s.table, s.users) for s in task.slices} for user in users or ()
    )  # fmt: skip
    assert set(read.values()) == {1} and len(read) == len(waiting)
    versions = {(one.table, one.user_id): one.versions for one in waiting}
    for task in tasks:
        if len({(s.table, s.users) for s in task.slices}) == 1 and task.slices[0].low is None and len(task.slices) > 1:
            continue  # one large user, in parts
        rows = sum(versions[s.table, user] for s in task.slices for user in s.users or ())
        assert rows <= 2 * slice_rows or len(task.slices) == 1, "a group is about one slice"


@given(st.integers(1, 100_000), st.integers(1, 5_000), st.integers(0, 500))
def test_slices_of_a_shared_table_cover_all_keys_and_do_not_overlap(
    versions: int, slice_rows: int, sampled: int
) -> None:
    share = Share(0, None, versions)
    sample = [(f"{key:04}",) for key in range(sampled)]
    slices = [one for task in plan_tasks([share], {0: slice_rows}, {(0, None): sample}) for one in task.slices]
    assert slices[0].low is None and slices[-1].high is None
    for before, after in pairwise(slices):
        assert before.high == after.low and before.high is not None
    assert len(slices) <= parts_of(share, slice_rows)


def test_a_shared_table_is_spread_over_tasks_and_a_user_is_not() -> None:
    sample = [(str(key),) for key in range(10)]
    shared = plan_tasks([Share(0, None, 100)], {0: 10}, {(0, None): sample})
    assert len(shared) == 10 and all(len(task.slices) == 1 for task in shared)
    (user,) = plan_tasks([Share(0, "ada", 100)], {0: 10}, {(0, "ada"): sample})
    assert len(user.slices) == 10


def test_repeated_keys_in_a_sample_make_fewer_slices() -> None:
    (task,) = plan_tasks([Share(0, None, 100)], {0: 10}, {(0, None): [("7",)] * 50})[:1]
    assert task.slices == (Slice(0, None, None, ("7",)),)


def test_groups_are_of_equal_size_and_leave_no_remainder() -> None:
    users = [Share(0, f"u{number:04}", 2_000) for number in range(1_000)]
    tasks = plan_tasks(users, {0: 500_000}, {})
    assert [sum(len(one.users or ()) for one in task.slices) for task in tasks] == [250] * 4


@pytest.mark.parametrize(
    ("versions", "size", "expected"),
    [(2_000_000, 200, 500_000), (2_000_000, 10_000, 26_843), (100_000, 200, 50_000), (1_000, 200, 50_000), (10**9, 0.1, 500_000)],
)  # fmt: skip
def test_a_slice_is_bounded_by_memory_and_keeps_all_cores_busy(versions: int, size: float, expected: int) -> None:
    limits = Limits(slice_rows=500_000, slice_bytes=256 << 20, parallelism=2)
    assert rows_per_slice([Share(0, None, versions)], size, limits) == expected
