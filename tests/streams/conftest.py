"""One catalog for the tests of STREAM tables; each works in a namespace of its own."""

from collections.abc import Callable
from typing import Any

import pytest

from lakefork.catalog.connection import connect
from support.sql_lake import SqlLake, new_name

Make = Callable[..., str]


@pytest.fixture(scope="module")
def lake(module_lake: SqlLake) -> SqlLake:
    return module_lake


@pytest.fixture
def stream(lake: SqlLake) -> Make:
    """Makes a STREAM table and returns its name."""

    def make(columns: str = "n BIGINT", **options: object) -> str:
        table = f"{new_name('ns')}.s"
        clause = ", ".join(f"{name} = {value!r}".replace("True", "true") for name, value in options.items())
        lake.run(f"CREATE NAMESPACE {table.removesuffix('.s')}")
        lake.run(f"CREATE STREAM TABLE {table} ({columns})" + (f" WITH ({clause})" if clause else ""))
        return table

    return make


class Stored:
    """What Postgres has of a table, whether readers see it or not."""

    def __init__(self, lake: SqlLake) -> None:
        self._lake = lake

    def count(self, table: str) -> int:
        ref = self._lake.find(table).definition.ref
        return int(self.value(f"SELECT count(*) FROM stream.t{ref.table_id} WHERE catalog_id = {ref.catalog_id}"))

    def age(self, table: str, seconds: int, where: str = "true") -> None:
        """Some events happened that much earlier; c4 is the first column."""
        ref = self._lake.find(table).definition.ref
        earlier = f"UPDATE stream.t{ref.table_id} SET _at = _at - interval '{seconds} seconds' WHERE catalog_id = {ref.catalog_id}"
        with connect(self._lake.dsn) as connection:
            connection.execute(f"{earlier} AND {where}")

    def evict(self) -> int:
        """Looks at all buffers now; returns how many there are."""
        with connect(self._lake.dsn) as connection:
            connection.execute("UPDATE lakefork.stream_buffer SET look_at = now()")
        return int(self.value("SELECT lakefork.evict_events(1000)"))

    def value(self, query: str) -> Any:
        with connect(self._lake.dsn) as connection:
            row = connection.execute(query).fetchone()
        assert row
        return next(iter(row.values()))


@pytest.fixture
def stored(lake: SqlLake) -> Stored:
    """While a test uses it, nothing is evicted by itself."""
    lake.engine._resources.eviction.close()
    return Stored(lake)
