"""The table of cached manifests: reads, refreshes and evicts entries."""

from collections.abc import Mapping
from dataclasses import dataclass

from lakefork.catalog.connection import Connection
from lakefork.model.tables import TableRef
from lakefork.queries import load
from lakefork.settings import ManifestCacheSettings

_SQL = load(__package__)
REQUESTED = "requested"  # the requester of a manifest that no run published


@dataclass(frozen=True)
class CachedManifest:
    """A cached manifest. age_seconds: time since it was last equal to storage, by the clock of Postgres."""

    content: str
    etag: str
    sync_state: str
    age_seconds: float


def find_cached(connection: Connection, catalog_id: int, table_id: int, user_id: str) -> CachedManifest | None:
    row = connection.execute(_SQL["cached_manifest"], _owner((catalog_id, table_id, user_id))).fetchone()
    return CachedManifest(**row) if row else None


def refresh_cached(
    connection: Connection,
    key: tuple[int, int, str],
    directory: str,
    content: str,
    etag: str,
    *,
    seen: CachedManifest | None,
) -> None:
    """Marks an entry as equal to storage, unless another process has replaced it since it was read."""
    new = {"directory": directory, "content": content, "etag": etag, "seen": seen.etag if seen else None}
    connection.execute(_SQL["refresh_cached_manifest"], {**_owner(key), **new})


def mark_cached(connection: Connection, key: tuple[int, int, str], state: str, *, seen: CachedManifest) -> None:
    connection.execute(_SQL["mark_cached_manifest"], {**_owner(key), "state": state, "seen": seen.etag})


def request_manifests(
    connection: Connection, table: TableRef, directories: Mapping[str, str], run_id: str = REQUESTED
) -> None:
    """The next flush of anything, or manifest_rebuild, writes them. directories: by owner."""
    wanted = {"users": list(directories), "directories": list(directories.values()), "run_id": run_id}
    connection.execute(_SQL["request_manifests"], {**table._asdict(), **wanted})


def _owner(key: tuple[int, int, str]) -> dict[str, int | str]:
    return dict(zip(("catalog_id", "table_id", "user_id"), key, strict=True))


def count_evictable(connection: Connection, settings: ManifestCacheSettings) -> int:
    row = connection.execute(_SQL["evictable_manifests"], _limits(settings)).fetchone()
    assert row is not None  # noqa: S101 - an aggregate always returns a row
    return int(row["entries"])


def evict(connection: Connection, settings: ManifestCacheSettings) -> dict[str, int]:
    """Evicts entries of the cache and returns their number by reason. Manifests in storage stay."""
    return {row["reason"]: row["entries"] for row in connection.execute(_SQL["evict_manifests"], _limits(settings))}


def _limits(settings: ManifestCacheSettings) -> dict[str, int]:
    unused = settings.ttl_seconds + settings.last_accessed_memory_window
    return {"unused_seconds": unused, "max_entries": settings.max_entries}
