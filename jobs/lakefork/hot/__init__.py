"""The hot store: rows as they are written, every change a new version, in typed Postgres tables."""
