"""LOCATION names directories below allowed roots, which are empty or ours, and no others."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.roots import add_root, installation_id, list_roots, remove_root
from lakefork.errors import InvalidInputError, LakeforkError
from lakefork.resources import resource
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.storage.markers import MARKER
from support.sql_lake import SqlLake, refuse

TABLE = "CREATE {} TABLE app.{} (id BIGINT PRIMARY KEY) LOCATION '{}'"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "allowed"
    path.mkdir()
    return path


@pytest.fixture
def strict(dsn: str, tmp_path: Path, root: Path, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    """A lake with one allowed root, and LAKEFORK_HOME in it, as a careless operator may have it."""
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", str(tmp_path / "data/main"))
        add_root(connection, str(root))
    for name in ("secrets", "postgres", "data"):
        (root / "home" / name).mkdir(parents=True)
    with Engine(make_settings(home=root / "home"), dsn) as engine:
        lake = SqlLake(engine, dsn, catalog)
        lake.run("CREATE NAMESPACE app")
        yield lake


def files(path: Path) -> set[str]:
    return {str(one) for one in path.rglob("*")}


REFUSED = (
    "/etc", "/", "/tmp", "{tmp}/elsewhere", "{tmp}/allowedness", "{tmp}", "{tmp}/no/such/tree", "{tmp}/allowed/home",
    "{tmp}/allowed/home/secrets", "{tmp}/allowed/home/postgres/x", "{tmp}/allowed/out/x", "{tmp}/allowed/secret", "{tmp}/data",
    "s3://bucket/x", "{tmp}/allowed/../elsewhere",
)  # fmt: skip
OVERLAPPING = ("{tmp}/allowed", "{tmp}/data/main", "{tmp}/data/main/app/x")  # with LAKEFORK_HOME or a data path


@pytest.mark.parametrize("how", ["table", "users", "storage location"])
def test_a_location_outside_of_the_allowed_roots_is_refused_and_nothing_is_made(
    strict: SqlLake, root: Path, tmp_path: Path, how: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "out").symlink_to(tmp_path / "elsewhere")
    (root / "secret").symlink_to(root / "home/secrets")
    before = files(tmp_path)
    for path in (one.format(tmp=tmp_path) for one in REFUSED + (OVERLAPPING if how != "storage location" else ())):
        if how == "storage location":
            text = "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES ('x', ?, ?)"
            refuse(strict, InvalidInputError, ".", text, "s3" if path.startswith("s3") else "filesystem", path)
        else:
            kind, tail = ("USER", "/${user_id}/x") if how == "users" else ("SHARED", "")
            refuse(strict, LakeforkError, ".", TABLE.format(kind, "t", path + tail))
        assert files(tmp_path) == before, path
    assert strict.rows("SHOW TABLES IN app") == []


def test_the_error_names_the_roots_and_the_way_out(strict: SqlLake, root: Path, tmp_path: Path) -> None:
    message = refuse(strict, InvalidInputError, "not below", TABLE.format("SHARED", "t", f"{tmp_path}/typo"))
    assert message == (
        f"LOCATION '{tmp_path}/typo' is not below an allowed root ({root}): the operator can allow one with `lakefork roots add`"
    )


def test_a_missing_tree_is_made_below_an_allowed_root_only(strict: SqlLake, root: Path) -> None:
    strict.run(TABLE.format("SHARED", "t", f"{root}/new/deep/tree"))
    assert (root / "new/deep/tree").is_dir()
    root.rename(root.with_name("unmounted"))
    refuse(
        strict, InvalidInputError, "does not exist; is the storage mounted", TABLE.format("SHARED", "u", f"{root}/x")
    )
    assert not root.exists()
    root.with_name("unmounted").rename(root)


def test_data_in_lakefork_home_is_for_tables(strict: SqlLake, root: Path) -> None:
    strict.run(TABLE.format("SHARED", "t", f"{root}/home/data/t"))
    assert (root / "home/data/t" / MARKER).exists()


def test_a_location_with_others_files_is_refused(strict: SqlLake, root: Path) -> None:
    (root / "theirs").mkdir()
    (root / "theirs/manifest.json").write_text("precious")
    for kind, path in (("SHARED", "theirs"), ("USER", "theirs/${user_id}")):
        text = TABLE.format(kind, "t", f"{root}/{path}")
        assert "manifest.json" in refuse(strict, InvalidInputError, "files that Lakefork did not write", text)
    (root / "linked").mkdir()
    (root / "linked/x").symlink_to("/etc")
    refuse(strict, InvalidInputError, "did not write", TABLE.format("SHARED", "t", f"{root}/linked"))
    assert (root / "theirs/manifest.json").read_text() == "precious"
    assert strict.rows("SHOW TABLES IN app") == []


def test_a_location_is_neither_long_nor_deep(strict: SqlLake, root: Path) -> None:
    for tail in ("x/" * 101, "x" * 990, "y" * 250 + "/" + "z" * 250 + "/" + "x" * 499):
        text = TABLE.format("SHARED", "t", f"{root}/{tail}")
        refuse(strict, InvalidInputError, "at most 1000 characters and 100 directories", text)


def test_foreign_files_are_found_at_any_depth(strict: SqlLake, root: Path) -> None:
    deep = [root / "d"]
    try:
        for _ in range(1_100):
            deep[-1].mkdir()
            deep.append(deep[-1] / "d")
        deep[-1].write_text("precious")
        refuse(strict, InvalidInputError, "did not write", TABLE.format("SHARED", "t", f"{root}/d"))
    finally:  # pytest cannot remove so deep a tree
        subprocess.run(["rm", "-r", deep[0]], check=True)


def test_a_location_is_ours_from_its_first_table_on(strict: SqlLake, root: Path) -> None:
    strict.run(TABLE.format("USER", "a", f"{root}/people/${{user_id}}/a"))
    marker = json.loads((root / "people" / MARKER).read_text())
    with connect(strict.dsn) as connection:
        assert marker["installation"] == installation_id(connection)
    assert marker["table_id"] == strict.find("app.a").definition.table_id
    (root / "people/ada").mkdir()
    (root / "people/ada/x").write_text("from somewhere")
    strict.run(TABLE.format("USER", "b", f"{root}/people/${{user_id}}/b"))
    strict.run("DROP TABLE app.a")
    strict.run(TABLE.format("USER", "c", f"{root}/people/${{user_id}}/a"))
    (root / "people" / MARKER).write_text(json.dumps({**marker, "installation": "another"}))
    text = TABLE.format("USER", "d", f"{root}/people/${{user_id}}/d")
    refuse(strict, InvalidInputError, "belongs to another installation", text)
    (root / "people" / MARKER).write_text("{")
    refuse(strict, InvalidInputError, "its marker cannot be read", text)


def test_links_are_followed_where_locations_and_data_paths_are_compared(
    strict: SqlLake, root: Path, tmp_path: Path
) -> None:
    with connect(strict.dsn) as connection:
        add_root(connection, str(tmp_path))
        create_catalog(connection, "other", f"{tmp_path}/by_link/other")
    strict.run(TABLE.format("SHARED", "t", f"{root}/t"))
    (root / "again").symlink_to(root / "t")
    (tmp_path / "by_link").symlink_to(tmp_path / "real")
    (root / "main").symlink_to(tmp_path / "data")
    for path, words in (
        (f"{root}/again", r"belongs to table app\.t"),
        (f"{root}/again/deeper", r"belongs to table app\.t"),
        (f"{tmp_path}/real/other/x", "data path of another catalog"),
        (f"{root}/main/main/x", "data path of the catalog"),
    ):
        refuse(strict, LakeforkError, words, TABLE.format("SHARED", "u", path))


def test_a_removed_root_holds_for_new_tables_only(strict: SqlLake, root: Path) -> None:
    strict.run(TABLE.format("SHARED", "t", f"{root}/t"))
    with connect(strict.dsn) as connection:
        assert [(one.path, one.tables) for one in list_roots(connection)] == [(str(root), 1)]
        remove_root(connection, f"{root}/")
        with pytest.raises(LakeforkError, match=r"allowed root .* does not exist"):
            remove_root(connection, str(root))
    refuse(strict, InvalidInputError, r"\(none is allowed\)", TABLE.format("SHARED", "u", f"{root}/u"))
    strict.run("INSERT INTO app.t VALUES (1)")


@pytest.mark.parametrize("path", ["relative", "", "/a/../b", "s3://", "s3://key@bucket/x", "/a/${user_id}", None])
def test_a_root_that_makes_no_sense_is_refused(dsn: str, path: Any) -> None:
    with connect(dsn) as connection, pytest.raises(InvalidInputError, match="must be absolute"):
        add_root(connection, path)


def lakefork(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [str(resource(".venv/bin/lakefork")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environment})


def test_the_operator_lists_adds_and_removes_roots(empty_dsn: str, tmp_path: Path) -> None:
    """What init is given is allowed by that; nothing in LAKEFORK_HOME is, but its data."""
    who = {"LAKEFORK_DSN": empty_dsn, "LAKEFORK_HOME": str(tmp_path / "home")}
    (tmp_path / "home/secrets").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    assert "overlaps LAKEFORK_HOME" in lakefork("init", "--data-path", f"{tmp_path}/home/secrets/x", **who).stderr
    assert "overlaps LAKEFORK_HOME" in lakefork("init", "--data-path", str(tmp_path), **who).stderr
    assert lakefork("init", "--data-path", f"{tmp_path}/lake/main", **who).returncode == 0
    assert lakefork("roots", **who).stdout == f"{tmp_path}/lake/main  0 table(s)\n"
    for path, words in (("no/such", "is not a directory"), ("home/secrets", "overlaps LAKEFORK_HOME")):
        done = lakefork("roots", "add", f"{tmp_path}/{path}", **who)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert words in done.stderr
    for _ in range(2):
        assert lakefork("roots", "add", f"{tmp_path}/here", **who).returncode == 0
    assert lakefork("roots", "list", **who).stdout.splitlines()[0] == f"{tmp_path}/here  0 table(s)"
    assert lakefork("roots", "remove", f"{tmp_path}/here", **who).returncode == 0
    assert "does not exist; `lakefork roots`" in lakefork("roots", "remove", f"{tmp_path}/here", **who).stderr
    (tmp_path / "into_main").symlink_to(tmp_path / "lake/main")
    done = lakefork("fork", "main", "child", "--data-path", f"{tmp_path}/into_main/x", **who)
    assert "overlaps that of catalog" in done.stderr
    assert "overlaps LAKEFORK_HOME" in lakefork("fork", "main", "x", "--data-path", f"{tmp_path}/home/x", **who).stderr
    assert lakefork("fork", "main", "child", "--data-path", f"{tmp_path}/child", **who).returncode == 0
