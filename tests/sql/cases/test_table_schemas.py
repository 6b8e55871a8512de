"""Odd cases of ALTER TABLE: schema files, old rows and batches under new definitions, time travel."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from lakefork.errors import ConflictError, InvalidInputError, NotFoundError
from support.sql_cases import configs, newest_snapshot
from support.sql_lake import SqlLake, refuse


def test_every_change_of_a_table_writes_schema_files_and_the_manifest(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(
        f"ALTER TABLE {table} ADD COLUMN tags STRING[], ADD COLUMN p STRING DEFAULT 'normal'; ALTER TABLE {table} DROP COLUMN v"
    )
    lake.run(f"CREATE STREAM TABLE {ns}.s (x INT); CREATE USER TABLE {ns}.u (id UUID PRIMARY KEY)")
    schemas = configs(lake, ns) / "schemas"
    assert sorted(path.name for path in (schemas / "t").iterdir()) == [
        "current.json",
        "schema_v1.json",
        "schema_v2.json",
        "schema_v3.json",
    ]
    current = json.loads((schemas / "t" / "current.json").read_text())
    assert current == json.loads((schemas / "t" / "schema_v3.json").read_text())
    fields = {field["name"]: field for field in current["arrow_schema"]["fields"]}
    assert list(fields) == ["id", "n", "tags", "p", "_seq", "_deleted"]
    assert fields["p"]["metadata"]["default"] == "normal"
    assert fields["id"]["nullable"] is False
    assert {name for name, field in fields.items() if field["metadata"].get("system_column") == "true"} == {
        "_seq",
        "_deleted",
    }
    ids = [field["metadata"]["column_id"] for field in fields.values()]
    assert len(set(ids)) == len(ids)
    manifest = json.loads((configs(lake, ns) / "manifest.json").read_text())
    assert {name: (entry["current_version"], entry["table_type"]) for name, entry in manifest.items()} == {
        "t": (3, "shared"), "s": (1, "stream"), "u": (1, "user"),
    }  # fmt: skip
    assert all((configs(lake, ns) / entry["path"]).exists() for entry in manifest.values())
    assert manifest["t"]["created_at"] < manifest["t"]["updated_at"]


def test_a_dropped_table_is_no_longer_in_the_manifest_of_its_namespace(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(f"CREATE USER TABLE {ns}.other (id BIGINT PRIMARY KEY); DROP TABLE {table.upper()}")
    assert list(json.loads((configs(lake, ns) / "manifest.json").read_text())) == ["other"]


def test_missing_and_corrupt_schema_files_are_written_again_from_the_catalog(
    lake: SqlLake, ns: str, table: str
) -> None:
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT; ALTER TABLE {table} RENAME COLUMN x TO y")
    files = sorted(configs(lake, ns).rglob("*.json"))
    before = {path: path.read_text() for path in files}
    schemas = configs(lake, ns) / "schemas" / "t"
    (schemas / "schema_v1.json").unlink()
    (schemas / "schema_v2.json").write_text("{ not json")
    (schemas / "current.json").unlink()
    (schemas / "current.json").symlink_to("schema_v99.json")
    (configs(lake, ns) / "manifest.json").write_text("\0")
    lake.run(f"INSERT INTO {table} (id, y) VALUES (1, 5)")
    assert lake.rows(f"SELECT id, y FROM {table}") == [(1, 5)]
    assert lake.engine.rewrite_schemas(lake.session()) >= 1
    assert {path: path.read_text() for path in sorted(configs(lake, ns).rglob("*.json"))} == before


def test_the_next_alter_heals_a_corrupt_manifest_and_current_schema(lake: SqlLake, ns: str, table: str) -> None:
    (configs(lake, ns) / "manifest.json").write_text("{")
    (configs(lake, ns) / "schemas" / "t" / "current.json").unlink()
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
    assert json.loads((configs(lake, ns) / "manifest.json").read_text())["t"]["current_version"] == 2
    assert json.loads((configs(lake, ns) / "schemas" / "t" / "current.json").read_text())["version"] == 2


def test_alter_holds_even_if_the_schema_files_cannot_be_written(lake: SqlLake, ns: str, table: str) -> None:
    root = configs(lake, ns)
    root.rename(root.with_name("aside"))
    root.write_text("in the way")
    try:
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
    finally:
        root.unlink()
        root.with_name("aside").rename(root)
    lake.run(f"INSERT INTO {table} (id, x) VALUES (1, 7)")
    assert lake.rows(f"SELECT x FROM {table}") == [(7,)]
    lake.engine.rewrite_schemas(lake.session())
    assert (root / "schemas" / "t" / "schema_v2.json").exists()


def test_an_alter_that_another_one_overtakes_gets_a_conflict(
    lake: SqlLake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = lake.engine._tables
    find = tables._definition

    def overtaken(session: Any, statement: Any) -> Any:
        found = find(session, statement)
        monkeypatch.undo()
        lake.run(f"ALTER TABLE {table} ADD COLUMN first INT")
        return found

    monkeypatch.setattr(tables, "_definition", overtaken)
    refuse(lake, ConflictError, "changed concurrently", f"ALTER TABLE {table} ADD COLUMN second INT")
    names = [row[1] for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "column"]
    assert names == ["id", "v", "n", "first", "_seq", "_deleted", "_updated"]


def test_of_many_concurrent_alters_each_wins_or_gets_a_conflict_and_files_agree_with_the_catalog(
    lake: SqlLake, ns: str, table: str
) -> None:
    def alter(place: int) -> bool:
        try:
            lake.run(f"ALTER TABLE {table} ADD COLUMN x{place} INT")
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = [place for place, done in enumerate(pool.map(alter, range(6))) if done]
    assert won
    columns = {row[1] for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "column"}
    assert columns == {"id", "v", "n", "_seq", "_deleted", "_updated", *(f"x{place}" for place in won)}
    manifest = json.loads((configs(lake, ns) / "manifest.json").read_text())
    current = json.loads((configs(lake, ns) / "schemas" / "t" / "current.json").read_text())
    assert manifest["t"]["current_version"] == current["version"] == 1 + len(won)
    assert {field["name"] for field in current["arrow_schema"]["fields"]} == columns - {"_updated"}


def test_rows_written_while_the_table_is_altered_are_all_there(lake: SqlLake, table: str) -> None:
    stop = threading.Event()
    done: list[int] = []

    def write() -> None:
        for key in itertools.count():
            if stop.is_set():
                return
            assert lake.count(f"INSERT INTO {table} (id, v) VALUES (?, 'x')", key) == 1
            done.append(key)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for place in range(4):
            lake.run(f"ALTER TABLE {table} ADD COLUMN x{place} INT DEFAULT {place}")
            lake.run(f"ALTER TABLE {table} DROP COLUMN x{place}")
    finally:
        stop.set()
        writer.join()
    assert [row[0] for row in lake.rows(f"SELECT id FROM {table} ORDER BY id")] == done


@pytest.mark.parametrize(
    ("old", "new"),
    [("BIGINT", "INT"), ("INT", "SMALLINT"), ("BIGINT", "DOUBLE"), ("INT", "FLOAT"), ("STRING", "INT"), ("INT", "STRING"), ("DOUBLE", "FLOAT"),
     ("DECIMAL(10,2)", "DECIMAL(10,3)"), ("DECIMAL(10,2)", "DECIMAL(9,2)"), ("BIGINT", "DECIMAL(18,0)"), ("TIMESTAMP", "TIMESTAMPTZ"),
     ("DATE", "TIMESTAMP"), ("BYTES", "STRING"), ("JSON", "STRING"), ("BIGINT", "BIGINT[]")],
)  # fmt: skip
def test_a_column_cannot_be_narrowed_or_change_its_meaning(lake: SqlLake, ns: str, old: str, new: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v {old})")
    refuse(lake, InvalidInputError, "only widening", f"ALTER TABLE {ns}.t MODIFY COLUMN v {new}")


@pytest.mark.parametrize(
    ("old", "new", "value", "wide"),
    [("SMALLINT", "BIGINT", -32768, 2**40), ("INT", "DOUBLE", 2**31 - 1, 1e300), ("FLOAT", "DOUBLE", 0.5, 1e300), ("SMALLINT", "FLOAT", 7, 0.5),
     ("DECIMAL(4,2)", "DECIMAL(38,4)", Decimal("99.99"), Decimal("123456789.1234")), ("BIGINT", "DECIMAL(38,2)", 2**63 - 1, Decimal("10000000000000000000000.25"))],
)  # fmt: skip
def test_a_widened_column_keeps_hot_rows_batches_and_defaults(
    lake: SqlLake, ns: str, old: str, new: str, value: Any, wide: Any
) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v {old} DEFAULT 1)")
    lake.run(f"INSERT INTO {ns}.t VALUES (1, ?)", value)
    lake.flush_by_hand(f"{ns}.t")
    lake.run(f"INSERT INTO {ns}.t VALUES (2, ?)", value)
    lake.run(f"ALTER TABLE {ns}.t MODIFY COLUMN v {new}")
    lake.run(f"INSERT INTO {ns}.t VALUES (3, ?)", wide)
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (4)")
    assert lake.count(f"UPDATE {ns}.t SET v = v WHERE id = 1 OR v > 100000000") >= 1
    assert lake.rows(f"SELECT v FROM {ns}.t ORDER BY id") == [(value,), (value,), (wide,), (1,)]
    lake.flush_by_hand(f"{ns}.t")
    assert lake.rows(f"SELECT v FROM {ns}.t ORDER BY id") == [(value,), (value,), (wide,), (1,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_an_added_column_is_null_or_its_default_in_older_rows(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    if flushed:
        lake.flush_by_hand(table)
    lake.run(
        f"ALTER TABLE {table} ADD COLUMN plain STRING, ADD COLUMN p STRING NOT NULL DEFAULT 'it''s', ADD COLUMN k INT DEFAULT 5"
    )
    lake.run(f"INSERT INTO {table} (id) VALUES (2)")
    assert lake.rows(f"SELECT id, plain, p, k FROM {table} ORDER BY id") == [(1, None, "it's", 5), (2, None, "it's", 5)]
    lake.run(f"ALTER TABLE {table} MODIFY COLUMN k INT DEFAULT 6")
    lake.run(f"INSERT INTO {table} (id) VALUES (3)")
    assert lake.rows(f"SELECT id, k FROM {table} ORDER BY id") == [(1, 5), (2, 5), (3, 6)]
    assert lake.rows(f"SELECT id FROM {table} WHERE k = 5 AND p = 'it''s' ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_renamed_column_keeps_its_values_and_the_old_name_is_gone(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    if flushed:
        lake.flush_by_hand(table)
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO text, RENAME COLUMN id TO key")
    assert lake.rows(f"SELECT key, text FROM {table} WHERE key = 1") == [(1, "a")]
    refuse(lake, InvalidInputError, "v", f"SELECT v FROM {table}")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {table} VALUES (1, 'x', 1)")
    assert lake.count(f"UPDATE {table} SET n = n + 1 WHERE key = 1") == 1
    assert lake.rows(f"SELECT * EXCLUDE (_seq, _deleted) FROM {table}") == [(1, "a", 2)]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_dropped_and_added_name_does_not_show_old_values(
    lake: SqlLake, table: str, flushed: bool, at_once: bool
) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'secret', 1)")
    if flushed:
        lake.flush_by_hand(table)
    if at_once:
        lake.run(f"ALTER TABLE {table} DROP COLUMN v, ADD COLUMN v STRING")
    else:
        lake.run(f"ALTER TABLE {table} DROP COLUMN v; ALTER TABLE {table} ADD COLUMN v STRING")
    assert lake.rows(f"SELECT id, v FROM {table}") == [(1, None)]
    lake.run(f"UPDATE {table} SET v = 'new' WHERE id = 1")
    assert lake.rows(f"SELECT id, v, n FROM {table}") == [(1, "new", 1)]


def test_a_column_that_is_added_and_dropped_quickly_leaves_no_trace_and_its_id_is_not_reused(
    lake: SqlLake, ns: str, table: str
) -> None:
    for _ in range(3):
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT DEFAULT 1; ALTER TABLE {table} DROP COLUMN x")
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
    refuse(lake, InvalidInputError, "nothing to change", f"ALTER TABLE {table} ADD COLUMN y INT, DROP COLUMN y")
    lake.run(f"INSERT INTO {table} (id) VALUES (1)")
    assert lake.rows(f"SELECT x FROM {table}") == [(None,)]
    ids = []
    for version in range(1, 9):
        file = configs(lake, ns) / "schemas" / "t" / f"schema_v{version}.json"
        fields = json.loads(file.read_text())["arrow_schema"]["fields"]
        ids += [int(field["metadata"]["column_id"]) for field in fields if field["name"] == "x"]
    assert len(ids) == len(set(ids)) == 4


def test_a_key_column_cannot_be_dropped_or_modified_and_the_last_column_stays(
    lake: SqlLake, ns: str, table: str
) -> None:
    refuse(lake, InvalidInputError, "key", f"ALTER TABLE {table} DROP COLUMN id")
    refuse(lake, InvalidInputError, "key", f"ALTER TABLE {table} MODIFY COLUMN id DECIMAL(38, 0)")
    refuse(lake, InvalidInputError, "no column", f"ALTER TABLE {table} DROP COLUMN nope")
    refuse(lake, InvalidInputError, "already", f"ALTER TABLE {table} ADD COLUMN V INT")
    refuse(lake, InvalidInputError, "DEFAULT", f"ALTER TABLE {table} ADD COLUMN x INT NOT NULL")
    refuse(lake, InvalidInputError, "NULL", f"ALTER TABLE {table} MODIFY COLUMN n INT NOT NULL")
    # all or nothing
    refuse(lake, InvalidInputError, "no column", f"ALTER TABLE {table} ADD COLUMN x INT, DROP COLUMN nope")
    assert len([row for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "version"]) == 1


def test_old_batches_are_read_after_many_versions(lake: SqlLake, table: str) -> None:
    for place in range(5):
        lake.run(f"INSERT INTO {table} (id, v) VALUES ({place}, 'v{place}')")
        lake.flush_by_hand(table)
        lake.run(f"ALTER TABLE {table} ADD COLUMN x{place} INT DEFAULT {place}")
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO w, DROP COLUMN x0, DROP COLUMN n, RENAME COLUMN x1 TO x0")
    expected = [(place, f"v{place}", 1, 2, 3, 4) for place in range(5)]
    assert lake.rows(f"SELECT id, w, x0, x2, x3, x4 FROM {table} ORDER BY id") == expected
    assert lake.count(f"UPDATE {table} SET x4 = NULL WHERE w = 'v0'") == 1
    assert lake.rows(f"SELECT * EXCLUDE (_seq, _deleted) FROM {table} WHERE id = 0") == [(0, "v0", 1, 2, 3, None)]


def test_describe_shows_hundreds_of_versions(lake: SqlLake, table: str) -> None:
    for _ in range(50):
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT; ALTER TABLE {table} DROP COLUMN x")
    versions = [row for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "version"]
    assert [row[1] for row in versions] == [f"v{number}" for number in range(1, 102)]
    assert versions[100][2].endswith("schema_v101.json")
    described = {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {table}")}
    assert described["current_version"] == "101"


def test_time_travel_reads_files_and_definition_as_they_were(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'first', 1)")
    lake.flush_by_hand(table)
    first = newest_snapshot(lake)
    lake.run(f"UPDATE {table} SET v = 'second' WHERE id = 1; INSERT INTO {table} VALUES (2, 'other', 2)")
    assert lake.rows(f"SELECT id, v FROM {table} AT (VERSION => {first})") == [(1, "first")]
    lake.flush_by_hand(table)
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO w, DROP COLUMN n; DELETE FROM {table} WHERE id = 1")
    lake.flush_by_hand(table)
    assert lake.rows(f"SELECT id, v, n FROM {table} AT (VERSION => {first})") == [(1, "first", 1)]
    assert lake.rows(f"SELECT id, w FROM {table}") == [(2, "other")]
    now = newest_snapshot(lake)
    assert lake.rows(f"SELECT id, w FROM {table} AT (VERSION => ?)", now) == [(2, "other")]
    assert lake.rows(f"SELECT id, w FROM {table} AT (TIMESTAMP => now())") == [(2, "other")]
    lake.run(f"DROP TABLE {table}")
    assert lake.rows(f"SELECT id, v, n FROM {table} AT (VERSION => {first})") == [(1, "first", 1)]
    refuse(lake, NotFoundError, "snapshot", f"SELECT * FROM {table} AT (VERSION => 999999999)")
    refuse(lake, NotFoundError, "snapshot", f"SELECT * FROM {table} AT (TIMESTAMP => '1999-01-01')")
