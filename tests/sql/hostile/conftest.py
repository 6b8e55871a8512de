"""Sessions read and change only what they may, and every refusal is one line."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.settings import Settings, SqlSettings
from support.sql_hostile import PATIENCE, fill, state, watching
from support.sql_lake import SqlLake, open_lake


@pytest.fixture(scope="module")
def lake(
    module_dsn: str, tmp_path_factory: pytest.TempPathFactory, make_settings: Callable[..., Settings]
) -> Iterator[SqlLake]:
    root: Path = tmp_path_factory.mktemp("data")
    with connect(module_dsn) as connection:
        create_catalog(connection, "rival", str(root / "rival"))
    settings = make_settings(sql=SqlSettings(statement_timeout_seconds=PATIENCE))
    with open_lake(module_dsn, root, settings) as lake:
        fill(lake)
        yield lake
    watching(module_dsn).close()


@pytest.fixture
def unchanged(lake: SqlLake) -> Iterator[None]:
    """The test leaves all as it was."""
    before = state(lake)
    yield
    assert state(lake) == before


@pytest.fixture
def own_rows(lake: SqlLake) -> Iterator[None]:
    """Whatever the test writes to mallory's table goes, and what was there stays."""
    yield
    lake.run("DELETE FROM app.mine WHERE id <> 1", user="mallory")
    assert lake.rows("SELECT id, v FROM app.mine", user="mallory") == [(1, "own")]
