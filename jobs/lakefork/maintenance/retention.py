"""Which snapshots catalogs give up: a plan from what is known of their commits, policies and tags."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True)
class RetentionFacts:
    """A catalog (table_id 0), or a table with a retention of its own; snapshots are the catalog's own commits."""

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
    kept_from: int | None  # older ones were given up before
    newest: int | None
    by_count: int | None  # the first that the number keeps, and …
    by_age: int | None  # … the first that is young enough
    is_unpinned: bool  # there is something from before that, which a tag kept until it was removed


@dataclass(frozen=True)
class GcItem:
    """floor: the first snapshot that is kept; is_whole: nothing is."""

    catalog_id: int
    table_id: int
    floor: int
    is_whole: bool


def plan_retention(facts: Iterable[RetentionFacts], now: datetime.datetime) -> list[GcItem]:
    """Only catalogs that give up something; with a catalog come its tables that have a retention of their own."""
    items: list[GcItem] = []
    for _, group in groupby(facts, lambda one: one.catalog_id):
        items += _of_catalog(list(group), now)
    return items


def taken_beyond(planned: Iterable[GcItem], wanted: Iterable[GcItem]) -> list[GcItem]:
    """What an earlier plan takes and the policies of now would keep. New commits and time only make them keep less."""
    floors = {(one.catalog_id, one.table_id): one for one in planned}
    now = {(one.catalog_id, one.table_id): one for one in wanted}
    places = sorted(floors.keys() | {place for place in now if (place[0], 0) in floors})
    beyond = []
    for catalog_id, table_id in places:
        taken = floors.get((catalog_id, table_id), floors[catalog_id, 0])
        kept = now.get((catalog_id, table_id), now.get((catalog_id, 0)))
        if kept is None or kept.floor < taken.floor or (taken.is_whole and not kept.is_whole):
            beyond.append(replace(taken, table_id=table_id))
    return beyond


def _of_catalog(facts: Sequence[RetentionFacts], now: datetime.datetime) -> list[GcItem]:
    catalog = facts[0]
    if catalog.is_dropped:
        newest = catalog.newest or 0
        return [GcItem(catalog.catalog_id, 0, newest, is_whole=True)] if _is_over(catalog, now) else []
    floors = [max(_floor(one), one.kept_from or 0) for one in facts]
    unmoved = all(floor <= (one.kept_from or one.birth) for floor, one in zip(floors, facts, strict=True))
    if unmoved and not catalog.is_unpinned:
        return []
    return [
        GcItem(one.catalog_id, one.table_id, floor, is_whole=False) for one, floor in zip(facts, floors, strict=True)
    ]


def _is_over(catalog: RetentionFacts, now: datetime.datetime) -> bool:
    """A dropped catalog is kept as long as snapshots are; its tags are there to be removed first."""
    if catalog.tags or (catalog.retain_for is None and catalog.retain_snapshots is None):
        return False
    if catalog.retain_for is None or catalog.dropped_at is None:
        return True
    return catalog.dropped_at <= now - catalog.retain_for


def _floor(one: RetentionFacts) -> int:
    """What either the number or the time keeps is kept, and in any case the newest; 0: everything."""
    kept = []
    if one.retain_snapshots is not None:
        kept.append(one.by_count or 0)
    if one.retain_for is not None:
        kept.append(one.newest or 0 if one.by_age is None else one.by_age)
    return min([*kept, one.newest or 0]) if kept else 0
