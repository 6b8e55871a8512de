"""Verification: any one byte flipped or file removed is found, and a restore from it changes nothing."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lakefork.backups.format import DamagedBackupError
from lakefork.backups.place import Place
from lakefork.errors import LakeforkError, NotFoundError
from lakefork.storage import StorageOptions
from lakefork.transfer.backup.verify import verify_backup, verify_place
from support.backup_lake import BackupLake

TRIALS = 1_000
RESTORES = 12  # every so many trials are also tried as a restore

pytestmark = pytest.mark.usefixtures("in_this_process")


def flip(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content)


def cut(path: Path, dice: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content))])


def remove(path: Path, dice: random.Random) -> None:
    path.unlink()


def is_found(place: Place, backup_id: str) -> bool:
    try:
        return bool(verify_backup(place, backup_id).problems)
    except (DamagedBackupError, NotFoundError):
        return True


def test_a_thousand_flips_and_deletions_are_each_found_and_restore_nothing(backup_lake: BackupLake) -> None:
    """Scenario 32: any one byte flipped or file removed is found by verify, and a restore from it changes nothing."""
    done = backup_lake.backup()
    place, dice = Place(backup_lake.place, StorageOptions()), random.Random(32)  # noqa: S311 - repeatable
    before = backup_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")
    files = backup_lake.files()
    missed, restored = [], 0
    for trial in range(TRIALS):
        path = dice.choice(files)
        damage: Callable[[Path, random.Random], None] = dice.choice([flip, flip, flip, cut, remove])
        content = path.read_bytes()
        damage(path, dice)
        if not is_found(place, done["backup_id"]):
            missed.append((trial, path, damage.__name__))
        if trial % (TRIALS // RESTORES) == 0:
            with pytest.raises(LakeforkError):
                backup_lake.restore(namespace=f"n{trial}")
            restored += 1
        path.write_bytes(content)
    assert missed == []
    assert verify_backup(place, done["backup_id"]).problems == ()
    assert restored >= RESTORES
    assert backup_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot") == before
    assert backup_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    assert [row[0] for row in backup_lake.rows("SHOW NAMESPACES")] == ["app"]
    data = Path(backup_lake.flush_lake.lake.catalog.data_path)
    assert {path.name for path in data.iterdir()} == {"app", "configs"} or not list(data.glob("n*/**/batch-*.parquet"))


def test_a_sample_reads_so_many_files_and_looks_at_all(backup_lake: BackupLake) -> None:
    done = backup_lake.backup()
    place = Place(backup_lake.place, StorageOptions())
    whole, some = (verify_backup(place, done["backup_id"], percent, seed=1) for percent in (100, 10))
    assert (whole.files, whole.read, whole.percent) == (9, 9, 100.0)
    assert (some.files, some.read) == (9, 5), "the parts of the backup and one batch"
    batch = Path(backup_lake.place) / "files"
    victim = next(
        path for path in batch.rglob("*") if path.name in backup_lake.digests(done["backup_id"], batches_only=True)
    )
    victim.unlink()
    assert len(verify_backup(place, done["backup_id"], 1, seed=2).problems) == 1, "all must be there, whatever is read"


def test_all_backups_of_a_place_are_verified_and_shared_files_read_once(backup_lake: BackupLake) -> None:
    ids = [backup_lake.backup()["backup_id"], backup_lake.backup(incremental=True)["backup_id"]]
    found = list(verify_place(Place(backup_lake.place, StorageOptions()), None))
    assert sorted(one.backup_id for one in found) == sorted(ids) and all(not one.problems for one in found)
    path = Path(backup_lake.place) / "backups" / ids[0] / "backup.json"
    path.write_bytes(path.read_bytes()[:-1])
    found = list(verify_place(Place(backup_lake.place, StorageOptions()), None))
    assert {one.backup_id: bool(one.problems) for one in found} == {ids[0]: True, ids[1]: False}


def test_a_backup_without_its_manifest_is_none(backup_lake: BackupLake) -> None:
    done = backup_lake.backup()
    (Path(backup_lake.place) / "backups" / done["backup_id"] / "backup.json").unlink()
    with pytest.raises(NotFoundError, match="there is no backup at"):
        backup_lake.restore(namespace="x")
    with pytest.raises(NotFoundError, match=r"it has no backup\.json"):
        backup_lake.restore(f"{backup_lake.place}/backups/{done['backup_id']}", namespace="x")


def test_a_damaged_file_of_the_catalog_is_not_backed_up(backup_lake: BackupLake) -> None:
    """What an earlier backup found in a file is remembered."""
    backup_lake.backup()
    (path, *_) = backup_lake.flush_lake.paths("app.ours")
    content = bytearray(Path(path).read_bytes())
    content[50] ^= 1
    Path(path).write_bytes(content)
    with pytest.raises(LakeforkError, match="is damaged: an earlier backup found other content in it"):
        backup_lake.backup()
    assert any("the backups that are at" in line for line in backup_lake.lines)
    Path(path).write_bytes(content[:-1])
    with pytest.raises(LakeforkError, match=r"is damaged: it has [\d,]+ bytes, the catalog says"):
        backup_lake.backup()
    Path(path).unlink()
    with pytest.raises(LakeforkError, match=r"is missing: is the right storage mounted\?"):
        backup_lake.backup()
    assert [row[0] for row in backup_lake.sql("SELECT status FROM system.backups ORDER BY started_at")] == [
        "complete", "failed", "failed", "failed",
    ]  # fmt: skip
    assert backup_lake.sql("SELECT count(*) FROM lakefork.snapshot_tag") == [(0,)]
