"""What a Spark task of a backup does: copies batches to the place, and writes hot rows there as batches."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lakefork.backups.format import file_path
from lakefork.cold.batch_files import encode_rows, use_lean_memory
from lakefork.errors import StorageError, os_reason
from lakefork.garbage import garbage_collection_paused
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import middle_key_query, versions_query
from lakefork.hot.tables import HotTable
from lakefork.model.tables import SEQ, USER_ID, TableDefinition
from lakefork.read.newest import Newest, TooLargeError, newest_versions
from lakefork.storage import StorageOptions, replace_file
from lakefork.storage.copying import content_of, store_file
from lakefork.transfer.backup.plan import CopyTask, FileToKeep, HotSlice


@dataclass(frozen=True)
class Destination:
    """Where a backup writes."""

    place: str
    storage: StorageOptions


def copy_files(destination: Destination, task: CopyTask) -> list[tuple[int, str]]:
    """The number and digest of each file. To do it again changes nothing."""
    return [(file.number, _copy(destination, file)) for file in task.files]


def _copy(destination: Destination, file: FileToKeep) -> str:
    place = destination.place
    try:
        content = store_file(
            file.path, lambda found: file_path(place, found.digest), f"{place}/files/00", destination.storage
        )
    except FileNotFoundError as error:
        raise StorageError(f"{error.filename or file.path} is missing: is the right storage mounted?") from error
    except OSError as error:
        raise StorageError(f"{file.path} cannot be copied to {place}: {os_reason(error)}") from error
    if content.size != file.size:
        raise StorageError(f"{file.path} is damaged: it has {content.size:,} bytes, the catalog says {file.size:,}")
    if file.digest not in (None, content.digest):
        raise StorageError(f"{file.path} is damaged: an earlier backup found other content in it")
    return content.digest


@dataclass(frozen=True)
class HotTableToKeep:
    definition: TableDefinition
    hot: tuple[HotTable, ...]

    @property
    def key(self) -> list[str]:
        owner = [USER_ID] if self.definition.per_user else []
        return owner + [column.name for column in self.definition.key]


@dataclass(frozen=True)
class HotReading:
    """How hot rows are read: under which Postgres snapshot, how much at once, into files of which size."""

    dsn: str
    snapshot: str
    slice_bytes: int
    file_bytes: int
    false_positives: float


@dataclass(frozen=True)
class KeptRows:
    """A file of rows that were hot."""

    table: int
    user_id: str | None
    digest: str
    size: int
    rows: int
    footer_size: int
    statistics: str


@garbage_collection_paused()
def keep_hot_rows(
    destination: Destination, reading: HotReading, tables: Sequence[HotTableToKeep], slices: Sequence[HotSlice]
) -> list[KeptRows]:
    """The newest version of each key, as a flush at that moment would have written them."""
    use_lean_memory()
    reader = ArrowConnection(reading.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
    try:
        reader.join_snapshot(reading.snapshot)
        return [
            kept
            for table, newest in _read_all(reading, reader, tables, slices)
            for kept in _write(destination, reading, table, tables[table].definition, newest)
        ]
    finally:
        reader.close()


def _write(
    destination: Destination, reading: HotReading, table: int, definition: TableDefinition, newest: Newest
) -> Iterator[KeptRows]:
    for user, buffer, facts in encode_rows(definition, newest.rows, reading.file_bytes, reading.false_positives):
        data = buffer.to_pybytes()
        content = content_of(data)
        try:
            replace_file(file_path(destination.place, content.digest), data, destination.storage)
        except OSError as error:
            raise StorageError(f"{destination.place} cannot be written to: {os_reason(error)}") from error
        yield KeptRows(
            table, user, content.digest, content.size, facts.record_count, facts.footer_size, facts.statistics
        )


def _read_all(
    reading: HotReading, reader: ArrowConnection, tables: Sequence[HotTableToKeep], slices: Sequence[HotSlice]
) -> Iterator[tuple[int, Newest]]:
    """What does not fit into memory is read in halves."""
    waiting = list(reversed(slices))
    while waiting:
        one = waiting.pop()
        table = tables[one.table]
        try:
            yield one.table, _read(reader, table, one, reading.slice_bytes)
        except TooLargeError:
            halves = _halves(reader, table, one)
            waiting += reversed(halves)
            if not halves:
                yield one.table, _read(reader, table, one, sys.maxsize)


def _read(reader: ArrowConnection, table: HotTableToKeep, one: HotSlice, max_bytes: int) -> Newest:
    query = versions_query(table.definition, table.hot, one.users, one.low, one.high, waiting_only=True)
    with reader.stream(query) as batches:
        return newest_versions(batches, table.definition.arrow_schema, table.key, SEQ, max_bytes)


def _halves(reader: ArrowConnection, table: HotTableToKeep, one: HotSlice) -> list[HotSlice]:
    """Of the users, or of one user's keys; nothing if there is only one key."""
    if one.users and len(one.users) > 1:
        middle = len(one.users) // 2
        return [replace(one, users=one.users[:middle]), replace(one, users=one.users[middle:])]
    with reader.stream(middle_key_query(table.definition, table.hot, one.users, one.low, one.high)) as batches:
        found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return [replace(one, high=found[0]), replace(one, low=found[0])] if found else []
