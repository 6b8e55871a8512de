"""Which snapshots catalogs give up, by facts alone."""

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefork.upkeep.retention.plan import GcItem, RetentionFacts, plan_retention, taken_despite_policy

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def facts(**changed: Any) -> RetentionFacts:
    known: dict[str, Any] = {
        "catalog_id": 1, "catalog_name": "main", "table_id": 0, "table_name": None, "retain_snapshots": None,
        "retain_for": None, "is_dropped": False, "dropped_at": None, "tags": 0, "birth": 1, "kept_from": None,
        "newest": 100, "by_count": None, "by_age": None, "is_unpinned": False,
    }  # fmt: skip
    return RetentionFacts(**known | changed)


def floors(*known: RetentionFacts) -> dict[int, int]:
    return {item.table_id: item.floor for item in plan_retention(known, NOW)}


def test_without_a_policy_everything_is_kept() -> None:
    assert floors(facts()) == {}


@pytest.mark.parametrize(
    ("policy", "floor"),
    [
        ({"retain_snapshots": 5, "by_count": 90}, 90),
        ({"retain_for": DAY, "by_age": 80}, 80),
        ({"retain_for": DAY}, 100),  # none is young enough: the newest is kept
        ({"retain_snapshots": 5, "by_count": 90, "retain_for": DAY, "by_age": 80}, 80),
        ({"retain_snapshots": 5, "by_count": 70, "retain_for": DAY}, 70),
    ],
)
def test_snapshots_kept_by_count_or_age_are_kept(policy: dict[str, Any], floor: int) -> None:
    assert floors(facts(**policy)) == {0: floor}


def test_nothing_to_give_up_is_no_plan() -> None:
    assert floors(facts(retain_snapshots=5, by_count=1)) == {}
    assert floors(facts(retain_snapshots=5, by_count=90, kept_from=90)) == {}
    assert floors(facts(retain_snapshots=5, by_count=50, kept_from=90)) == {}, "what is gone does not come back"


def test_what_a_tag_kept_expires_although_no_floor_moves() -> None:
    known = {"retain_snapshots": 5, "by_count": 90, "kept_from": 90}
    assert floors(facts(**known, is_unpinned=True), facts(table_id=7, **known)) == {0: 90, 7: 90}


def test_tables_come_with_their_catalog() -> None:
    catalog = facts(retain_snapshots=5, by_count=90, kept_from=50)
    table = facts(table_id=7, retain_for=DAY, by_age=20, kept_from=50)
    assert floors(catalog, table) == {0: 90, 7: 50}


@pytest.mark.parametrize(
    ("dropped", "goes"),
    [
        ({"retain_for": DAY, "dropped_at": NOW - 2 * DAY}, True),
        ({"retain_for": DAY, "dropped_at": NOW}, False),
        ({"retain_for": DAY, "dropped_at": NOW - 2 * DAY, "tags": 1}, False),
        ({"retain_snapshots": 1, "dropped_at": NOW}, True),
        ({"dropped_at": NOW - 900 * DAY}, False),
    ],
)
def test_dropped_catalogs_expire_entirely_or_not_at_all(dropped: dict[str, Any], goes: bool) -> None:
    expected = [GcItem(1, 0, 100, is_whole=True)] if goes else []
    assert plan_retention([facts(is_dropped=True, **dropped)], NOW) == expected


@given(
    st.lists(st.tuples(*[st.none() | st.integers(1, 100)] * 3, st.booleans(), st.booleans()), min_size=1, max_size=4)
)
def test_a_floor_never_goes_down_nor_beyond_the_newest(known: list[Any]) -> None:
    rows = [
        facts(table_id=place, kept_from=kept, by_count=count, by_age=age, retain_snapshots=1 if number else None,
              retain_for=DAY if time else None)
        for place, (kept, count, age, number, time) in enumerate(known)
    ]  # fmt: skip
    for table_id, floor in floors(*rows).items():
        assert (rows[table_id].kept_from or 0) <= floor <= 100


def item(floor: int, table_id: int = 0, *, is_whole: bool = False) -> GcItem:
    return GcItem(1, table_id, floor, is_whole)


def test_a_plan_is_wanted_as_long_as_policies_keep_no_more() -> None:
    assert taken_despite_policy([item(50)], [item(50)]) == taken_despite_policy([item(50)], [item(60)]) == []
    assert taken_despite_policy([item(50)], [item(40)]) == taken_despite_policy([item(50)], []) == [item(50)]
    assert taken_despite_policy([item(50), item(20, 7)], [item(60)]) == [], "the table keeps what the catalog does"
    assert taken_despite_policy([item(50)], [item(60), item(20, 7)]) == [item(50, 7)], "a table keeps more now"
    assert taken_despite_policy([item(50, is_whole=True)], [item(90)]) == [item(50, is_whole=True)]
    assert taken_despite_policy([], [item(60)]) == []
