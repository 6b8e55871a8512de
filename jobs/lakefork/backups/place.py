"""A place of backups: a directory or S3 prefix that belongs to one installation, and what lies there."""

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

from lakefork.backups.format import (
    MANIFEST,
    MARKER,
    BackupManifest,
    DamagedBackupError,
    Stored,
    file_path,
    is_digest,
    is_leftover,
    manifest_bytes,
    manifest_path,
    parse_list,
    parse_manifest,
)
from lakefork.errors import ForeignFilesError, NotFoundError, StorageError, os_reason
from lakefork.storage import StorageOptions, make_durable, open_path, read_file, replace_file
from lakefork.storage.copying import content_of
from lakefork.storage.creation import create_file
from lakefork.storage.listing import StoredFile, list_tree

READ_AT_ONCE = 16


@dataclass(frozen=True)
class Listing:
    """What lies at a place. leftovers: what writers that died left; changed_at: when the last manifest was written."""

    files: dict[str, StoredFile]
    manifests: dict[str, StoredFile]
    leftovers: list[StoredFile]

    @property
    def changed_at(self) -> datetime.datetime | None:
        return max((one.modified for one in self.manifests.values()), default=None)

    def has(self, wanted: Stored) -> bool:
        found = self.files.get(wanted.digest)
        return found is not None and found.size_bytes == wanted.size


@dataclass(frozen=True)
class Place:
    """path: absolute or s3://, with the name of credentials if it needs some."""

    path: str
    storage: StorageOptions

    def claim(self, installation: str) -> Stored:
        """Makes an empty directory ours; raises unless it is, or becomes, that of this installation."""
        content = _marker_of(installation)
        marker = f"{self.path}/{MARKER}"
        found = read_file(marker, self.storage)
        if found is None:
            if first := self._first_file():
                raise ForeignFilesError(
                    f"{self.path} holds files that are no backups ({first}): give an empty directory, or another one"
                )
            try:
                create_file(marker, content, self.storage)
                found = content
            except FileExistsError:
                found = read_file(marker, self.storage)
        if found != content:
            raise ForeignFilesError(
                f"{self.path} holds backups of another installation, or {MARKER} there is damaged: "
                "give another directory"
            )
        return self.marker()

    def marker(self) -> Stored:
        content = content_of(read_file(f"{self.path}/{MARKER}", self.storage) or b"")
        return Stored(digest=content.digest, size=content.size)

    def require_marker(self, manifest: BackupManifest) -> None:
        """Raises where it is not what it was when the backup was made."""
        if self.marker() != manifest.marker:
            raise DamagedBackupError(
                f"{self.path}/{MARKER} is missing or damaged: it must hold "
                f"{_marker_of(manifest.installation).decode()} and nothing else"
            )

    def _first_file(self) -> str | None:
        try:
            files = list_tree(self.path, self.storage)
            return next((one.path for one in files if not PurePosixPath(one.path).name.startswith(f".{MARKER}.")), None)
        except FileNotFoundError:
            return None

    def make_directories(self) -> None:
        """All that files can go to, so that nobody who writes one has to look; S3 has none."""
        filesystem, inner = open_path(self.path, self.storage)
        if not self.path.startswith("s3://"):
            for number in range(256):
                filesystem.create_dir(f"{inner}/files/{number:02x}", recursive=True)

    def listing(self) -> Listing:
        found = Listing({}, {}, [])
        try:
            for one in list_tree(self.path, self.storage):
                *_, above, name = one.path.split("/")
                if is_digest(name) and name[:2] == above:
                    found.files[name] = one
                elif name == MANIFEST:
                    found.manifests[above] = one
                elif is_leftover(name):
                    found.leftovers.append(one)
        except FileNotFoundError:
            pass
        return found

    def read_manifest(self, backup_id: str) -> BackupManifest:
        path = manifest_path(self.path, backup_id)
        content = read_file(path, self.storage)
        if content is None:
            raise NotFoundError(f"there is no backup {backup_id} at {self.path}: it has no {MANIFEST}")
        return parse_manifest(content, path)

    def read_manifests(self, backup_ids: Iterable[str]) -> tuple[list[BackupManifest], list[DamagedBackupError]]:
        """The newest last, and what is wrong with those that cannot be read."""

        def read(backup_id: str) -> BackupManifest | DamagedBackupError:
            try:
                return self.read_manifest(backup_id)
            except (DamagedBackupError, NotFoundError) as error:
                return DamagedBackupError(str(error))

        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            found = list(pool.map(read, backup_ids))
        good = [one for one in found if isinstance(one, BackupManifest)]
        bad = [one for one in found if isinstance(one, DamagedBackupError)]
        return sorted(good, key=lambda one: (one.taken_at, one.backup_id)), bad

    def read_part(self, part: Stored) -> bytes:
        """A file of a backup that says what belongs to it; raises if it is not what was written."""
        path = file_path(self.path, part.digest)
        content = read_file(path, self.storage)
        if content is None:
            raise DamagedBackupError(f"{path} is missing")
        if content_of(content).digest != part.digest:
            raise DamagedBackupError(f"{path} is damaged: it is not what was written")
        return content

    def files_of(
        self, manifest: BackupManifest, known: dict[str, dict[str, Stored]] | None = None
    ) -> dict[str, Stored]:
        """All that a backup needs, its own parts included, by digest. known: lists that were read before."""
        known = {} if known is None else known
        lists = [table.batches for table in manifest.tables if table.batches]
        new = [one for one in lists if one.digest not in known]
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            known |= zip((one.digest for one in new), pool.map(self._read_list, new), strict=True)
        wanted = {one.digest: one for one in manifest.parts}
        for one in lists:
            wanted |= known[one.digest]
        return wanted

    def _read_list(self, part: Stored) -> dict[str, Stored]:
        batches = parse_list(self.read_part(part))
        columns = (batches[name].to_pylist() for name in ("digest", "file_size_bytes"))
        rows = zip(*columns, strict=True)
        return {digest: Stored.model_construct(digest=digest, size=size) for digest, size in rows}

    def put(self, content: bytes, reliable: Mapping[str, int]) -> Stored:
        """reliable: what is there already, and not written again."""
        found = content_of(content)
        if reliable.get(found.digest) == found.size:
            return Stored(digest=found.digest, size=found.size)
        replace_file(file_path(self.path, found.digest), content, self.storage)
        return Stored(digest=found.digest, size=found.size)

    def publish(self, manifest: BackupManifest) -> int:
        """The last step; returns the size of the manifest."""
        content = manifest_bytes(manifest)
        try:
            make_durable(self.path)
            create_file(manifest_path(self.path, manifest.backup_id), content, self.storage)
            make_durable(self.path)
        except OSError as error:
            raise StorageError(f"the backup cannot be finished: {os_reason(error)}") from error
        return len(content)


def _marker_of(installation: str) -> bytes:
    return json.dumps({"format": 1, "installation": installation}).encode()


def names_of(problems: Sequence[object], most: int = 3) -> str:
    """Some of them, for a sentence."""
    more = f" and {len(problems) - most:,} more" if len(problems) > most else ""
    return "; ".join(map(str, problems[:most])) + more
