"""Reads under one Postgres snapshot what a flush has to do, and plans its tasks."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from psycopg.rows import tuple_row

from lakefork.catalog.connection import Connection
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.flushes import Due, waiting_versions
from lakefork.catalog.snapshots import ReadSnapshot, export_snapshot
from lakefork.hot.ranges import key_sample_query
from lakefork.hot.tables import HotTable
from lakefork.model.slices import Key
from lakefork.read.slices import HotSource
from lakefork.settings import FlushSettings
from lakefork.upkeep.flush.plan import FlushTask, Limits, Share, parts_of, plan_tasks, rows_per_slice

SAMPLED_KEYS = 500  # per slice
ALL_ROWS = 20_000  # smaller tables are read in full instead of sampled
MB = 1 << 20


@dataclass
class Work:
    """What is read under one snapshot; shares: by table, the waiting versions of each user."""

    read: ReadSnapshot
    tables: list[HotSource]
    shares: list[list[Share]]
    tasks: list[FlushTask]
    requested_before: datetime.datetime | None  # it serves requests made until then

    @property
    def versions(self) -> int:
        return sum(share.versions for shares in self.shares for share in shares)

    @property
    def users(self) -> int:
        """Counts users of USER tables."""
        return sum(share.user_id is not None for shares in self.shares for share in shares)

    def __str__(self) -> str:
        users = sum(map(len, self.shares))
        return (
            f"{self.versions:,} versions of {users:,} user(s) in {len(self.tables):,} table(s), "
            f"read in {len(self.tasks):,} task(s)"
        )


def plan_flush(
    settings: FlushSettings,
    reading: Connection,
    due: Sequence[Due],
    parallelism: int,
    requested_before: datetime.datetime | None = None,
) -> Work:
    """Plans a flush in a transaction under whose snapshot everything is read; it ends with the connection."""
    read = export_snapshot(reading)
    defined = find_definitions(reading, list(dict.fromkeys(one.table for one in due)))
    waiting = [
        (one, versions) for one, versions in zip(due, waiting_versions(reading, due), strict=True) if versions > 0
    ]
    work = Work(read, [], [], [], requested_before)
    for table, group in groupby(waiting, lambda found: found[0].table):
        if table in defined:
            found = defined[table]
            number = len(work.tables)
            work.tables.append(HotSource(found.definition, tuple(HotTable(one) for one in found.hot)))
            work.shares.append(
                [Share(number, one.user_id if found.definition.per_user else None, versions) for one, versions in group]
            )
    work.tasks = _plan_tasks(settings, reading, work, parallelism)
    return work


def _plan_tasks(settings: FlushSettings, reading: Connection, work: Work, parallelism: int) -> list[FlushTask]:
    limits = Limits(settings.slice_rows, settings.slice_mb * MB, parallelism)
    shares = [share for of_table in work.shares for share in of_table]
    sizes = _bytes_per_version(reading, work)
    slice_rows = {number: rows_per_slice(shares, sizes[number], limits) for number in range(len(work.tables))}
    samples = {
        (share.table, share.user_id): _sample_keys(reading, work, share, parts)
        for share in shares
        if (parts := parts_of(share, slice_rows[share.table])) > 1
    }
    return plan_tasks(shares, slice_rows, samples)


def _bytes_per_version(reading: Connection, work: Work) -> list[float]:
    """Estimates the size of a version; dead rows make it larger, and slices smaller."""
    names = [[hot.qualified for hot in table.hot] for table in work.tables]
    rows = reading.execute(
        "SELECT n, pg_table_size(n::regclass) AS size, greatest(c.reltuples, 0) AS rows "
        "FROM unnest(%s::text[]) n JOIN pg_class c ON c.oid = n::regclass",
        ([name for hot in names for name in hot],),
    )
    sizes = {row["n"]: (row["size"], row["rows"]) for row in rows}
    return [
        sum(sizes[name][0] for name in hot)
        / max(sum(sizes[name][1] for name in hot), sum(share.versions for share in shares), 1)
        for hot, shares in zip(names, work.shares, strict=True)
    ]


def _sample_keys(reading: Connection, work: Work, share: Share, parts: int) -> list[Key]:
    table = work.tables[share.table]
    versions = sum(one.versions for one in work.shares[share.table])
    percent = 100.0 if versions <= ALL_ROWS else min(100.0, 100 * SAMPLED_KEYS * parts / share.versions)
    query = key_sample_query(table.definition, table.hot, share.user_id, percent)
    with reading.cursor(row_factory=tuple_row) as cursor:
        return list(cursor.execute(query).fetchall())  # type: ignore[call-overload, unused-ignore]
