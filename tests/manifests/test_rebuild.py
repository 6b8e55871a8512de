"""manifest_rebuild finds and repairs every damage of a manifest, and touches nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect
from lakefork.catalog.leases import Leases
from lakefork.errors import JobFailedError, NotFoundError, StorageError
from lakefork.manifests import write as writer
from lakefork.manifests.format import FILE_NAME
from lakefork.upkeep.manifest_rebuild import run as manifest_rebuild
from lakefork.upkeep.manifest_rebuild.plan import Owner, TableDirectories, plan_tasks
from manifests.conftest import ManifestLake

CLEAN = {"tables": 2, "directories": 3, "files": 5, "findings": 0, "manifests_written": 0, "schemas_written": 0}


def rewrite(change: Callable[[Any], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "missing manifest"),
    "empty": (lambda path: path.write_bytes(b""), "broken manifest"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-30]), "broken manifest"),
    "not UTF-8": (lambda path: path.write_bytes(b"\xff\xfe\0"), "broken manifest"),
    "of another shape": (lambda path: path.write_text('{"batches": 7}'), "broken manifest"),
    "of another format": (rewrite(lambda one: one.update(format=2)), "broken manifest"),
    "of another table": (rewrite(lambda one: one.update(table_id=1)), "wrong table"),
    "of another user": (rewrite(lambda one: one.update(user_id="bob")), "wrong user"),
    "old": (rewrite(lambda one: one.update(snapshot_id=one["snapshot_id"] - 1)), "stale manifest"),
    "with a wrong number": (rewrite(lambda one: one.update(max_batch=17)), "wrong number"),
    "without a batch": (rewrite(lambda one: one["batches"].pop()), "missing batch"),
    "with a batch too many": (
        rewrite(lambda one: one["batches"].append({**one["batches"][0], "file": "batch-7.parquet", "data_file_id": 99})),
        "extra batch",
    ),
    "with wrong rows": (rewrite(lambda one: one["batches"][0].update(row_count=1)), "wrong row count"),
    "with a wrong size": (rewrite(lambda one: one["batches"][0].update(size_bytes=1)), "wrong size"),
    "with wrong bounds": (rewrite(lambda one: one["batches"][0]["columns"]["id"].update(max=1)), "wrong statistics"),
    "other bytes of the same meaning": (lambda path: path.write_text(path.read_text() + "\n"), "stale cache"),
}  # fmt: skip


def test_every_damage_is_found_and_repaired(manifests: ManifestLake) -> None:
    path = manifests.directory("mine/user_ada") / FILE_NAME
    sound = json.loads(path.read_text())
    for name, (harm, kind) in DAMAGES.items():
        harm(path)
        before, cached = manifests.state(), manifests.cache()
        with pytest.raises(JobFailedError, match=rf"1× {kind}.*; each is listed above; run it without check_only"):
            manifests.rebuild(check_only=True)
        assert any(f"{kind}: main.app.mine: {path}: " in line for line in manifests.lines), name
        assert (manifests.state(), manifests.cache(), manifests.pending()) == (before, cached, []), (
            "nothing was changed"
        )
        result = manifests.rebuild()
        assert result["findings"] >= 1 and result["manifests_written"] == 1, name
        assert {**json.loads(path.read_text()), "generated_at": ""} == {**sound, "generated_at": ""}, name
        assert [row[2] for row in manifests.cache() if row[1] == "ada"] == [path.read_text()], name
        assert {row[4] for row in manifests.cache()} == {"in_sync"}
        changed = {name for name, content in manifests.state().items() if before.get(name) != content}
        assert changed == {str(path)}, "only the manifest"
    assert manifests.rebuild() == manifests.rebuild(check_only=True) == CLEAN


def test_a_sound_lake_is_left_as_it_is(manifests: ManifestLake) -> None:
    before, cached = manifests.state(), manifests.cache()
    assert manifests.rebuild() == CLEAN
    assert (manifests.state(), manifests.cache()) == (before, cached)


def test_a_missing_file_fails_the_job_although_the_manifest_is_repaired(manifests: ManifestLake) -> None:
    directory = manifests.directory("ours/shared")
    (directory / "batch-0.parquet").unlink()
    (directory / FILE_NAME).write_text("{")
    with pytest.raises(JobFailedError, match=r"1 finding\(s\): 1× missing file; .*restore the files") as caught:
        manifests.rebuild()
    assert caught.value.result == {**CLEAN, "findings": 2, "manifests_written": 1, "schemas_written": 0}
    assert (
        f"missing file: main.app.ours: {directory}/batch-0.parquet: it is in the catalog but not in storage"
        in manifests.lines
    )
    assert len(manifests.manifest("ours/shared")["batches"]) == 2, "it says what the catalog says"


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda content: content[:-1], "wrong file"),
        (lambda content: content[:-20] + b"\xff" * 20, "unreadable file"),
    ],
)
def test_a_damaged_file_fails_the_job(manifests: ManifestLake, damage: Callable[[bytes], bytes], kind: str) -> None:
    path = manifests.directory("mine/user_bob") / "batch-0.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(JobFailedError, match=f"1× {kind}"):
        manifests.rebuild()
    assert any(line.startswith(f"{kind}: main.app.mine: {path}: ") for line in manifests.lines)


def test_statistics_of_the_catalog_are_compared_with_the_footers(manifests: ManifestLake) -> None:
    manifests.sql(
        "WITH u AS (UPDATE ducklake_file_column_stats SET max_value = '7' WHERE column_id = 4 AND data_file_id = 0 RETURNING 1) SELECT * FROM u"
    )
    with pytest.raises(JobFailedError, match="1× wrong file"):
        manifests.rebuild()
    assert any("statistics of column 4: expected values=2 nulls=0 min=1 max=7" in line for line in manifests.lines)


def test_an_extra_file_is_reported_and_never_put_into_a_manifest(manifests: ManifestLake) -> None:
    directory = manifests.directory("mine/user_ada")
    (directory / "batch-5.parquet").write_bytes((directory / "batch-0.parquet").read_bytes())
    (directory / ".batch-6.parquet.tmp").write_bytes(b"")
    before = manifests.state()
    with pytest.raises(JobFailedError, match=r"1 finding\(s\): 1× extra file"):
        manifests.rebuild(check_only=True)
    assert manifests.rebuild() == {**CLEAN, "findings": 1}
    assert manifests.lines[0].startswith(f"extra file: main.app.mine: {directory}/batch-5.parquet: ")
    assert manifests.state() == before


def test_files_that_are_staged_ended_or_of_a_fork_are_not_extra(manifests: ManifestLake) -> None:
    directory = manifests.directory("ours/shared")
    for number, name in ((5, "staged"), (6, "of a fork")):
        (directory / f"batch-{number}.parquet").write_bytes(name.encode())
    (table_id,) = manifests.sql("SELECT table_id FROM system.tables WHERE table_name = 'ours'")[0]
    with connect(manifests.lake.dsn) as connection:
        connection.execute(
            "INSERT INTO lakefork.staged_file VALUES (%s, %s, %s, 'job', now())",
            (f"{directory}/batch-5.parquet", manifests.lake.catalog.catalog_id, table_id),
        )
        connection.execute(
            "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative, "
            "record_count, file_size_bytes) VALUES (99, 999, %s, 1, %s, false, 1, 1)",
            (table_id, f"{directory}/batch-6.parquet"),
        )
        end_files(manifests, "app.ours", [f"{directory}/batch-0.parquet"])
    assert manifests.rebuild()["manifests_written"] == 1, "what was pending"
    assert manifests.rebuild(check_only=True)["findings"] == 0


def end_files(manifests: ManifestLake, table: str, paths: list[str]) -> int:
    """As a dedup would: ends files, and says that the manifests are to be written; returns the snapshot."""
    namespace, name = table.split(".")
    with connect(manifests.lake.dsn) as connection, connection.transaction():
        found = connection.execute(
            "SELECT t.catalog_id, t.table_id, f.data_file_id, f.path, coalesce(f.user_id, '') AS user_id FROM system.tables t "
            "CROSS JOIN LATERAL lakefork.table_files(t.catalog_id, t.table_id, NULL, '{}') f "
            "WHERE t.namespace = %s AND t.table_name = %s AND f.path = ANY (%s)", (namespace, name, paths)
        ).fetchall()  # fmt: skip
        changes = Changes()
        for row in found:
            changes.end("ducklake_data_file", data_file_id=row["data_file_id"])
        done = commit(connection, found[0]["catalog_id"], newest_snapshot(connection), changes)
        for row in found:
            connection.execute(
                "INSERT INTO lakefork.manifest_pending VALUES (%s, %s, %s, %s, 'dedup') ON CONFLICT DO NOTHING",
                (row["catalog_id"], row["table_id"], row["user_id"], row["path"].rpartition("/")[0]),
            )
    return done.snapshot_id


@pytest.mark.parametrize("left", [1, 0])
def test_the_snapshot_of_a_manifest_is_that_of_the_last_publish_also_when_files_went(
    manifests: ManifestLake, left: int
) -> None:
    directory = manifests.directory("mine/user_ada")
    snapshot = end_files(manifests, "app.mine", [f"{directory}/batch-{number}.parquet" for number in range(left, 2)])
    other = manifests.manifest("mine/user_bob")
    with pytest.raises(JobFailedError, match="1× stale manifest"):
        manifests.rebuild(check_only=True)
    manifests.rebuild()
    found = manifests.manifest("mine/user_ada")
    assert (found["snapshot_id"], found["max_batch"], len(found["batches"])) == (snapshot, left - 1, left)
    assert manifests.manifest("mine/user_bob") == other
    assert manifests.rebuild(check_only=True)["findings"] == 0


def test_after_a_dedup_manifests_are_those_of_its_snapshot(manifests: ManifestLake) -> None:
    result = manifests.flush_lake.dedup()
    assert result["files_replaced"] == 4
    assert manifests.rebuild(check_only=True) == {**CLEAN, "files": 3}, "replaced files are kept for older snapshots"
    assert {manifests.manifest(name)["snapshot_id"] for name in ("mine/user_ada", "ours/shared")} <= set(
        range(result["snapshot_id"] - 1, result["snapshot_id"] + 1)
    )


def test_params_narrow_it_down(manifests: ManifestLake) -> None:
    for name in ("mine/user_ada", "mine/user_bob", "ours/shared"):
        (manifests.directory(name) / FILE_NAME).unlink()
    result = manifests.rebuild(catalog="main", namespace="APP", table="Mine", user_id="bob")
    assert result == {
        "tables": 1,
        "directories": 1,
        "files": 1,
        "findings": 1,
        "manifests_written": 1,
        "schemas_written": 0,
    }
    assert manifests.rebuild(user_id="bob")["findings"] == 0
    assert manifests.rebuild(table="ours")["findings"] == 1
    assert manifests.rebuild()["findings"] == 1
    for params, sentence in (
        ({"catalog": "x"}, "catalog 'x' does not exist"),
        ({"table": "x"}, r"table \*\.x does not exist"),
    ):
        with pytest.raises(NotFoundError, match=sentence):
            manifests.rebuild(**params)


@pytest.mark.parametrize("work", ["table", "dedup"])
def test_a_table_that_was_named_is_waited_for(manifests: ManifestLake, work: str) -> None:
    (manifests.directory("mine/user_ada") / FILE_NAME).unlink()
    (table_id,) = manifests.sql("SELECT table_id FROM system.tables WHERE table_name = 'mine'")[0]
    with connect(manifests.lake.dsn) as connection:
        Leases("another run", 2).take(connection, f"{work}/{manifests.lake.catalog.catalog_id}/{table_id}")
    assert manifests.rebuild(table="mine")["manifests_written"] == 1
    assert any(line.startswith("main.app.mine is being worked on by another run since ") for line in manifests.lines)


@pytest.mark.parametrize("work", ["table", "dedup"])
def test_a_table_that_is_being_worked_on_is_left(manifests: ManifestLake, work: str) -> None:
    (manifests.directory("mine/user_ada") / FILE_NAME).unlink()
    (manifests.directory("ours/shared") / FILE_NAME).unlink()
    (table_id,) = manifests.sql("SELECT table_id FROM system.tables WHERE table_name = 'mine'")[0]
    with connect(manifests.lake.dsn) as connection:
        leases = Leases("another run", 60)
        leases.take(connection, f"{work}/{manifests.lake.catalog.catalog_id}/{table_id}")
        assert manifests.rebuild() == {
            "tables": 1,
            "directories": 1,
            "files": 2,
            "findings": 1,
            "manifests_written": 1,
            "schemas_written": 0,
        }
        assert "main.app.mine is being worked on by another run: skipped" in manifests.lines
        assert not (manifests.directory("mine/user_ada") / FILE_NAME).exists()
        leases.release(connection)
    assert manifests.rebuild()["manifests_written"] == 1
    assert manifests.sql("SELECT count(*) FROM lakefork.lease WHERE expires_at > now()") == [(0,)]


def test_without_batches_no_spark_is_started(flush_lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_rebuild, "_run_tasks", lambda *_: pytest.fail("Spark was started"))
    flush_lake.lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY)")
    empty = dict.fromkeys(CLEAN, 0)
    assert ManifestLake(flush_lake).rebuild() == ManifestLake(flush_lake).rebuild(check_only=True) == empty
    assert flush_lake.lines == ["there is nothing to check"]


def test_a_directory_with_very_many_files_is_looked_at_in_parts(
    manifests: ManifestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_rebuild, "plan_tasks", lambda table: plan_tasks(table, work=1))
    large = TableDirectories(1, 1, "t", False, (Owner("", "/d", 9),))
    parts = [(task.part, task.parts, task.manifests, task.footers) for task in plan_tasks(large, work=1)]
    assert parts == [(0, 1, True, False), *((part, 5, False, True) for part in range(5))]
    (manifests.directory("ours/shared") / "batch-1.parquet").unlink()
    with pytest.raises(JobFailedError, match=r"1 finding\(s\): 1× missing file") as caught:
        manifests.rebuild()
    assert caught.value.result == {**CLEAN, "findings": 1}


def test_a_crash_leaves_the_rest_to_the_next_run(manifests: ManifestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine/user_ada", "mine/user_bob", "ours/shared"):
        (manifests.directory(name) / FILE_NAME).write_text("{")
    with monkeypatch.context() as patched:
        patched.setattr(writer, "replace_file", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(StorageError, match="cannot be written: disk full"):
            manifests.rebuild()
    assert len(manifests.pending()) == 3
    manifests.flush_lake.flush()
    assert manifests.pending() == []
    assert manifests.rebuild(check_only=True) == CLEAN


def test_a_lake_on_s3_is_checked_and_repaired(s3_manifests: ManifestLake, s3: str) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    assert s3_manifests.rebuild(check_only=True) == CLEAN
    client.put_object(Bucket="lake", Key="main/app/mine/user_ada/manifest.json", Body=b"{")
    client.delete_object(Bucket="lake", Key="main/app/ours/shared/manifest.json")
    client.put_object(Bucket="lake", Key="main/app/ours/shared/batch-7.parquet", Body=b"x")
    result = s3_manifests.rebuild()
    assert (result["findings"], result["manifests_written"]) == (3, 2)
    assert any(
        line.startswith("extra file: main.app.ours: s3://lake/main/app/ours/shared/batch-7.parquet")
        for line in s3_manifests.lines
    )
    client.delete_object(Bucket="lake", Key="main/app/ours/shared/batch-7.parquet")
    assert s3_manifests.rebuild(check_only=True) == CLEAN
    client.delete_object(Bucket="lake", Key="main/app/mine/user_bob/batch-0.parquet")
    with pytest.raises(JobFailedError, match="1× missing file"):
        s3_manifests.rebuild()
