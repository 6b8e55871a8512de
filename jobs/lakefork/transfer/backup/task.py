"""What a Spark task of a backup does: copies batches to the place, and writes hot rows there as batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakefork.backups.format import file_path
from lakefork.cold.batch_files import encode_rows, use_lean_memory
from lakefork.errors import StorageError, os_reason
from lakefork.garbage import garbage_collection_paused
from lakefork.hot.connections import ArrowConnection
from lakefork.model.slices import Slice
from lakefork.model.tables import TableDefinition
from lakefork.read.newest import Newest
from lakefork.read.slices import HotSource, read_slices
from lakefork.storage import StorageOptions, replace_file
from lakefork.storage.copying import content_of, store_file
from lakefork.transfer.backup.plan import CopyTask, FileToKeep


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
    destination: Destination, reading: HotReading, tables: Sequence[HotSource], slices: Sequence[Slice]
) -> list[KeptRows]:
    """The newest version of each key, as a flush at that moment would have written them."""
    use_lean_memory()
    reader = ArrowConnection(reading.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
    try:
        reader.join_snapshot(reading.snapshot)
        return [
            kept
            for table, newest in read_slices(reader, tables, slices, reading.slice_bytes, waiting_only=True)
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
