"""Which batches can hold rows that are wanted, by what the catalog knows of their columns.

Before the newest version of a key is known, only what is asked of the key and of _seq from below may leave a batch out:
an older version in another batch would come back. Where no other batch can hold a key of a batch (it is clean),
whatever is asked of its columns may.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakefork.cold.statistics import parse_bound
from lakefork.maintenance.ranges import KeyRange, touching
from lakefork.predicates import Predicate
from lakefork.tables import DELETED, SYSTEM_COLUMN_IDS, Column

_DELETED_ID = SYSTEM_COLUMN_IDS[DELETED]


class Bounds(NamedTuple):
    """As the catalog records them: text, or None where not known."""

    low: str | None
    high: str | None
    nulls: int | None = None
    values: int | None = None

    @property
    def only_nulls(self) -> bool:
        return self.values is not None and self.nulls == self.values


@dataclass(frozen=True)
class Batch:
    """A file, whose rows it holds (None: nobody's), and the bounds of some of its columns."""

    path: str
    bounds: Mapping[int, tuple[Any, ...]]  # of Bounds
    owner: str | None = None

    def of(self, column_id: int) -> Bounds:
        return Bounds(*self.bounds.get(column_id, (None, None)))


@dataclass
class ScanPlan:
    """clean: batches whose keys no other one holds; grouped: the others; skipped: how many, and why."""

    clean: list[Batch] = field(default_factory=list)
    grouped: list[Batch] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        return len(self.clean) + len(self.grouped)


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
    left = [batch for batch in batches if not _ruled_out(batch, predicates, plan.skipped)]
    for together in _sharing_keys(left, key):
        if len(together) > 1:
            plan.grouped += together
        elif not _ruled_out(together[0], filters, plan.skipped):
            if not include_deleted and together[0].of(_DELETED_ID).low == "1":
                plan.skipped["only deleted rows"] += 1
            else:
                plan.clean += together
    return plan


def batches_to_read(batches: Sequence[Batch], predicates: Sequence[Predicate]) -> list[Batch]:
    """Leaves out only batches that certainly hold nothing: what is not known, or cannot be compared, is read."""
    return [batch for batch in batches if not _ruled_out(batch, predicates, Counter())]


def _ruled_out(batch: Batch, predicates: Sequence[Predicate], skipped: Counter[str]) -> bool:
    for predicate in predicates:
        if not _may_match(batch, predicate):
            skipped[str(predicate)] += 1
            return True
    return False


def _sharing_keys(batches: Sequence[Batch], key: Column | None) -> Iterable[list[Batch]]:
    """Batches of one owner that may have a key in common, together."""
    by_owner: dict[str | None, list[Batch]] = {}
    for batch in batches:
        by_owner.setdefault(batch.owner, []).append(batch)
    for of_owner in by_owner.values():
        ranges = {batch.path: _key_range(batch, key) for batch in of_owner}
        yield from touching(of_owner, lambda batch, ranges=ranges: ranges[batch.path])  # type: ignore[misc]


def _key_range(batch: Batch, key: Column | None) -> KeyRange:
    if key is None:
        return KeyRange()
    low, high, *_ = batch.of(key.column_id)
    return KeyRange(parse_bound(low, key.type), parse_bound(high, key.type))


def _may_match(batch: Batch, predicate: Predicate) -> bool:
    bounds = batch.of(predicate.column.column_id)
    if bounds.only_nulls:
        return False
    kind = predicate.column.type
    low, high = parse_bound(bounds.low, kind), parse_bound(bounds.high, kind)
    return any(_within(predicate.op, value, low, high) for value in predicate.values)


def _within(op: str, value: Any, low: Any, high: Any) -> bool:
    above_low = low is None or value >= low
    below_high = high is None or value <= high
    if op == "=":
        return above_low and below_high
    if op in (">", ">="):
        return high is None or (high > value if op == ">" else high >= value)
    return low is None or (low < value if op == "<" else low <= value)
