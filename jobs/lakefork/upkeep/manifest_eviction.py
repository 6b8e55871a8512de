"""Runs manifest_eviction."""

from typing import Any

from lakefork.manifests.cache_table import evict
from lakefork.model.params import ManifestEvictionParams
from lakefork.spark.job import JobContext

REASONS = {"dropped": "of dropped tables", "unused": "unused for a while", "beyond_limit": "beyond max_entries"}


def run_manifest_eviction(context: JobContext, params: ManifestEvictionParams) -> dict[str, Any]:  # noqa: ARG001
    """Evicts entries of the cache; manifests that are needed later are read from storage again."""
    context.check_leases()
    evicted = evict(context.connection, context.settings.manifest_cache)
    for reason, entries in evicted.items():
        context.progress(f"{entries:,} manifest(s) evicted: {REASONS[reason]}")
    row = context.connection.execute("SELECT count(*) AS entries FROM lakefork.manifest_cache").fetchone() or {}
    return {"entries_evicted": sum(evicted.values()), "entries_left": row["entries"]}
