"""Steps of a copy into the lake: rows of a part as Arrow, in sorted batches, read back and compared."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg.rows import dict_row

from lakefork.cold.batch_files import Destination, WrittenFile, use_lean_memory, write_rows
from lakefork.errors import InvalidInputError, JobFailedError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.seqids import PostgresNodeLease, SeqIdGenerator
from lakefork.model.tables import DELETED, SEQ, USER_ID, TableDefinition
from lakefork.read.newest import newest_versions, repeated_keys
from lakefork.storage import open_path
from lakefork.transfer.postgres_copy.lake_types import NOT_HELD, LakeTable
from lakefork.transfer.postgres_copy.plan import MB, Table, quote
from lakefork.transfer.postgres_copy.sessions import SOURCE, Endpoint
from lakefork.transfer.postgres_copy.task import Done, Step, Worker, timed

CHUNK_BYTES = 64 * MB  # in memory; files are smaller


@dataclass(frozen=True)
class IntoLake:
    """lake: what each table becomes, by its id on the source; definitions: the same as the catalog will have them."""

    source: Endpoint
    destination: Destination
    node_id: str
    lake: Mapping[int, LakeTable]
    definitions: Mapping[int, TableDefinition]
    compare: bool

    def do(self, worker: Worker, kind: str, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
        assert kind == "part"  # noqa: S101 - nothing else is planned
        use_lean_memory()
        return [self._copy_part(worker, step, tables[step["table_oid"]]) for step in steps]

    def _copy_part(self, worker: Worker, step: Step, table: Table) -> Done:
        lake, definition = self.lake[table.oid], self.definitions[table.oid]
        catalog = worker.kept(
            "files", lambda: psycopg.connect(worker.environment.dsn, autocommit=True, row_factory=dict_row)
        )
        before, after = Digest(), Digest()
        files: list[dict[str, Any]] = []
        read = 0
        with timed() as seconds:
            for rows in self._read(worker, lake, definition, table, step["detail"]["condition"]):
                read += rows.num_rows
                if self.compare:
                    before.add(rows.select(_compared(definition)))
                newest = newest_versions(
                    rows.to_batches(), definition.arrow_schema, _key_of(definition), SEQ, sys.maxsize
                )
                for file in write_rows(self.destination, catalog, definition, newest.rows):
                    files.append(_file(file, definition, newest.repeated))
                    if self.compare:
                        self._read_back(file.path, definition, after)
        if self.compare and before != after:
            raise JobFailedError(f"{step['name']}: the files hold other rows than the source", {})
        size = sum(file["facts"]["size_bytes"] for file in files)
        result = {"read": read, "files": files}
        return {
            "step_id": step["step_id"], "rows": read, "bytes": size, "digest": before.text if self.compare else None,
            "seconds": seconds(), "result": result,
        }  # fmt: skip

    def _read(
        self, worker: Worker, lake: LakeTable, definition: TableDefinition, table: Table, condition: str | None
    ) -> Iterator[pa.Table]:
        """Chunks of bounded size, as the definition has them."""
        reader = ArrowConnection(self.source.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
        try:
            assert worker.environment.snapshot is not None  # noqa: S101 - rows are read under one
            reader.join_snapshot(worker.environment.snapshot)
            for setting in SOURCE.split("; "):
                reader.execute(setting.replace("SET ", "SET LOCAL ", 1))
            query = lake.select(table, condition)
            if lake.per_user:
                query += f' ORDER BY {quote(lake.owner or "")}::text COLLATE "C"'
            with reader.stream(query) as batches:
                for chunk in _chunks(batches):
                    yield self._complete(worker, lake, definition, chunk)
        finally:
            reader.close()

    def _complete(self, worker: Worker, lake: LakeTable, definition: TableDefinition, chunk: pa.Table) -> pa.Table:
        """With _seq, _deleted, whose each row is, and the key where the source has none."""
        count = len(lake.selected)
        self._refuse(lake, chunk.column(count + 1))
        generator = worker.kept("seqids", lambda: self._generator(worker))
        seqs = pa.array(generator.next_many(chunk.num_rows))
        columns = [chunk.column(place) for place in range(count)]
        if lake.has_generated_key:
            columns.append(seqs)
        columns += [seqs, pa.array(np.zeros(chunk.num_rows, dtype=bool))]
        if lake.per_user:
            columns.append(chunk.column(count))
        try:
            return pa.table(columns, names=definition.arrow_schema.names).cast(definition.arrow_schema)
        except (pa.ArrowInvalid, ValueError) as error:
            raise InvalidInputError(f"{lake.namespace}.{lake.name}: {str(error).splitlines()[0]}") from error

    def _refuse(self, lake: LakeTable, refused: pa.ChunkedArray) -> None:
        if refused.null_count == len(refused):
            return
        name, test = lake.refused[pc.min(refused).as_py()]
        if lake.owner == name and "IS NULL" in test:
            about = f"has no owner in {name}"
        else:
            about = f"has in {name} a value that its type in the lake cannot hold ({NOT_HELD})"
        raise InvalidInputError(f"a row of {lake.namespace}.{lake.name} {about}: change it, or exclude the table")

    def _generator(self, worker: Worker) -> SeqIdGenerator:
        dsn = worker.environment.dsn
        return SeqIdGenerator(PostgresNodeLease(lambda: psycopg.connect(dsn, autocommit=True), self.node_id))

    def _read_back(self, path: str, definition: TableDefinition, digest: "Digest") -> None:
        filesystem, inner = open_path(path, self.destination.storage)
        with filesystem.open_input_file(inner) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=200_000):
                rows = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                digest.add(rows.cast(definition.arrow_schema).select(_compared(definition)))


class Digest:
    """Of rows in any order: how many, and the sum of a hash of each."""

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0

    def add(self, rows: pa.Table) -> None:
        import duckdb

        plain = pa.table([_plain(column) for column in rows.columns], names=[f"c{n}" for n in range(rows.num_columns)])
        columns = ", ".join(plain.column_names)
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1")
            connection.register("rows", plain)
            found = connection.execute(
                f"SELECT count(*), coalesce(sum(hash({columns})::HUGEINT), 0) FROM rows"
            ).fetchone()
        count, total = found or (0, 0)
        self.rows += int(count)
        self.total = (self.total + int(total)) % (1 << 64)

    @property
    def text(self) -> str:
        return f"{self.rows}:{self.total:016x}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column


def _compared(definition: TableDefinition) -> list[str]:
    """All but what the copy itself adds."""
    return [name for name in definition.arrow_schema.names if name not in (SEQ, DELETED)]


def _key_of(definition: TableDefinition) -> list[str]:
    return ([USER_ID] if definition.per_user else []) + [column.name for column in definition.key]


def _chunks(batches: Any) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        found = pa.Table.from_batches(waiting)
        if found.num_rows:
            yield found


def _file(file: WrittenFile, definition: TableDefinition, repeated_seqs: int) -> dict[str, Any]:
    """As a step keeps it, with what the audit looks at."""
    rows = file.rows
    assert rows is not None  # noqa: S101 - just written
    key = [column.name for column in definition.key]
    present = dict.fromkeys([SEQ, *(column.name for column in definition.columns if not column.nullable), *key])
    metrics = {
        "rows_kept": rows.num_rows,
        "rows_written": file.facts.record_count,
        "wrong_types": 0 if file.facts.as_defined else 1,
        "repeated_keys": repeated_keys(rows.select(_key_of(definition))),
        "repeated_seqs": repeated_seqs,
        **{f"nulls in {name}": rows[name].null_count for name in present},
    }
    facts = vars(file.facts) | {"statistics": json.loads(file.facts.statistics)}
    return {"path": file.path, "user_id": file.user_id, "facts": facts, "metrics": metrics}
