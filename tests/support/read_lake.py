"""Helpers for tests of read_table: a lake, a Spark session, and a judge: what SQL says of the same table."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakefork.catalog.connection import connect
from lakefork.spark.read import read_table
from support.flush_lake import FlushLake


@dataclass(frozen=True)
class ReadLake:
    flush_lake: FlushLake
    session: SparkSession

    def run(self, text: str, *parameters: Any, user: str | None = None) -> None:
        self.flush_lake.lake.run(text, *parameters, user=user)

    def flush(self, **params: Any) -> dict[str, Any]:
        return self.flush_lake.flush(**params)

    def flush_and_trim(self) -> None:
        """All that is hot is published, and gone."""
        self.flush()
        for (name,) in self.flush_lake.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'hot'"):
            with connect(self.flush_lake.lake.dsn) as connection:
                connection.execute(f"TRUNCATE hot.{name}")

    def table(self, name: str, **options: Any) -> DataFrame:
        lake = self.flush_lake.lake
        defaults = {"catalog": lake.catalog.name, "dsn": lake.dsn, "settings": self.flush_lake.settings}
        return read_table(self.session, name, **{**defaults, **options})

    def newest_snapshot(self) -> int:
        return int(self.flush_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0])

    def check(self, name: str, users: list[str] | None = None) -> list[dict[str, Any]]:
        """Spark reads what SQL says, for all users together and for each; returns the rows."""
        found = rows_of(self.table(name))
        if users is None:
            assert found == self._by_sql(name)
            return found
        expected = [{**row, "_user_id": user} for user in users for row in self._by_sql(name, user)]
        assert found == sorted(expected, key=repr)
        for user in users:
            assert rows_of(self.table(name, user=user)) == self._by_sql(name, user)
        return found

    def check_at(self, name: str, as_of: Any, snapshot: int) -> list[dict[str, Any]]:
        found = rows_of(self.table(name, as_of=as_of))
        assert found == self._by_sql(f"{name} AT (VERSION => {snapshot})")
        return found

    def _by_sql(self, source: str, user: str | None = None) -> list[dict[str, Any]]:
        result = self.flush_lake.lake.run(f"SELECT * FROM {source}", user=user)[-1]
        names = [column if isinstance(column, str) else column.name for column in result.columns]
        return sorted((dict(zip(names, row, strict=True)) for row in result.rows), key=repr)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=repr)
