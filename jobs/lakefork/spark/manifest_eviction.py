"""Runs manifest_eviction."""

from typing import Any

from lakefork.catalog.manifest_cache import evict
from lakefork.params import ManifestEvictionParams
from lakefork.spark.job import JobContext

REASONS = {"dropped": "of dropped tables", "unused": "that nobody used", "beyond_limit": "beyond max_entries"}


def run_manifest_eviction(context: JobContext, params: ManifestEvictionParams) -> dict[str, Any]:  # noqa: ARG001
    """Removes rows of the cache only; what is still needed is read from storage again."""
    context.check_leases()
    evicted = evict(context.connection, context.settings.manifest_cache)
    for reason, entries in evicted.items():
        context.progress(f"{entries:,} manifest(s) {REASONS[reason]} left the cache")
    row = context.connection.execute("SELECT count(*) AS entries FROM lakefork.manifest_cache").fetchone() or {}
    return {"entries_evicted": sum(evicted.values()), "entries_left": row["entries"]}
