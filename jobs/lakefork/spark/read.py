"""Tables as Spark frames: the rows of SELECT, or what the batches held at a snapshot."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from lakefork.catalog.connection import connect
from lakefork.errors import InvalidInputError, LimitError, SetupError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import defaults_query, versions_query
from lakefork.model.tables import DELETED, SEQ, SYSTEM_COLUMN_IDS, USER_ID, Column
from lakefork.read.newest import TooLargeError, newest_versions
from lakefork.read.pruning import Batch, plan_scan
from lakefork.read.tables import AsOf
from lakefork.settings import Settings, load_settings
from lakefork.spark.read_batches import BatchReader, frame_name, frame_schema, quoted
from lakefork.spark.read_types import display_sql, to_plain
from lakefork.spark.table_to_read import TableToRead, find_table_to_read
from lakefork.storage import StorageOptions
from lakefork.storage.installation import Installation


def read_table(
    spark: SparkSession,
    name: str,
    catalog: str = "main",
    user: str | None = None,
    as_of: AsOf | None = None,
    dsn: str | None = None,
    settings: Settings | None = None,
) -> DataFrame:
    """Returns the live rows of a table: its columns in order, then _seq and _deleted.

    name: namespace.table. user: only the rows of this user of a USER table; None: those of all users, with _user_id as
    the last column. A SHARED table has no users, and a user is refused. as_of: a snapshot id or a time with a zone:
    what the batches said then, without hot rows, which belong to the present.

    All is as of the moment of the call, however late the frame is evaluated: definition, list of batches and hot rows
    come from one transaction, and hot rows are taken to the driver (up to the setting spark.hot_read_mb). Whoever has
    the DSN sees everything: permissions are the business of SQL.
    """
    settings = settings or load_settings()
    address = dsn or settings.dsn
    if address is None:
        raise SetupError("read_table needs a database: pass dsn or set LAKEFORK_DSN")
    installation = Installation(address, settings)
    captured = _capture(installation, name, catalog, user, as_of)
    return _Frames(spark, captured, installation.storage, whole_table=user is None).rows()


@dataclass(frozen=True)
class Capture:
    """What a read found in its transaction. hot: the newest version of each key among unpublished rows, including
    deleted ones.
    """

    table: TableToRead
    hot: pa.Table
    defaults: Mapping[int, Any]


def _capture(installation: Installation, name: str, catalog: str, user: str | None, as_of: AsOf | None) -> Capture:
    namespace, _, table_name = name.partition(".")
    if not namespace or not table_name:
        raise InvalidInputError(f"table {name!r} needs a namespace: use namespace.table")
    connect(installation.dsn).close()  # reports problems of the database first
    reader = ArrowConnection(installation.dsn, read_only=True, timeout_seconds=0, max_bytes=sys.maxsize)
    with closing(reader), reader.transaction():
        table = find_table_to_read(reader, catalog, namespace, table_name, user, as_of)
        defaults = [column for column in table.definition.columns if column.initial_default is not None]
        hot = _read_hot(reader, table, user, installation.settings.spark.hot_read_mb)
        return Capture(table, hot, _read_defaults(reader, defaults))


def _read_hot(reader: ArrowConnection, table: TableToRead, user: str | None, limit_mb: int) -> pa.Table:
    definition = table.definition
    if not table.hot:
        return definition.arrow_schema.empty_table()
    users = None if user is None else [user]
    query = versions_query(definition, table.hot, users, waiting_only=True)
    owner = [USER_ID] if definition.per_user else []
    key = owner + [column.name for column in definition.key]
    try:
        with reader.stream(query) as batches:
            return newest_versions(batches, definition.arrow_schema, key, SEQ, limit_mb << 20).rows
    except TooLargeError:
        raise LimitError(
            f"the hot rows of {definition} need more than {limit_mb} MB: flush the table first, "
            "or raise the setting spark.hot_read_mb"
        ) from None


def _read_defaults(reader: ArrowConnection, columns: Sequence[Column]) -> dict[int, Any]:
    """Returns default values, converted by Postgres from the catalog's text."""
    if not columns:
        return {}
    with reader.stream(defaults_query(columns)) as batches:
        rows = batches.read_all()
    return {
        column.column_id: values.cast(column.type.arrow)[0].as_py()
        for column, values in zip(columns, rows.columns, strict=True)
    }


class _Frames:
    """Combines the frames of batches and hot rows to that of a table."""

    def __init__(self, spark: SparkSession, captured: Capture, storage: StorageOptions, *, whole_table: bool) -> None:
        self._spark = spark
        self._hot_rows = captured.hot
        self._definition = captured.table.definition
        self._plan = plan_scan(captured.table.batches, self._definition.key[0], ())
        system = [column for column in self._definition.system_columns if column.name != USER_ID or whole_table]
        self._columns = (*self._definition.columns, *system)
        self._names = [frame_name(column) for column in self._columns]
        owner = [column for column in system if column.name == USER_ID]
        self._key = [frame_name(column) for column in (*owner, *self._definition.key)]
        self._reader = BatchReader(spark, captured.table, captured.defaults, storage)

    def rows(self) -> DataFrame:
        rows = self._live_rows()
        return rows.selectExpr(
            *(f"{display_sql(frame_name(one), one.type)} AS {quoted(one.name)}" for one in self._columns)
        )

    def _live_rows(self) -> DataFrame:
        cold = self._cold()
        if not self._hot_rows.num_rows and cold is not None:
            return cold
        hot = self._hot()
        live = hot.where(~F.col(_DELETED_NAME))
        if cold is None:
            return live
        # Waiting rows are newer than any batch's version of the same key.
        keys = F.broadcast(hot.select(*self._key))
        return live.union(cold.join(keys, self._key, "left_anti").select(*self._names))

    def _hot(self) -> DataFrame:
        rows = self._hot_rows.select([column.name for column in self._columns])
        plain_rows = pa.table([to_plain(values) for values in rows.columns], names=self._names)
        return self._spark.createDataFrame(plain_rows, frame_schema(self._columns))

    def _cold(self) -> DataFrame | None:
        """Returns live rows of batches; None without batches."""
        clean = [
            *self._without_tombstones([batch for batch in self._plan.clean if batch.none_deleted]),
            *(
                part.where(~F.col(_DELETED_NAME))
                for part in self._read([batch for batch in self._plan.clean if not batch.none_deleted], self._columns)
            ),
        ]
        parts = [self._not_deleted_later(part) for part in clean]
        grouped = self._read(self._plan.grouped + self._plan.tombstones, self._columns) if self._plan.grouped else []
        if grouped:
            parts.append(self._newest(reduce(DataFrame.union, grouped)).where(~F.col(_DELETED_NAME)))
        return reduce(DataFrame.union, parts) if parts else None

    def _not_deleted_later(self, rows: DataFrame) -> DataFrame:
        """Removes rows that have a newer tombstone in another batch."""
        tombstones = self._read(self._plan.tombstones, self._columns)
        if not tombstones:
            return rows
        dead = reduce(DataFrame.union, tombstones).select(*self._key, F.col(_SEQ_NAME).alias("deleted_by"))
        newest = dead.groupBy(*self._key).agg(F.max("deleted_by").alias("deleted_by"))
        joined = rows.join(newest, self._key, "left")
        return joined.where(F.coalesce(F.col("deleted_by") < F.col(_SEQ_NAME), F.lit(True))).select(*self._names)

    def _without_tombstones(self, batches: Sequence[Batch]) -> list[DataFrame]:
        """Returns rows of batches without tombstones; _deleted is not read."""
        read = [column for column in self._columns if column.name != DELETED]
        names = ["false AS " + name if name == _DELETED_NAME else name for name in self._names]
        return [part.selectExpr(*names) for part in self._read(batches, read)]

    def _read(self, batches: Sequence[Batch], columns: Sequence[Column]) -> list[DataFrame]:
        return self._reader.frames(batches, columns)

    def _newest(self, versions: DataFrame) -> DataFrame:
        newest_first = Window.partitionBy(*self._key).orderBy(F.col(_SEQ_NAME).desc())
        ranked = versions.withColumn("rank", F.row_number().over(newest_first))
        return ranked.where("rank = 1").select(*self._names)


_SEQ_NAME, _DELETED_NAME = (f"c{SYSTEM_COLUMN_IDS[name]}" for name in (SEQ, DELETED))
