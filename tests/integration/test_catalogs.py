"""Catalogs are versions too: names, data paths, and the whole database at an earlier snapshot."""

import pytest

from lakefork.catalog.catalogs import (
    create_catalog,
    drop_catalog,
    find_catalog,
    list_catalogs,
    newest_snapshot,
    rename_catalog,
)
from lakefork.catalog.connection import Connection
from lakefork.errors import ConflictError, InvalidInputError, NotFoundError
from support.lake import add_file, files_at, make_catalog, make_table, rows_of


def test_catalogs_can_be_listed_as_of_any_snapshot(connection: Connection) -> None:
    a = make_catalog(connection, "a")
    b = make_catalog(connection, "b")
    renamed = rename_catalog(connection, a, "a2")
    drop_catalog(connection, b)
    names = {
        snapshot: [catalog.name for catalog in list_catalogs(connection, snapshot=snapshot)]
        for snapshot in range(newest_snapshot(connection) + 1)
    }
    assert names == {0: [], 1: ["a"], 2: ["a", "b"], 3: ["a2", "b"], 4: ["a2"]}
    assert [catalog.name for catalog in list_catalogs(connection)] == ["a2"]
    assert (renamed.catalog_id, renamed.catalog_uuid) == (a.catalog_id, a.catalog_uuid)
    assert find_catalog(connection, "b", snapshot=3).catalog_id == b.catalog_id
    with pytest.raises(NotFoundError, match="catalog 'b' does not exist; `lakefork status` lists catalogs"):
        find_catalog(connection, "b")


def test_a_name_is_free_again_after_a_drop_but_its_files_are_still_there(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection, "x", "/lake/first"))
    snapshot = add_file(connection, table).snapshot_id
    drop_catalog(connection, table.catalog)
    again = make_catalog(connection, "x", "/lake/second")
    assert again.catalog_id != table.catalog.catalog_id
    assert files_at(connection, table, snapshot) == ["shared/batch-0.parquet"]
    with pytest.raises(InvalidInputError, match="overlaps that of catalog"):
        make_catalog(connection, "y", "/lake/first/inside")


def test_a_live_name_is_taken(connection: Connection) -> None:
    make_catalog(connection, "x", "/lake/1")
    with pytest.raises(ConflictError, match="catalog 'x' already exists"):
        make_catalog(connection, "x", "/lake/2")
    other = make_catalog(connection, "y", "/lake/2")
    with pytest.raises(ConflictError):
        rename_catalog(connection, other, "x")
    assert [catalog.name for catalog in list_catalogs(connection)] == ["x", "y"]


@pytest.mark.parametrize("name", ["", ".", "-x", "a b", "a/b", "ä", "x" * 101, "a;b", "a'b"])
def test_malformed_names_are_refused(connection: Connection, name: str) -> None:
    with pytest.raises(InvalidInputError, match="is invalid"):
        create_catalog(connection, name, "/lake/x")


@pytest.mark.parametrize("path", ["", "relative/x", "/", "/a/../b", "/a/./b", "s3://", "..", "/a/.."])
def test_data_paths_that_lead_astray_are_refused(connection: Connection, path: str) -> None:
    with pytest.raises(InvalidInputError, match="must be absolute"):
        create_catalog(connection, "x", path)


@pytest.mark.parametrize(
    "path",
    ["/lake/a", "/lake/a/", "//lake//a", "/lake", "/lake/a/b", "/lake/a/b/c", "file:///lake/a", "/lake/a//b/"],
)
def test_overlapping_data_paths_are_refused(connection: Connection, path: str) -> None:
    make_catalog(connection, "a", "/lake/a")
    with pytest.raises(InvalidInputError, match=r"overlaps that of catalog 1: /lake/a$"):
        make_catalog(connection, "b", path)


@pytest.mark.parametrize("path", ["s3://bucket/a", "s3a://bucket/a/x", "s3n://bucket", "s3://bucket//a/"])
def test_overlapping_buckets_are_refused(connection: Connection, path: str) -> None:
    make_catalog(connection, "a", "s3a://bucket/a")
    with pytest.raises(InvalidInputError, match="overlaps"):
        make_catalog(connection, "b", path)


def test_neighbours_do_not_overlap(connection: Connection) -> None:
    paths = [
        "/a/b",
        "/a/bc",
        "/a/b0",
        "/a/b-c",
        "/a/B",
        "/lake",
        "s3://bucket/a",
        "s3://bucket/ab",
        "s3://bucket2/a",
        "/s3/bucket/a",
    ]
    for number, path in enumerate(paths):
        make_catalog(connection, f"c{number}", path)
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("/a/b/", "/a/b"), ("//a///b//", "/a/b"), ("file:///a", "/a"), ("file:/a", "/a"), ("s3a://b//k/", "s3://b/k"),
        ("s3://b", "s3://b"), ("s3n://b/k", "s3://b/k"), ("/", "/"), ("/a b/%20", "/a b/%20"),
    ],
)  # fmt: skip
def test_one_form_per_path(connection: Connection, given: str, normal: str) -> None:
    assert rows_of(connection, "SELECT lakefork.normal_path(%s)", given) == [(normal,)]
    assert rows_of(connection, "SELECT lakefork.normal_path(%s)", normal) == [(normal,)]
