"""Batches as Spark frames: read by Spark where the catalog knows a file's content, otherwise by pyarrow.

Columns are called c<column_id> in the frames, because a current name may belong to another column in old files.
"""

import datetime
import functools
import re
import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from lakefork.cold.batch import FIELD_ID
from lakefork.model.column_types import ColumnType
from lakefork.model.tables import Column, TableDefinition
from lakefork.read.pruning import Batch
from lakefork.spark.read_types import literal, microseconds, plain_type, spark_type, to_plain
from lakefork.spark.table_to_read import TableToRead
from lakefork.storage import StorageOptions, open_path

# Spark reads S3 only with extra jars, and takes paths with these characters for patterns.
NOT_FOR_SPARK = re.compile(r"^s3://|[]\[{}*?\\]")
READER_SETTINGS = ("spark.sql.files.", "spark.sql.parquet.")
PATHS_PER_TASK = 20
_BETWEEN_SETTINGS = "\x1e"


@dataclass(frozen=True)
class StoredColumn:
    """A column as it is in files: its type, and its name there unless it may belong to another column."""

    column_id: int
    name: str
    type: ColumnType


@dataclass(frozen=True)
class BatchReader:
    """Reads batches. defaults: by column id, the value of rows that were written before the column existed."""

    spark: SparkSession
    table: TableToRead
    defaults: Mapping[int, Any]
    storage: StorageOptions

    def frames(self, batches: Iterable[Batch], columns: Sequence[Column]) -> list[DataFrame]:
        """Returns frames with these columns that together have the rows of the batches."""
        by_definition: defaultdict[int | None, list[str]] = defaultdict(list)
        for batch in batches:
            by_definition[self._written_under(batch)].append(batch.path)
        others = by_definition.pop(None, [])
        known: defaultdict[tuple[StoredColumn | None, ...], list[str]] = defaultdict(list)
        for version, paths in by_definition.items():
            known[self._written(self.table.history[version or 0], columns)] += paths
        frames = [self._by_spark(columns, written, paths) for written, paths in known.items()]
        return frames + ([self._by_arrow(columns, others)] if others else [])

    def _written_under(self, batch: Batch) -> int | None:
        """Returns the index of a batch's definition in the history; None: unknown, or Spark cannot open the file."""
        version = bisect_right(self.table.history, batch.published, key=lambda one: one.definition_snapshot) - 1
        if version < 0 or NOT_FOR_SPARK.search(batch.path) or not self._is_as_defined(batch, version):
            return None
        return version

    def _is_as_defined(self, batch: Batch, version: int) -> bool:
        """Tells whether a file matches a definition: a flush may publish after an ALTER what it read before."""
        return batch.column_ids == self._flat_ids[version] and version not in self._ambiguous

    @functools.cached_property
    def _flat_ids(self) -> list[set[int]]:
        """Returns the columns that have statistics, by definition."""
        return [
            {column.column_id for column in under.columns + under.system_columns if not column.type.element}
            for under in self.table.history
        ]

    @functools.cached_property
    def _ambiguous(self) -> frozenset[int]:
        """Returns definitions whose files Spark might misread if they were written under an older one: arrays have no
        statistics, and Spark's reader widens fewer types than ALTER.
        """
        found = set()
        types: defaultdict[int, set[ColumnType]] = defaultdict(set)
        for version, under in enumerate(self.table.history):
            for one in under.columns:
                types[one.column_id].add(one.type)
                if not all(_spark_widens(before, one.type) for before in types[one.column_id]):
                    found.add(version)
                if one.type.element and one.initial_default is not None:
                    found.add(version)
        return frozenset(found)

    def _written(self, under: TableDefinition, columns: Sequence[Column]) -> tuple[StoredColumn | None, ...]:
        """Returns how files store each column; None where it is missing."""
        by_id = {column.column_id: column for column in under.columns + under.system_columns}
        found = [by_id.get(column.column_id) for column in columns]
        return tuple(
            one if one is None else StoredColumn(one.column_id, self._name_in_files(one), one.type) for one in found
        )

    def _name_in_files(self, column: Column) -> str:
        """Returns the name for pushing filters, which Spark does by name; None if the name is ambiguous."""
        is_sure = self._ids_by_name[column.name.lower()] == {column.column_id}
        return column.name if is_sure else f"{column.name}#{column.column_id}"

    @functools.cached_property
    def _ids_by_name(self) -> Mapping[str, set[int]]:
        found: defaultdict[str, set[int]] = defaultdict(set)
        for definition in self.table.history:
            for column in definition.columns + definition.system_columns:
                found[column.name.lower()].add(column.column_id)
        return found

    def _by_spark(
        self, columns: Sequence[Column], written: Sequence[StoredColumn | None], paths: Sequence[str]
    ) -> DataFrame:
        schema = StructType([_struct_field(one) for one in written if one])
        files = [f"file:{path}" for path in paths]
        frame = _by_field_id(self.spark).read.schema(schema).option("datetimeRebaseMode", "CORRECTED").parquet(*files)
        found = frame.selectExpr(*(self._value(*pair) for pair in zip(columns, written, strict=True)))
        return _nothing(self.spark, columns).union(found)  # a frame of the caller's session

    def _value(self, column: Column, written: StoredColumn | None) -> str:
        """As text: Column objects cost many calls into the JVM. A cast, also to its own type, drops the field id."""
        if written is None:
            value = literal(self.defaults.get(column.column_id), column.type)
        else:
            value = f"CAST({quoted(written.name)} AS {spark_type(column.type).simpleString()})"
        return f"{value} AS {frame_name(column)}"

    def _by_arrow(self, columns: Sequence[Column], paths: Sequence[str]) -> DataFrame:
        defaults, storage = dict(self.defaults), self.storage

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path in batch.column(0).to_pylist():
                    yield from read_batch(path, columns, defaults, storage)

        context = self.spark.sparkContext
        tasks = max(context.defaultParallelism, -(-len(paths) // PATHS_PER_TASK))
        listed = context.parallelize([(path,) for path in paths], min(len(paths), tasks))
        return self.spark.createDataFrame(listed, "path string").mapInArrow(read, frame_schema(columns))


_SESSIONS: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()


def _by_field_id(spark: SparkSession) -> SparkSession:
    """Returns a session that finds columns by field id; the caller's session must not change."""
    session = _SESSIONS.get(spark) or spark.newSession()
    _SESSIONS[spark] = session
    for name, value in _settings_of(spark).items():
        if name.startswith(READER_SETTINGS):
            session.conf.set(name, value)
    session.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    return session


def _settings_of(spark: SparkSession) -> dict[str, str]:
    """What spark.conf.getAll has, in one call into the JVM instead of three for each."""
    entries = spark.conf._jconf.getAll().mkString(_BETWEEN_SETTINGS).split(_BETWEEN_SETTINGS)
    return dict(entry.split(" -> ", 1) for entry in entries if entry)


def _nothing(spark: SparkSession, columns: Iterable[Column]) -> DataFrame:
    """Returns an empty frame of these columns, which Spark removes from its plans."""
    values = (f"CAST(NULL AS {spark_type(column.type).simpleString()}) AS {frame_name(column)}" for column in columns)
    return spark.range(0).where("false").selectExpr(*values)


def frame_name(column: Column) -> str:
    return f"c{column.column_id}"


def frame_schema(columns: Iterable[Column]) -> StructType:
    return StructType([StructField(frame_name(column), spark_type(column.type)) for column in columns])


def _spark_widens(before: ColumnType, now: ColumnType) -> bool:
    same_kind = bool(before.digits) == bool(now.digits)
    return before == now or (same_kind and now.name != "float32")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _struct_field(written: StoredColumn) -> StructField:
    return StructField(written.name, spark_type(written.type), True, {"parquet.field.id": written.column_id})


def read_batch(
    path: str, columns: Sequence[Column], defaults: Mapping[int, Any], storage: StorageOptions
) -> Iterator[pa.RecordBatch]:
    """Reads these columns of a file by field id; types and names come from the file itself."""
    filesystem, inner = open_path(path, storage)
    with filesystem.open_input_file(inner) as file:
        parquet = pq.ParquetFile(file, pre_buffer=True)
        names = {int((one.metadata or {}).get(FIELD_ID, -1)): one.name for one in parquet.schema_arrow}
        wanted = [names[column.column_id] for column in columns if column.column_id in names]
        for batch in parquet.iter_batches(columns=wanted):
            rows = pa.Table.from_batches([batch])
            yield from _rows_of_now(rows, names, columns, defaults).to_batches()


def _rows_of_now(
    rows: pa.Table, names: Mapping[int, str], columns: Sequence[Column], defaults: Mapping[int, Any]
) -> pa.Table:
    values = []
    for column in columns:
        kind = plain_type(column.type.arrow)
        if column.column_id in names:
            values.append(to_plain(rows[names[column.column_id]]).cast(kind))
        else:
            values.append(pa.repeat(_plain_scalar(defaults.get(column.column_id), column), rows.num_rows))
    return pa.table(values, names=[frame_name(column) for column in columns])


def _plain_scalar(value: Any, column: Column) -> pa.Scalar:
    return pa.scalar(_plain_value(value), plain_type(column.type.arrow))


def _plain_value(value: Any) -> Any:
    """Converts UUIDs to bytes and times to numbers, which Arrow does not."""
    if isinstance(value, list):
        return [_plain_value(one) for one in value]
    if isinstance(value, datetime.time):
        return microseconds(value)
    return value.bytes if isinstance(value, uuid.UUID) else value
