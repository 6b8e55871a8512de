"""Plans which snapshots each catalog gives up, from its commits, policies and tags."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True)
class RetentionFacts:
    """A catalog (table_id 0) or a table with its own retention; snapshots are the catalog's own commits."""

    catalog_id: int
    catalog_name: str
    table_id: int
    table_name: str | None
    retain_snapshots: int | None
    retain_for: datetime.timedelta | None
    is_dropped: bool
    dropped_at: datetime.datetime | None
    tags: int
    birth: int
    kept_from: int | None  # older ones have expired
    newest: int | None
    by_count: int | None  # the first one kept by count, and …
    by_age: int | None  # … the first one kept by age
    is_unpinned: bool  # older rows are left, which a removed tag had kept


@dataclass(frozen=True)
class GcItem:
    """What a catalog or table gives up. floor: the first snapshot that is kept; is_whole: nothing is kept."""

    catalog_id: int
    table_id: int
    floor: int
    is_whole: bool


def plan_retention(facts: Iterable[RetentionFacts], now: datetime.datetime) -> list[GcItem]:
    """Plans the catalogs that give up something, each with its tables that have their own retention."""
    items: list[GcItem] = []
    for _, group in groupby(facts, lambda one: one.catalog_id):
        items += _of_catalog(list(group), now)
    return items


def taken_despite_policy(planned: Iterable[GcItem], wanted: Iterable[GcItem]) -> list[GcItem]:
    """Returns what an earlier plan takes although current policies keep it; time and commits only make them keep
    less.
    """
    floors = {(one.catalog_id, one.table_id): one for one in planned}
    now = {(one.catalog_id, one.table_id): one for one in wanted}
    owners = sorted(floors.keys() | {owner for owner in now if (owner[0], 0) in floors})
    beyond = []
    for catalog_id, table_id in owners:
        taken = floors.get((catalog_id, table_id), floors[catalog_id, 0])
        kept = now.get((catalog_id, table_id), now.get((catalog_id, 0)))
        if kept is None or kept.floor < taken.floor or (taken.is_whole and not kept.is_whole):
            beyond.append(replace(taken, table_id=table_id))
    return beyond


def _of_catalog(facts: Sequence[RetentionFacts], now: datetime.datetime) -> list[GcItem]:
    catalog = facts[0]
    if catalog.is_dropped:
        newest = catalog.newest or 0
        return [GcItem(catalog.catalog_id, 0, newest, is_whole=True)] if _has_expired(catalog, now) else []
    floors = [max(_floor(one), one.kept_from or 0) for one in facts]
    unmoved = all(floor <= (one.kept_from or one.birth) for floor, one in zip(floors, facts, strict=True))
    if unmoved and not catalog.is_unpinned:
        return []
    return [
        GcItem(one.catalog_id, one.table_id, floor, is_whole=False) for one, floor in zip(facts, floors, strict=True)
    ]


def _has_expired(catalog: RetentionFacts, now: datetime.datetime) -> bool:
    """Tells whether a dropped catalog has expired; it is kept as long as its snapshots, and while it has tags."""
    if catalog.tags or (catalog.retain_for is None and catalog.retain_snapshots is None):
        return False
    if catalog.retain_for is None or catalog.dropped_at is None:
        return True
    return catalog.dropped_at <= now - catalog.retain_for


def _floor(one: RetentionFacts) -> int:
    """Returns the first snapshot kept by count or age; the newest is always kept; 0: everything is kept."""
    kept = []
    if one.retain_snapshots is not None:
        kept.append(one.by_count or 0)
    if one.retain_for is not None:
        kept.append(one.newest or 0 if one.by_age is None else one.by_age)
    return min([*kept, one.newest or 0]) if kept else 0
