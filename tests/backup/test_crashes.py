"""Backups and restores that die after any step: nothing half done is visible, and the next run cleans up."""

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakefork.backups.place import Place
from lakefork.errors import LakeforkError, LeaseLostError, StorageError
from lakefork.storage import StorageOptions
from lakefork.transfer.backup import keep, restore_run, restore_staging
from lakefork.transfer.backup import run as backup_run
from lakefork.transfer.backup.verify import verify_place
from support.backup_lake import BackupLake
from support.killed import run_until_killed

pytestmark = pytest.mark.usefixtures("in_this_process")


class Crash(BaseException):
    """Nobody catches it, as nobody catches kill −9."""


def crash(owner: Any, name: str, call: int = 1, *, after: bool = False) -> Callable[[pytest.MonkeyPatch], None]:
    """At the n-th call of a function, before it does anything or after it did all."""

    def install(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)
        calls = itertools.count(1)

        def dying(*arguments: Any, **named: Any) -> Any:
            dies = next(calls) == call
            if dies and not after:
                raise Crash(name)
            result = real(*arguments, **named)
            if dies:
                raise Crash(name)
            return result

        monkeypatch.setattr(owner, name, dying)

    return install


BACKUP_STEPS = {
    "when the place is claimed": crash(Place, "claim", after=True),
    "before the snapshot is pinned": crash(backup_run, "begin_backup"),
    "after the snapshot is pinned": crash(backup_run, "begin_backup", after=True),
    "when hot rows are written": crash(backup_run, "run_on_executors", after=True),
    "when files are copied": crash(backup_run, "run_on_executors", 2, after=True),
    "between the parts": crash(Place, "put", 2),
    "before the manifest": crash(Place, "publish"),
    "after the manifest": crash(Place, "publish", after=True),
    "when it is recorded": crash(backup_run, "finish_backup", after=True),
    "before the old ones go": crash(keep, "save_plan"),
    "when it is written down what goes": crash(keep, "record_removals", after=True),
    "when an old manifest is gone": crash(keep, "remove_many", after=True),
    "when files are gone": crash(keep, "remove_many", 2, after=True),
}


@pytest.mark.parametrize("step", BACKUP_STEPS)
def test_a_backup_that_dies_is_never_taken_for_one_and_leaves_nothing(
    backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Scenario 32: a backup that was cut off is never taken for a whole one."""
    first = backup_lake.backup()["backup_id"]
    backup_lake.run("UPDATE app.ours SET v = 'changed' WHERE id = 1")
    expected = backup_lake.state()
    with monkeypatch.context() as patched:
        BACKUP_STEPS[step](patched)
        with pytest.raises(Crash):
            backup_lake.backup(keep=1)
    for found in verify_place(Place(backup_lake.place, StorageOptions()), None):
        assert found.problems == () or found.backup_id == first, "what has a manifest is whole"
    last = backup_lake.backup(incremental=True, keep=1)["backup_id"]
    assert {path.parent.name for path in backup_lake.files() if path.name == "backup.json"} == {last}
    needed = set(backup_lake.digests(last))
    assert {path.name for path in backup_lake.files() if "files" in path.parts} == needed
    assert backup_lake.sql("SELECT count(*) FROM lakefork.snapshot_tag") == [(0,)]
    assert backup_lake.sql("SELECT count(*) FROM lakefork.deletion WHERE removed_at IS NULL") == [(0,)]
    assert backup_lake.sql("SELECT count(*) FROM lakefork.backup WHERE status = 'running'") == [(0,)]
    assert backup_lake.sql("SELECT backup_id FROM lakefork.backup WHERE status = 'complete'") == [(last,)]
    backup_lake.restore(namespace="again")
    assert backup_lake.state("again") == expected


RESTORE_STEPS = {
    "before anything is staged": crash(restore_run, "stage_plan"),
    "when names are reserved": crash(restore_staging, "place_files"),
    "when it is written down what will be there": crash(restore_run, "stage_plan", after=True),
    "when files are there": crash(restore_run, "run_on_executors", after=True),
    "before the commit": crash(restore_run, "commit_restore"),
    "in the commit": crash(restore_run, "commit_restore", after=True),
    "before the comparison": crash(restore_run, "file_contents"),
}
AFTER_COMMIT = {
    "after the commit": crash(restore_run, "note_clean"),
    "before the manifests": crash(restore_run, "write_manifests_of"),
    "before the schema files": crash(restore_run, "write_schema_files"),
}


@pytest.mark.parametrize("step", RESTORE_STEPS)
def test_a_restore_that_dies_leaves_nothing_visible_and_the_next_one_cleans_up(
    backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Scenario 33: killed halfway it leaves nothing."""
    expected = backup_lake.state()
    backup_lake.backup()
    with monkeypatch.context() as patched:
        RESTORE_STEPS[step](patched)
        with pytest.raises(Crash):
            backup_lake.restore(namespace="again")
    assert [row[0] for row in backup_lake.rows("SHOW NAMESPACES")] == ["app"] and backup_lake.state() == expected
    backup_lake.restore(namespace="again")
    assert backup_lake.state("again") == expected
    check_nothing_left(backup_lake, "again")


def check_nothing_left(backup_lake: BackupLake, namespace: str) -> None:
    """Each file below the namespace is one of the catalog, and nothing is staged."""
    data = Path(backup_lake.flush_lake.lake.catalog.data_path)
    known = {path for table in ("mine", "ours") for path in backup_lake.flush_lake.paths(f"{namespace}.{table}")}
    assert {str(path) for path in (data / namespace).rglob("*.parquet")} == known
    for table in ("staged_file", "restore_file", "manifest_pending", "schema_pending"):
        assert backup_lake.sql(f"SELECT count(*) FROM lakefork.{table}") == [(0,)], table


@pytest.mark.parametrize("step", AFTER_COMMIT)
def test_a_restore_that_dies_after_its_commit_is_done(
    backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    expected = backup_lake.state()
    backup_lake.backup()
    with monkeypatch.context() as patched:
        AFTER_COMMIT[step](patched)
        with pytest.raises(Crash):
            backup_lake.restore(namespace="again", run_id="one")
    assert backup_lake.state("again") == expected
    snapshots = backup_lake.sql("SELECT count(*) FROM ducklake_snapshot")
    result = backup_lake.restore(namespace="again", run_id="one")
    assert result["tables"] == 3 and backup_lake.sql("SELECT count(*) FROM ducklake_snapshot") == snapshots
    assert any("an earlier attempt of this run has restored it" in line for line in backup_lake.lines)
    check_nothing_left(backup_lake, "again")


def test_a_backup_that_is_killed_for_real(backup_lake: BackupLake) -> None:
    """kill −9 when all is copied and nothing is published; its lease runs out."""
    dsn = backup_lake.flush_lake.lake.dsn
    step = "transfer.backup.run.remember_digests"
    run_until_killed("namespace_backup", step, dsn, namespace="app", to=backup_lake.place)
    assert backup_lake.sql("SELECT status FROM system.backups") == [("running",)]
    done = backup_lake.backup(incremental=True)
    assert any("was cut off" in line for line in backup_lake.lines)
    assert backup_lake.verify(done["backup_id"]).problems == ()
    assert {path.name for path in backup_lake.files() if "files" in path.parts} == set(
        backup_lake.digests(done["backup_id"])
    )


def test_a_restore_that_is_killed_for_real(backup_lake: BackupLake) -> None:
    """kill −9 when all files are there; what it staged goes once its leases have run out."""
    expected = backup_lake.state()
    backup_lake.backup()
    dsn = backup_lake.flush_lake.lake.dsn
    step = "transfer.backup.restore_run.run_on_executors"
    run_until_killed("namespace_restore", step, dsn, namespace="again", **{"from": backup_lake.place})
    assert backup_lake.sql("SELECT count(*) > 0 FROM lakefork.staged_file") == [(True,)]
    assert [row[0] for row in backup_lake.rows("SHOW NAMESPACES")] == ["app"]
    backup_lake.restore(namespace="again")
    assert any("staged and did not publish were discarded" in line for line in backup_lake.lines)
    assert backup_lake.state("again") == expected
    check_nothing_left(backup_lake, "again")


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """On both sides."""
    expected = backup_lake.state()
    if what == "restore":
        backup_lake.backup()
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: Any, **__: Any) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr("lakefork.transfer.backup.task.store_file", fail)
        patched.setattr("lakefork.transfer.backup.restore_task.fetch_file", fail)
        with pytest.raises(StorageError, match="No space left on device"):
            backup_lake.backup() if what == "backup" else backup_lake.restore(namespace="again")
    assert backup_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    assert backup_lake.sql("SELECT count(*) FROM lakefork.snapshot_tag") == [(0,)]
    if what == "backup":
        backup_lake.backup()
    backup_lake.restore(namespace="again")
    assert backup_lake.state("again") == expected


def test_a_restore_that_lost_its_lease_changes_nothing(
    backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup_lake.backup()
    real_check = restore_run._Restore._manifests

    def lose(self: Any, staged: Any) -> Any:
        backup_lake.flush_lake.sql("UPDATE lakefork.lease SET holder = 'somebody else' RETURNING 1")
        return real_check(self, staged)

    monkeypatch.setattr(restore_run._Restore, "_manifests", lose)
    with pytest.raises(LeaseLostError):
        backup_lake.restore(namespace="again")
    assert [row[0] for row in backup_lake.rows("SHOW NAMESPACES")] == ["app"]


def test_a_mapping_that_is_wrong_is_noticed_before_anybody_sees_it(
    backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about to be committed is compared with the backup."""
    backup_lake.backup()
    real = restore_run.commit_restore

    def wrong(connection: Any, *arguments: Any) -> Any:
        done = real(connection, *arguments)
        connection.execute(
            "UPDATE ducklake_data_file SET file_order = 1 WHERE begin_snapshot > %s", (done.snapshot_id - 30,)
        )
        return done

    monkeypatch.setattr(restore_run, "commit_restore", wrong)
    with pytest.raises(LakeforkError, match="would not be what it was: nothing was restored"):
        backup_lake.restore(namespace="again")
    assert [row[0] for row in backup_lake.rows("SHOW NAMESPACES")] == ["app"]
    assert backup_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
