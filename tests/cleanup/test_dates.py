"""Dates and authors belong to namespaces, tables and definitions: retention does not take them."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.cleanup_lake import gc
from support.cloned_lake import Cloned, three_flushes_and_a_dedup
from support.flush_lake import FlushLake
from support.fork_lake import fork
from support.sql_lake import SqlLake

DATES = (
    "SHOW NAMESPACES",
    "DESCRIBE TABLE app.ours",
    "SELECT table_schema, table_name, created_at, last_modified FROM information_schema.tables ORDER BY ALL",
    "SELECT namespace, table_name, created_at, last_modified FROM system.tables ORDER BY ALL",
)


@pytest.fixture
def dated(cloned: Cloned) -> FlushLake:
    """Two definitions of a table, and newer snapshots."""
    lake = cloned(three_flushes_and_a_dedup)
    lake.lake.run("ALTER TABLE app.ours ADD COLUMN n INT; CREATE NAMESPACE later")
    return lake


def dates(lake: SqlLake) -> list[list[tuple[Any, ...]]]:
    """All that is shown of them, but for what says where a catalog's files are."""
    shown = [lake.rows(text) for text in DATES]
    return [[row for row in rows if row[:2] != ("table", "storage_location")] for rows in shown]


def schema_files(lake: SqlLake) -> dict[str, Any]:
    root = Path(lake.catalog.data_path) / "configs"
    return {str(path): json.loads(path.read_text()) for path in sorted(root.rglob("*.json")) if path.name[0] != "."}


def test_dates_and_authors_outlive_their_snapshots(dated: FlushLake) -> None:
    lake = dated.lake
    before, files = dates(lake), schema_files(lake)
    gc(dated, retain_snapshots=1)
    assert dates(lake) == before
    lake.engine.rewrite_schemas(lake.session())
    assert schema_files(lake).items() >= files.items()


def test_tables_show_when_they_were_created_and_modified(dated: FlushLake) -> None:
    text = "SELECT table_name, created_at, last_modified FROM system.tables WHERE namespace = 'app'"
    found = {name: (created, modified) for name, created, modified in dated.lake.rows(text)}
    assert found["ours"][0] < found["ours"][1]
    assert found["mine"][0] == found["mine"][1]
    in_views = dated.sql("SELECT table_name, created_at, last_modified FROM system.tables")
    assert {name: times for name, *times in in_views} == {name: list(times) for name, times in found.items()}
    system = "SELECT DISTINCT created_at FROM information_schema.tables WHERE table_type = 'SYSTEM'"
    assert dated.lake.rows(system) == [(None,)]


def test_a_fork_keeps_the_dates_of_what_it_inherits(dated: FlushLake) -> None:
    before = dates(dated.lake)
    child = fork(dated.lake, "child")
    assert dates(child) == before
    gc(dated, retain_snapshots=1)
    assert dates(child) == before
    child.run("ALTER TABLE app.ours ADD COLUMN more INT")
    assert dates(dated.lake) == before
    created, modified = child.rows("SELECT created_at, last_modified FROM system.tables WHERE table_name = 'ours'")[0]
    assert created == before[3][1][2]
    assert modified > before[3][1][3]


def test_dates_are_removed_with_their_objects(dated: FlushLake) -> None:
    lake = dated.lake
    lake.run("DROP NAMESPACE later; DROP TABLE app.ours")
    gc(dated, retain_snapshots=1)
    left = dated.sql(
        "SELECT DISTINCT object_id FROM lakefork.definition_date EXCEPT "
        "(SELECT table_id FROM ducklake_table UNION SELECT schema_id FROM ducklake_schema)"
    )
    assert left == []


def test_describe_shows_when_a_row_was_written(dated: FlushLake) -> None:
    columns = [row for row in dated.lake.rows("DESCRIBE TABLE app.ours") if row[0] == "column"]
    assert columns[-1][1:3] == ("_updated", "TIMESTAMP WITH TIME ZONE")
    assert columns[-1][5] == "system, from _seq"
