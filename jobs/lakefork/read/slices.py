"""Reads slices of hot rows as Arrow and keeps the newest version of each key, in bounded memory."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import middle_key_query, versions_query
from lakefork.hot.tables import HotTable
from lakefork.model.slices import Slice
from lakefork.model.tables import SEQ, USER_ID, TableDefinition
from lakefork.read.newest import Newest, TooLargeError, newest_versions


@dataclass(frozen=True)
class HotSource:
    """A table's current definition, and the hot tables that hold its rows."""

    definition: TableDefinition
    hot: tuple[HotTable, ...]

    @property
    def key(self) -> list[str]:
        owner = [USER_ID] if self.definition.per_user else []
        return owner + [column.name for column in self.definition.key]


def read_slices(
    reader: ArrowConnection,
    tables: Sequence[HotSource],
    slices: Sequence[Slice],
    max_bytes: int,
    *,
    waiting_only: bool = False,
) -> Iterator[tuple[int, Newest]]:
    """Yields the table and newest versions of each slice; one that exceeds max_bytes is read in halves.

    waiting_only: without versions that are already in batches.
    """
    waiting = list(reversed(slices))
    while waiting:
        one = waiting.pop()
        table = tables[one.table]
        try:
            newest = _read(reader, table, one, max_bytes, waiting_only=waiting_only)
        except TooLargeError:
            halves = _halves(reader, table, one)
            waiting += reversed(halves)
            if halves:
                continue
            newest = _read(reader, table, one, sys.maxsize, waiting_only=waiting_only)
        yield one.table, newest


def _read(reader: ArrowConnection, table: HotSource, one: Slice, max_bytes: int, *, waiting_only: bool) -> Newest:
    query = versions_query(table.definition, table.hot, one.users, one.low, one.high, waiting_only=waiting_only)
    with reader.stream(query) as batches:
        return newest_versions(batches, table.definition.arrow_schema, table.key, SEQ, max_bytes)


def _halves(reader: ArrowConnection, table: HotSource, one: Slice) -> list[Slice]:
    """Splits a slice by users, or by the keys of one user; empty if there is only one key."""
    if one.users and len(one.users) > 1:
        middle = len(one.users) // 2
        return [replace(one, users=one.users[:middle]), replace(one, users=one.users[middle:])]
    with reader.stream(middle_key_query(table.definition, table.hot, one.users, one.low, one.high)) as batches:
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return [replace(one, high=found[0]), replace(one, low=found[0])] if found else []
