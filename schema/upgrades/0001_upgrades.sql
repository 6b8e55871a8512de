-- Keep which of these scripts a database has had.
CREATE TABLE lakefork.schema_upgrade (
    name             VARCHAR PRIMARY KEY,
    applied_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    lakefork_version VARCHAR NOT NULL
);
