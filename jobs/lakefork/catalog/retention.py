"""Retention: facts about snapshots, plans, and carrying them out in bounded transactions."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import NotFoundError
from lakefork.model.durations import seconds_of
from lakefork.queries import load

_SQL = load(__package__)

COUNTED_AT_ONCE = 100_000  # files and snapshots, in a transaction of well under two seconds


@dataclass(frozen=True)
class GcPlan:
    plan_id: str
    created_at: datetime.datetime
    params: dict[str, Any]
    begun_at: datetime.datetime | None


@dataclass(frozen=True)
class CatalogToGc:
    """What a plan takes from a catalog. freed: what no other catalog keeps; floor: the first snapshot that is kept."""

    catalog_id: int
    catalog_name: str
    parent_name: str | None
    floor: int
    is_whole: bool
    snapshots: int
    files: int
    bytes: int
    freed_files: int
    freed_bytes: int


@dataclass(frozen=True)
class TableToGc:
    catalog_id: int
    table_name: str
    files: int
    bytes: int


@dataclass(frozen=True)
class ForkToDrop:
    """A fork past its time."""

    catalog_id: int
    catalog_name: str
    expires_at: datetime.datetime


@dataclass(frozen=True)
class FilesRemoved:
    """What one transaction took from catalogs, and how much of it was scheduled for deletion."""

    files: int
    rows: int
    scheduled: int
    bytes: int


def retention_facts(
    connection: Connection,
    catalog: str | None,
    *,
    asked: tuple[int | None, datetime.timedelta | None],
    default: tuple[int | None, datetime.timedelta | None],
) -> list[dict[str, Any]]:
    """Policies are pairs: how many snapshots, and for how long."""
    rows = connection.execute(
        "SELECT * FROM lakefork.retention_facts(%s, %s, %s, %s, %s)", (catalog, *asked, *default)
    ).fetchall()
    if catalog is not None and not rows:
        raise NotFoundError(f"catalog {catalog!r} does not exist, and no dropped one of that name is retained")
    return rows


def save_plan(
    connection: Connection,
    plan_id: str,
    run_id: str,
    params: dict[str, Any],
    items: Sequence[dict[str, Any]],
    dropped: Sequence[int] = (),
) -> None:
    """dropped: the forks that it drops."""
    with domain_errors():
        connection.execute(
            "SELECT lakefork.save_gc_plan(%s, %s, %s, %s, %s)",
            (plan_id, run_id, Jsonb(params), Jsonb(list(items)), list(dropped)),
        )
        _count_plan(connection, plan_id, plan_id)
        connection.execute(_SQL["complete_plan"], {"plan_id": plan_id})


def _count_plan(connection: Connection, plan_id: str, count_id: str) -> None:
    """Counts what a plan takes, a page per transaction."""
    connection.execute("DELETE FROM lakefork.gc_count WHERE plan_id = %s", (count_id,))
    place: tuple[int | None, int | None] = (-1, -1)
    while place[0] is not None:
        row = connection.execute(
            "SELECT last_catalog_id, last_file_id FROM lakefork.count_gc_plan(%s, %s, %s, %s, %s)",
            (plan_id, count_id, *place, COUNTED_AT_ONCE),
        ).fetchone()
        place = (row["last_catalog_id"], row["last_file_id"]) if row else (None, None)


def find_plan(connection: Connection, plan_id: str) -> GcPlan:
    row = connection.execute(_SQL["gc_plan"], {"plan_id": plan_id}).fetchone()
    if row is None:
        raise NotFoundError(f"plan {plan_id!r} of retention_gc does not exist")
    return GcPlan(**row)


def expired_forks(connection: Connection, catalog: str | None) -> list[int]:
    rows = connection.execute("SELECT catalog_id FROM lakefork.expired_forks(%s)", (catalog,))
    return [row["catalog_id"] for row in rows]


def plan_items(connection: Connection, plan_id: str) -> list[CatalogToGc]:
    """Returns what a plan takes, one row per catalog."""
    return [CatalogToGc(**row) for row in connection.execute(_SQL["gc_items"], {"plan_id": plan_id})]


def plan_floors(connection: Connection, plan_id: str) -> list[dict[str, Any]]:
    """Returns the floors of a plan, one row per catalog and per table with its own retention."""
    return connection.execute(_SQL["gc_floors"], {"plan_id": plan_id}).fetchall()


def plan_drops(connection: Connection, plan_id: str) -> list[ForkToDrop]:
    """The forks past their time that it drops."""
    return [ForkToDrop(**row) for row in connection.execute(_SQL["gc_drops"], {"plan_id": plan_id})]


def plan_tables(connection: Connection, plan_id: str, limit: int) -> list[TableToGc]:
    """The tables from which it takes most."""
    rows = connection.execute(_SQL["gc_tables"], {"plan_id": plan_id, "limit": limit})
    return [TableToGc(**row) for row in rows]


def unfinished_plans(connection: Connection) -> list[str]:
    rows = connection.execute(_SQL["unfinished_plans"])
    return [row["plan_id"] for row in rows]


def begin_plan(connection: Connection, plan_id: str, job_id: str, *, count_again: bool = True) -> None:
    """Starts a plan, or raises if it is no longer valid; afterwards what it takes cannot be read.

    count_again: it is not of just now. Who forks something of it while it is counted keeps that.
    """
    plan = find_plan(connection, plan_id)
    count_id = plan_id
    with domain_errors():
        if count_again and plan.begun_at is None:
            count_id = f"{plan_id} again"
            _count_plan(connection, plan_id, count_id)
        with connection.transaction():
            connection.execute("SELECT lakefork.begin_gc_plan(%s, %s)", (plan_id, count_id))
            connection.execute("SELECT lakefork.raise_floors(%s, %s)", (plan_id, job_id))


def finish_plan(connection: Connection, plan_id: str) -> None:
    connection.execute(_SQL["finish_plan"], {"plan_id": plan_id})


def drop_planned(connection: Connection, plan_id: str, job_id: str, limit: int) -> Iterator[int]:
    """The forks that a plan drops, a transaction at a time."""
    while True:
        with domain_errors():
            row = connection.execute(
                "SELECT lakefork.drop_planned(%s, %s, %s) AS dropped", (plan_id, job_id, limit)
            ).fetchone()
        if row is None or not row["dropped"]:
            return
        yield int(row["dropped"])


def remove_files(
    connection: Connection, plan_id: str, job_id: str, catalog_ids: Sequence[int], limit: int
) -> FilesRemoved:
    """One transaction of them; files 0: there are none left."""
    with domain_errors():
        row = connection.execute(
            "SELECT * FROM lakefork.remove_files(%s, %s, %s, %s)", (plan_id, job_id, list(catalog_ids), limit)
        ).fetchone()
    assert row is not None  # noqa: S101 - the function returns one row or raises
    return FilesRemoved(**{name: int(value) for name, value in row.items()})


def remove_rest(
    connection: Connection, kind: str, plan_id: str, job_id: str, catalog_ids: Sequence[int], limit: int
) -> Iterator[int]:
    """Hot rows or snapshots, a transaction at a time, until there are none left."""
    function = {"hot rows": "remove_hot_rows", "snapshots": "remove_snapshots"}[kind]
    while True:
        with domain_errors():
            row = connection.execute(
                f"SELECT lakefork.{function}(%s, %s, %s, %s) AS removed",
                (plan_id, job_id, list(catalog_ids), limit),
            ).fetchone()
        if row is None or not row["removed"]:
            return
        yield int(row["removed"])


def remove_definitions(connection: Connection, plan_id: str, job_id: str, catalog_ids: Sequence[int]) -> int:
    with domain_errors():
        row = connection.execute(
            "SELECT lakefork.remove_definitions(%s, %s, %s) AS removed", (plan_id, job_id, list(catalog_ids))
        ).fetchone()
    return int(row["removed"]) if row else 0


def drop_unused_hot_tables(connection: Connection, job_id: str) -> int:
    """Drops some at a time, because all commits wait for it."""
    dropped = 0
    while True:
        with domain_errors():
            row = connection.execute("SELECT lakefork.drop_unused_hot_tables(%s) AS dropped", (job_id,)).fetchone()
        if row is None or not row["dropped"]:
            return dropped
        dropped += int(row["dropped"])


def remove_records(
    connection: Connection, job_id: str, kept_for: Sequence[datetime.timedelta | None], limit: int
) -> Iterator[int]:
    """Removes old records of jobs, audits and commit keys, some per transaction."""
    while True:
        with domain_errors():
            row = connection.execute(
                "SELECT lakefork.remove_records(%s, %s, %s, %s, %s) AS removed", (job_id, *kept_for, limit)
            ).fetchone()
        if row is None or not row["removed"]:
            return
        yield int(row["removed"])


def set_retention(connection: Connection, catalog: str, snapshots: int | None, retain_for: str | None) -> None:
    """A catalog's own policy; without either it is the general one again."""
    catalog_id = find_catalog(connection, catalog).catalog_id
    values = {
        "retain_snapshots": None if snapshots is None else str(snapshots),
        "retain_for": None if retain_for is None else f"{seconds_of(retain_for, 'retain_for')} seconds",
    }
    with connection.transaction():
        for key, value in values.items():
            connection.execute("SELECT lakefork.set_catalog_setting(%s, %s, %s)", (catalog_id, key, value))


def tag_snapshot(connection: Connection, catalog: str, snapshot: int, name: str, *, author: str | None = None) -> None:
    with domain_errors():
        connection.execute("SELECT lakefork.tag_snapshot(%s, %s, %s, %s)", (catalog, snapshot, name, author))


def untag_snapshot(connection: Connection, catalog: str, name: str) -> None:
    """Of a dropped catalog too: its tags are what keeps it."""
    row = connection.execute(_SQL["untag_snapshot"], {"catalog": catalog, "name": name}).fetchone()
    if row is None:
        raise NotFoundError(f"catalog {catalog!r} has no tag {name!r}; system.snapshot_tags lists them")
