"""Hot rows that were read before, kept where workers can map them, so that only what was written since is read again.

A hot row never changes: it comes with a transaction, and goes when it is published or forgotten. So what one Postgres
snapshot saw of a table is right for a later one that still has as many of those rows, once those new to it are added.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import Moment, count_versions, moment_of, read_versions
from lakefork.hot.tables import HotTable
from lakefork.model.tables import Column
from lakefork.sql.workers.shared_rows import extend, share

MIN_ROWS_TO_CACHE = 1_000  # rows; fewer are read as quickly as they are counted


@dataclass(frozen=True)
class CachedRows:
    moment: Moment
    rows: pa.Table


class HotCache:
    """A cache for read-only transactions with one snapshot; uncommitted rows must not get here."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Hashable, CachedRows] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self,
        connection: ArrowConnection,
        hot: HotTable,
        user_id: str | None,
        columns: Sequence[Column],
        *,
        batches_too: bool,
    ) -> pa.Table:
        """Reads like read_versions without predicates."""
        key = (hot.name, hot.definition.catalog_id, user_id, tuple(column.column_id for column in columns), batches_too)
        kept = self._find(key)
        rows = self._refreshed(connection, hot, user_id, columns, kept, batches_too=batches_too) if kept else None
        if rows is None:
            rows = read_versions(connection, hot, user_id, columns, batches_too=batches_too)
            if rows.num_rows >= MIN_ROWS_TO_CACHE and rows.nbytes <= self._max_bytes:
                rows = share(rows)
        if rows.num_rows >= MIN_ROWS_TO_CACHE and (kept is None or rows is not kept.rows):
            self._keep(key, CachedRows(moment_of(connection), rows))
        return rows

    def _refreshed(
        self,
        connection: ArrowConnection,
        hot: HotTable,
        user_id: str | None,
        columns: Sequence[Column],
        kept: CachedRows,
        *,
        batches_too: bool,
    ) -> pa.Table | None:
        """Adds new rows to a cached entry; None: some rows are gone, or were not visible yet."""
        now, snapshot = moment_of(connection), kept.moment.snapshot
        if now == kept.moment:
            return kept.rows  # nothing was written since
        if not now.sees_all_of(kept.moment):  # an older transaction, or another start of the server
            return None
        seen, unseen = count_versions(connection, hot, user_id, snapshot, batches_too=batches_too)
        if seen != kept.rows.num_rows:
            return None
        if not unseen:
            return kept.rows
        new = read_versions(connection, hot, user_id, columns, batches_too=batches_too, not_seen_by=snapshot)
        return extend(kept.rows, new)

    def _find(self, key: Hashable) -> CachedRows | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Hashable, kept: CachedRows) -> None:
        with self._lock:
            before = self._kept.get(key)
            if before and before.moment.server == kept.moment.server and not kept.moment.sees_all_of(before.moment):
                return  # the cached entry is newer
            if before:
                del self._kept[key]
                self._bytes -= before.rows.nbytes
            if kept.rows.nbytes > self._max_bytes:
                return
            self._kept[key] = kept
            self._bytes += kept.rows.nbytes
            while self._bytes > self._max_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.rows.nbytes
