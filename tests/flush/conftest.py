"""A lake with one table of each kind, and rows whose newest versions are known."""

from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from pyspark import SparkContext

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.settings import Settings, StorageSettings
from lakefork.sql.engine import Engine
from support.flush_lake import Filled, FlushLake
from support.sql_lake import SqlLake, allow_tests


@pytest.fixture
def filled(flush_lake: FlushLake) -> Filled:
    flush_lake.lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT NOT NULL); "
        "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)"
    )
    filled = Filled(flush_lake)
    filled.write(0)
    return filled


@pytest.fixture
def s3_lake(
    dsn: str, s3: str, spark: SparkContext, make_settings: Callable[..., Settings], tmp_path: Path
) -> Iterator[FlushLake]:
    boto3.client("s3", endpoint_url=s3, region_name="us-east-1").create_bucket(Bucket="lake")
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", "s3://lake/main")
        allow_tests(connection)
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with Engine(settings, dsn) as engine:
        yield FlushLake(SqlLake(engine, dsn, catalog), settings, tmp_path / "expectations")
