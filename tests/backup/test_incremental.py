"""Incremental backups, what is kept of old ones, and what happens when a base is not whole."""

import datetime
import os
import random
from pathlib import Path

import pytest

from lakefork.backups.format import DamagedBackupError, file_path, manifest_path
from support.backup_lake import BackupLake

pytestmark = pytest.mark.usefixtures("in_this_process")


def test_an_unchanged_namespace_adds_some_kilobytes(backup_lake: BackupLake) -> None:
    first = backup_lake.backup(incremental=True)
    assert first["base"] is None and any("has no backup of namespace app" in line for line in backup_lake.lines)
    size = sum(path.stat().st_size for path in backup_lake.files())
    second = backup_lake.backup(incremental=True)
    added = sum(path.stat().st_size for path in backup_lake.files()) - size
    assert second["base"] == first["backup_id"]
    assert (second["files_written"], second["bytes_written"]) == (0, 0) and added < 4096
    assert not any("Spark" in line for line in backup_lake.lines), "nothing to do for it"


def test_only_new_files_are_copied_and_each_backup_restores_by_itself(backup_lake: BackupLake) -> None:
    states, ids = [], []
    for number in range(3):
        backup_lake.run(f"INSERT INTO app.ours (id, v) VALUES ({100 + number}, 'n{number}')")
        backup_lake.flush_lake.flush()
        states.append(backup_lake.state())
        ids.append(backup_lake.backup(incremental=number > 0)["backup_id"])
    assert [(row[0], row[1]) for row in backup_lake.sql("SELECT copied_files, base FROM system.backups ORDER BY started_at")] == [
        (5, None), (1, ids[0]), (1, ids[1]),
    ]  # fmt: skip
    for number, (state, backup_id) in enumerate(zip(states, ids, strict=True)):
        backup_lake.restore(f"{backup_lake.place}/backups/{backup_id}", namespace=f"n{number}")
        assert backup_lake.state(f"n{number}") == state


def test_keep_removes_old_backups_and_files_that_only_they_needed(backup_lake: BackupLake) -> None:
    ids = []
    for number in range(4):
        backup_lake.run(f"UPDATE app.ours SET v = 'n{number}' WHERE id = 1")
        ids.append(backup_lake.backup(incremental=True, keep=2)["backup_id"])
    left = backup_lake.rows("SELECT backup_id, status FROM system.backups ORDER BY started_at")
    assert left == [(ids[0], "removed"), (ids[1], "removed"), (ids[2], "complete"), (ids[3], "complete")]
    assert {path.parent.name for path in backup_lake.files() if path.name == "backup.json"} == set(ids[2:])
    needed = {digest for backup_id in ids[2:] for digest in backup_lake.digests(backup_id)}
    assert {path.name for path in backup_lake.files() if "files" in path.parts} == needed
    assert all(backup_lake.verify(backup_id).problems == () for backup_id in ids[2:])
    ledger = backup_lake.sql("SELECT reason, outcome, last_catalog, plan_id IS NOT NULL FROM system.deletions")
    assert set(ledger) == {("an old backup", "removed", "main", True), ("no backup needs it", "removed", "main", True)}
    plans = backup_lake.sql(
        "SELECT params ->> 'backups' FROM lakefork.plan WHERE job = 'namespace_backup' ORDER BY created_at"
    )
    assert [ids[0] in plans[0][0], ids[1] in plans[1][0]] == [True, True]


def test_a_dry_run_says_it_and_does_nothing(backup_lake: BackupLake) -> None:
    found = backup_lake.backup(dry_run=True)
    assert (found["files_to_copy"], found["hot_versions"]) == (3, 5) and backup_lake.files() == []
    backup_lake.backup()
    before = backup_lake.files()
    found = backup_lake.backup(dry_run=True, incremental=True, keep=1)
    assert (found["files_to_copy"], found["files_relied_on"], found["backups_to_remove"]) == (0, 3, 1)
    assert backup_lake.files() == before and len(backup_lake.sql("SELECT * FROM system.backups")) == 1
    assert backup_lake.sql("SELECT * FROM lakefork.snapshot_tag") == []


@pytest.mark.parametrize(
    "damage",
    ["a file is gone", "a file is cut", "a byte is flipped", "a list is flipped", "the manifest", "all is gone"],
)
def test_a_base_that_is_not_whole_is_refused_before_anything_is_done(backup_lake: BackupLake, damage: str) -> None:
    base = backup_lake.backup()["backup_id"]
    manifest = Path(manifest_path(backup_lake.place, base))
    table = next(one for one in backup_lake.manifest(base).tables if one.batches)
    batch = Path(file_path(backup_lake.place, backup_lake.digests(base, batches_only=True)[0]))
    if damage == "a file is gone":
        batch.unlink()
    elif damage == "a file is cut":
        batch.write_bytes(batch.read_bytes()[:-1])
    elif damage == "a byte is flipped":
        flip(batch, 7)
    elif damage == "a list is flipped":
        assert table.batches is not None
        flip(Path(file_path(backup_lake.place, table.batches.digest)), 40)
    elif damage == "the manifest":
        flip(manifest, 100)
    else:
        for path in backup_lake.files():
            path.unlink()
    before = backup_lake.files()
    with pytest.raises(DamagedBackupError, match="make a full one"):
        backup_lake.backup(incremental=True)
    assert set(backup_lake.files()) - set(before) <= {Path(backup_lake.place) / ".lakefork-backups.json"}
    (failed,) = backup_lake.sql("SELECT status, error_message FROM system.backups ORDER BY started_at DESC LIMIT 1")
    assert failed[0] == "failed" and "make a full one" in failed[1]
    full = backup_lake.backup()
    assert backup_lake.verify(full["backup_id"]).problems == (), "a full one writes every file again"
    assert backup_lake.backup(incremental=True)["files_written"] == 0


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1
    path.write_bytes(content)


def test_a_base_in_which_verify_found_something_is_not_relied_on(backup_lake: BackupLake) -> None:
    from lakefork.catalog.backups import note_verified
    from lakefork.catalog.connection import connect

    base = backup_lake.backup()["backup_id"]
    batch = Path(file_path(backup_lake.place, backup_lake.digests(base, batches_only=True)[0]))
    times = batch.stat()
    flip(batch, 3)
    os.utime(batch, ns=(times.st_atime_ns, times.st_mtime_ns))
    found = backup_lake.verify(base)
    assert len(found.problems) == 1
    with connect(backup_lake.flush_lake.lake.dsn) as connection:
        note_verified(connection, base, found.percent, len(found.problems))
    with pytest.raises(DamagedBackupError, match="verify found 1 problem"):
        backup_lake.backup(incremental=True)


def test_a_chain_of_twenty_with_keep_and_random_damage(backup_lake: BackupLake) -> None:
    """Whatever was damaged, each backup that verifies restores to its state, and each that does not is refused."""
    dice = random.Random(20)  # noqa: S311 - repeatable
    states = {}
    for number in range(20):
        backup_lake.run(
            f"INSERT INTO app.ours (id, v) VALUES ({200 + number}, 'n{number}'); UPDATE app.ours SET n = {number} WHERE id = 1"
        )
        if number % 3 == 0:
            backup_lake.flush_lake.flush()
        try:
            done = backup_lake.backup(incremental=True, keep=6)
        except DamagedBackupError:
            done = backup_lake.backup(keep=6)
        states[done["backup_id"]] = backup_lake.state()
        if number in (7, 13, 17):
            victim = dice.choice([path for path in backup_lake.files() if path.name != ".lakefork-backups.json"])
            flip(victim, dice.randrange(1000))
    left = sorted(path.parent.name for path in backup_lake.files() if path.name == "backup.json")
    unwrap = [backup_id for backup_id in left if is_whole(backup_lake, backup_id)]
    assert unwrap and left[-1] in unwrap
    backup_lake.restore(f"{backup_lake.place}/backups/{unwrap[0]}", namespace="oldest")
    backup_lake.restore(f"{backup_lake.place}/backups/{unwrap[-1]}", namespace="newest")
    assert backup_lake.state("oldest") == states[unwrap[0]] and backup_lake.state("newest") == states[unwrap[-1]]


def is_whole(backup_lake: BackupLake, backup_id: str) -> bool:
    try:
        return not backup_lake.verify(backup_id).problems
    except DamagedBackupError:
        return False


def test_nothing_is_removed_while_a_backup_cannot_be_read(backup_lake: BackupLake) -> None:
    """Nobody knows which files it needs."""
    first = backup_lake.backup()["backup_id"]
    flip(Path(manifest_path(backup_lake.place, first)), 200)
    backup_lake.run("UPDATE app.ours SET v = 'x'")
    before = backup_lake.files()
    result = backup_lake.backup(keep=1)
    assert result["backups_removed"] == result["files_deleted"] == 0
    assert set(before) <= set(backup_lake.files())
    assert any("nothing is removed, as not all backups can be read" in line for line in backup_lake.lines)


def test_a_backup_that_is_being_restored_is_not_removed(backup_lake: BackupLake) -> None:
    first = backup_lake.backup()["backup_id"]
    backup_lake.run("UPDATE app.ours SET v = 'x'")
    with backup_lake.flush_lake.context(job="namespace_restore") as context:
        context.take_lease(f"restore/{backup_lake.place}/backups/{first}/{context.run.job_id}")
        assert backup_lake.backup(keep=1)["backups_removed"] == 0
    backup_lake.run("UPDATE app.ours SET v = 'y'")
    assert backup_lake.backup(keep=1)["backups_removed"] == 2


def test_a_fork_and_its_parent_share_files_at_one_place(backup_lake: BackupLake) -> None:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import fork_catalog

    backup_lake.flush_lake.flush()
    backup_lake.backup()
    with connect(backup_lake.flush_lake.lake.dsn) as connection:
        fork_catalog(connection, "main", "fork")
    done = backup_lake.backup(catalog="fork", incremental=True)
    assert done["files_written"] == 0 and done["base"] is None, "files are the same, the backups are of two catalogs"
    assert backup_lake.backup(incremental=True, keep=1)["backups_removed"] == 1
    assert backup_lake.verify(done["backup_id"]).problems == ()
    assert datetime.datetime.now(datetime.UTC) > backup_lake.manifest(done["backup_id"]).taken_at
