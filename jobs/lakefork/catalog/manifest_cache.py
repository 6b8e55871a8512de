"""The table of cached manifests: its entries, and which of them are not needed any more."""

from dataclasses import dataclass

from lakefork.catalog.connection import Connection
from lakefork.queries import load
from lakefork.settings import ManifestCacheSettings

_SQL = load(__package__)
REQUESTED = "requested"  # who wants the manifest written, where no run published anything


@dataclass(frozen=True)
class CachedManifest:
    """age_seconds: since it was last known to be the same as in storage, by the clock of Postgres."""

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
    """It is the same as in storage now; unless somebody else has put in another one since it was seen."""
    new = {"directory": directory, "content": content, "etag": etag, "seen": seen.etag if seen else None}
    connection.execute(_SQL["refresh_cached_manifest"], {**_owner(key), **new})


def mark_cached(connection: Connection, key: tuple[int, int, str], state: str, *, seen: CachedManifest) -> None:
    connection.execute(_SQL["mark_cached_manifest"], {**_owner(key), "state": state, "seen": seen.etag})


def request_manifest(connection: Connection, key: tuple[int, int, str], directory: str) -> None:
    """The next flush of anything, or manifest_rebuild, writes it."""
    catalog_id, table_id, user_id = key
    connection.execute(
        _SQL["request_manifests"],
        {
            "catalog_id": catalog_id, "table_id": table_id, "users": [user_id], "directories": [directory],
            "run_id": REQUESTED,
        },
    )  # fmt: skip


def _owner(key: tuple[int, int, str]) -> dict[str, int | str]:
    return dict(zip(("catalog_id", "table_id", "user_id"), key, strict=True))


def count_evictable(connection: Connection, settings: ManifestCacheSettings) -> int:
    row = connection.execute(_SQL["evictable_manifests"], _limits(settings)).fetchone()
    assert row is not None  # noqa: S101 - an aggregate always returns a row
    return int(row["entries"])


def evict(connection: Connection, settings: ManifestCacheSettings) -> dict[str, int]:
    """How many entries went, by reason. Only the cache: manifests themselves stay where they are."""
    return {row["reason"]: row["entries"] for row in connection.execute(_SQL["evict_manifests"], _limits(settings))}


def _limits(settings: ManifestCacheSettings) -> dict[str, int]:
    unused = settings.ttl_seconds + settings.last_accessed_memory_window
    return {"unused_seconds": unused, "max_entries": settings.max_entries}
