"""What is at a place before a backup, and which of it an incremental one can rely on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lakefork.backups.format import BackupManifest, DamagedBackupError, Stored
from lakefork.backups.place import Listing, Place, names_of
from lakefork.catalog.backups import complete_backups, known_problems
from lakefork.spark.job import JobContext
from lakefork.transfer.backup.verify import check_content


@dataclass(frozen=True)
class Wanted:
    """subject: what is backed up, as manifests name it; name: as people call it."""

    subject: tuple[str, str, str | None]
    incremental: bool
    name: str


@dataclass
class Before:
    """What was at the place before. base: the newest backup of the same thing, if this one is to rely on it.

    reliable: digest and size of files that need not be written again.
    """

    listing: Listing
    manifests: list[BackupManifest]
    damaged: list[DamagedBackupError]
    base: BackupManifest | None = None
    reliable: dict[str, int] = field(default_factory=dict)


def look_at_place(context: JobContext, place: Place, name: str, wanted: Wanted) -> Before:
    """Raises if an incremental backup would rely on what is not whole. name: of the place, without credentials."""
    listing = place.listing()
    before = Before(listing, *place.read_manifests(listing.manifests))
    if wanted.incremental:
        before.base = _base(context, name, before, wanted)
        before.reliable = _reliable(context, place, before)
    return before


def _base(context: JobContext, name: str, before: Before, wanted: Wanted) -> BackupManifest | None:
    _, catalog, namespace = wanted.subject
    known = complete_backups(context.connection, name, catalog, namespace)
    mine = [one for one in before.manifests if one.subject == wanted.subject]
    if known and known[-1] not in [one.backup_id for one in mine]:
        raise _not_a_base(f"backup {known[-1]} is gone from {name}", before.damaged)
    if not mine:
        if before.damaged:
            raise _not_a_base(f"a backup at {name} is damaged", before.damaged)
        context.progress(f"{name} has no backup of {wanted.name} yet: all files are copied")
        return None
    base = mine[-1]
    if problems := known_problems(context.connection, base.backup_id):
        raise _not_a_base(f"verify found {problems:,} problem(s) in backup {base.backup_id}", [])
    return base


def _reliable(context: JobContext, place: Place, before: Before) -> dict[str, int]:
    """Files of complete backups that are there with their sizes; those that changed since are read."""
    lists: dict[str, dict[str, Stored]] = {}
    of_base = _files_of_base(place, before, lists)
    found = dict(of_base)
    for manifest in before.manifests:
        if manifest is not before.base:
            found |= _files_of_other(context, place, manifest, lists)
    unwrap = {one.digest: one for one in found.values() if before.listing.has(one)}
    changed = [one for one in unwrap.values() if _is_newer(before.listing, one)]
    wrong = {problem.digest for problem in check_content(place, changed)}
    if damaged := wrong & of_base.keys():
        raise _not_a_base(f"{len(damaged):,} file(s) of backup {_id_of(before.base)} changed", sorted(damaged))
    return {one.digest: one.size for one in unwrap.values() if one.digest not in wrong}


def _files_of_base(place: Place, before: Before, lists: dict[str, dict[str, Stored]]) -> dict[str, Stored]:
    if before.base is None:
        return {}
    try:
        found = place.files_of(before.base, lists)
    except DamagedBackupError as error:
        raise _not_a_base(f"a file of backup {before.base.backup_id} is damaged", [error]) from None
    if missing := [one.digest for one in found.values() if not before.listing.has(one)]:
        raise _not_a_base(
            f"{len(missing):,} file(s) of backup {before.base.backup_id} are missing or have another size", missing
        )
    return found


def _files_of_other(
    context: JobContext, place: Place, manifest: BackupManifest, lists: dict[str, dict[str, Stored]]
) -> dict[str, Stored]:
    try:
        return place.files_of(manifest, lists)
    except DamagedBackupError as error:
        context.progress(f"backup {manifest.backup_id} is damaged, and not relied on: {error}")
        return {}


def _is_newer(listing: Listing, file: Stored) -> bool:
    """Than all manifests: nobody finished a backup since it was written."""
    return listing.changed_at is None or listing.files[file.digest].modified >= listing.changed_at


def _id_of(manifest: BackupManifest | None) -> str:
    return manifest.backup_id if manifest else "?"


def _not_a_base(what: str, details: Sequence[object]) -> DamagedBackupError:
    more = f" ({names_of(details)})" if details else ""
    return DamagedBackupError(
        f"{what}{more}: an incremental backup would rely on it; make a full one (without incremental) first"
    )
