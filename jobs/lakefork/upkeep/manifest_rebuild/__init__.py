"""manifest_rebuild: compares manifests with footers and the catalog, and rewrites those that differ."""
