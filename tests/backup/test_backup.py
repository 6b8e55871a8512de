"""Backups and restores of a namespace: what goes in comes out."""

import json
import zlib
from pathlib import Path

import pytest

from lakefork.backups.format import DamagedBackupError, file_path, manifest_path
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog
from lakefork.errors import ForeignFilesError, InvalidInputError, NotFoundError
from support.backup_lake import BackupLake
from support.cleanup_lake import cleanup, gc


def test_a_namespace_restores_under_another_name_as_it_was(backup_lake: BackupLake) -> None:
    before = backup_lake.state()
    done = backup_lake.backup()
    assert backup_lake.state() == before, "a backup changes nothing"
    backup_lake.run("DELETE FROM app.ours WHERE id = 1; ALTER TABLE app.ours DROP COLUMN n")
    result = backup_lake.restore(namespace="again")
    assert result["backup_id"] == done["backup_id"]
    assert backup_lake.state("again") == before
    assert backup_lake.verify(done["backup_id"]).problems == ()
    assert backup_lake.sql("SELECT name FROM lakefork.snapshot_tag") == [], "nothing is pinned"
    assert backup_lake.fsck() == []


def test_what_was_restored_lives_on(backup_lake: BackupLake) -> None:
    """Writes, flush, dedup, ALTER, time travel, fork and another backup work as on any other namespace."""
    backup_lake.backup()
    backup_lake.restore(namespace="again")
    before = backup_lake.state("again")
    snapshot = backup_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
    backup_lake.run("UPDATE again.ours SET v = 'new' WHERE id = 1; INSERT INTO again.ours VALUES (9, 'nine', 9)")
    backup_lake.run("ALTER TABLE again.ours ADD COLUMN more TEXT DEFAULT 'm'")
    backup_lake.run("INSERT INTO again.mine VALUES (9, 'nine')", user="ada")
    now = backup_lake.state("again")
    backup_lake.flush_lake.flush()
    backup_lake.flush_lake.dedup()
    assert backup_lake.state("again") == now
    assert backup_lake.rows("SELECT id, v, more FROM again.ours ORDER BY id") == [
        (1, "new", "m"), (2, "TWO", "m"), (4, None, "m"), (9, "nine", "m"),
    ]  # fmt: skip
    then = backup_lake.rows(f"SELECT * FROM again.ours AT (VERSION => {snapshot}) ORDER BY id")
    assert [row[0] for row in then] == [1, 2, 4] and len(before["ours"]) == 4
    assert backup_lake.state("app")["mine"] == before["mine"], "the original is not touched"
    backup_lake.backup(namespace="again", to=f"{backup_lake.place}2")
    backup_lake.restore(f"{backup_lake.place}2", namespace="third")
    assert backup_lake.state("third") == now
    with connect(backup_lake.flush_lake.lake.dsn) as connection:
        fork_catalog(connection, "main", "fork")
    assert backup_lake.state("again", "fork") == now
    gc(backup_lake.flush_lake, retain_snapshots=1)
    assert backup_lake.state("again") == now and backup_lake.state("again", "fork") == now
    assert backup_lake.fsck() == []


def test_ten_schema_versions_with_overlapping_batches(backup_lake: BackupLake) -> None:
    """Files of several definitions with the same keys: columns by id, defaults as they were, the newest version wins."""
    run, flush = backup_lake.run, backup_lake.flush_lake.flush
    run("CREATE TABLE app.wide (id BIGINT PRIMARY KEY, a TEXT, b INT DEFAULT 5)")
    for number, change in enumerate(
        [
            "ADD COLUMN c TEXT DEFAULT 'c'", "RENAME COLUMN a TO first", "DROP COLUMN b", "ADD COLUMN b TEXT DEFAULT 'x'",
            "MODIFY COLUMN c TEXT DEFAULT 'd'", "ADD COLUMN e DOUBLE", "RENAME COLUMN e TO f", "DROP COLUMN c",
            "ADD COLUMN c BIGINT DEFAULT 1",
        ]
    ):  # fmt: skip
        run(f"INSERT INTO app.wide (id) VALUES ({number}), ({number + 100})")
        run(f"DELETE FROM app.wide WHERE id = {number - 1}")
        flush()
        run(f"ALTER TABLE app.wide {change}")
    run("UPDATE app.wide SET first = 'last' WHERE id = 103")
    before = backup_lake.state()
    history = schema_history(backup_lake, "app", "wide")
    assert len(history) == 10
    backup_lake.backup()
    backup_lake.restore(namespace="again")
    assert backup_lake.state("again") == before
    assert schema_history(backup_lake, "again", "wide") == history
    schemas = Path(backup_lake.flush_lake.lake.catalog.data_path) / "configs/again/schemas/wide"
    assert sorted(path.name for path in schemas.iterdir()) == sorted(
        ["current.json", *(f"schema_v{number}.json" for number in range(1, 11))]
    )
    run("INSERT INTO again.wide (id) VALUES (500)")
    backup_lake.flush_lake.flush()
    backup_lake.flush_lake.dedup()
    run("DELETE FROM again.wide WHERE id = 500")
    gc(backup_lake.flush_lake, retain_snapshots=1)
    assert schema_history(backup_lake, "again", "wide") == history
    assert [row for row in backup_lake.state("again")["wide"] if row[0] != 500] == before["wide"]
    assert backup_lake.fsck() == []


def schema_history(backup_lake: BackupLake, namespace: str, table: str) -> list[object]:
    found = backup_lake.sql(
        "SELECT lakefork.portable_definition(lakefork.table_definition(v.catalog_id, v.table_id, v.begin_snapshot)) - 'namespace', "
        "d.defined_at, d.author FROM system.tables t JOIN ducklake_schema_versions v USING (catalog_id, table_id) "
        "JOIN lakefork.definition_date d ON d.catalog_id = v.catalog_id AND d.object_id = v.table_id AND d.begin_snapshot = v.begin_snapshot "
        "WHERE t.namespace = %s AND t.table_name = %s ORDER BY v.begin_snapshot",
        namespace, table,
    )  # fmt: skip
    return list(found)


def test_clean_tables_stay_clean_and_files_of_different_commits_different(backup_lake: BackupLake) -> None:
    """Stock DuckDB is shown clean states; readers group no keys where a commit is one."""
    backup_lake.flush_lake.flush()
    backup_lake.flush_lake.dedup()
    orders = (
        "SELECT t.table_name, dense_rank() OVER (PARTITION BY t.table_name ORDER BY f.file_order), d.digest "
        "FROM system.tables t JOIN ducklake_data_file f USING (catalog_id, table_id) "
        "JOIN lakefork.file_digest d USING (data_file_id) WHERE t.namespace = %s AND f.end_snapshot IS NULL ORDER BY 1, 2, 3"
    )
    clean = (
        "SELECT t.table_name FROM system.tables t JOIN lakefork.inheritable_clean(t.catalog_id, NULL) c USING (table_id) "
        "WHERE t.namespace = %s ORDER BY 1"
    )
    backup_lake.backup()
    backup_lake.restore(namespace="again")
    assert backup_lake.sql(clean, "app") == backup_lake.sql(clean, "again") == [("mine",), ("ours",)]
    assert backup_lake.sql(orders, "app") == backup_lake.sql(orders, "again")


def test_one_moment_for_all_tables(backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 32: what is written, flushed, deduplicated and expired while files are copied is not in it."""
    from lakefork.transfer.backup import run as backup_run

    before = backup_lake.state()
    real = backup_run.plan_copies

    def meanwhile(*arguments: object) -> object:
        monkeypatch.undo()
        backup_lake.run("UPDATE app.ours SET v = 'later'; INSERT INTO app.ours VALUES (77, 'late', 1)")
        backup_lake.run("DELETE FROM app.mine WHERE id < 9", user="ada")
        backup_lake.flush_lake.flush()
        backup_lake.flush_lake.dedup()
        gc(backup_lake.flush_lake, retain_snapshots=1)
        backup_lake.flush_lake.sql(
            "UPDATE ducklake_files_scheduled_for_deletion SET schedule_start = schedule_start - interval '2 days' RETURNING 1"
        )
        cleanup(backup_lake.flush_lake)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(backup_run, "plan_copies", meanwhile)
    backup_lake.backup()
    backup_lake.restore(namespace="again")
    assert backup_lake.state("again") == before


def test_a_restore_over_a_namespace_that_exists_is_refused_or_replaces_it(backup_lake: BackupLake) -> None:
    """Scenario 33."""
    before = backup_lake.state()
    backup_lake.backup()
    backup_lake.run("DROP TABLE app.mine; CREATE TABLE app.other (id BIGINT PRIMARY KEY); UPDATE app.ours SET v = 'x'")
    changed = backup_lake.state()
    snapshot = backup_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
    with pytest.raises(InvalidInputError, match="namespace app already exists: restore under another name, or"):
        backup_lake.restore()
    assert backup_lake.state() == changed
    backup_lake.restore(replace=True)
    assert backup_lake.state() == before
    assert backup_lake.rows(f"SELECT count(*) FROM app.ours AT (VERSION => {snapshot})") == [(3,)], (
        "it was another table"
    )
    data = Path(backup_lake.flush_lake.lake.catalog.data_path)
    assert not (data / "configs/app/schemas/other").exists()
    assert backup_lake.fsck() == []


def test_restored_twice_under_two_names_both_read_the_same(backup_lake: BackupLake) -> None:
    """Scenario 33."""
    before = backup_lake.state()
    backup_lake.backup()
    backup_lake.restore(namespace="one")
    backup_lake.restore(namespace="two words")
    assert backup_lake.state("one") == backup_lake.state("two words") == before


def test_a_dropped_namespace_comes_back(backup_lake: BackupLake) -> None:
    before = backup_lake.state()
    backup_lake.backup()
    backup_lake.run("DROP TABLE app.mine; DROP TABLE app.ours; DROP TABLE app.events; DROP NAMESPACE app")
    backup_lake.restore()
    assert backup_lake.state() == before


def test_a_whole_catalog_goes_to_another_one(backup_lake: BackupLake) -> None:
    backup_lake.run(
        "CREATE NAMESPACE second; CREATE TABLE second.t (id BIGINT PRIMARY KEY); INSERT INTO second.t VALUES (1)"
    )
    backup_lake.run(
        "INSERT INTO system.users (user_id, username, role, permissions) VALUES ('eve', 'Eve', 'user', ['app.ours'])"
    )
    backup_lake.run(
        f"INSERT INTO system.storage_locations (location_name, location_type, path) VALUES ('disk', 'filesystem', '{backup_lake.place}-disk')"
    )
    before = {name: backup_lake.state(name) for name in ("app", "second")}
    done = backup_lake.backup(namespace=None)
    assert done["tables"] == 4
    backup_lake.create_catalog("other")
    backup_lake.restore(catalog="other")
    assert {name: backup_lake.state(name, "other") for name in ("app", "second")} == before
    users = "SELECT user_id, username, role, permissions FROM system.users WHERE catalog_name = %s"
    assert backup_lake.sql(users, "other") == backup_lake.sql(users, "main")
    locations = "SELECT location_name, path FROM system.storage_locations WHERE catalog_name = %s"
    assert backup_lake.sql(locations, "other") == backup_lake.sql(locations, "main") != []
    backup_lake.create_catalog("third")
    backup_lake.restore(catalog="third", namespace="second")
    assert backup_lake.rows("SHOW NAMESPACES", catalog="third")[0][0] == "second"
    with pytest.raises(NotFoundError, match="the backup has no namespace none; it has app, second"):
        backup_lake.restore(catalog="third", namespace="none")


def test_rules_that_name_its_tables_come_with_a_namespace(backup_lake: BackupLake) -> None:
    backup_lake.run(
        "INSERT INTO system.users (user_id, username, role, permissions) VALUES "
        "('eve', 'Eve', 'user', ['app.ours', 'other.t', 'app.ours.v = ''one''']), ('joe', 'Joe', 'user', ['x.*'])"
    )
    backup_lake.backup()
    backup_lake.restore(namespace="a b")
    users = "SELECT user_id, permissions FROM system.users WHERE catalog_name = 'main' ORDER BY 1"
    assert backup_lake.sql(users) == [
        ("eve", ["app.ours", "other.t", "app.ours.v = 'one'", '"a b".ours', "\"a b\".ours.v = 'one'"]),
        ("joe", ["x.*"]),
    ]
    assert backup_lake.rows('SELECT id FROM "a b".ours ORDER BY id', user="eve") == [(1,), (2,), (4,)]


def test_by_reference_shares_the_files_of_this_installation(backup_lake: BackupLake) -> None:
    lake = backup_lake.flush_lake
    before = backup_lake.state()
    backup_lake.backup()
    backup_lake.create_catalog("other")
    data = Path(lake.lake.catalog.data_path)
    files = set(data.parent.rglob("batch-*.parquet"))
    backup_lake.restore(catalog="other", by_reference=True)
    assert backup_lake.state("app", "other") == before
    new = set(data.parent.rglob("batch-*.parquet")) - files
    assert new and all("other" in path.parts for path in new), "only rows that were hot are copied"
    with pytest.raises(
        InvalidInputError, match=r"\d+ file\(s\) of the backup are already in this catalog: files are shared with"
    ):
        backup_lake.restore(namespace="again", by_reference=True)
    backup_lake.run("DROP TABLE app.mine; DROP TABLE app.ours; DROP TABLE app.events; DROP NAMESPACE app")
    gc(lake, retain_snapshots=1)
    lake.sql(
        "UPDATE ducklake_files_scheduled_for_deletion SET schedule_start = schedule_start - interval '2 days' RETURNING 1"
    )
    cleanup(lake)
    assert backup_lake.state("app", "other") == before, "what another catalog shares stays"
    assert backup_lake.fsck() == []


def test_by_reference_of_files_that_are_gone_is_refused(backup_lake: BackupLake) -> None:
    backup_lake.backup()
    backup_lake.run("DROP TABLE app.mine; DROP TABLE app.ours; DROP TABLE app.events; DROP NAMESPACE app")
    gc(backup_lake.flush_lake, retain_snapshots=1)
    backup_lake.create_catalog("other")
    with pytest.raises(NotFoundError, match=r"file\(s\) of the backup are no longer in this installation"):
        backup_lake.restore(catalog="other", by_reference=True)
    assert backup_lake.rows("SHOW NAMESPACES", catalog="other") == []
    assert backup_lake.sql("SELECT count(*) FROM lakefork.restore_file") == [(0,)]
    assert backup_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def test_places_obey_the_roots_and_keep_apart_from_data(backup_lake: BackupLake) -> None:
    data = backup_lake.flush_lake.lake.catalog.data_path
    for place, why in {
        f"{data}/backups": "overlaps the data path",
        str(Path(data).parent): "overlaps the data path",
        "/srv/elsewhere": "is not below an allowed root",
        "relative/path": "must be absolute",
        f"{backup_lake.place}/../x": "must be absolute",
        "s3://vault@bucket/x": "names credentials",
    }.items():
        with pytest.raises(InvalidInputError, match=why):
            backup_lake.backup(to=place)
        with pytest.raises(InvalidInputError, match=why):
            backup_lake.restore(place, namespace="x")
    link = Path(f"{backup_lake.place}-link")
    link.symlink_to(data)
    with pytest.raises(InvalidInputError, match="overlaps the data path"):
        backup_lake.backup(to=f"{link}/x")
    taken = Path(backup_lake.place)
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    with pytest.raises(ForeignFilesError, match="holds files that are no backups"):
        backup_lake.backup()
    with pytest.raises(NotFoundError, match="there is no backup at"):
        backup_lake.restore(namespace="x")
    with pytest.raises(NotFoundError, match="namespace nothing does not exist in catalog main"):
        backup_lake.backup(namespace="nothing")


def test_a_newer_format_is_refused_with_a_sentence(backup_lake: BackupLake) -> None:
    import hashlib

    done = backup_lake.backup()
    path = Path(manifest_path(backup_lake.place, done["backup_id"]))
    found = json.loads(path.read_text())
    del found["sha256"]
    body = json.dumps({**found, "format": 2, "lakefork": "9.9"}, sort_keys=True).encode()
    path.write_bytes(b'{"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:])
    with pytest.raises(DamagedBackupError, match=r"has format 2, and this Lakefork reads up to 1: use Lakefork 9.9"):
        backup_lake.restore(f"{backup_lake.place}/backups/{done['backup_id']}", namespace="x")


def test_a_backup_goes_to_another_installation(backup_lake: BackupLake, other_lake: BackupLake) -> None:
    before = backup_lake.state()
    backup_lake.backup()
    other_lake.restore(backup_lake.place)
    assert other_lake.state() == before
    with pytest.raises(ForeignFilesError, match="holds backups of another installation"):
        other_lake.backup(to=backup_lake.place)
    with pytest.raises(
        InvalidInputError, match="was made by another installation: only files of this one can be shared"
    ):
        other_lake.restore(backup_lake.place, namespace="x", by_reference=True)
    assert other_lake.fsck() == []


def test_empty_namespaces_and_tables_are_kept_too(backup_lake: BackupLake) -> None:
    backup_lake.run("CREATE NAMESPACE bare; CREATE NAMESPACE tables; CREATE TABLE tables.t (id BIGINT PRIMARY KEY)")
    for name in ("bare", "tables"):
        place = f"{backup_lake.place}-{name}"
        backup_lake.backup(to=place, namespace=name)
        backup_lake.restore(place, namespace=f"{name}2")
        assert backup_lake.state(f"{name}2") == backup_lake.state(name)


def test_schema_files_and_manifests_are_kept_as_they_were(backup_lake: BackupLake) -> None:
    done = backup_lake.backup()
    documents = backup_lake.manifest(done["backup_id"]).documents
    kept = json.loads(zlib.decompress(Path(file_path(backup_lake.place, documents.digest)).read_bytes()))
    data = Path(backup_lake.flush_lake.lake.catalog.data_path)
    there = {path for path in data.rglob("*.json") if not path.name.startswith(".")}
    assert {data / path for path in kept} == there and len(there) == 3 + 1 + 3 * 2
    assert all((data / path).read_text() == text for path, text in kept.items())
