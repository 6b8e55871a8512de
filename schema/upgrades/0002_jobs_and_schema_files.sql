-- Keep what jobs published, table by table and user by user, and which schema files are to be written. Schema files
-- that are to be written or removed: noted before a change is committed, and until its files are there. Names folded;
-- table '': all of the namespace.
CREATE TABLE lakefork.schema_pending (
    catalog_id BIGINT NOT NULL,
    namespace  VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    noted_at   TIMESTAMPTZ NOT NULL,
    problem    VARCHAR,
    PRIMARY KEY (catalog_id, namespace, table_name)
);

-- What a run published, table by table, as they were called then; in the transaction that published it.
CREATE TABLE lakefork.job_table (
    job_id     VARCHAR NOT NULL REFERENCES lakefork.job_run ON UPDATE CASCADE ON DELETE CASCADE,
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    namespace  VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    counts     JSONB NOT NULL,
    PRIMARY KEY (job_id, catalog_id, table_id)
);

-- Whose rows that were.
CREATE TABLE lakefork.job_user (
    job_id     VARCHAR NOT NULL,
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    PRIMARY KEY (job_id, catalog_id, table_id, user_id),
    FOREIGN KEY (job_id, catalog_id, table_id) REFERENCES lakefork.job_table ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE INDEX job_table_catalog ON lakefork.job_table (catalog_id);
CREATE INDEX job_user_user ON lakefork.job_user (catalog_id, user_id);
