"""Batches as Spark frames: by Spark's own reader wherever the catalog knows what is in a file, else by pyarrow.

In the frames a column is called c<column_id>, because names of now may have meant something else in old files.
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
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from lakefork.catalog.reads import BatchFile, TableToRead
from lakefork.cold.batch import FIELD_ID
from lakefork.column_types import ColumnType
from lakefork.spark.read_types import literal, microseconds, plain, plain_type, spark_type
from lakefork.storage import StorageOptions, open_path
from lakefork.tables import Column, TableDefinition

# Spark reads S3 only with jars that are not part of it, and takes paths with these characters for patterns.
NOT_FOR_SPARK = re.compile(r"^s3://|[]\[{}*?\\]")
READER_SETTINGS = ("spark.sql.files.", "spark.sql.parquet.")
PATHS_PER_TASK = 20


@dataclass(frozen=True)
class Written:
    """A column as it is in files: its name there, unless that name may have meant another column, and its type."""

    column_id: int
    name: str
    type: ColumnType


@dataclass(frozen=True)
class BatchReader:
    """defaults: by column id, what rows have that were written before a column was there."""

    spark: SparkSession
    table: TableToRead
    defaults: Mapping[int, Any]
    storage: StorageOptions

    def frames(self, batches: Iterable[BatchFile], columns: Sequence[Column]) -> list[DataFrame]:
        """Frames with these columns that together have the rows of the batches."""
        by_definition: defaultdict[int | None, list[str]] = defaultdict(list)
        for batch in batches:
            by_definition[self._written_under(batch)].append(batch.path)
        others = by_definition.pop(None, [])
        known: defaultdict[tuple[Written | None, ...], list[str]] = defaultdict(list)
        for place, paths in by_definition.items():
            known[self._written(self.table.history[place or 0], columns)] += paths
        frames = [self._by_spark(columns, written, paths) for written, paths in known.items()]
        return frames + ([self._by_arrow(columns, others)] if others else [])

    def _written_under(self, batch: BatchFile) -> int | None:
        """A definition's place in the history; None: only the file itself can tell, or Spark cannot open it."""
        place = bisect_right(self.table.history, batch.published, key=lambda one: one.definition_snapshot) - 1
        if place < 0 or NOT_FOR_SPARK.search(batch.path) or not self._is_as_defined(batch, place):
            return None
        return place

    def _is_as_defined(self, batch: BatchFile, place: int) -> bool:
        """A flush may publish after an ALTER what it read before, and old definitions may have expired."""
        return batch.column_ids == self._flat_ids[place] and place not in self._doubtful

    @functools.cached_property
    def _flat_ids(self) -> list[set[int]]:
        """Of which columns there are statistics, by definition."""
        return [
            {column.column_id for column in under.columns + under.system_columns if not column.type.element}
            for under in self.table.history
        ]

    @functools.cached_property
    def _doubtful(self) -> frozenset[int]:
        """Definitions whose files Spark could not read right if they were written under an older one: there are no
        statistics of arrays, and Spark's reader widens types less than ALTER does.
        """
        found = set()
        types: defaultdict[int, set[ColumnType]] = defaultdict(set)
        for place, under in enumerate(self.table.history):
            for one in under.columns:
                types[one.column_id].add(one.type)
                if not all(_spark_widens(before, one.type) for before in types[one.column_id]):
                    found.add(place)
                if one.type.element and one.initial_default is not None:
                    found.add(place)
        return frozenset(found)

    def _written(self, under: TableDefinition, columns: Sequence[Column]) -> tuple[Written | None, ...]:
        """What files have of each column; None where they do not have it."""
        by_id = {column.column_id: column for column in under.columns + under.system_columns}
        found = [by_id.get(column.column_id) for column in columns]
        return tuple(
            one if one is None else Written(one.column_id, self._name_in_files(one), one.type) for one in found
        )

    def _name_in_files(self, column: Column) -> str:
        """Spark finds columns by id, but filters row groups by name: nothing is pushed by a name that is in doubt."""
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
        self, columns: Sequence[Column], written: Sequence[Written | None], paths: Sequence[str]
    ) -> DataFrame:
        schema = StructType([_struct_field(one) for one in written if one])
        files = [f"file:{path}" for path in paths]
        frame = _by_field_id(self.spark).read.schema(schema).option("datetimeRebaseMode", "CORRECTED").parquet(*files)
        found = frame.select(*(self._value(*pair) for pair in zip(columns, written, strict=True)))
        return _nothing(self.spark, columns).union(found)  # a frame of the caller's session

    def _value(self, column: Column, written: Written | None) -> SparkColumn:
        if written is None:
            value = literal(self.defaults.get(column.column_id), column.type)
        else:
            value = F.col(_quoted(written.name))
            if written.type != column.type:
                value = value.cast(spark_type(column.type))
        return value.alias(frame_name(column), metadata={})

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
    """That columns are found by id is a setting of a session, and the caller's is not ours to change."""
    session = _SESSIONS.get(spark) or spark.newSession()
    _SESSIONS[spark] = session
    for name, value in spark.conf.getAll.items():
        if name.startswith(READER_SETTINGS):
            session.conf.set(name, value)
    session.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    return session


def _nothing(spark: SparkSession, columns: Iterable[Column]) -> DataFrame:
    """No rows of these columns; Spark leaves it out of its plans."""
    values = (f"CAST(NULL AS {spark_type(column.type).simpleString()}) AS {frame_name(column)}" for column in columns)
    return spark.range(0).where("false").selectExpr(*values)


def frame_name(column: Column) -> str:
    return f"c{column.column_id}"


def frame_schema(columns: Iterable[Column]) -> StructType:
    return StructType([StructField(frame_name(column), spark_type(column.type)) for column in columns])


def _spark_widens(before: ColumnType, now: ColumnType) -> bool:
    same_kind = bool(before.digits) == bool(now.digits)
    return before == now or (same_kind and now.name != "float32")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _struct_field(written: Written) -> StructField:
    return StructField(written.name, spark_type(written.type), True, {"parquet.field.id": written.column_id})


def read_batch(
    path: str, columns: Sequence[Column], defaults: Mapping[int, Any], storage: StorageOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a file with these columns, found by field id; what the file itself says holds."""
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
            values.append(plain(rows[names[column.column_id]]).cast(kind))
        else:
            values.append(pa.repeat(_plain_scalar(defaults.get(column.column_id), column), rows.num_rows))
    return pa.table(values, names=[frame_name(column) for column in columns])


def _plain_scalar(value: Any, column: Column) -> pa.Scalar:
    return pa.scalar(_plain_value(value), plain_type(column.type.arrow))


def _plain_value(value: Any) -> Any:
    """Arrow makes neither bytes of UUIDs nor numbers of times."""
    if isinstance(value, list):
        return [_plain_value(one) for one in value]
    if isinstance(value, datetime.time):
        return microseconds(value)
    return value.bytes if isinstance(value, uuid.UUID) else value
