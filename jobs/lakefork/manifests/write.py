"""Builds manifests from the catalog and writes them, in tasks or, if there are few, in the driver."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.roots import installation_id, known_files
from lakefork.errors import StorageError
from lakefork.garbage import garbage_collection_paused
from lakefork.manifests.format import Manifest, RecordedDirectory, build_manifest
from lakefork.queries import load
from lakefork.storage import StorageOptions, replace_file, write_files
from lakefork.storage.installation import Installation
from lakefork.storage.markers import RootOwner, claim_once


@dataclass(frozen=True)
class PendingManifests:
    """Some directories of one table; user '' for a shared one."""

    job_id: str  # of the writer
    catalog_id: int
    table_id: int
    root: str
    users: tuple[str, ...]
    directories: tuple[str, ...]
    run_ids: tuple[str, ...]  # the publisher of what they lack
    per_user: bool


@garbage_collection_paused()
def write_manifests(installation: Installation, pending: PendingManifests) -> str | None:
    """Replaces each file atomically; after a crash the rest stays pending. Returns the error of storage, if any.

    Nothing is replaced outside our own roots.
    """
    try:
        _write(installation, pending)
    except (OSError, StorageError) as error:
        return f"a manifest below {pending.directories[0]} cannot be written: {str(error).splitlines()[0]}"
    return None


def _write(installation: Installation, pending: PendingManifests) -> None:
    storage = installation.storage
    sql = load(__package__)
    owner = {"catalog_id": pending.catalog_id, "table_id": pending.table_id}
    with psycopg.connect(installation.dsn, autocommit=True, row_factory=dict_row) as connection:
        found = connection.execute(
            sql["manifest_batches"], {**owner, "users": list(pending.users), "per_user": pending.per_user}
        )
        manifests = dict(_build(pending, found))
        _claim(connection, storage, pending)
        write_files(
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
    """Builds one manifest per user, also where the catalog has no batch."""
    rows = {row["user_id"]: row for row in found}
    for user, directory in zip(pending.users, pending.directories, strict=True):
        row = rows.get(user, {"snapshot_id": 0, "batches": []})
        owner = user if pending.per_user else None
        recorded = RecordedDirectory(directory, pending.table_id, owner, row["snapshot_id"], row["batches"])
        yield user, build_manifest(recorded)
