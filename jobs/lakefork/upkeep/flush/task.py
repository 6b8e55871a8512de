"""The Spark task of a flush: reads slices of hot rows as Arrow, keeps the newest versions, writes batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

from lakefork.cold.batch_files import Destination, use_lean_memory, write_rows
from lakefork.cold.statistics import BatchFacts
from lakefork.errors import StorageError
from lakefork.garbage import garbage_collection_paused
from lakefork.hot.connections import ArrowConnection
from lakefork.model.tables import SEQ, USER_ID, TableDefinition
from lakefork.read.newest import Newest, repeated_keys
from lakefork.read.slices import HotSource, read_slices
from lakefork.upkeep.flush.plan import FlushTask


@dataclass(frozen=True)
class TaskEnvironment:
    """Everything that a task needs besides its rows."""

    dsn: str
    snapshot: str
    slice_bytes: int
    destination: Destination


@dataclass(frozen=True)
class StagedFile:
    """A file that was written and not published; metrics: input of the audit."""

    table: int
    user_id: str | None
    path: str
    facts: BatchFacts
    metrics: dict[str, int]


@dataclass(frozen=True)
class TaskReport:
    """The result of a task: files, and by table the versions read, the rows kept and the error, if any.

    said: messages for the log.
    """

    users: int
    files: list[StagedFile]
    read: dict[int, int]
    kept: dict[int, int]
    failed: dict[int, str]
    said: tuple[str, ...] = ()

    @property
    def amounts(self) -> tuple[int, int, int, int]:
        """Returns users done, versions read, rows and files written."""
        rows = sum(file.facts.record_count for file in self.files)
        return self.users, sum(self.read.values()), rows, len(self.files)


@garbage_collection_paused()
def run_task(environment: TaskEnvironment, tables: Sequence[HotSource], task: FlushTask) -> TaskReport:
    use_lean_memory()
    files: list[StagedFile] = []
    read: dict[int, int] = {}
    kept: dict[int, int] = {}
    failed: dict[int, str] = {}
    said: list[str] = []
    reader = ArrowConnection(environment.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
    try:
        reader.join_snapshot(environment.snapshot)
        with psycopg.connect(environment.dsn, autocommit=True, row_factory=dict_row) as catalog:
            for table_index, newest in read_slices(reader, tables, task.slices, environment.slice_bytes):
                read[table_index] = read.get(table_index, 0) + newest.read
                kept[table_index] = kept.get(table_index, 0) + newest.rows.num_rows
                try:
                    files += list(_write(environment, catalog, tables[table_index], table_index, newest, said.append))
                except StorageError as error:
                    failed[table_index] = str(error)
    finally:
        reader.close()
    users = {(one.table, user) for one in task.slices for user in one.users or ()}
    return TaskReport(len(users), files, read, kept, failed, tuple(said))


def _write(
    environment: TaskEnvironment,
    catalog: Any,
    table: HotSource,
    table_index: int,
    newest: Newest,
    say: Callable[[str], None],
) -> Iterator[StagedFile]:
    metrics = RowMetrics(table.definition, newest.rows)
    repeated = newest.repeated
    for file in write_rows(environment.destination, catalog, table.definition, newest.rows, say=say):
        measured = _file_metrics(file.rows, file.facts) | metrics.of(file.rows, repeated)
        yield StagedFile(table_index, file.user_id, file.path, file.facts, measured)
        repeated = 0  # counted once


def _file_metrics(rows: pa.Table, facts: BatchFacts) -> dict[str, int]:
    return {
        "rows_kept": rows.num_rows,
        "rows_written": facts.record_count,
        "wrong_types": 0 if facts.as_defined else 1,
    }


class RowMetrics:
    """Measures what the audit checks. If all rows are valid, so are those of each file."""

    def __init__(self, definition: TableDefinition, rows: pa.Table) -> None:
        key = [column.name for column in definition.key]
        self._key = ([USER_ID] if definition.per_user else []) + key
        self._present = [SEQ] + [column.name for column in definition.columns if not column.nullable]
        self._present += [name for name in key if name not in self._present]
        self._before: pa.Table | None = None  # the last key of the previous file: the next file must not contain it
        self._all = self._measure(rows)

    def of(self, rows: pa.Table, repeated_seqs: int) -> dict[str, int]:
        """Returns the metrics of a file; files must be passed in order."""
        found = self._all
        if any(self._all.values()):
            found = self._measure(rows)
            self._before = rows.select(self._key).slice(rows.num_rows - 1)
        return {**found, "repeated_seqs": repeated_seqs}

    def _measure(self, rows: pa.Table) -> dict[str, int]:
        keys = rows.select(self._key)
        return {
            "repeated_keys": repeated_keys(keys if self._before is None else pa.concat_tables([self._before, keys])),
            "repeated_seqs": 0,
            **{f"nulls in {name}": rows[name].null_count for name in self._present},
        }
