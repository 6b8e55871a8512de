"""Which batches are read: never one too few, and not those whose bounds rule them out."""

import datetime
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.cold.statistics import bound_text
from lakefork.model.column_types import column_type
from lakefork.model.predicates import Predicate
from lakefork.model.tables import Column
from lakefork.read.pruning import Batch, ColumnBounds, batches_to_read, plan_scan

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "varchar": st.text(max_size=3),
    "decimal(10,2)": st.decimals(-100, 100, places=2),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(timezones=st.just(datetime.UTC)),
    "uuid": st.uuids(),
    "boolean": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "blob": st.binary(max_size=3),
    "time": st.times(),
}
ID = Column(4, "id", column_type("int64"))
BETWEEN_10_AND_20 = Batch("b", {4: ColumnBounds("10", "20")})


def is_read(batch: Batch, *predicates: Predicate) -> bool:
    return batches_to_read([batch], predicates) == [batch]


def satisfies(value: Any, predicate: Predicate) -> bool:
    return value is not None and any(COMPARE[predicate.op](value, one) for one in predicate.values)


def batch_of(path: str, values: list[Any], *, knows: bool) -> Batch:
    """A batch as the catalog describes it: bounds over what is not NULL."""
    present = [value for value in values if value is not None]
    known = knows and present
    return Batch(
        path, {ID.column_id: ColumnBounds(bound_text(min(present)), bound_text(max(present)))} if known else {}
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[Any]], list[Batch], list[Predicate]]:
    """The values of one column in each batch, what the catalog says of the batches, and what is asked of the column."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    column = Column(ID.column_id, "k", column_type(kind))
    value = st.sampled_from(draw(st.lists(KINDS[kind], min_size=1, max_size=6)))  # few, so that they meet
    contents = draw(st.lists(st.lists(value | st.none(), min_size=1, max_size=3), min_size=1, max_size=3))
    batches = [
        batch_of(str(place), values, knows=draw(st.sampled_from([True, True, False])))
        for place, values in enumerate(contents)
    ]
    several = st.lists(value, min_size=1, max_size=3).map(lambda found: Predicate(column, "=", tuple(found)))
    one = st.builds(lambda op, found: Predicate(column, op, (found,)), st.sampled_from(sorted(COMPARE)), value)
    return contents, batches, draw(st.lists(one | several, min_size=1, max_size=2))


@settings(max_examples=500, deadline=None)
@given(tables())
def test_a_batch_with_a_matching_row_is_always_read(
    table: tuple[list[list[Any]], list[Batch], list[Predicate]],
) -> None:
    contents, batches, predicates = table
    needed = [
        batch
        for batch, values in zip(batches, contents, strict=True)
        if any(all(satisfies(value, one) for one in predicates) for value in values)
    ]
    read = batches_to_read(batches, predicates)
    assert [batch for batch in read if batch in needed] == needed
    assert [batch for batch in batches if batch in read] == read


@settings(deadline=None)
@given(
    bounds=st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(sorted),
    op=st.sampled_from(sorted(COMPARE)),
    value=st.integers(-12, 12),
)
def test_a_batch_is_read_just_if_a_value_within_its_bounds_would_match(bounds: list[int], op: str, value: int) -> None:
    low, high = bounds
    predicate = Predicate(ID, op, (value,))
    possible = any(satisfies(one, predicate) for one in range(low, high + 1))
    assert is_read(Batch("b", {ID.column_id: ColumnBounds(str(low), str(high))}), predicate) is possible


@pytest.mark.parametrize(
    ("op", "values", "expected"),
    [
        ("=", (9,), False), ("=", (10,), True), ("=", (20,), True), ("=", (21,), False), ("=", (9, 21), False),
        ("=", (9, 15, 21), True), (">", (20,), False), (">", (19,), True), (">=", (20,), True), (">=", (21,), False),
        ("<", (10,), False), ("<", (11,), True), ("<=", (10,), True), ("<=", (9,), False),
    ],
)  # fmt: skip
def test_the_bounds_belong_to_the_batch(op: str, values: tuple[int, ...], expected: bool) -> None:
    assert is_read(BETWEEN_10_AND_20, Predicate(ID, op, values)) is expected


def test_every_predicate_can_rule_a_batch_out() -> None:
    inside, outside = Predicate(ID, ">=", (15,)), Predicate(ID, "<", (5,))
    assert is_read(BETWEEN_10_AND_20)
    assert is_read(BETWEEN_10_AND_20, inside)
    assert not is_read(BETWEEN_10_AND_20, inside, outside)
    assert not is_read(BETWEEN_10_AND_20, outside, inside)


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {5: ColumnBounds("1", "2")},
        {4: ColumnBounds(None, None)},
        {4: ColumnBounds("10", None)},
        {4: ColumnBounds("?", "?")},
        {4: ColumnBounds("1e3", "2000.5")},
    ],
)
def test_what_is_not_known_or_cannot_be_understood_is_read(bounds: dict[int, tuple[str | None, str | None]]) -> None:
    assert is_read(
        Batch("b", {column: ColumnBounds(*known) for column, known in bounds.items()}), Predicate(ID, "=", (1500,))
    )


@pytest.mark.parametrize("op", ["=", "<", "<=", ">", ">="])
def test_one_known_bound_is_enough_to_rule_a_batch_out_on_its_side(op: str) -> None:
    above, below = Batch("a", {4: ColumnBounds("10", None)}), Batch("b", {4: ColumnBounds(None, "10")})
    assert is_read(above, Predicate(ID, op, (5,))) is (op in (">", ">="))
    assert is_read(below, Predicate(ID, op, (15,))) is (op in ("<", "<="))


@pytest.mark.parametrize(
    ("kind", "low", "high", "outside"),
    [
        ("int64", 9, 10, 11),  # as texts, "9" > "10" and "11" < "9"
        ("varchar", "Z", "a", "é"),
        ("decimal(10,2)", Decimal("9.50"), Decimal("10.25"), Decimal("11")),
        ("date", datetime.date(999, 1, 1), datetime.date(2000, 1, 1), datetime.date(2000, 1, 2)),
        ("timestamp", datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2, 0, 1)),
        (
            "timestamptz",
            datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
            datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
            datetime.datetime(2020, 1, 1, 20, tzinfo=datetime.UTC),
        ),
    ],
)  # fmt: skip
def test_bounds_are_compared_as_values_of_their_type(kind: str, low: Any, high: Any, outside: Any) -> None:
    column = Column(4, "k", column_type(kind))
    batch = Batch("b", {4: ColumnBounds(bound_text(low), bound_text(high))})
    assert is_read(batch, Predicate(column, "=", (low,)))
    assert is_read(batch, Predicate(column, "=", (high,)))
    assert not is_read(batch, Predicate(column, "=", (outside,)))


def batch_with(path: str, low: int, high: int, *, other: tuple[str, str] = ("0", "9"), deleted: str = "00") -> Batch:
    return Batch(
        path, {4: ColumnBounds(str(low), str(high)), 5: ColumnBounds(*other), 2: ColumnBounds(deleted[0], deleted[1])}
    )


OTHER = Column(5, "other", column_type("int64"))


def paths(batches: list[Batch]) -> list[str]:
    return [batch.path for batch in batches]


def test_other_columns_count_only_where_no_other_batch_holds_the_keys() -> None:
    alone = batch_with("alone", 100, 199, other=("0", "4"))
    old, new = batch_with("old", 0, 50, other=("5", "9")), batch_with("new", 50, 60, other=("0", "4"))
    plan = plan_scan([alone, old, new], ID, [], [Predicate(OTHER, ">", (4,))])
    assert (paths(plan.clean), paths(plan.grouped)) == ([], ["old", "new"])
    assert plan.skipped == {"other > 4": 1}
    plan = plan_scan([alone, old, new], ID, [Predicate(ID, "<", (50,))], [Predicate(OTHER, ">", (4,))])
    assert (paths(plan.clean), paths(plan.grouped)) == (["old"], []), "the other one cannot hold these keys"


def test_deleted_rows_alone_group_nothing() -> None:
    live, tombstone = batch_with("live", 0, 50), batch_with("tombstone", 10, 20, deleted="11")
    plan = plan_scan([live, tombstone], ID, [])
    assert (paths(plan.clean), paths(plan.grouped), paths(plan.tombstones)) == (["live"], [], ["tombstone"])
    assert paths(plan_scan([live, tombstone], ID, [], include_deleted=True).grouped) == ["live", "tombstone"]
    plan = plan_scan([tombstone], ID, [])
    assert (plan.batches, plan.skipped) == ([], {"only deleted rows": 1})


def test_owners_do_not_share_keys() -> None:
    ada, bob = Batch("a", {4: ColumnBounds("1", "9")}, "ada"), Batch("b", {4: ColumnBounds("1", "9")}, "bob")
    assert paths(plan_scan([ada, bob], ID, []).clean) == ["a", "b"]


def test_nulls_alone_match_nothing() -> None:
    assert not is_read(Batch("b", {4: ColumnBounds(None, None, 7, 7)}), Predicate(ID, "=", (1,)))
    assert is_read(Batch("b", {4: ColumnBounds(None, None, 6, 7)}), Predicate(ID, "=", (1,)))


def test_what_is_not_known_may_hold_any_key() -> None:
    assert paths(plan_scan([Batch("a", {}), batch_with("b", 1, 2)], ID, []).grouped) == ["a", "b"]


@st.composite
def flushed(draw: st.DrawFn) -> tuple[dict[str, dict[int, int]], list[Batch]]:
    """Batches of one owner with one version per key each, a few of them without a gap, and what is known of them."""
    contents, batches, seq = {}, [], 1
    for number in range(draw(st.integers(1, 6))):
        low = draw(st.integers(-3, 3))
        keys = set(range(low, low + draw(st.integers(1, 5)))) - (draw(st.sets(st.integers(-3, 8), max_size=2)))
        rows = {}
        for key in sorted(keys or {low}):
            seq += draw(st.integers(-2, 3)) or 1
            rows[key] = seq = max(1, seq)
        seqs = sorted(rows.values())
        contents[f"b{number}"] = rows
        known = [str(min(rows)), str(max(rows)), 0, len(rows)][: draw(st.sampled_from((2, 4, 4)))]
        batches.append(
            Batch(f"b{number}", {4: ColumnBounds(*known), 1: ColumnBounds(str(seqs[0]), str(seqs[-1]), 0, len(rows))})
        )
    return contents, batches


@settings(max_examples=300, deadline=None)
@given(flushed())
def test_a_batch_is_left_out_only_if_later_ones_have_all_its_keys(
    given: tuple[dict[str, dict[int, int]], list[Batch]],
) -> None:
    contents, batches = given
    plan = plan_scan(batches, ID, [], one_key=True, include_deleted=True)
    kept = {batch.path for batch in plan.batches}
    for path in contents.keys() - kept:
        for key, seq in contents[path].items():
            assert any(contents[other].get(key, 0) > seq for other in kept), (path, key)


def test_of_many_versions_of_the_same_whole_numbers_the_last_batch_is_read_alone() -> None:
    def batch(number: int, low: int, high: int, count: int) -> Batch:
        return Batch(
            f"b{number}",
            {4: ColumnBounds(str(low), str(high), 0, count), 1: ColumnBounds(f"{number}0", f"{number}9", 0, count)},
        )

    plan = plan_scan([batch(number, 0, 99, 100) for number in range(10)], ID, [], one_key=True)
    assert (paths(plan.clean), paths(plan.grouped)) == (["b9"], [])
    assert plan.skipped == {"later batches with all of their keys": 9}
    plan = plan_scan([batch(1, 0, 99, 100), batch(2, 0, 99, 99)], ID, [], one_key=True)
    assert paths(plan.grouped) == ["b1", "b2"], "one key may be missing in the later one"
    assert paths(plan_scan([batch(1, 0, 99, 100), batch(2, 0, 99, 100)], ID, []).grouped) == ["b1", "b2"], "half a key"
