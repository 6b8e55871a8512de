"""Which batches can hold rows that are wanted, by what the catalog knows of their columns.

Before the newest version of a key is known, only what is asked of the key and of _seq from below may leave a batch out:
an older version in another batch would come back. Where no other batch can hold a key of a batch (it is clean),
whatever is asked of its columns may.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakefork.cold.statistics import bound_parser
from lakefork.maintenance.ranges import KeyRange, touching
from lakefork.predicates import Predicate
from lakefork.tables import DELETED, SYSTEM_COLUMN_IDS, Column

_DELETED_ID = SYSTEM_COLUMN_IDS[DELETED]
_UNKNOWN = (None, None)


@dataclass(frozen=True)
class Batch:
    """A file, whose rows it holds (None: nobody's), and the bounds of some of its columns by id.

    Bounds are as the catalog records them: the least and the greatest value as text, None where not known, and if known
    how many NULLs there are among how many values.
    """

    path: str
    bounds: Mapping[int, tuple[Any, ...]]
    owner: str | None = None

    @property
    def only_deleted(self) -> bool:
        return bool(self.bounds.get(_DELETED_ID, _UNKNOWN)[0] == "1")

    @property
    def none_deleted(self) -> bool:
        return bool(self.bounds.get(_DELETED_ID, _UNKNOWN)[1] == "0")


@dataclass
class ScanPlan:
    """clean: batches whose keys no other one holds but graves; grouped: the others; skipped: how many, and why.

    graves: batches of deleted rows alone. Their keys are enough to tell which rows of clean batches are gone.
    """

    clean: list[Batch] = field(default_factory=list)
    grouped: list[Batch] = field(default_factory=list)
    graves: list[Batch] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def batches(self) -> list[Batch]:
        return self.clean + self.grouped + self.graves


def plan_scan(
    batches: Sequence[Batch],
    key: Column | None,
    predicates: Sequence[Predicate],
    filters: Sequence[Predicate] = (),
    *,
    include_deleted: bool = False,
) -> ScanPlan:
    """key: its first column; predicates: what is asked of key and _seq; filters: of any other column."""
    plan = ScanPlan()
    left = _matching(batches, predicates, plan.skipped)
    if not include_deleted:
        plan.graves = [one for one in left if one.only_deleted]
        left = [one for one in left if not one.only_deleted] if plan.graves else left
    clean: list[Batch] = []
    for of_owner in _by_owner(left):
        for together in _sharing_keys(of_owner, key):
            (plan.grouped if len(together) > 1 else clean).extend(together)
    plan.clean = _matching(clean, filters, plan.skipped)
    if not plan.clean and not plan.grouped and plan.graves:
        plan.skipped["only deleted rows"] += len(plan.graves)
        plan.graves = []
    return plan


def batches_to_read(batches: Sequence[Batch], predicates: Sequence[Predicate]) -> list[Batch]:
    """Leaves out only batches that certainly hold nothing: what is not known, or cannot be compared, is read."""
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


def _by_owner(batches: Sequence[Batch]) -> Iterable[list[Batch]]:
    by_owner: dict[str | None, list[Batch]] = {}
    for batch in batches:
        by_owner.setdefault(batch.owner, []).append(batch)
    return by_owner.values()


def _sharing_keys(batches: Sequence[Batch], key: Column | None) -> Iterable[list[Batch]]:
    """Batches that may have a key in common, together."""
    if len(batches) < 2:
        return [list(batches)] if batches else []
    if key is None:
        return [list(batches)]
    parse = bound_parser(key.type)
    ranges = {}
    for batch in batches:
        low, high, *_ = batch.bounds.get(key.column_id, (None, None))
        ranges[batch.path] = KeyRange(parse(low), parse(high))
    return touching(batches, lambda batch: ranges[batch.path])


def _may_match(found: tuple[Any, ...] | None, predicate: Predicate, parse: Callable[[str | None], Any]) -> bool:
    if found is None:
        return True
    if len(found) > 3 and found[3] is not None and found[2] == found[3]:  # only NULLs
        return False
    low, high = parse(found[0]), parse(found[1])
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
