"""Reads tables as Spark frames; LAKEFORK_DSN says where: python read_with_spark.py

Hot rows and files together, the newest version of each key, as SELECT shows them (docs/spark.md).
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lakefork.spark.read import read_table


def views_by_page(spark: SparkSession, catalog: str = "demo", as_of: int | None = None) -> DataFrame:
    """as_of: a snapshot; what the files said then."""
    views = read_table(spark, "web.views", catalog=catalog, as_of=as_of)
    return views.groupBy("page").agg(f.count("*").alias("views"), f.avg("seconds").alias("seconds")).orderBy("page")


def messages_of(spark: SparkSession, user: str, catalog: str = "demo") -> DataFrame:
    """Without a user, those of all users, with a column _user_id."""
    return read_table(spark, "web.messages", catalog=catalog, user=user).select("id", "text", "stars").orderBy("id")


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").getOrCreate()
    views_by_page(session).show()
    messages_of(session, "ada").show(5)
    session.stop()
