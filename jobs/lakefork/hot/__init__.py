"""The hot store: typed Postgres tables to which every change appends a new version of a row."""
