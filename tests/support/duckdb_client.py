"""Stock DuckDB as an outside reader: what it sees of a catalog, beside what our SELECT says of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
from psycopg.conninfo import conninfo_to_dict

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import connect
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake

VIEWS = "METADATA_SCHEMA 'ducklake_client', READ_ONLY"
LAKEFORK = Path(sys.executable).parent / "lakefork"


def run(*arguments: str, dsn: str) -> subprocess.CompletedProcess[str]:
    """A command of Lakefork's on some database."""
    environment = {**os.environ, "LAKEFORK_DSN": dsn}
    return subprocess.run([LAKEFORK, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def load_extensions() -> None:
    """What stock DuckDB needs, without a network."""
    for extension in ("ducklake", "postgres_scanner"):
        duckdb_extensions.import_extension(extension)


def libpq(dsn: str, **changes: str) -> str:
    parts = {**conninfo_to_dict(dsn), **changes}
    return " ".join(f"{name}={parts[name]}" for name in ("dbname", "host", "port", "user", "password"))


@contextmanager
def attached(source: str, options: str) -> Iterator[Any]:
    with duckdb.connect(config={"threads": 2}) as duck:
        duck.execute("LOAD ducklake; LOAD postgres_scanner; SET TimeZone = 'UTC'")
        duck.execute(f"ATTACH 'ducklake:{source}' AS lake ({options})")
        yield duck


@contextmanager
def stock(dsn: str, catalog: str | None = "main", **who: str) -> Iterator[Any]:
    """A DuckDB of its own with a catalog attached, as anybody would do it."""
    options = "" if catalog is None else f" options=-clakefork.catalog={catalog}"
    with attached(f"postgres:{libpq(dsn, **who)}{options}", VIEWS) as duck:
        yield duck


@dataclass(frozen=True)
class ClientView:
    """One catalog, by both."""

    flush_lake: FlushLake
    catalog: str = "main"

    @property
    def lake(self) -> SqlLake:
        with connect(self.flush_lake.lake.dsn) as connection:
            return replace(self.flush_lake.lake, catalog=find_catalog(connection, self.catalog))

    def fork(self, name: str, as_of: int | None = None) -> "ClientView":
        self.flush_lake.sql("SELECT * FROM ducklake_fork_catalog(%s, %s, as_of => %s)", self.catalog, name, as_of)
        return ClientView(self.flush_lake, name)

    def ours(self, table: str, snapshot: int | None = None) -> list[tuple[Any, ...]]:
        lake = self.lake
        owner = ", _user_id" if lake.find(table).definition.per_user else ""
        at = "" if snapshot is None else f" AT (VERSION => {snapshot})"
        return lake.rows(f"SELECT *{owner} FROM {table}{at} ORDER BY ALL")

    def theirs(self, table: str, snapshot: int | None = None) -> list[tuple[Any, ...]]:
        at = "" if snapshot is None else f" AT (VERSION => {snapshot})"
        with stock(self.flush_lake.lake.dsn, self.catalog) as duck:
            found: list[tuple[Any, ...]] = duck.execute(f"SELECT * FROM lake.{table}{at} ORDER BY ALL").fetchall()
            return found

    def clean(self, table: str) -> list[int]:
        """The snapshots after which a table is known to be clean."""
        found = self.lake.find(table).definition
        return [
            number
            for (number,) in self.flush_lake.sql(
                "SELECT snapshot_id FROM lakefork.clean_snapshot WHERE catalog_id = %s AND table_id = %s ORDER BY 1",
                found.catalog_id, found.table_id,
            )
        ]  # fmt: skip

    def own_snapshots(self) -> list[int]:
        with stock(self.flush_lake.lake.dsn, self.catalog) as duck:
            rows = duck.execute("SELECT snapshot_id FROM ducklake_snapshots('lake') ORDER BY 1").fetchall()
            return [number for (number,) in rows]

    def is_same(self, *tables: str) -> bool:
        return all(self.theirs(table) == self.ours(table) for table in tables)
