"""What tasks, or the driver where there are few, do about manifests: build them from the catalog, and write them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.roots import installation_id, known_files
from lakefork.cold.manifest import Manifest, RecordedDirectory, build_manifest
from lakefork.errors import StorageError
from lakefork.queries import load
from lakefork.spark.garbage import without_garbage_collection
from lakefork.storage import StorageOptions, replace_file, write_each
from lakefork.storage.markers import RootOwner, claim_once


@dataclass(frozen=True)
class PendingManifests:
    """Some directories of one table; users are '' for a shared one."""

    job_id: str  # of whoever writes them
    catalog_id: int
    table_id: int
    root: str
    users: tuple[str, ...]
    directories: tuple[str, ...]
    run_ids: tuple[str, ...]  # who published what they lack
    per_user: bool


@without_garbage_collection()
def write_manifests(dsn: str, storage: StorageOptions, pending: PendingManifests) -> str | None:
    """Replaces each file atomically; a crash leaves the rest pending. Returns what went wrong, if the storage did.

    Nothing is replaced outside of roots that are ours.
    """
    try:
        _write(dsn, storage, pending)
    except (OSError, StorageError) as error:
        return f"a manifest below {pending.directories[0]} cannot be written: {str(error).splitlines()[0]}"
    return None


def _write(dsn: str, storage: StorageOptions, pending: PendingManifests) -> None:
    sql = load("lakefork.catalog")
    owner = {"catalog_id": pending.catalog_id, "table_id": pending.table_id}
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        found = connection.execute(
            sql["manifest_batches"], {**owner, "users": list(pending.users), "per_user": pending.per_user}
        )
        manifests = dict(_build(pending, found))
        _claim(connection, storage, pending)
        write_each(
            [(one.path, one.content.encode()) for one in manifests.values()],
            lambda path, content: replace_file(path, content, storage),
        )
        directory_of = dict(zip(pending.users, pending.directories, strict=True))
        run_of = dict(zip(pending.users, pending.run_ids, strict=True))
        connection.execute(
            sql["cache_manifests"],
            {
                **owner, "users": list(manifests), "directories": [directory_of[user] for user in manifests],
                "run_ids": [run_of[user] for user in manifests],
                "contents": [one.content for one in manifests.values()],
                "etags": [one.etag for one in manifests.values()],
            },
        )  # fmt: skip


def _claim(connection: Any, storage: StorageOptions, pending: PendingManifests) -> None:
    owner = RootOwner(installation_id(connection), pending.catalog_id, pending.table_id)
    claim_once(pending.job_id, pending.root, owner, storage, lambda: known_files(connection, pending.root))


def _build(pending: PendingManifests, found: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Manifest]]:
    """One per user, also where the catalog has no batch (any more)."""
    rows = {row["user_id"]: row for row in found}
    for user, directory in zip(pending.users, pending.directories, strict=True):
        row = rows.get(user, {"snapshot_id": 0, "batches": []})
        owner = user if pending.per_user else None
        recorded = RecordedDirectory(directory, pending.table_id, owner, row["snapshot_id"], row["batches"])
        yield user, build_manifest(recorded)
