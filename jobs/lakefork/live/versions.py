"""The changes of one table between two positions: each new version with the one that it replaced, hot or cold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakefork.hot.changes import (
    XID,
    Position,
    changes_query,
    missed_events,
    row_names,
    trimmed_owners,
    versions_before_query,
)
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.snapshots import PgSnapshot
from lakefork.model.tables import DELETED, SEQ, USER_ID, TableDefinition, TableKind
from lakefork.read.latest import rows_query
from lakefork.read.requests import ScanRequest
from lakefork.read.tables import FoundTable
from lakefork.sql.read.versions import find_latest, key_bounds, read_rows
from lakefork.sql.results import Rows
from lakefork.sql.workers.pool import QueryWorkers
from lakefork.sql.write.rows import typed_array

MOST_CHANGES = 100_000  # of one look at a table; more are as much work as reading the table
TOO_MANY = "more changes at once than can be told one by one"


@dataclass(eq=False, slots=True)
class Row:
    """A version's values, by the place of the column in the definition. place: among the rows of a look."""

    values: tuple[Any, ...]
    seq: int
    is_deleted: bool
    owner: str | None
    place: int


@dataclass(eq=False, slots=True)
class Change:
    """A new version, and the one that it replaced; None: the key had none."""

    row: Row
    old: Row | None
    xid: int


@dataclass(frozen=True)
class Look:
    """All changes of a table between two snapshots, by _seq; or why they cannot be told, to some owners or to all."""

    definition: TableDefinition
    since: PgSnapshot
    until: Position
    changes: Sequence[Change] = ()
    rows: Sequence[Row] = ()
    lost: str | None = None
    lost_owners: frozenset[str] = frozenset()  # whose changes are not complete


TRIMMED = "changes were trimmed before they were read"
FILES = "rows came or went as files"
MERGED = "files were merged before the changes in them were read"


def read_changes(
    connection: ArrowConnection,
    workers: QueryWorkers,
    found: FoundTable,
    since: Position,
    until: Position,
    authors: frozenset[str] = frozenset(),
    *,
    check_trimmed: bool,
) -> Look:
    """Reads the changes that became visible since a position, in the transaction of another.

    authors: who has committed files since. check_trimmed: a flush may have published and trimmed versions since.
    """
    definition = found.definition
    is_stream = definition.kind == TableKind.STREAM
    if reason := _lost(connection, definition, since, authors):
        return Look(definition, since.seen, until, lost=reason)
    given = (
        connection.query(changes_query(definition, found.hot, since.seen, MOST_CHANGES + 1))
        if found.hot or is_stream
        else None
    )
    lost_owners = frozenset[str]()
    if check_trimmed and not is_stream:
        lost_owners = trimmed_owners(connection, definition, since.seen)
    if given is None or not given.num_rows:
        return Look(definition, since.seen, until, lost_owners=lost_owners)
    if given.num_rows > MOST_CHANGES:
        return Look(definition, since.seen, until, lost=TOO_MANY)
    rows = rows_of(given, definition)
    xids = given[XID].to_pylist()
    if is_stream:
        changes = [Change(row, None, xid) for row, xid in zip(rows, xids, strict=True)]
        return Look(definition, since.seen, until, changes, rows, lost_owners=lost_owners)
    reader = _OldVersions(connection, workers, found, rows)
    return Look(definition, since.seen, until, reader.changes(xids), reader.rows, lost_owners=lost_owners)


def _lost(
    connection: ArrowConnection, definition: TableDefinition, since: Position, authors: frozenset[str]
) -> str | None:
    if definition.kind == TableKind.STREAM:
        return missed_events(connection, definition, since)
    if "other" in authors:
        return FILES
    # A merge leaves only the newest version of a key, which a flush may just have brought.
    return MERGED if {"flush", "snapshot_dedup"} <= authors else None


def rows_of(given: pa.Table, definition: TableDefinition, first_place: int = 0) -> list[Row]:
    values = Rows("", given.select(row_names(definition))).rows
    owners = given[USER_ID].to_pylist() if definition.per_user else [None] * given.num_rows
    seqs, deleted = given[SEQ].to_pylist(), given[DELETED].to_pylist()
    return [
        Row(row, seq, gone, owner, place)
        for place, (row, seq, gone, owner) in enumerate(zip(values, seqs, deleted, owners, strict=True), first_place)
    ]


class _OldVersions:
    """Finds for each new version the one before: of the same look, hot, or in a batch."""

    def __init__(self, connection: ArrowConnection, workers: QueryWorkers, found: FoundTable, rows: list[Row]) -> None:
        self._connection, self._workers, self._found = connection, workers, found
        self._definition = found.definition
        ids = {column.column_id: place for place, column in enumerate(found.definition.columns)}
        self._key_places = [ids[column.column_id] for column in found.definition.key]
        self._new = rows
        self.rows = list(rows)

    def changes(self, xids: Sequence[int]) -> list[Change]:
        first: dict[tuple[Any, ...], Row] = {}
        for row in self._new:
            first.setdefault(self.key(row), row)
        newest = self._hot(first)
        missing = {key: row for key, row in first.items() if key not in newest}
        if missing and self._found.has_files:
            newest |= self._cold(missing)
        changes = []
        for row, xid in zip(self._new, xids, strict=True):
            key = self.key(row)
            changes.append(Change(row, newest.get(key), xid))
            newest[key] = row
        return changes

    def key(self, row: Row) -> tuple[Any, ...]:
        return (row.owner, *(row.values[place] for place in self._key_places))

    def _hot(self, first: dict[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], Row]:
        definition = self._definition
        wanted = list(first.values())
        keys = [[row.values[place] for row in wanted] for place in self._key_places]
        owners = [row.owner or "" for row in wanted] if definition.per_user else None
        seqs = [row.seq for row in wanted]
        found = self._connection.query(versions_before_query(definition, self._found.hot, owners, keys, seqs))
        return self._added(found)

    def _cold(self, missing: dict[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], Row]:
        """Looks in the batches of all owners; one may have newer versions, too, if a flush was quick."""
        definition, wanted = self._definition, list(missing.values())
        keys = self._key_table(wanted)
        owners = {row.owner for row in wanted}
        request = ScanRequest(
            replace(self._found, hot=()), definition.columns, wanted[0].owner if len(owners) == 1 else None,
            key_bounds(definition, keys), include_deleted=True, superseded_too=True,
        )  # fmt: skip
        scan = find_latest(self._connection, self._workers, request)
        if not scan.plan.batches:
            return {}
        rows = read_rows(rows_query(scan), self._workers, request)
        system = [column.name for column in definition.system_columns]
        names = [column.name for column in definition.columns]
        renamed = rows.select([*names, *system]).rename_columns([*row_names(definition), *system])
        found: dict[tuple[Any, ...], Row] = {}
        for row in rows_of(renamed.sort_by(SEQ), definition):
            key = self.key(row)
            if key in missing and row.seq < missing[key].seq:
                found[key] = row
        for row in found.values():
            row.place = len(self.rows)
            self.rows.append(row)
        return found

    def _key_table(self, rows: Sequence[Row]) -> pa.Table:
        definition = self._definition
        arrays = [
            typed_array([row.values[place] for row in rows], column)
            for place, column in zip(self._key_places, definition.key, strict=True)
        ]
        return pa.Table.from_arrays(arrays, names=[column.name for column in definition.key])

    def _added(self, found: pa.Table) -> dict[tuple[Any, ...], Row]:
        rows = rows_of(found, self._definition, len(self.rows))
        self.rows.extend(rows)
        return {self.key(row): row for row in rows}
