"""Removes old backups, and files at a place that no backup needs.

What guards it: the place is ours by its marker and by the lease; all manifests there can be read; the manifest of a
backup goes before its files, so that what is left is never taken for a backup; a file that any backup needs stays; what
goes is planned, and written into the ledger (system.deletions) before it goes. In doubt nothing is removed.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from lakefork.backups.format import BackupManifest, DamagedBackupError, Stored, split_place
from lakefork.backups.place import Listing, Place
from lakefork.catalog.backups import backups_being_restored, note_removed, open_removals, record_removals, save_plan
from lakefork.errors import StorageError
from lakefork.removal.ledger import FileOutcome, finish_deletions
from lakefork.spark.job import JobContext
from lakefork.storage.paths import place as place_of
from lakefork.storage.removal import remove_empty_directories, remove_many
from lakefork.transfer.backup.plan import unneeded

FILES_AT_ONCE = 5_000


def finish_removals(context: JobContext, place: Place) -> None:
    """What a run before wrote down and was cut off before it removed; before anything new is written there."""
    if left := open_removals(context.connection, place_of(place.path)):
        context.progress(f"{len(left):,} file(s) that an earlier run did not come to remove")
        _remove(context, place, left)
        named = [split_place(path) for path in left.values()]
        _note_gone(context, place, [backup_id for _, backup_id in named if backup_id is not None])


def remove_unneeded(context: JobContext, place: Place, newest: BackupManifest, going: Sequence[str]) -> dict[str, Any]:
    """going: backups to remove; those that are being restored stay until the next time."""
    listing = place.listing()
    in_use = backups_being_restored(context.connection, place_of(place.path))
    going = [one for one in going if one not in in_use and one != newest.backup_id]
    try:
        needed = _needed(place, listing, going, newest)
    except DamagedBackupError as error:
        context.progress(f"nothing is removed, as not all backups can be read; remove this one by hand: {error}")
        return {"backups_removed": 0, "files_deleted": 0, "bytes_freed": 0}
    free = [listing.files[digest] for digest in unneeded(listing.files, needed)] + listing.leftovers
    if not going and not free:
        return {"backups_removed": 0, "files_deleted": 0, "bytes_freed": 0}
    gone = [listing.manifests[one] for one in going]
    plan_id = f"backup_{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{uuid.uuid4().hex[:6]}"
    save_plan(
        context.connection, plan_id, context.run.run_id,
        {"place": place_of(place.path), "backups": list(going), "files": len(free)},
    )  # fmt: skip
    for files, reason in ((gone, "an old backup"), (free, "no backup needs it")):
        for start in range(0, len(files), FILES_AT_ONCE):
            some = [(one.path, one.size_bytes) for one in files[start : start + FILES_AT_ONCE]]
            context.check_leases()
            run = context.run.run_id, context.run.job_id, plan_id
            _remove(context, place, record_removals(context.connection, run, newest.catalog, some, reason))
        if files is gone:
            _note_gone(context, place, going)
    context.progress(f"{len(going):,} old backup(s) and {len(free):,} file(s) that no backup needs were removed")
    return {
        "backups_removed": len(going),
        "files_deleted": len(free) + len(gone),
        "bytes_freed": sum(one.size_bytes for one in free + gone),
    }


def _note_gone(context: JobContext, place: Place, backup_ids: Sequence[str]) -> None:
    """Their manifests are gone."""
    note_removed(context.connection, backup_ids)
    for backup_id in backup_ids:
        remove_empty_directories([], f"{place.path}/backups/{backup_id}")


def _needed(place: Place, listing: Listing, going: Sequence[str], newest: BackupManifest) -> set[str]:
    """Files of all backups that stay; raises if one of them does not tell."""
    manifests, damaged = place.read_manifests(listing.manifests)
    if damaged:
        raise damaged[0]
    if newest.backup_id not in [one.backup_id for one in manifests]:
        raise DamagedBackupError(f"backup {newest.backup_id} was removed in the meantime")
    lists: dict[str, dict[str, Stored]] = {}
    return {digest for one in manifests if one.backup_id not in going for digest in place.files_of(one, lists)}


def _remove(context: JobContext, place: Place, files: dict[int, str]) -> None:
    """files: paths as others compare them, by the number of their entry in the ledger."""
    above, named = place_of(place.path), place.path
    outside = [path for path in files.values() if not path.startswith(f"{above}/")]
    if outside:
        raise StorageError(f"{outside[0]} does not lie at {above}: nothing was removed")
    numbers = {f"{named}{path.removeprefix(above)}": number for number, path in files.items()}
    outcomes = remove_many(list(numbers), place.storage)
    finish_deletions(context.connection, {numbers[one.path]: FileOutcome(one.path, one.outcome) for one in outcomes})
    if problems := [f"{one.path}: {one.outcome}" for one in outcomes if not one.ok]:
        raise StorageError(f"{len(problems):,} file(s) cannot be removed, the next run tries again: {problems[0]}")
