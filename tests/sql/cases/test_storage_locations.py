"""Odd cases of where tables put their files."""

from pathlib import Path

import pytest

from lakefork.errors import ConflictError, InvalidInputError, LakeforkError, NotFoundError
from support.sql_lake import SqlLake, new_name, refuse


@pytest.fixture
def location(lake: SqlLake, tmp_path: Path) -> str:
    name = new_name("place")
    lake.run(
        "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES (?, 'filesystem', ?)",
        name,
        str(tmp_path / "one"),
    )
    return name


def test_a_duplicate_location_name_is_refused(lake: SqlLake, location: str, tmp_path: Path) -> None:
    insert = "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES (?, 'filesystem', ?)"
    refuse(lake, ConflictError, "already", insert, location, str(tmp_path / "two"))
    assert lake.rows(f"SELECT path FROM system.storage_locations WHERE location_name = '{location}'") == [
        (str(tmp_path / "one"),)
    ]


def test_a_reference_to_a_missing_location_is_refused(lake: SqlLake, ns: str) -> None:
    refuse(
        lake,
        NotFoundError,
        "nowhere",
        f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'nowhere'",
    )
    refuse(lake, NotFoundError, "does not exist", f"SELECT * FROM {ns}.t")


def test_a_location_in_use_cannot_be_deleted_and_the_error_names_its_tables(
    lake: SqlLake, ns: str, location: str
) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE '{location}'")
    delete = f"DELETE FROM system.storage_locations WHERE location_name = '{location}'"
    assert f"{ns}.t" in refuse(lake, ConflictError, location, delete)
    used = f"SELECT usage_count, used_by FROM system.storage_locations WHERE location_name = '{location}'"
    assert lake.rows(used) == [(1, [f"{ns}.t"])]
    lake.run(f"DROP TABLE {ns}.t")
    assert lake.rows(used) == [(0, [])]
    assert lake.count(delete) == 1


def test_a_changed_location_path_holds_for_new_tables_only(
    lake: SqlLake, ns: str, location: str, tmp_path: Path
) -> None:
    create = f"CREATE SHARED TABLE {ns}.{{}} (id BIGINT PRIMARY KEY) LOCATION REFERENCE '{location}'"
    lake.run(create.format("old"))
    lake.run(f"INSERT INTO {ns}.old VALUES (1)")
    lake.flush_by_hand(f"{ns}.old")
    lake.run(f"UPDATE system.storage_locations SET path = '{tmp_path}/two' WHERE location_name = '{location}'")
    lake.run(create.format("new"))
    lake.run(f"INSERT INTO {ns}.old VALUES (2); INSERT INTO {ns}.new VALUES (3)")
    lake.flush_by_hand(f"{ns}.old")
    lake.flush_by_hand(f"{ns}.new")
    assert lake.rows(f"SELECT id FROM {ns}.old ORDER BY id") == [(1,), (2,)]
    assert len(list((tmp_path / "one").rglob("*.parquet"))) == 2
    assert len(list((tmp_path / "two").rglob("*.parquet"))) == 1
    where = {row[1]: row[3] for row in lake.rows(f"SHOW TABLES IN {ns}")}
    assert where == {"old": f"{tmp_path}/one/{ns}/old", "new": f"{tmp_path}/two/{ns}/new"}


@pytest.mark.parametrize(
    ("kind", "path"),
    [("SHARED", "relative/path"), ("SHARED", ""), ("SHARED", "/tmp/../etc"), ("SHARED", "/tmp/./x"), ("SHARED", "/"), ("SHARED", "s3://"),
     ("SHARED", "ftp://x/y"), ("SHARED", "file:///tmp/x"), ("SHARED", "{tmp}/${{user_id}}/x"), ("USER", "{tmp}/${{user_id}}/${{user_id}}"),
     ("USER", "${{user_id}}/x"), ("USER", "{tmp}/${{userid}}/x"), ("USER", "{tmp}/${{user_id/x"), ("USER", "{tmp}/${{}}"), ("STREAM", "{tmp}/x"),
     ("SHARED", "/proc/nothing/here"), ("SHARED", "/dev/null/x")],
)  # fmt: skip
def test_a_location_that_makes_no_sense_or_cannot_be_written_is_refused(
    lake: SqlLake, ns: str, kind: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = path.format(tmp=tmp_path)
    key = "" if kind == "STREAM" else " PRIMARY KEY"
    refuse(lake, InvalidInputError, ".", f"CREATE {kind} TABLE {ns}.t (id BIGINT{key}) LOCATION '{path}'")
    assert lake.rows(f"SHOW TABLES IN {ns}") == []
    assert list(tmp_path.iterdir()) == []
    assert not list(Path("/").glob(".lakefork-*"))


@pytest.mark.parametrize(
    ("kind", "path"),
    [("filesystem", "relative"), ("filesystem", ""), ("filesystem", "/proc/nothing/here"), ("filesystem", "s3://bucket/x"), ("s3", "/tmp/x"),
     ("ftp", "/tmp/x"), ("filesystem", "/tmp/${nobody}"), ("filesystem", "/tmp/a/../b")],
)  # fmt: skip
def test_a_bad_storage_location_is_refused_when_it_is_added_or_changed(
    lake: SqlLake, location: str, tmp_path: Path, kind: str, path: str
) -> None:
    insert = "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES ('bad', ?, ?)"
    refuse(lake, InvalidInputError, ".", insert, kind, path)
    refuse(
        lake,
        InvalidInputError,
        ".",
        f"UPDATE system.storage_locations SET location_type = '{kind}', path = '{path}' WHERE location_name = '{location}'",
    )
    found = lake.rows(
        f"SELECT location_type, path FROM system.storage_locations WHERE location_name IN ('bad', '{location}')"
    )
    assert found == [("filesystem", str(tmp_path / "one"))]


def test_a_storage_location_that_became_unusable_is_noticed_when_a_table_is_made(
    lake: SqlLake, ns: str, location: str, tmp_path: Path
) -> None:
    (tmp_path / "one").rmdir()
    (tmp_path / "one").write_text("a file now")
    refuse(
        lake,
        InvalidInputError,
        "cannot be written",
        f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE '{location}'",
    )
    assert lake.rows(f"SHOW TABLES IN {ns}") == []


def test_a_location_that_belongs_to_another_table_is_refused(lake: SqlLake, ns: str, tmp_path: Path) -> None:
    lake.run(
        f"CREATE SHARED TABLE {ns}.a (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/x/'; CREATE SHARED TABLE {ns}.c (id BIGINT PRIMARY KEY)"
    )
    refuse(
        lake, ConflictError, f"{ns}.a", f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/x'"
    )
    refuse(lake, LakeforkError, ".", f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}//x'")


def test_the_default_directory_of_another_table_is_no_location(lake: SqlLake, ns: str, table: str) -> None:
    path = f"{lake.catalog.data_path}/{ns}/t"
    refuse(lake, LakeforkError, ".", f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY) LOCATION '{path}'")


def test_a_user_id_in_a_location_makes_one_directory_per_user(lake: SqlLake, ns: str, tmp_path: Path) -> None:
    lake.run(f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/${{user_id}}/messages/'")
    for name in ("../x", "a/b", "."):
        lake.run(f"INSERT INTO {ns}.t VALUES (1)", user=name)
        lake.flush_by_hand(f"{ns}.t", name)
        assert lake.rows(f"SELECT id FROM {ns}.t", user=name) == [(1,)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3
    assert not list(tmp_path.parent.glob("x*"))
