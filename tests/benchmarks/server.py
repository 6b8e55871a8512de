"""A Postgres of its own for a benchmark, durable as in production; and a Spark."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings
from lakefork.spark.submit import CONF


@contextmanager
def benchmark_database(**options: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory:
        settings = Settings.model_construct(**{**dict(Settings()), "dsn": None, "home": Path(directory) / "home"})
        server = EmbeddedPostgres(settings, server_options=options)
        dsn = server.start()
        try:
            with connect(dsn, check_version=False) as connection:
                init_catalog(connection)
            yield dsn
        finally:
            server.stop()


@contextmanager
def benchmark_spark() -> Iterator[SparkContext]:
    """As jobs run it."""
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    spark = SparkContext(conf=SparkConf().setMaster("local[*]").setAppName("bench").setAll(list(CONF.items())))
    try:
        yield spark
    finally:
        spark.stop()
