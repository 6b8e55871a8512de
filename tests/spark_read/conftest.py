"""A Spark session on the suite's Spark, and a lake that it reads."""

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from support.flush_lake import FlushLake
from support.read_lake import ReadLake


@pytest.fixture(scope="session")
def session(spark: SparkContext) -> SparkSession:
    session = SparkSession(spark)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.fixture
def read_lake(flush_lake: FlushLake, session: SparkSession) -> ReadLake:
    return ReadLake(flush_lake, session)
