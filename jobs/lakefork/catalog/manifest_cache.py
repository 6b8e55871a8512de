"""The table of cached manifests: which entries are not needed any more."""

from lakefork.catalog.connection import Connection
from lakefork.queries import load
from lakefork.settings import ManifestCacheSettings

_SQL = load(__package__)


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
