"""Random histories of a table: read_table shows what a dictionary says, at every step and at every snapshot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakefork.settings import Settings
from support.flush_lake import FlushLake
from support.read_lake import ReadLake
from support.sql_lake import SqlLake, new_name

USERS = ("ada", "bob")
Rows = dict[tuple[str, int], int]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(USERS), st.integers(0, 6), st.integers(0, 99)),
    st.tuples(st.just("delete"), st.sampled_from(USERS), st.integers(0, 6), st.just(0)),
    st.tuples(st.sampled_from(["flush", "trim", "rename", "readd", "look"]), st.just("ada"), st.just(0), st.just(0)),
)


class History:
    """A USER table beside its model; the column v is renamed, and dropped and added again with a default."""

    def __init__(self, read_lake: ReadLake) -> None:
        self.lake = read_lake
        self.table = f"{new_name('app')}.t"
        self.rows: Rows = {}
        self.flushed: Rows = {}
        self.name = "v"
        self.at: list[tuple[int, Rows, str]] = []
        namespace = self.table.partition(".")[0]
        read_lake.run(f"CREATE NAMESPACE {namespace}; CREATE USER TABLE {self.table} (id INT PRIMARY KEY, v INT)")

    def put(self, user: str, key: int, value: int) -> None:
        if (user, key) in self.rows:
            self.lake.run(f"UPDATE {self.table} SET {self.name} = {value} WHERE id = {key}", user=user)
        else:
            self.lake.run(f"INSERT INTO {self.table} (id, {self.name}) VALUES ({key}, {value})", user=user)
        self.rows[user, key] = value

    def delete(self, user: str, key: int, _: int) -> None:
        self.lake.run(f"DELETE FROM {self.table} WHERE id = {key}", user=user)
        self.rows.pop((user, key), None)

    def flush(self, *_: Any) -> None:
        self.lake.flush()
        self._remember()

    def trim(self, *_: Any) -> None:
        self.lake.flush_and_trim()
        self._remember()

    def _remember(self) -> None:
        self.at.append((self.lake.newest_snapshot(), dict(self.rows), self.name))

    def rename(self, *_: Any) -> None:
        other = "w" if self.name == "v" else "v"
        self.lake.run(f"ALTER TABLE {self.table} RENAME COLUMN {self.name} TO {other}")
        self.name = other

    def readd(self, *_: Any) -> None:
        self.lake.run(
            f"ALTER TABLE {self.table} DROP COLUMN {self.name}; ALTER TABLE {self.table} ADD COLUMN {self.name} INT DEFAULT 7"
        )
        self.rows = dict.fromkeys(self.rows, 7)

    def look(self, *_: Any) -> None:
        assert self._seen(self.name) == self.rows
        wanted = {key: value for key, value in self.rows.items() if value == 7}
        assert self._seen(self.name, where=f"{self.name} = 7") == wanted
        for user in USERS:
            mine = {key: value for (owner, key), value in self.rows.items() if owner == user}
            frame = self.lake.table(self.table, user=user)
            assert {row["id"]: row[self.name] for row in frame.collect()} == mine

    def look_back(self) -> None:
        for snapshot, rows, name in self.at[-2:]:
            assert self._seen(name, as_of=snapshot) == rows

    def _seen(self, name: str, where: str = "true", **options: Any) -> Rows:
        found = self.lake.table(self.table, **options).where(where).collect()
        rows = {(row["_user_id"], row["id"]): row[name] for row in found}
        assert len(rows) == len(found)
        return rows


def test_random_histories(
    lake: SqlLake, spark: SparkContext, make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    session = SparkSession(spark)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    read_lake = ReadLake(FlushLake(lake, make_settings(), tmp_path / "none"), session)

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(STEPS, min_size=5, max_size=14))
    def check(steps: list[tuple[str, str, int, int]]) -> None:
        history = History(read_lake)
        for name, *values in steps:
            getattr(history, name)(*values)
        history.look()
        history.look_back()

    check()
