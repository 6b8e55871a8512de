"""Selects the batches that may hold requested rows, by the bounds that the catalog has of their columns.

Before the newest version of a key is known, only conditions on the key and `_seq >` may skip a batch; otherwise an
older version in another batch would come back. If no other batch can hold a key of a batch (it is clean), conditions
on all columns may.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakefork.cold.statistics import bound_parser
from lakefork.model.key_ranges import KeyRange, touching
from lakefork.model.predicates import Predicate
from lakefork.model.tables import DELETED, SEQ, SYSTEM_COLUMN_IDS, Column

_DELETED_ID = SYSTEM_COLUMN_IDS[DELETED]
_SEQ_ID = SYSTEM_COLUMN_IDS[SEQ]
_MAX_WHOLE = 100  # batches of an owner that all others are compared with
_WHOLE_NUMBERS = ("int16", "int32", "int64")


class ColumnBounds(NamedTuple):
    """The smallest and largest value of a column as text, as the catalog records them; None: unknown."""

    low: str | None = None
    high: str | None = None
    nulls: int | None = None
    values: int | None = None

    @property
    def only_nulls(self) -> bool:
        return self.values is not None and self.nulls == self.values


_UNKNOWN = ColumnBounds()


@dataclass(frozen=True)
class Batch:
    """A file, its owner (None: a shared table), and the bounds of some of its columns by id.

    published: the snapshot that added it; column_ids: columns with statistics, which are all but arrays.
    """

    path: str
    bounds: Mapping[int, ColumnBounds]
    owner: str | None = None
    published: int = 0
    column_ids: frozenset[int] = frozenset()

    @property
    def only_deleted(self) -> bool:
        return self.bounds.get(_DELETED_ID, _UNKNOWN).low == "1"

    @property
    def none_deleted(self) -> bool:
        return self.bounds.get(_DELETED_ID, _UNKNOWN).high == "0"


@dataclass
class ScanPlan:
    """Batches to read. clean: no other batch has their keys except tombstones; grouped: others; skipped: counts

    tombstones: batches of deleted rows only. Their keys suffice to find deleted rows of clean batches.
    """

    clean: list[Batch] = field(default_factory=list)
    grouped: list[Batch] = field(default_factory=list)
    tombstones: list[Batch] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def batches(self) -> list[Batch]:
        return self.clean + self.grouped + self.tombstones


def plan_scan(
    batches: Sequence[Batch],
    key: Column | None,
    predicates: Sequence[Predicate],
    filters: Sequence[Predicate] = (),
    *,
    one_key: bool = False,
    include_deleted: bool = False,
) -> ScanPlan:
    """key: its first column (one_key: there is no other); predicates: of key and _seq; filters: of any other column."""
    plan = ScanPlan()
    left = _matching(batches, predicates, plan.skipped)
    if one_key and key is not None and key.type.name in _WHOLE_NUMBERS:
        left = _without_superseded(left, key.column_id, plan.skipped)
    if not include_deleted:
        plan.tombstones = [one for one in left if one.only_deleted]
        left = [one for one in left if not one.only_deleted] if plan.tombstones else left
    clean: list[Batch] = []
    for of_owner in _by_owner(left):
        for together in _sharing_keys(of_owner, key):
            (plan.grouped if len(together) > 1 else clean).extend(together)
    plan.clean = _matching(clean, filters, plan.skipped)
    if not plan.clean and not plan.grouped and plan.tombstones:
        plan.skipped["only deleted rows"] += len(plan.tombstones)
        plan.tombstones = []
    return plan


def batches_to_read(batches: Sequence[Batch], predicates: Sequence[Predicate]) -> list[Batch]:
    """Skips only batches that certainly hold no requested row; unknown bounds are read."""
    return _matching(batches, predicates, Counter())


def _matching(batches: Sequence[Batch], predicates: Sequence[Predicate], skipped: Counter[str]) -> list[Batch]:
    left = list(batches)
    for predicate in predicates:
        column_id, parse = predicate.column.column_id, bound_parser(predicate.column.type)
        kept = [batch for batch in left if _may_match(batch.bounds.get(column_id), predicate, parse)]
        if len(kept) < len(left):
            skipped[str(predicate)] += len(left) - len(kept)
        left = kept
    return left


def _without_superseded(batches: Sequence[Batch], key_id: int, skipped: Counter[str]) -> list[Batch]:
    """Removes batches of which a later batch has every key: it has as many integers as fit between its bounds."""
    superseded: set[str] = set()
    for of_owner in _by_owner(batches):
        whole: list[tuple[int, int, int]] = []  # such batches, the latest first: bounds, and the smallest _seq
        for batch in sorted(of_owner, key=lambda one: _numbers(one, _SEQ_ID)[1] or 0, reverse=True):
            low, high, count = _numbers(batch, key_id)
            first, last, _ = _numbers(batch, _SEQ_ID)
            if low is None or high is None or first is None or last is None:
                continue
            if any(begin <= low and high <= end and last < seq for begin, end, seq in whole):
                superseded.add(batch.path)
            elif count == high - low + 1 and len(whole) < _MAX_WHOLE:
                whole.append((low, high, first))
    if superseded:
        skipped["later batches with all of their keys"] += len(superseded)
    return [batch for batch in batches if batch.path not in superseded]


def _numbers(batch: Batch, column_id: int) -> tuple[int | None, int | None, int | None]:
    """Bounds of a column of whole numbers, and how many there are."""
    found = batch.bounds.get(column_id, _UNKNOWN)
    return _number(found.low), _number(found.high), found.values if found.nulls == 0 else None


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _by_owner(batches: Sequence[Batch]) -> Iterable[list[Batch]]:
    by_owner: dict[str | None, list[Batch]] = {}
    for batch in batches:
        by_owner.setdefault(batch.owner, []).append(batch)
    return by_owner.values()


def _sharing_keys(batches: Sequence[Batch], key: Column | None) -> Iterable[list[Batch]]:
    """Groups batches that may have a key in common."""
    if len(batches) < 2:
        return [list(batches)] if batches else []
    if key is None:
        return [list(batches)]
    parse = bound_parser(key.type)
    ranges = {}
    for batch in batches:
        bounds = batch.bounds.get(key.column_id, _UNKNOWN)
        ranges[batch.path] = KeyRange(parse(bounds.low), parse(bounds.high))
    return touching(batches, lambda batch: ranges[batch.path])


def _may_match(found: ColumnBounds | None, predicate: Predicate, parse: Callable[[str | None], Any]) -> bool:
    if found is None:
        return True
    if found.only_nulls:
        return False
    low, high = parse(found.low), parse(found.high)
    if len(predicate.values) == 1:
        return _within(predicate.op, predicate.values[0], low, high)
    return any(_within(predicate.op, value, low, high) for value in predicate.values)


def _within(op: str, value: Any, low: Any, high: Any) -> bool:
    above_low = low is None or value >= low
    below_high = high is None or value <= high
    if op == "=":
        return above_low and below_high
    if op in (">", ">="):
        return high is None or (high > value if op == ">" else high >= value)
    return low is None or (low < value if op == "<" else low <= value)
