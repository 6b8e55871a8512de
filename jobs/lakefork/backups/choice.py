"""Which of the backups at a place are meant."""

from dataclasses import dataclass

from lakefork.backups.format import BackupManifest
from lakefork.backups.place import Place, names_of
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.model.tables import fold


@dataclass(frozen=True)
class Owner:
    """Whose backups may be read: a place can hold those of other catalogs, and of other installations."""

    installation: str
    catalog: str
    begin_snapshot: int  # an earlier catalog may have had its name

    def has(self, manifest: BackupManifest) -> bool:
        is_same_name = (manifest.installation, manifest.catalog) == (self.installation, self.catalog)
        return is_same_name and manifest.snapshot_id >= self.begin_snapshot


def read_backup(place: Place, backup_id: str, owner: Owner | None = None) -> BackupManifest:
    manifest = place.read_manifest(backup_id)
    if owner and not owner.has(manifest):
        raise NotFoundError(f"there is no backup {backup_id} of catalog {owner.catalog} at {place.path}")
    return manifest


def find_backups(place: Place, owner: Owner | None = None) -> list[BackupManifest]:
    """Returns those that can be read, the newest last; raises if there is none."""
    manifests, damaged = place.read_manifests(place.listing().manifests)
    if owner:
        manifests, damaged = [one for one in manifests if owner.has(one)], []
    if not manifests:
        why = f": {names_of(damaged)}" if damaged else ""
        whose = f" of catalog {owner.catalog}" if owner else ""
        raise NotFoundError(f"there is no backup{whose} at {place.path}{why}")
    return manifests


def choose_backup(
    place: Place, backup_id: str | None, namespace: str | None, owner: Owner | None = None
) -> BackupManifest:
    """Returns the one that is named, or the newest; of several things at one place the one that is called so."""
    if backup_id is not None:
        return read_backup(place, backup_id, owner)
    manifests = find_backups(place, owner)
    subjects = {one.subject for one in manifests}
    if len(subjects) > 1:
        wanted = [one for one in manifests if namespace and fold(namespace) == fold(one.namespace or "")]
        if len({one.subject for one in wanted}) != 1:
            listed = ", ".join(sorted({str(one) for one in manifests}))
            raise InvalidInputError(
                f"{place.path} holds backups of {listed}: name one of them, {place.path}/backups/ID"
            )
        manifests = wanted
    return manifests[-1]
