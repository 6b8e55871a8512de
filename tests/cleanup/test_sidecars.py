"""Sidecar files are deleted with the last batch: manifests, which contain keys of rows, and schema files."""

from pathlib import Path

import pytest

from lakefork.catalog.catalogs import drop_catalog
from lakefork.catalog.connection import connect
from support.cleanup_lake import gc_and_clean
from support.cloned_lake import Cloned, three_flushes_and_a_dedup
from support.flush_lake import Filled, FlushLake
from support.fork_lake import fork, upkeep


@pytest.fixture
def filled(cloned: Cloned) -> Filled:
    return Filled(cloned(three_flushes_and_a_dedup))


def left(lake: FlushLake, root: str | None = None) -> set[str]:
    """All files but markers."""
    found = Path(root or lake.lake.catalog.data_path)
    return {
        str(path.relative_to(found)) for path in found.rglob("*") if path.is_file() and ".lakefork" not in path.name
    }


def test_manifests_of_a_dropped_table_are_deleted_with_its_files(filled: Filled) -> None:
    lake = filled.flush_lake
    assert "app/mine/user_ada/manifest.json" in left(lake)
    lake.lake.run("DROP TABLE app.mine")
    result = gc_and_clean(lake)
    assert {path for path in left(lake) if path.startswith(("app/mine", "configs/app/schemas/mine"))} == set()
    assert "app/ours/shared/manifest.json" in left(lake)
    assert result["files_missing"] == 0
    ledger = lake.sql("SELECT reason, outcome FROM system.deletions WHERE path LIKE '%%manifest.json'")
    assert ledger == [("no catalog knows it", "removed")] * 2


def test_a_manifest_of_a_table_that_is_still_needed_stays(filled: Filled) -> None:
    lake = filled.flush_lake
    gc_and_clean(lake)
    assert {path for path in left(lake) if path.endswith("/manifest.json") and path.startswith("app")} == {
        "app/mine/user_ada/manifest.json", "app/mine/user_bob/manifest.json", "app/ours/shared/manifest.json",
    }  # fmt: skip


def test_nothing_is_left_of_a_fork_that_was_dropped(filled: Filled) -> None:
    lake = filled.flush_lake
    path = str(Path(lake.lake.catalog.data_path).parent / "child")
    child = fork(lake.lake, "child", path)
    child.run(
        "INSERT INTO app.ours (id, v) VALUES (900, 'x'); CREATE NAMESPACE more; CREATE SHARED TABLE more.t (id INT PRIMARY KEY)"
    )
    upkeep(lake, child).flush(catalog="child")
    before = left(lake)
    assert {"app/ours/shared/manifest.json", "configs/more/manifest.json"} <= left(lake, path)
    with connect(lake.lake.dsn) as connection:
        drop_catalog(connection, child.catalog)
    gc_and_clean(lake)
    assert left(lake, path) == set()
    assert left(lake) <= before and filled.rows()
    assert {one for one in before - left(lake) if "configs" in one} == set()
    assert gc_and_clean(lake)["files_looked_at"] == 0
