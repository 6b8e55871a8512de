"""The speed of read_table on a clean table without hot rows, compared with Spark's reader on the same files."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.catalogs import create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect
from lakefork.cold.batch import BatchLayout, with_field_ids, write_batch
from lakefork.hot.connections import ArrowConnection
from lakefork.model.tables import TableDefinition
from lakefork.settings import Settings
from lakefork.spark.read import read_table
from lakefork.spark.table_to_read import TableToRead, find_table_to_read
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.storage import StorageOptions

AREA = "spark_read"
ROUNDS = 7
FILES, ROWS_PER_FILE = 16, 250_000
TABLE = """CREATE SHARED TABLE app.events (id BIGINT PRIMARY KEY, title TEXT, amount DOUBLE, quantity INT, created TIMESTAMP,
    flag BOOLEAN)"""


def measure() -> list[Figure]:
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-") as data:
        paths = _fill(dsn, Path(data))
        with benchmark_spark() as context:
            return _compare(SparkSession(context), dsn, paths)


def _compare(spark: SparkSession, dsn: str, paths: list[str]) -> list[Figure]:
    peer = [f"file:{path}" for path in paths]
    whole = _ratio("all columns", lambda: spark.read.parquet(*peer), lambda: read_table(spark, "app.events", dsn=dsn))
    wanted = "quantity = 7 AND flag"
    some = _ratio(
        "a filter and two columns",
        lambda: spark.read.parquet(*peer).where(wanted).select("id", "amount"),
        lambda: read_table(spark, "app.events", dsn=dsn).where(wanted).select("id", "amount"),
    )
    rows = FILES * ROWS_PER_FILE
    return [
        Figure(AREA, f"{rows:,} rows in {FILES} clean batches: rate / spark.read.parquet", whole, "×", at_least=0.8),
        Figure(AREA, "the same with a filter and two columns", some, "×", at_least=0.8),
    ]


def _ratio(what: str, peer: Callable[[], DataFrame], ours: Callable[[], DataFrame]) -> float:
    """Of the rates, by turns; the call itself counts too."""
    seconds: dict[str, list[float]] = {"peer": [], "ours": []}
    for number in range(ROUNDS + 2):
        for name, frame in (("peer", peer), ("ours", ours)):
            taken = _timed(frame)
            if number >= 2:  # compiled by then
                seconds[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(f"    {what}: Spark {medians['peer']:.2f} s, read_table {medians['ours']:.2f} s", flush=True)
    return medians["peer"] / medians["ours"]


def _timed(frame: Callable[[], DataFrame]) -> float:
    started = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _fill(dsn: str, data: Path) -> list[str]:
    """Batches as flushes of new keys leave them."""
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", str(data / "main"))
        with Engine(Settings(), dsn) as engine:
            engine.execute(Session("main", None, Role.ADMIN), f"CREATE NAMESPACE app; {TABLE}")
        definition = _table(dsn).definition
        changes = Changes()
        for number in range(FILES):
            name = f"shared/batch-{number}.parquet"
            rows = _rows(definition, number * ROWS_PER_FILE)
            layout = BatchLayout(rows.schema, ("id",)).suited_to([rows])
            facts = write_batch(f"{definition.path}/{name}", rows, layout, StorageOptions())
            changes.add_batch(definition.table_id, name, facts)
        commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
        return [batch.path for batch in _table(dsn).batches]


def _table(dsn: str) -> TableToRead:
    reader = ArrowConnection(dsn, read_only=True, timeout_seconds=0, max_bytes=sys.maxsize)
    with closing(reader), reader.transaction():
        return find_table_to_read(reader, "main", "app", "events", None, None)


def _rows(definition: TableDefinition, first: int) -> pa.Table:
    keys = range(first, first + ROWS_PER_FILE)
    values = {
        "id": keys, "title": [f"title {key}" for key in keys], "amount": [key * 0.37 for key in keys],
        "quantity": [key % 1000 for key in keys], "created": [key * 1_000_000 for key in keys],
        "flag": [key % 2 == 1 for key in keys], "_seq": [1_000_000 + key for key in keys],
        "_deleted": [False] * ROWS_PER_FILE,
    }  # fmt: skip
    ids = {column.name: column.column_id for column in definition.columns + definition.system_columns}
    schema = with_field_ids(definition.arrow_schema, ids)
    return pa.table([pa.array(values[field.name], field.type) for field in schema], schema=schema)
