"""Lakes that are filled once for the whole suite, and copied for each test: database, files, and where they are."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import connect
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from support.flush_lake import Filled, FlushLake
from support.sql_lake import SqlLake, open_lake

Fill = Callable[[FlushLake], None]
Cloned = Callable[[Fill], FlushLake]
TABLES = (
    "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT NOT NULL); "
    "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)"
)
_PLACES = {
    "ducklake_metadata": "value", "lakefork.batch_number": "directory", "lakefork.manifest_cache": "directory",
    "lakefork.manifest_pending": "directory",
}  # fmt: skip


def three_flushes(lake: FlushLake) -> None:
    lake.lake.run(TABLES)
    for round_number in range(3):
        Filled(lake).write(round_number)
        lake.flush()


def three_flushes_and_a_dedup(lake: FlushLake) -> None:
    three_flushes(lake)
    lake.dedup()


def two_flushes_and_more(lake: FlushLake) -> None:
    lake.lake.run(TABLES)
    for round_number in range(3):
        Filled(lake).write(round_number)
        if round_number < 2:
            lake.flush()


@dataclass
class Prototypes:
    postgres: str
    template: str
    make_settings: Callable[..., Settings]
    paths: pytest.TempPathFactory
    _made: dict[str, tuple[str, Path]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def clone(self, fill: Fill, directory: Path) -> Iterator[FlushLake]:
        database, files = self._prototype(fill)
        copy = directory / "data"
        shutil.copytree(files, copy)
        name = f"clone_{next(self._numbers)}"
        self._create(name, database)
        dsn = self._dsn(name)
        with connect(dsn) as connection:
            for table, column in _PLACES.items():
                connection.execute(f"UPDATE {table} SET {column} = replace({column}, %s, %s)", (str(files), str(copy)))
            catalog = find_catalog(connection, "main")
        with Engine(self.make_settings(), dsn) as engine:
            yield FlushLake(SqlLake(engine, dsn, catalog), self.make_settings(), directory / "expectations")
        with psycopg.connect(self.postgres, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _prototype(self, fill: Fill) -> tuple[str, Path]:
        if fill.__name__ not in self._made:
            name, files = f"prototype_{fill.__name__}", self.paths.mktemp(fill.__name__)
            self._create(name, self.template)
            with open_lake(self._dsn(name), files, self.make_settings()) as lake:
                fill(FlushLake(lake, self.make_settings(), files / "expectations"))
            self._made[fill.__name__] = name, files
        return self._made[fill.__name__]

    def _create(self, name: str, template: str) -> None:
        with psycopg.connect(self.postgres, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")

    def _dsn(self, name: str) -> str:
        return f"{self.postgres.rpartition('/')[0]}/{name}"
