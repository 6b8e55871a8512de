"""catalog_fsck: checks the invariants of the catalog, and that every file exists as recorded."""
