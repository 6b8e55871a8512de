"""retention_gc: expires snapshots and removes what only they needed."""
