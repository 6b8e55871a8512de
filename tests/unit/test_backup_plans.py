"""What a backup copies and keeps, and what a restore adds: decided without I/O; and the format that carries it."""

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from lakefork.backups.format import (
    HOT_SNAPSHOT,
    LIST_SCHEMA,
    BackupManifest,
    DamagedBackupError,
    Stored,
    is_leftover,
    list_bytes,
    manifest_bytes,
    parse_list,
    parse_manifest,
    split_place,
    table_digest,
)
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.transfer.backup import plan
from lakefork.transfer.backup.plan import FileToKeep, backups_to_remove, plan_copies, plan_hot_slices, unneeded
from lakefork.transfer.backup.restore_plan import (
    ListedFile,
    choose_namespaces,
    fetch_tasks,
    files_per_directory,
    place_files,
    plan_restore,
    require_free_names,
)

A, B = "a" * 64, "b" * 64
STORED = Stored(digest=A, size=1)


def manifest(**changes: Any) -> BackupManifest:
    given: dict[str, Any] = {
        "lakefork": "1", "backup_id": "x", "installation": "i", "catalog": "main", "namespace": "app",
        "namespaces": ("app",), "taken_at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "snapshot_id": 7,
        "base": None, "tables": (), "definitions": STORED, "documents": STORED, "marker": STORED, "rows": 0,
        "files": 0, "bytes": 0, "copied_files": 0, "copied_bytes": 0,
    }  # fmt: skip
    return BackupManifest(**{**given, **changes})


def test_every_byte_of_a_manifest_counts() -> None:
    content = manifest_bytes(manifest())
    assert parse_manifest(content, "there") == manifest()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        with pytest.raises(DamagedBackupError, match="the manifest there is damaged"):
            parse_manifest(bytes(damaged), "there")
    for cut in (0, 1, 70, len(content) - 1):
        with pytest.raises(DamagedBackupError):
            parse_manifest(content[:cut], "there")


def test_only_files_that_a_backup_has_with_their_size_are_relied_on() -> None:
    files = [FileToKeep(0, "/0", 5, A), FileToKeep(1, "/1", 6, A), FileToKeep(2, "/2", 5, B), FileToKeep(3, "/3", 5)]
    found = plan_copies(files, {A: 5})
    assert [file.number for file in found.relied_on] == [0]
    assert ([file.number for task in found.tasks for file in task.files], found.bytes, found.files) == (
        [1, 2, 3],
        16,
        3,
    )


def test_tasks_are_cut_by_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TASK_BYTES", 10)
    monkeypatch.setattr(plan, "TASK_FILES", 3)
    sizes = [4, 4, 4, 20, 1, 1, 1, 1]
    found = plan_copies([FileToKeep(place, "/", size) for place, size in enumerate(sizes)], {})
    assert [[file.size for file in task.files] for task in found.tasks] == [[4, 4, 4], [20], [1, 1, 1], [1]]


def test_owners_of_a_table_share_a_slice() -> None:
    waiting = [(1, None, 50), (0, "b", 10), (0, "a", 10), (0, "c", 90)]
    found = [(one.table, one.users) for one in plan_hot_slices(waiting, 1_000, 4)]
    assert found == [(0, ("a", "b")), (0, ("c",)), (1, None)]
    assert plan_hot_slices([], 1_000, 4) == []


def test_what_is_kept_and_what_nobody_needs() -> None:
    assert backups_to_remove(["1", "2", "3"], 2) == ["1"]
    assert backups_to_remove(["1", "2"], None) == backups_to_remove(["1", "2"], 5) == []
    assert unneeded(["b", "a", "c"], {"c"}) == ["a", "b"]


@pytest.mark.parametrize(
    ("in_backup", "is_whole", "wanted", "found"),
    [
        (["app"], False, None, {"app": "app"}),
        (["app"], False, "x", {"app": "x"}),
        (["app"], False, "APP", {"app": "APP"}),
        (["app", "b"], True, None, {"app": "app", "b": "b"}),
        (["app", "b"], True, "B", {"b": "b"}),
        (["app"], True, "x", {"app": "x"}),
    ],
)
def test_names_of_what_is_restored(
    in_backup: list[str], is_whole: bool, wanted: str | None, found: dict[str, str]
) -> None:
    assert choose_namespaces(in_backup, is_whole, wanted) == found


def test_names_that_cannot_be_given() -> None:
    with pytest.raises(NotFoundError, match="the backup has no namespace x; it has a, b"):
        choose_namespaces(["a", "b"], True, "x")
    with pytest.raises(InvalidInputError, match="namespace App already exists"):
        require_free_names(["App"], {"app": 3}, replace=False)
    assert require_free_names(["App", "new"], {"app": 3}, replace=True) == [3]


def file(snapshot: int, user: str | None = None, digest: str = A) -> ListedFile:
    return ListedFile(digest, 10, 1, 2, user, snapshot, 5, "[]")


def definitions() -> dict[str, Any]:
    table = {
        "name": "t", "kind": "USER", "columns": [{"column_id": 4, "column_name": "id"}], "column_tags": [],
        "tags": {"kind": "USER"}, "partitions": [{"partition_key_index": 0, "column_id": 3}], "is_clean": True,
        "history": [
            {"snapshot": 10, "schema_version": 3, "definition": {"namespace": "app"}},
            {"snapshot": 30, "schema_version": 8, "definition": None},
        ],
        "dates": [{"snapshot": 10, "defined_at": "…", "author": None}],
    }  # fmt: skip
    users = [{"user_id": "u", "permissions": ["app.t", '"app".t.x = 1', "a*.t", "other.t"]}]
    namespace = {"name": "app", "tags": {}, "dates": [{"snapshot": 5, "defined_at": "…", "author": None}]}
    return {"namespaces": [{**namespace, "tables": [table]}], "users": users, "locations": []}


def test_numbers_become_ranks_that_keep_their_order() -> None:
    files = [file(20, "u"), file(10, "u"), file(40, "v"), file(HOT_SNAPSHOT, "u")]
    found = plan_restore(definitions(), {"app": "new"}, {("app", "t"): files}, {("app", "t"): "d"})
    assert found.ranks == {5: 1, 10: 2, 20: 3, 30: 4, 40: 5, HOT_SNAPSHOT: 6} and found.versions == {3: 1, 8: 2}
    assert found.history == {"snapshots": 6, "schema_versions": 2}
    namespace, table = found.objects
    assert [date["rank"] for date in namespace["dates"]] == [1] and namespace["is_table"] is False
    assert [(one["rank"], one["version_rank"], one["definition"]) for one in table["history"]] == [
        (2, 1, {"namespace": "new"}), (4, 2, None),
    ]  # fmt: skip
    assert table["is_clean"] is False, "rows that were hot come as more files"
    assert found.users[0]["permissions"] == ['"new".t', '"new".t.x = 1', "a*.t", "other.t"]
    new = found.changes.as_json()["new"]
    assert new["ducklake_schema"][0]["schema_name"] == "new" and new["ducklake_column"][0]["column_id"] == 4
    assert new["ducklake_partition_column"][0]["partition_id"] == new["ducklake_partition_info"][0]["partition_id"]


def test_files_get_reserved_names_or_none() -> None:
    files = [file(10, "u"), file(20, "a/b"), file(HOT_SNAPSHOT, "u")]
    found = plan_restore(definitions(), {"app": "new"}, {("app", "t"): files}, {("app", "t"): "d"})
    assert files_per_directory(found, "/d", by_reference=False) == {"/d/new/t/user_u": 2, "/d/new/t/user_a%2Fb": 1}
    assert files_per_directory(found, "/d", by_reference=True) == {"/d/new/t/user_u": 1}
    staged = place_files(found, "/d", {"/d/new/t/user_u": 7, "/d/new/t/user_a%2Fb": 0}, by_reference=False)
    assert [one.path for one in staged] == [
        "user_u/batch-7.parquet",
        "user_a%2Fb/batch-0.parquet",
        "user_u/batch-8.parquet",
    ]
    shared = place_files(found, "/d", {"/d/new/t/user_u": 7}, by_reference=True)
    assert [one.full_path for one in shared] == [None, None, "/d/new/t/user_u/batch-7.parquet"]
    assert [task.files for task in fetch_tasks(shared)] == [[(A, 10, "/d/new/t/user_u/batch-7.parquet")]]


def test_a_digest_is_of_what_a_table_holds_and_not_of_its_numbers() -> None:
    history = [(10, {"columns": []}), (30, None)]
    files = [("u", 10, A, 3), ("u", 40, B, 1)]
    found = table_digest(["SHARED"], history, files)
    assert found == table_digest(["SHARED"], [(1, {"columns": []}), (2, None)], [("u", 5, B, 1), ("u", 1, A, 3)])
    for other in (
        table_digest(["USER"], history, files),
        table_digest(["SHARED"], history, [("u", 10, A, 3), ("u", 10, B, 1)]),
        table_digest(["SHARED"], history, [("u", 10, A, 3), ("u", 20, B, 1)]),
        table_digest(["SHARED"], history, [("v", 10, A, 3), ("u", 40, B, 1)]),
        table_digest(["SHARED"], history, files[:1]),
    ):
        assert other != found


def test_the_same_list_is_the_same_bytes() -> None:
    dice = random.Random(1)  # noqa: S311 - repeatable
    rows = [
        {"digest": f"{dice.getrandbits(256):064x}", "file_size_bytes": number, "record_count": 1, "snapshot": number,
         "user_id": None, "data_file_id": number, "statistics": "[]", "footer_size": None}
        for number in range(1_000)
    ]  # fmt: skip
    one = pa.Table.from_pylist(rows, LIST_SCHEMA)
    parts = pa.concat_tables([one.slice(0, 300), one.slice(300)])
    assert list_bytes(one) == list_bytes(parts) and parse_list(list_bytes(parts)).equals(one)


def test_paths_name_a_place_or_a_backup() -> None:
    backup = "20260101T000000-0123abcd"
    assert split_place("/a/b/") == ("/a/b", None)
    assert split_place(f"s3://x/y/backups/{backup}") == ("s3://x/y", backup)
    assert split_place(f"/a/backups/{backup}/backup.json") == ("/a", backup)
    assert split_place("/a/backups/other") == ("/a/backups/other", None)
    assert is_leftover(f".{A}.{'0' * 32}") and is_leftover(f".{'0' * 32}") and not is_leftover("notes")
