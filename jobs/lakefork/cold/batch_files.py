"""Writes the rows of a table to new batches: reserves numbers, writes files atomically, makes them durable."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.catalog.roots import known_files, reserve_past_taken
from lakefork.catalog.staging import reserve_batches
from lakefork.cold.batch import BatchLayout, can_filter, encode_batch, mark_of, with_field_ids, write_batches
from lakefork.cold.layout import batch_directory, batch_name, batch_number
from lakefork.cold.statistics import BatchFacts
from lakefork.errors import StorageError
from lakefork.model.tables import USER_ID, TableDefinition, fold
from lakefork.storage import StorageOptions, list_files, make_durable
from lakefork.storage.markers import RootOwner, claim_once

FILES_AT_ONCE = 200
BYTES_AT_ONCE = 16 * 2**20
SYNCED_AT_ONCE = 1_000

WHY_TAKEN = (
    "this installation did not write such files: Postgres may have been restored to an earlier time, or another "
    "installation or program writes to the same path"
)

NewFile = tuple[str | None, str, pa.Table]  # owner, path and rows


@dataclass(frozen=True)
class Destination:
    """The job that writes, and its settings."""

    job_id: str
    installation: str
    storage: StorageOptions
    file_bytes: int
    false_positives: float


@dataclass(frozen=True)
class WrittenFile:
    user_id: str | None
    path: str
    rows: pa.Table | None
    facts: BatchFacts


def use_lean_memory() -> None:
    """Uses the system allocator, because Arrow's default takes long to get large blocks for the first time."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def write_rows(
    destination: Destination,
    catalog: Any,
    definition: TableDefinition,
    rows: pa.Table,
    rows_per_file: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[WrittenFile]:
    """Writes rows sorted by owner: at least one file per user; all are durable after the last is yielded.

    If a name is taken by a file of somebody else, the next number is used, and `say` is called.
    """
    layout = batch_layout(definition, destination.false_positives)
    if rows.nbytes <= destination.file_bytes:  # the common case: rows need not be inspected
        rows_per_file = rows_per_file or rows.num_rows
    owners = [
        (
            user,
            batch_directory(definition, user),
            _parts(of_owner, rows_per_file or _fitting(of_owner, destination)),
        )
        for user, of_owner in _by_owner(rows.cast(layout.schema), per_user=definition.per_user)
    ]
    if owners:
        claim_table(destination, catalog, definition)
    numbers = reserve_batches(
        catalog, destination.job_id, definition.catalog_id, definition.table_id,
        [directory for _, directory, _ in owners], [len(parts) for _, _, parts in owners],
    )  # fmt: skip
    layout = layout.suited_to([part for _, _, parts in owners for part in parts])
    files = [
        (user, f"{directory}/{batch_name(number)}", part)
        for (user, directory, parts), first in zip(owners, numbers, strict=True)
        for number, part in enumerate(parts, first)
    ]
    durable, mark = _Durable(), mark_of(destination.job_id)
    path_after = _PathAfter(destination, catalog, definition, say)
    for group in _groups(files, rows):
        written = write_batches(
            [(path, part) for _, path, part in group], layout, destination.storage, mark, path_after
        )
        durable.add([path for path, _ in written])
        yield from (
            WrittenFile(user, path, part, facts) for (user, _, part), (path, facts) in zip(group, written, strict=True)
        )
    durable.finish()


def encode_rows(
    definition: TableDefinition, rows: pa.Table, file_bytes: int, false_positives: float
) -> Iterator[tuple[str | None, pa.Buffer, BatchFacts]]:
    """The files that sorted rows make, with their owners; the same rows give the same bytes."""
    layout = batch_layout(definition, false_positives)
    for user, of_owner in _by_owner(rows.cast(layout.schema), per_user=definition.per_user):
        for part in _parts(of_owner, _rows_per_file(of_owner, file_bytes)):
            yield (user, *encode_batch(part, layout.suited_to([part])))


def claim_table(destination: Destination, catalog: Any, definition: TableDefinition) -> None:
    """Marks the table's root as ours before the first file is written."""
    root = definition.path
    owner = RootOwner(destination.installation, definition.catalog_id, definition.table_id)
    claim_once(destination.job_id, root, owner, destination.storage, lambda: known_files(catalog, root))


@dataclass(frozen=True)
class _PathAfter:
    """Returns another path instead of one that is taken."""

    destination: Destination
    catalog: Any
    definition: TableDefinition
    say: Callable[[str], None]

    def __call__(self, taken: str) -> str:
        directory, _, name = taken.rpartition("/")
        numbers = map(batch_number, list_files(directory, self.destination.storage))
        definition = self.definition
        number = reserve_past_taken(
            self.catalog, self.destination.job_id, definition.catalog_id, definition.table_id, directory,
            batch_number(name), [one for one in numbers if one >= 0],
        )  # fmt: skip
        new_name = batch_name(number)
        self.say(f"{taken} already exists and is left as it is; writing {new_name} instead: {WHY_TAKEN}")
        return f"{directory}/{new_name}"


def _groups(files: Sequence[NewFile], rows: pa.Table) -> Iterator[list[NewFile]]:
    """Groups small files that are written together."""
    most_rows = BYTES_AT_ONCE * rows.num_rows // max(rows.nbytes, 1)
    group: list[NewFile] = []
    waiting = 0
    for file in files:
        group.append(file)
        waiting += file[2].num_rows
        if len(group) >= FILES_AT_ONCE or waiting >= most_rows:
            yield group
            group, waiting = [], 0
    if group:
        yield group


class _Durable:
    """Makes files durable while others are written; published files must survive a power failure."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._begun: list[Future[None]] = []
        self._waiting: list[str] = []

    def add(self, paths: Sequence[str]) -> None:
        self._waiting += paths
        if len(self._waiting) >= SYNCED_AT_ONCE:
            self._sync()

    def finish(self) -> None:
        self._sync()
        self._thread.shutdown()
        for one in self._begun:
            one.result()

    def _sync(self) -> None:
        self._begun.append(self._thread.submit(_sync_file_systems, self._waiting))
        self._waiting = []


def _sync_file_systems(paths: Sequence[str]) -> None:
    """Syncs each file system once for all its files."""
    try:
        devices = {Path(path).stat().st_dev: path for path in paths if not path.startswith("s3://")}
        for path in devices.values():
            make_durable(path)
    except OSError as error:
        raise StorageError(f"files cannot be made durable: {error}") from error


def _by_owner(rows: pa.Table, *, per_user: bool) -> Iterator[tuple[str | None, pa.Table]]:
    """Splits rows by user; they are sorted by user first."""
    if not per_user:
        yield from [(None, rows)] if rows.num_rows else []
        return
    runs = pc.run_end_encode(rows[USER_ID].combine_chunks()) if rows.num_rows else None
    start = 0
    for user, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True) if runs else ():
        yield user, rows.slice(start, end - start)
        start = end


def _fitting(rows: pa.Table, destination: Destination) -> int:
    """Returns how many rows fill a file."""
    return _rows_per_file(rows, destination.file_bytes)


def _rows_per_file(rows: pa.Table, file_bytes: int) -> int:
    files = max(1, -(-rows.nbytes // file_bytes))
    return int(-(-rows.num_rows // files))


def _parts(rows: pa.Table, rows_per_file: int) -> list[pa.Table]:
    """Splits rows into parts of equal size."""
    files = max(1, round(rows.num_rows / max(rows_per_file, 1)))
    if files == 1:
        return [rows]
    size = -(-rows.num_rows // files)
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]


def batch_layout(definition: TableDefinition, false_positives: float) -> BatchLayout:
    columns = definition.columns + definition.system_columns
    schema = with_field_ids(definition.arrow_schema, {column.name: column.column_id for column in columns})
    filters = tuple(
        column.name
        for column in columns
        if fold(column.name) in definition.filtered_columns and can_filter(column.type.arrow)
    )
    key = tuple(column.name for column in definition.key)
    return BatchLayout(schema, key, filters, definition.options.get("bloom_filter_fpp", false_positives))
