"""Schema files that cannot be written are reported, and written by whoever comes next."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakefork.catalog.connection import connect
from lakefork.cold.schema_writer import SchemaWriter
from lakefork.sql.results import Done
from lakefork.storage import StorageOptions
from support.fork_lake import fork
from support.lake import rows_of
from support.sql_lake import SqlLake, new_name


def configs(lake: SqlLake, namespace: str) -> Path:
    return Path(lake.catalog.data_path) / "configs" / namespace


@contextmanager
def unwritable(lake: SqlLake, namespace: str) -> Iterator[None]:
    root = configs(lake, namespace)
    root.rename(root.with_name(f"{namespace}_aside"))
    root.write_text("in the way")
    try:
        yield
    finally:
        root.unlink()
        root.with_name(f"{namespace}_aside").rename(root)


def pending(lake: SqlLake, namespace: str) -> list[tuple[object, ...]]:
    with connect(lake.dsn) as connection:
        return rows_of(
            connection,
            "SELECT table_name, problem IS NOT NULL FROM lakefork.schema_pending WHERE namespace = %s ORDER BY 1",
            namespace,
        )


def current(lake: SqlLake, namespace: str, table: str) -> int:
    return int(json.loads((configs(lake, namespace) / "schemas" / table / "current.json").read_text())["version"])


def test_a_failed_write_is_reported_and_describe_heals_it(lake: SqlLake, ns: str, table: str) -> None:
    assert pending(lake, ns) == []
    with unwritable(lake, ns):
        (done,) = lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
        assert isinstance(done, Done) and done.warning is not None
        assert f"schema files of {ns}.t could not be written: " in done.warning and "\n" not in done.warning
        assert done.as_json()["warning"] == done.warning and done.as_json()["status"] == "success"
        assert pending(lake, ns) == [("t", True)]
        shown = {row[1]: row[5] for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "table"}
        assert "could not be written" in shown["schema_path"]
    assert current(lake, ns, "t") == 1
    shown = {row[1]: row[5] for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "table"}
    assert shown["schema_path"] is None
    assert (current(lake, ns, "t"), pending(lake, ns)) == (2, [])
    assert json.loads((configs(lake, ns) / "manifest.json").read_text())["t"]["current_version"] == 2


def test_work_of_an_interrupted_process_is_completed_by_the_job(lake: SqlLake, ns: str, table: str) -> None:
    with unwritable(lake, ns):
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT; CREATE SHARED TABLE {ns}.u (id BIGINT PRIMARY KEY)")
        lake.run(f"DROP TABLE {ns}.u")
    with connect(lake.dsn) as connection:
        connection.execute("UPDATE lakefork.schema_pending SET problem = NULL")
        writer = SchemaWriter(StorageOptions(None, "us-east-1"))
        assert writer.repair_all(connection, lake.catalog.name) == (0, []), "somebody may be at it"
        connection.execute("UPDATE lakefork.schema_pending SET noted_at = noted_at - interval '2 minutes'")
        assert writer.repair_all(connection, lake.catalog.name) == (2, [])
    assert (current(lake, ns, "t"), pending(lake, ns)) == (2, [])
    assert not (configs(lake, ns) / "schemas" / "u").exists()


def test_a_note_of_a_later_change_outlives_an_earlier_one(lake: SqlLake, ns: str, table: str) -> None:
    writer = SchemaWriter(StorageOptions(None, "us-east-1"))
    with connect(lake.dsn) as connection:
        first = writer.note(connection, lake.catalog, ns, "t")
        writer.note(connection, lake.catalog, ns, "T")
        assert writer.write_noted(connection, first) is None
    assert pending(lake, ns) == [("t", False)]
    lake.engine.rewrite_schemas(lake.session())
    assert pending(lake, ns) == []


def test_in_a_fork_describe_shows_paths_of_existing_files(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT; CREATE SHARED TABLE {ns}.u (id BIGINT PRIMARY KEY)")
    child = fork(lake, new_name("child"), str(Path(lake.catalog.data_path).parent / new_name("child")))
    for row in child.rows(f"DESCRIBE TABLE {table}"):
        if row[1] in ("schema_path", "manifest_path") or row[0] == "version":
            assert (Path(child.catalog.data_path) / row[2]).is_file(), row
    assert list(json.loads((configs(child, ns) / "manifest.json").read_text())) == ["t", "u"]
    assert current(child, ns, "u") == 1, "the manifest names it"


def test_the_first_change_in_a_fork_writes_what_its_manifest_names(lake: SqlLake, ns: str, table: str) -> None:
    child = fork(lake, new_name("child"), str(Path(lake.catalog.data_path).parent / new_name("child")))
    child.run(f"CREATE SHARED TABLE {ns}.u (id BIGINT PRIMARY KEY)")
    manifest = json.loads((configs(child, ns) / "manifest.json").read_text())
    assert all((configs(child, ns) / entry["path"]).is_file() for entry in manifest.values()) and len(manifest) == 2
    shutil.rmtree(configs(child, ns))
    child.run(f"ALTER TABLE {ns}.u ADD COLUMN x INT")
    assert (current(child, ns, "t"), current(child, ns, "u")) == (1, 2)


def test_nothing_is_left_of_a_namespace_that_was_dropped(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(f"DROP TABLE {table}; DROP NAMESPACE {ns}")
    assert not configs(lake, ns).exists()
    lake.run(f"CREATE NAMESPACE {ns}; CREATE SHARED TABLE {ns}.again (id BIGINT PRIMARY KEY)")
    assert current(lake, ns, "again") == 1
