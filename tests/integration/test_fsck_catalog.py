"""Each kind of damage that can be planted in the catalog is found, by catalog and object."""

import pytest

from lakefork.catalog.connection import Connection
from support.lake import add_file, make_catalog, make_table, rows_of

DAMAGE = {
    "counter: catalog id": (
        "UPDATE ducklake_snapshot SET next_catalog_id = 2 WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)",
        {"counter", "snapshot"},
    ),
    "counter: file id": (
        "UPDATE ducklake_snapshot SET next_file_id = 0 WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)",
        {"counter", "snapshot"},
    ),
    "overlapping versions of a table": (
        "INSERT INTO ducklake_table SELECT catalog_id, table_id, table_uuid, begin_snapshot - 1, begin_snapshot + 1, schema_id, 'old', "
        "path, path_is_relative FROM ducklake_table WHERE catalog_id = 1",
        {"version", "parent"},
    ),
    "a version that ends before it begins": (
        "UPDATE ducklake_column SET end_snapshot = begin_snapshot WHERE catalog_id = 1 AND column_id = 5",
        {"version"},
    ),
    "a version from the future": (
        "UPDATE ducklake_data_file SET begin_snapshot = 4711 WHERE catalog_id = 1",
        {"version"},
    ),
    "overlapping versions of a catalog": (
        "INSERT INTO ducklake_catalog VALUES (1, gen_random_uuid(), 'ghost', 0, 3)",
        {"version"},
    ),
    "a table without a namespace": ("DELETE FROM ducklake_schema WHERE catalog_id = 1", {"parent", "path"}),
    "a file without a table": ("DELETE FROM ducklake_table WHERE catalog_id = 1", {"parent", "path", "totals"}),
    "statistics without a file": ("DELETE FROM ducklake_data_file WHERE catalog_id = 1", {"parent", "totals"}),
    "a column that outlives its table": (
        "UPDATE ducklake_table SET end_snapshot = (SELECT max(snapshot_id) FROM ducklake_snapshot) WHERE catalog_id = 1",
        {"parent", "totals"},
    ),
    "a tag of nothing": ("INSERT INTO ducklake_tag VALUES (1, 999, 1, NULL, 'k', 'v')", {"parent"}),
    "rows of no catalog": ("INSERT INTO ducklake_schema VALUES (1000, 2, NULL, 1, NULL, 'x', 'x', true)", {"parent"}),
    "two paths for one file": (
        "INSERT INTO ducklake_data_file SELECT 4, data_file_id, (SELECT table_id FROM ducklake_table WHERE catalog_id = 4), 6, "
        "NULL, file_order, '/elsewhere', false, file_format, 0, 0, footer_size, 0 FROM ducklake_data_file WHERE catalog_id = 1",
        {"path"},
    ),
    "two files with one path": (
        "UPDATE ducklake_data_file SET path = '/same.parquet', path_is_relative = false",
        {"path"},
    ),
    "a catalog without a data path": (
        "DELETE FROM ducklake_metadata WHERE key = 'data_path' AND scope_id = 1",
        {"path"},
    ),
    "overlapping data paths": (
        "UPDATE ducklake_metadata SET value = '/lake/b/inside' WHERE key = 'data_path' AND scope_id = 1",
        {"path"},
    ),
    "a missing snapshot": ("DELETE FROM ducklake_snapshot WHERE snapshot_id = 2", {"snapshot"}),
    "a snapshot without changes": ("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = 2", {"snapshot"}),
    "wrong totals": (
        "UPDATE ducklake_table_stats SET record_count = record_count + 1 WHERE catalog_id = 1",
        {"totals"},
    ),
    "missing totals": ("DELETE FROM ducklake_table_stats WHERE catalog_id = 1", {"totals"}),
}


@pytest.fixture
def lake(connection: Connection) -> Connection:
    for name in "ab":
        add_file(connection, make_table(connection, make_catalog(connection, name)))
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []
    return connection


@pytest.mark.parametrize("damage", DAMAGE)
def test_injected_damage_is_found(lake: Connection, damage: str) -> None:
    statement, expected = DAMAGE[damage]
    lake.execute(statement)
    findings = rows_of(lake, "SELECT check_name, catalog_id, object, problem FROM lakefork.fsck()")
    assert {check for check, *_ in findings} == expected, findings
    assert all(object and problem for _, _, object, problem in findings)
    assert all(catalog is not None for check, catalog, *_ in findings if check != "snapshot")


@pytest.mark.parametrize("damage", [d for d in DAMAGE if DAMAGE[d][1] & {"parent", "path", "totals", "version"}])
def test_one_catalog_can_be_checked_alone(lake: Connection, damage: str) -> None:
    statement, expected = DAMAGE[damage]
    lake.execute(statement)
    asked = 1000 if damage == "rows of no catalog" else 1
    found = {check for (check,) in rows_of(lake, "SELECT check_name FROM lakefork.fsck(%s)", asked)}
    assert found & expected, "its own damage is found"
    other = rows_of(lake, "SELECT check_name, problem FROM lakefork.fsck(4)")
    if damage not in ("two paths for one file", "two files with one path", "overlapping data paths"):
        assert other == [], "the other catalog is sound"


def test_expired_snapshots_are_no_damage_where_recorded(lake: Connection) -> None:
    lake.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id IN (1, 2, 4)")
    lake.execute("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id IN (1, 2, 4)")
    lake.execute("INSERT INTO lakefork.expired_snapshots (first_snapshot, last_snapshot) VALUES (1, 1), (2, 2)")
    assert rows_of(lake, "SELECT object FROM lakefork.fsck()") == [("snapshots 4 to 4",)]
    lake.execute("INSERT INTO lakefork.expired_snapshots (first_snapshot, last_snapshot) VALUES (4, 4)")
    assert rows_of(lake, "SELECT object FROM lakefork.fsck()") == []
