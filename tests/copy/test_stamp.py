"""Moving a stamp: its own catalog database is copied to another server, and works there."""

from pathlib import Path

import pytest

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import connect
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.errors import LakeforkError
from lakefork.sql.engine import Engine
from support.copy_lab import CopyLab, fresh_database
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake

QUERY = "SELECT id, v FROM app.t ORDER BY id"


def test_a_stamp_moves_to_another_server(
    flush_lake: FlushLake,
    postgres: str,
    dsn: str,
    logical: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Watermarks of another cluster are refused until somebody says that nobody writes to the old one."""
    lake = flush_lake.lake
    lake.run(
        "CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO app.t VALUES (1, 'a'), (2, 'b')"
    )
    flush_lake.flush()
    lake.run("UPDATE app.t SET v = 'hot' WHERE id = 2; INSERT INTO app.t VALUES (3, 'c')")
    expected = lake.rows(QUERY)
    with fresh_database(logical.url()) as target:
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", dsn)
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__DST", target)
        CopyLab(postgres, dsn, dsn, target, flush_lake.settings).copy(copy_id="moved", roles=True)
        with connect(target) as connection:
            moved = SqlLake(Engine(flush_lake.settings, target), target, find_catalog(connection, "main"))
        with moved.engine:
            assert moved.rows(QUERY) == expected
            flushes = FlushLake(moved, flush_lake.settings, tmp_path / "expectations")
            with pytest.raises(LakeforkError, match=r"lakefork\.adopt_hot_rows"):
                flushes.flush()
            with connect(target) as connection:
                connection.execute("SELECT lakefork.adopt_hot_rows()")
            flushes.flush()
            moved.run("INSERT INTO app.t VALUES (4, 'd')")
            assert moved.rows(QUERY) == [*expected, (4, "d")]
