"""snapshot_dedup: merges batches into a few sorted ones with one version per key."""
