"""The reading core: selects the batches that may hold the requested rows, and the newest version of each key."""
