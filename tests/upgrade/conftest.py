"""The old catalog: restored once for this folder, and copied for each test."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from lakefork.catalog.connection import Connection, connect
from support.old_catalog import restore_database, restore_files

_numbers = itertools.count()


@dataclass(frozen=True)
class OldCatalog:
    dsn: str
    data: Path


@pytest.fixture(scope="session")
def old_template(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> OldCatalog:
    data = tmp_path_factory.mktemp("old") / "data"
    restore_files(data)
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE DATABASE template_old")
    dsn = f"{postgres.rpartition('/')[0]}/template_old"
    restore_database(dsn, data)
    return OldCatalog(dsn, data)


@pytest.fixture
def old(postgres: str, old_template: OldCatalog) -> Iterator[OldCatalog]:
    """All tests see the same files: no more than one of them may write some."""
    name = f"old_{next(_numbers)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template_old STRATEGY FILE_COPY")
        yield OldCatalog(f"{postgres.rpartition('/')[0]}/{name}", old_template.data)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def old_connection(old: OldCatalog) -> Iterator[Connection]:
    with connect(old.dsn, check_version=False) as connection:
        yield connection
