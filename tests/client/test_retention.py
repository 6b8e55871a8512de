"""Stock DuckDB and exports refuse what our SELECT refuses: snapshots whose files retention_gc may have taken."""

from pathlib import Path
from typing import Any

import duckdb
import pytest

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.retention import tag_snapshot
from lakefork.errors import NotFoundError
from lakefork.transfer.client import export_catalog
from support.cleanup_lake import gc
from support.duckdb_client import ClientView, attached, stock

Rows = list[tuple[Any, ...]]


@pytest.fixture
def fork(seen: ClientView) -> ClientView:
    """A fork that inherits a batch, and has replaced it twice since."""
    lake = seen.flush_lake
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')")
    lake.flush()
    fork = seen.fork("fork")
    for value in ("c", "d"):
        fork.lake.run(f"UPDATE app.ours SET v = '{value}' WHERE id = 1")
        lake.flush()
        lake.dedup(catalog="fork")
    return fork


def at_time(seen: ClientView, snapshot: int) -> str:
    """As a literal, a moment after the snapshot."""
    found = seen.flush_lake.sql("SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = %s", snapshot)
    return f"TIMESTAMPTZ '{found[0][0].isoformat()}' + INTERVAL 1 MILLISECOND"


def refused(seen: ClientView, exported: Path, at: str) -> None:
    with pytest.raises(NotFoundError, match="snapshot"):
        seen.lake.rows(f"SELECT * FROM app.ours AT ({at})")
    for duck in (stock(seen.flush_lake.lake.dsn, seen.catalog), attached(str(exported), "READ_ONLY")):
        with duck as connection, pytest.raises(duckdb.Error, match="snapshot"):
            connection.execute(f"FROM lake.app.ours AT ({at})").fetchall()


def export(seen: ClientView, path: Path) -> Path:
    export_catalog(seen.flush_lake.lake.dsn, seen.catalog, path)
    return path


def exported_rows(path: Path, at: str = "") -> Rows:
    with attached(str(path), "READ_ONLY") as duck:
        found: Rows = duck.execute(f"FROM lake.app.ours {at} ORDER BY ALL").fetchall()
        return found


def test_a_forks_first_snapshot_is_refused_once_its_files_may_be_gone(fork: ClientView, tmp_path: Path) -> None:
    """retention_gc keeps the row of the first snapshot, because it says when a catalog began."""
    snapshots = fork.own_snapshots()
    birth, newest = snapshots[0], snapshots[-1]
    times = {number: at_time(fork, number) for number in snapshots}
    now = fork.ours("app.ours")
    gc(fork.flush_lake, retain_snapshots=1)
    assert fork.flush_lake.sql("SELECT 1 FROM ducklake_snapshot WHERE snapshot_id = %s", birth) == [(1,)]
    file = export(fork, tmp_path / "fork.ducklake")
    assert fork.own_snapshots() == [newest]
    assert fork.theirs("app.ours") == fork.theirs("app.ours", newest) == exported_rows(file) == now
    refused(fork, file, f"VERSION => {birth}")
    for number in snapshots[:-1]:
        refused(fork, file, f"TIMESTAMP => {times[number]}")


def test_a_tag_keeps_a_snapshot_for_its_own_catalog_only(fork: ClientView, tmp_path: Path) -> None:
    lake = fork.flush_lake
    _, _, tagged, of_another, newest = fork.own_snapshots()
    then = fork.ours("app.ours", tagged)
    with connect(lake.lake.dsn) as connection:
        tag_snapshot(connection, "fork", tagged, "kept")
        tag_snapshot(connection, "main", of_another, "kept")
    after_the_tag = at_time(fork, of_another)
    gc(lake, retain_snapshots=1)
    file = export(fork, tmp_path / "fork.ducklake")
    assert fork.own_snapshots() == [tagged, newest]
    assert fork.theirs("app.ours", tagged) == fork.ours("app.ours", tagged) == then
    assert exported_rows(file, f"AT (VERSION => {tagged})") == then
    assert fork.theirs("app.ours") == exported_rows(file) == fork.ours("app.ours") != then
    refused(fork, file, f"VERSION => {of_another}")
    refused(fork, file, f"TIMESTAMP => {after_the_tag}")


def test_a_table_that_keeps_less_than_its_catalog_decides(fork: ClientView, tmp_path: Path) -> None:
    lake = fork.flush_lake
    fork.lake.run("ALTER TABLE app.ours SET (retain_snapshots = 1)")
    before = fork.own_snapshots()
    gc(lake)
    with connect(lake.lake.dsn) as connection:
        floor = connection.execute(
            "SELECT max(snapshot_id) AS floor FROM lakefork.retained_from WHERE catalog_id = %s",
            (find_catalog(connection, "fork").catalog_id,),
        ).fetchone()
        assert floor and floor["floor"] == before[-1]
        with pytest.raises(NotFoundError, match="no longer retained"):
            tag_snapshot(connection, "fork", before[0], "too_late")
    file = export(fork, tmp_path / "fork.ducklake")
    assert fork.own_snapshots() == [before[-1]]
    assert fork.theirs("app.ours") == fork.ours("app.ours") == exported_rows(file)
    refused(fork, file, f"VERSION => {before[0]}")


def test_time_between_a_tag_and_what_is_kept_is_not_known(fork: ClientView) -> None:
    """All snapshots between are gone: the last one at that time would be the tagged one, and was not."""
    lake = fork.flush_lake
    snapshots = fork.own_snapshots()
    tagged = snapshots[1]
    time_of_a_later_one = at_time(fork, snapshots[-2])
    with connect(lake.lake.dsn) as connection:
        tag_snapshot(connection, "fork", tagged, "kept")
    gc(lake, retain_snapshots=1)
    with pytest.raises(NotFoundError, match=rf"no longer retained; the one before it is: AT \(VERSION => {tagged}\)"):
        fork.lake.rows(f"SELECT * FROM app.ours AT (TIMESTAMP => {time_of_a_later_one})")
    assert len(fork.ours("app.ours", tagged)) == 2
