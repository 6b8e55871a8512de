"""find_orphans finds what nobody needs, and never anything else: local and on S3, with forks, links, nested roots."""

import datetime
import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakefork.catalog.catalogs import create_catalog, drop_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.roots import installation_id
from lakefork.catalog.staging import reserve_batches
from lakefork.errors import LakeforkError, NotFoundError, StorageError
from lakefork.settings import Settings, StorageSettings
from lakefork.sql.engine import Engine
from lakefork.storage.markers import MARKER, RootOwner, claim_root, is_marker
from lakefork.storage.removal import remove_many
from lakefork.upkeep.cleanup.orphans import find_orphans, known_paths
from support.cleanup_lake import age_schedule, cleanup, execute, gc
from support.flush_lake import FlushLake
from support.fork_lake import fork
from support.lake import add_file, make_catalog, make_table
from support.sql_lake import SqlLake

TEMPORARY = "0123456789abcdef" * 2
LEFT = f".manifest.json.{TEMPORARY}"  # of a run that died while it wrote
NO_TIME = datetime.timedelta(0)


def orphans(lake: FlushLake, catalog: str | None = None, older_than: datetime.timedelta = NO_TIME) -> list[str]:
    with lake.context(job="file_cleanup") as context:
        return sorted(found.path for found in find_orphans(context, catalog, older_than))


def write(*paths: str | Path) -> list[str]:
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return sorted(map(str, paths))


def mark(lake: FlushLake, *directories: str | Path) -> None:
    """Makes directories ours, as a table's first flush does."""
    with lake.context() as context:
        for directory in directories:
            owner = RootOwner(installation_id(context.connection), 1, 1)
            claim_root(str(directory), owner, context.storage, lambda: [])


def give_out(lake: FlushLake, *directories: str | Path) -> None:
    """As if a thousand batches had been written there at some time."""
    for directory in directories:
        execute(lake, "INSERT INTO lakefork.batch_number VALUES (%s, 1000) ON CONFLICT DO NOTHING", str(directory))
        execute(lake, "UPDATE lakefork.batch_number SET next_number = 1000 WHERE directory = %s", str(directory))


TABLES = """CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY);
    CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY)"""
USERS = ("ada", "a/../b c%20@x")


@pytest.fixture
def filled(flush_lake: FlushLake) -> FlushLake:
    """Batches, one of them ended, manifests and schema files of a table of each kind."""
    lake = flush_lake.lake
    lake.run(TABLES)
    for start in (0, 10):
        lake.run(f"INSERT INTO app.ours VALUES ({start})")
        lake.flush_by_hand("app.ours")
        for user in USERS:
            lake.run(f"INSERT INTO app.mine VALUES ({start}), ({start + 1})", user=user)
            lake.flush_by_hand("app.mine", user)
    flush_lake.sql("UPDATE ducklake_data_file SET end_snapshot = begin_snapshot + 1 WHERE data_file_id = 0 RETURNING 1")
    write(*(f"{path.rpartition('/')[0]}/manifest.json" for path in flush_lake.files_on_disk()))
    assert len(flush_lake.files_on_disk()) == 6
    give_out(flush_lake, *{Path(path).parent for path in flush_lake.files_on_disk()})
    return flush_lake


def test_files_left_by_upkeep_are_needed(flush_lake: FlushLake) -> None:
    flush_lake.lake.run(TABLES)
    for start in (0, 10):
        for user in USERS:
            flush_lake.lake.run(f"INSERT INTO app.mine VALUES ({start}), ({start + 1})", user=user)
        flush_lake.lake.run(f"INSERT INTO app.ours VALUES ({start})")
        flush_lake.flush()
    flush_lake.dedup()
    now = flush_lake.paths("app.mine") + flush_lake.paths("app.ours")
    assert len(flush_lake.files_on_disk()) > len(now), "ended ones are there as well"
    fork(flush_lake.lake, "child")
    assert orphans(flush_lake) == []
    flush_lake.lake.run("DROP TABLE app.ours; DROP TABLE app.mine")
    assert orphans(flush_lake) == []


def test_orphans_of_all_kinds_are_found_with_their_facts(filled: FlushLake) -> None:
    root = Path(filled.lake.catalog.data_path)
    strays = write(
        root / "app/ours/t ü 50%/batch-0.parquet", root / "app/mine/user_ada/batch-999.parquet", root / "app/gone/shared/batch-0.parquet",
        root / "app/gone/shared/manifest.json", root / f"app/ours/shared/.batch-0.parquet.{TEMPORARY}", root / "app/ours/shared/a%20b/batch-0.parquet",
        root / "app/ours/.quarantine/nobody/shared/batch-0.parquet",
    )  # fmt: skip
    give_out(filled, root / "app/ours/t ü 50%", root / "app/ours/shared/a%20b")
    shutil.rmtree(root / "app/gone")
    mark(filled, root / "app/gone")
    write(root / "app/gone/shared/batch-0.parquet", root / "app/gone/shared/manifest.json")
    give_out(filled, root / "app/gone/shared")
    write(root / ".trash/2026-05-01/app/ours/shared/batch-0.parquet")
    assert orphans(filled) == strays
    assert orphans(filled, "main") == strays
    with filled.context(job="file_cleanup") as context:
        stray = f"{root}/app/ours/shared/a%20b/batch-0.parquet"
        found = next(one for one in find_orphans(context, None, NO_TIME) if one.path == stray)
        assert (found.size_bytes, found.root) == (5, str(root))
        assert found.modified.tzinfo is not None
        assert known_paths(context.connection, strays) == set()
        needed = {path for path in filled.files_on_disk() if path not in strays and "/.trash/" not in path}
        assert known_paths(context.connection, filled.files_on_disk()) == needed


def test_files_with_names_that_lakefork_does_not_write_are_left_alone(filled: FlushLake) -> None:
    root = Path(filled.lake.catalog.data_path)
    foreign = write(
        root / "app/ours/notes.txt", root / "app/ours/shared/README", root / "app/ours/shared/batch-0.parquet.bak",
        root / "app/ours/shared/batch-00.parquet", root / "app/ours/sub/data.csv", root / "app/ours/.quarantine/x/y.parquet",
        root / "configs/top.txt", root / "configs/app/mine.json", root / "configs/app/schemas/ours/notes.txt",
    )  # fmt: skip
    assert orphans(filled) == []
    assert cleanup(filled, orphans=True, older_than="1s")["orphans"] == 0
    assert all(Path(path).exists() for path in foreign)


def test_files_outside_marked_directories_are_left_alone(filled: FlushLake, tmp_path: Path) -> None:
    """Wherever it is, and whatever it is called."""
    root = Path(filled.lake.catalog.data_path)
    foreign = write(
        root / "stray", root / "app/batch-0.parquet", root / "app/other/shared/batch-0.parquet", root / "app/other/shared/manifest.json",
        root / "x/y/z/batch-0.parquet", root / "x/manifest.json",
    )  # fmt: skip
    give_out(filled, root, root / "app", root / "app/other/shared", root / "x/y/z")
    other = tmp_path / "other"
    mark(filled, other)
    marker = json.loads((other / MARKER).read_text())
    write(root / "app/theirs/batch-0.parquet")
    (root / "app/theirs" / MARKER).write_text(json.dumps({**marker, "installation": "another"}))
    give_out(filled, root / "app/theirs")
    assert orphans(filled) == []
    (line,) = [line for line in filled.lines if "without a marker of this installation" in line]
    assert line.startswith("3 directories ")
    assert cleanup(filled, orphans=True, older_than="1s")["orphans"] == 0
    assert all(Path(path).exists() for path in foreign)


def test_batches_with_unreserved_numbers_are_left_alone_and_reported(filled: FlushLake) -> None:
    """Postgres was restored to an earlier time, or somebody else writes there."""
    root = Path(filled.lake.catalog.data_path)
    beyond = write(
        root / "app/ours/shared/batch-1000.parquet", root / f"app/ours/shared/.batch-1001.parquet.{TEMPORARY}",
        root / "app/ours/.quarantine/nobody/shared/batch-2000.parquet", root / "app/mine/user_new/batch-0.parquet",
    )  # fmt: skip
    assert orphans(filled) == []
    said = " ".join(line for line in filled.lines if "left alone" in line)
    assert "Postgres may have been restored to an earlier time" in said
    assert any(path in said for path in beyond)
    filled.sql("INSERT INTO lakefork.foreign_file VALUES (%s, 'j', now()) RETURNING 1", beyond[-1])
    give_out(filled, root / "app/mine/user_new")
    assert orphans(filled) == [f"{root}/app/mine/user_new/batch-0.parquet"]


def test_directories_from_before_there_were_markers_are_adopted_by_files_that_the_catalog_knows(
    filled: FlushLake,
) -> None:
    root = Path(filled.lake.catalog.data_path)
    (stray,) = write(root / "app/ours/shared/batch-500.parquet")
    for marker in root.rglob(MARKER):
        marker.unlink()
    write(root / "app/other/batch-0.parquet")
    give_out(filled, root / "app/other")
    assert orphans(filled) == [stray]
    tables = dict(filled.sql("SELECT table_name, table_id FROM system.tables"))
    for name in ("ours", "mine"):
        found = json.loads((root / "app" / name / MARKER).read_text())
        assert found["table_id"] == tables[name]
    assert not (root / "app/other" / MARKER).exists()


def test_young_files_and_files_being_written_are_spared(filled: FlushLake) -> None:
    """Scenario 6: files being written now."""
    root = Path(filled.lake.catalog.data_path)
    assert orphans(filled, older_than=datetime.timedelta(hours=1)) == []
    (table_id,) = filled.sql("SELECT table_id FROM system.tables WHERE table_name = 'ours'")[0]
    with connect(filled.lake.dsn) as connection:
        (number,) = reserve_batches(
            connection, "flush/x/y", filled.lake.catalog.catalog_id, table_id, [f"{root}/app/ours/shared"], [2]
        )
    write(
        root / f"app/ours/shared/batch-{number}.parquet",
        root / f"app/ours/shared/.batch-{number + 1}.parquet.{TEMPORARY}",
    )
    (stray,) = write(root / f"app/ours/shared/batch-{number - 1}.parquet")
    assert orphans(filled) == [stray]
    assert orphans(filled, older_than=datetime.timedelta(hours=1)) == []


def test_scheduled_files_are_no_orphans(filled: FlushLake) -> None:
    root = filled.lake.catalog.data_path
    write(f"{root}/app/ours/shared/batch-90.parquet", f"{root}/app/ours/shared/batch-91.parquet")
    filled.sql(
        "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (1, 9000, %s, false, now()), (%s, 9001, %s, true, now()) RETURNING 1",
        f"file://{root}//app/ours/shared/batch-90.parquet", filled.lake.catalog.catalog_id, "app/ours/shared/batch-91.parquet",
    )  # fmt: skip
    assert orphans(filled) == []


def test_quarantined_files_are_spared_as_long_as_their_audit(filled: FlushLake) -> None:
    root = filled.lake.catalog.data_path
    (path,) = write(f"{root}/app/ours/.quarantine/flush%2Fx%2Fy/shared/batch-5.parquet")
    filled.sql(
        "INSERT INTO lakefork.flush_audit VALUES ('flush/x/y', 'x', 1, 1, now(), false, 1, '{}', %s) RETURNING 1",
        f"{root}/app/ours/.quarantine/flush%2Fx%2Fy",
    )
    assert orphans(filled) == []
    filled.sql("DELETE FROM lakefork.flush_audit WHERE job_id = 'flush/x/y' RETURNING 1")
    assert orphans(filled) == [path]


def test_a_fork_keeps_the_files_of_a_parent_that_is_forgotten(filled: FlushLake) -> None:
    lake = filled.lake
    child = fork(lake, "child")
    child.run("INSERT INTO app.ours VALUES (100)")
    child.flush_by_hand("app.ours")
    inherited = set(filled.paths("app.mine") + filled.paths("app.ours"))
    with connect(lake.dsn) as connection:
        drop_catalog(connection, lake.catalog)
    assert orphans(filled) == [], "dropped, and not forgotten yet"
    for table in ("ducklake_data_file", "ducklake_table", "ducklake_schema", "ducklake_catalog", "ducklake_tag"):
        filled.sql(f"DELETE FROM {table} WHERE catalog_id = %s RETURNING 1", lake.catalog.catalog_id)
    everything = {str(path) for path in Path(lake.catalog.data_path).rglob("*") if path.is_file()}
    found = orphans(filled)
    assert set(found) == {path for path in everything - inherited if not is_marker(path)}
    assert any("configs/" in path for path in found)
    assert any(path.endswith("manifest.json") for path in found)
    assert child.rows("SELECT count(*) FROM app.ours") == [(3,)]
    with pytest.raises(NotFoundError, match="catalog 'main' does not exist"):
        orphans(filled, "main")


def test_odd_spellings_of_references_count(filled: FlushLake, data_dir: Path) -> None:
    """Scenario 6: doubled slashes, schemes and percent-encoding in paths."""
    root = f"{data_dir}/odd"
    with connect(filled.lake.dsn) as connection:
        table = make_table(connection, make_catalog(connection, "odd", f"file://{root}//"))
        write(
            *(
                f"{root}/app/t/{name}/{LEFT}"
                for name in ("shared/a", "shared/b", "shared/c", "d d", "e%20e", "shared/ü=%", "f f")
            )
        )
        for path in ("shared//a", "/shared/b", "shared/c/", "d%20d", "e%20e", "shared/%C3%BC%3D%25"):
            add_file(connection, table, f"{path}/{LEFT}")
        add_file(connection, table, "x")
        connection.execute(
            "UPDATE ducklake_data_file SET path = %s, path_is_relative = false WHERE path = 'x'",
            (f"file:///{root}/app//t/f%20f/{LEFT}",),
        )
        (stray,) = write(f"{root}/app/t/shared/d d/{LEFT}")
        assert orphans(filled, "odd") == [stray]
        connection.execute("UPDATE ducklake_table SET path = '//t/' WHERE path = 't'")
        connection.execute(
            "UPDATE ducklake_schema SET path = 'app//' WHERE path = 'app' AND catalog_id = %s",
            (table.catalog.catalog_id,),
        )
        assert orphans(filled, "odd") == [stray]
        connection.execute(
            "UPDATE ducklake_metadata SET value = value || '/' WHERE scope_id = %s", (table.catalog.catalog_id,)
        )
    with pytest.raises(StorageError, match="not in its normal form"):
        orphans(filled)


@pytest.mark.parametrize("table", ["ducklake_metadata", "ducklake_schema", "ducklake_table"])
def test_files_with_unknown_paths_are_refused(filled: FlushLake, table: str) -> None:
    key = "scope_id" if table == "ducklake_metadata" else "catalog_id"
    filled.sql(f"DELETE FROM {table} WHERE {key} = %s RETURNING 1", filled.lake.catalog.catalog_id)
    with pytest.raises(StorageError, match=r"catalog \d+ has files of table \d+ and does not know its path"):
        orphans(filled)


def test_nested_roots_belong_to_the_inner_catalog_and_prefixes_are_others(filled: FlushLake) -> None:
    """Scenario 6: another catalog's root within this one, and a data path that is a prefix of another."""
    root = filled.lake.catalog.data_path
    with connect(filled.lake.dsn) as connection:
        for name in ("inner", "longer"):
            create_catalog(connection, name, f"/elsewhere/{name}")
        set_path = "UPDATE ducklake_metadata SET value = %s WHERE value = %s"
        connection.execute(set_path, (f"{root}/app/inner", "/elsewhere/inner"))
        connection.execute(set_path, (f"{root}er", "/elsewhere/longer"))
    inner, deeper, longer, own = (
        f"{root}/app/inner/a/b/{LEFT}", f"{root}/app/inner/a/b/c/{LEFT}", f"{root}er/app/ours/shared/{LEFT}",
        f"{root}/app/inners/{LEFT}",
    )  # fmt: skip
    mark(filled, f"{root}/app/inner/a/b", f"{root}er/app/ours", f"{root}/app/inners")
    write(inner, deeper, longer, own)
    write(f"{root}/app/inner/configs/a/manifest.json")
    assert orphans(filled, "main") == [own]
    assert orphans(filled, "inner") == sorted([inner, deeper])
    assert orphans(filled, "longer") == [longer]
    assert orphans(filled) == sorted([own, inner, deeper, longer])


def test_links_in_a_root_are_neither_orphans_nor_ways_out(filled: FlushLake, tmp_path: Path) -> None:
    """Scenario 6: links."""
    root = Path(filled.lake.catalog.data_path)
    write(tmp_path / "outside/x")
    (root / "file").symlink_to(tmp_path / "outside/x")
    (root / "app/directory").symlink_to(tmp_path / "outside")
    (root / "app/ours/shared/again").symlink_to(root)
    assert orphans(filled) == []


def test_a_root_behind_a_link_is_the_same_without_the_link(filled: FlushLake, tmp_path: Path) -> None:
    root = Path(filled.lake.catalog.data_path)
    needed = filled.paths("app.mine") + filled.paths("app.ours")
    fork(filled.lake, "child", f"{tmp_path}/child")
    mounted = root.rename(tmp_path / "mounted")
    root.symlink_to(mounted)
    (stray,) = write(root / "app/ours" / LEFT)
    assert orphans(filled) == [stray]
    filled.sql("DELETE FROM ducklake_data_file WHERE catalog_id = %s RETURNING 1", filled.lake.catalog.catalog_id)
    assert not {*orphans(filled)} & {*needed}
    filled.sql("UPDATE ducklake_data_file SET path = replace(path, %s, %s) RETURNING 1", str(root), str(mounted))
    assert not {*orphans(filled)} & {*needed}


def test_two_roots_that_are_one_by_a_link_are_left_alone_and_the_others_are_not(
    filled: FlushLake, data_dir: Path
) -> None:
    with connect(filled.lake.dsn) as connection:
        for name in ("other", "third"):
            create_catalog(connection, name, f"{data_dir}/{name}")
    (data_dir / "other").symlink_to(filled.lake.catalog.data_path)
    write(f"{filled.lake.catalog.data_path}/app/ours/{LEFT}")
    mark(filled, data_dir / "third/app/t")
    (stray,) = write(data_dir / "third/app/t" / LEFT)
    for catalog, found in ((None, [stray]), ("main", []), ("other", []), ("third", [stray])):
        assert orphans(filled, catalog) == found
        (line,) = [line for line in filled.lines if "by a link" in line]
        assert "are the same directory by a link" in line and "both are skipped" in line


@pytest.mark.parametrize("what", ["missing", "empty", "another"])
def test_a_wrong_mount_is_refused(filled: FlushLake, what: str) -> None:
    root = Path(filled.lake.catalog.data_path)
    shutil.rmtree(root)
    if what != "missing":
        root.mkdir()
    if what == "another":
        write(root / "app/other/shared/batch-0.parquet")
    with pytest.raises(StorageError, match=r"none of the \d+ newest files .* is the right storage mounted\?"):
        orphans(filled)


def test_a_wrong_mount_at_the_path_of_a_forgotten_parent_is_refused(flush_lake: FlushLake) -> None:
    """Only a fork refers to what lies there."""
    lake = flush_lake.lake
    lake.run(TABLES)
    lake.run("INSERT INTO app.ours VALUES (1)")
    flush_lake.flush()
    child = fork(lake, "child")
    with connect(lake.dsn) as connection:
        drop_catalog(connection, lake.catalog)
    gc(flush_lake, retain_snapshots=1)
    assert flush_lake.sql("SELECT count(*) FROM ducklake_catalog") == [(1,)]
    assert child.rows("SELECT id FROM app.ours") == [(1,)]
    root = Path(lake.catalog.data_path)
    right = root.rename(root.with_name("right"))
    (foreign,) = write(root / "app/ours/shared/somebody.parquet")
    with pytest.raises(StorageError, match=r"none of the 1 newest files .* is the right storage mounted\?"):
        orphans(flush_lake)
    Path(foreign).unlink()
    shutil.rmtree(root)
    right.rename(root)
    assert not {path for path in orphans(flush_lake) if path.endswith(".parquet")}


@pytest.mark.parametrize("found", ["nothing", "an empty directory"])
def test_the_path_of_a_forgotten_catalog_is_remembered_while_its_storage_is_away(
    flush_lake: FlushLake, found: str
) -> None:
    lake = flush_lake.lake
    lake.run(TABLES)
    lake.run("INSERT INTO app.ours VALUES (1)")
    flush_lake.flush()
    with connect(lake.dsn) as connection:
        create_catalog(connection, "other", f"{lake.catalog.data_path}_other")
        drop_catalog(connection, lake.catalog)
    gc(flush_lake, retain_snapshots=1)
    root = Path(lake.catalog.data_path)
    mounted = root.rename(root.with_name("mounted"))
    if found != "nothing":
        root.mkdir()
    paths = "SELECT count(*) FROM ducklake_metadata WHERE key = 'data_path' AND value = %s"
    execute(flush_lake, "UPDATE ducklake_files_scheduled_for_deletion SET schedule_start = now() + interval '1 day'")
    cleanup(flush_lake, orphans=True)
    assert flush_lake.sql(paths, str(root)) == [(1,)]
    if found != "nothing":
        root.rmdir()
    mounted.rename(root)
    age_schedule(flush_lake)
    time.sleep(1.1)
    cleanup(flush_lake, orphans=True, older_than="1s")
    assert flush_lake.sql(paths, str(root)) == [(0,)]
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_catalogs_that_never_wrote_need_no_root(filled: FlushLake, data_dir: Path) -> None:
    child = fork(filled.lake, "child", f"{data_dir}/child")
    with connect(filled.lake.dsn) as connection:
        create_catalog(connection, "new", f"{data_dir}/new")
    assert not Path(child.catalog.data_path).exists()
    assert orphans(filled) == []


def test_files_in_locations(flush_lake: FlushLake, tmp_path: Path) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app")
    shared, per_user = f"{tmp_path}/shared", f"{tmp_path}/by_user"
    lake.run(f"CREATE SHARED TABLE app.far (id BIGINT PRIMARY KEY) LOCATION '{shared}/far'")
    lake.run(f"CREATE USER TABLE app.each (id BIGINT PRIMARY KEY) LOCATION '{per_user}/${{user_id}}/data'")
    lake.run("INSERT INTO app.far VALUES (1)")
    lake.run("INSERT INTO app.each VALUES (1)", user="ada")
    flush_lake.flush()
    foreign = write(
        f"{shared}/report.csv",
        f"{per_user}/ada/notes.txt",
        f"{per_user}/ada/other/batch-0.parquet",
        f"{per_user}/batch-1.parquet",
    )
    give_out(flush_lake, f"{shared}/far/shared", f"{per_user}/ada/data", f"{per_user}/bob/data", per_user)
    assert orphans(flush_lake) == []
    strays = write(
        f"{shared}/far/shared/batch-70.parquet",
        f"{per_user}/bob/data/batch-70.parquet",
        f"{per_user}/ada/data/batch-71.parquet",
    )
    foreign += write(f"{shared}/far/old.csv", f"{shared}/far/shared/batch-1000.parquet")
    assert orphans(flush_lake) == strays
    assert orphans(flush_lake, "main") == strays
    fork(lake, "child")
    lake.run("DROP TABLE app.far; DROP TABLE app.each")
    assert orphans(flush_lake) == strays
    shutil.rmtree(f"{shared}/far")
    with pytest.raises(StorageError, match="right storage mounted"):
        orphans(flush_lake)
    assert all(Path(path).exists() for path in foreign if "/far/" not in path)


SIGNATURE = """CREATE OR REPLACE FUNCTION lakefork.homes_above(p_directories text[])
    RETURNS TABLE (directory text, catalog_id bigint, table_id bigint, home text) LANGUAGE plpgsql"""
BREAK = {
    "lacks a right: permission denied": "CREATE ROLE nobody_{number}; GRANT USAGE, CREATE ON SCHEMA lakefork TO nobody_{number}; "
    "ALTER FUNCTION lakefork.claims OWNER TO nobody_{number}; ALTER FUNCTION lakefork.claims SECURITY DEFINER",
    "took too long": f"{SIGNATURE} AS 'BEGIN RAISE query_canceled; END'",
    "ended the connection": f"{SIGNATURE} AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN; END'",
}


@pytest.mark.parametrize("how", BREAK)
def test_a_query_that_fails_makes_nothing_an_orphan(filled: FlushLake, how: str) -> None:
    write(f"{filled.lake.catalog.data_path}/stray")
    with connect(filled.lake.dsn) as connection:
        connection.execute(BREAK[how].format(number=uuid.uuid4().hex))
    found: list[Any] = []
    with filled.context(job="file_cleanup") as context, pytest.raises(LakeforkError, match=how):
        found.extend(find_orphans(context, None, NO_TIME))
    assert found == []


def test_many_pages_and_parts_are_all_looked_at(filled: FlushLake, monkeypatch: pytest.MonkeyPatch) -> None:
    root = filled.lake.catalog.data_path
    with connect(filled.lake.dsn) as connection:
        ours = filled.sql("SELECT table_id FROM system.tables WHERE table_name = 'mine'")[0][0]
        write(*(f"{root}/app/mine/user_{number}/batch-0.parquet" for number in range(2_500)))
        connection.execute(
            "INSERT INTO lakefork.batch_number SELECT format('%%s/app/mine/user_%%s', %s::text, i), 1 "
            "FROM generate_series(0, 2499) i",
            (root,),
        )
        connection.execute(
            "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative) "
            "SELECT %s, 10000 + i, %s, 1, format('user_%%s/batch-0.parquet', i), true FROM generate_series(0, 2499) i WHERE i %% 50 <> 0",
            (filled.lake.catalog.catalog_id, ours),
        )
    assert orphans(filled) == sorted(f"{root}/app/mine/user_{number}/batch-0.parquet" for number in range(0, 2_500, 50))


def test_a_lake_on_s3(flush_lake: FlushLake, s3: str, make_settings: Callable[..., Settings]) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with connect(flush_lake.lake.dsn) as connection:
        catalog = create_catalog(connection, "cloud", "s3a://lake//cloud/")
    with Engine(settings, flush_lake.lake.dsn) as engine:
        lake = FlushLake(SqlLake(engine, flush_lake.lake.dsn, catalog), settings, flush_lake.expectations)
        _fill_s3(lake)
        child = fork(lake.lake, "child")
        assert orphans(lake) == []
        mark(lake, "s3://lake/cloud/app/gone")
        give_out(lake, "s3://lake/cloud/app/t/user_ada", "s3://vault@lake/far/app/u/shared")
        strays = [
            f"cloud/app/t/stray ü+%/{LEFT}", "cloud/app/t/user_ada/batch-50.parquet", "cloud/app/gone/shared/manifest.json",
            "far/app/u/shared/batch-50.parquet",
        ]  # fmt: skip
        foreign = [
            "cloud/stray",
            "cloud/app/other/shared/manifest.json",
            "cloud/app/t/user_ada/batch-5000.parquet",
            "cloudy/app/t/user_ada/batch-0.parquet",
            "far/app/u/foreign",
            "cloud/.trash/2026-05-01/x",
            "cloud//app/t/x",
        ]
        for key in strays + foreign:
            client.put_object(Bucket="lake", Key=key, Body=b"x")
        found = orphans(lake)
        assert found == sorted(f"s3://{'vault@' * key.startswith('far')}lake/{key}" for key in strays)
        with lake.context(job="file_cleanup") as context:
            assert known_paths(context.connection, found) == set()
            batch = "s3://vault@lake/far/app/u/shared/batch-0.parquet"
            assert known_paths(context.connection, [batch]) == {batch}
        assert {one.outcome for one in remove_many(found[-1:], context.storage)} == {"removed"}
        assert orphans(lake) == found[:-1]
        _forget_parent(lake)
        assert {path for path in orphans(lake) if "batch" in path} == {
            f"s3://lake/{key}" for key in strays if "batch" in key and "far" not in key
        }
        assert child.rows("SELECT id FROM app.t ORDER BY id", user="ada") == [(1,)]
        assert child.rows("SELECT id FROM app.u ORDER BY id") == [(2,)]


def _fill_s3(lake: FlushLake) -> None:
    lake.lake.run(
        "INSERT INTO system.storage_locations (location_name, location_type, path, credentials_ref) "
        "VALUES ('far', 's3', 's3://lake/far', 'vault')"
    )
    lake.lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY)")
    lake.lake.run("CREATE SHARED TABLE app.u (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'far'")
    lake.lake.run("INSERT INTO app.t VALUES (1)", user="ada")
    lake.lake.run("INSERT INTO app.u VALUES (2)")
    lake.flush()


def _forget_parent(lake: FlushLake) -> None:
    for table in ("ducklake_data_file", "ducklake_table", "ducklake_schema", "ducklake_tag"):
        lake.sql(f"DELETE FROM {table} WHERE catalog_id = %s RETURNING 1", lake.lake.catalog.catalog_id)
