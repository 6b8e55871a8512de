"""Stock DuckDB, which reads what Lakefork wrote by nothing but the views."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import duckdb_extensions
import pytest
from psycopg.conninfo import conninfo_to_dict

from flush_lake import FlushLake

Attach = Callable[..., Any]


def libpq(dsn: str, **changes: str) -> str:
    parts = {**conninfo_to_dict(dsn), **changes}
    return " ".join(f"{name}={parts[name]}" for name in ("dbname", "host", "port", "user", "password"))


@contextmanager
def attached(source: str, options: str) -> Iterator[Any]:
    with duckdb.connect(config={"threads": 2}) as duck:
        duck.execute("LOAD ducklake; LOAD postgres_scanner; SET TimeZone = 'UTC'")
        duck.execute(f"ATTACH 'ducklake:{source}' AS lake ({options})")
        yield duck


@pytest.fixture(scope="session", autouse=True)
def extensions() -> None:
    for extension in ("ducklake", "postgres_scanner"):
        duckdb_extensions.import_extension(extension)


@pytest.fixture
def stock(dsn: str) -> Iterator[Attach]:
    """Attaches a catalog as anybody would; each call is a DuckDB of its own."""

    @contextmanager
    def attach(catalog: str | None = "main", **who: str) -> Iterator[Any]:
        options = "" if catalog is None else f" options=-clakefork.catalog={catalog}"
        with attached(f"postgres:{libpq(dsn, **who)}{options}", "METADATA_SCHEMA 'ducklake_client', READ_ONLY") as duck:
            yield duck

    yield attach
