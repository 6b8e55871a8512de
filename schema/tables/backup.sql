-- Backups: what was made where, and what backups and restores remember while they work.

-- Every backup that was begun.
CREATE TABLE lakefork.backup (
    backup_id    VARCHAR PRIMARY KEY,
    catalog_id   BIGINT NOT NULL,
    catalog_name VARCHAR NOT NULL,
    namespace    VARCHAR,                -- NULL: all of the catalog
    place        VARCHAR NOT NULL,       -- the directory or S3 prefix that holds it, perhaps beside others
    job_id       VARCHAR NOT NULL,
    run_id       VARCHAR NOT NULL,
    started_at   TIMESTAMPTZ NOT NULL,
    status       VARCHAR NOT NULL,       -- running, complete, failed or removed
    finished_at  TIMESTAMPTZ,
    error        VARCHAR,
    taken_at     TIMESTAMPTZ,            -- the moment that it holds
    snapshot_id  BIGINT,                 -- the newest snapshot then
    base_id      VARCHAR,                -- an earlier backup whose files it relies on
    table_count  BIGINT,
    file_count   BIGINT,
    row_count    BIGINT,
    size_bytes   BIGINT,                 -- of all that a restore needs
    copied_files BIGINT,
    copied_bytes BIGINT,                 -- of what this backup added to its place
    removed_at   TIMESTAMPTZ,
    verified_at  TIMESTAMPTZ,
    verified_percent DOUBLE PRECISION,   -- of the files whose content was read then
    problem_count    BIGINT,             -- that were found then
    CONSTRAINT backup_status CHECK (status IN ('running', 'complete', 'failed', 'removed'))
);
CREATE INDEX backup_place ON lakefork.backup (place, started_at);
CREATE INDEX backup_running ON lakefork.backup (backup_id) WHERE status = 'running';

-- The SHA-256 of data files, once it was computed: an unchanged file is not read again.
CREATE TABLE lakefork.file_digest (
    data_file_id BIGINT PRIMARY KEY,
    digest       VARCHAR NOT NULL,
    size_bytes   BIGINT NOT NULL
);

-- Files that a restore has staged or will stage. They are published by its commit, or removed by the next restore.
CREATE TABLE lakefork.restore_file (
    job_id          VARCHAR NOT NULL,
    file_number     BIGINT NOT NULL,
    table_ref       BIGINT NOT NULL,     -- the placeholder of the table's id in the commit
    source_file_id  BIGINT,              -- the file's id where the backup was made; NULL: it holds rows that were hot
    path            VARCHAR,             -- below the table's path; NULL: the file is shared and stays where it is
    full_path       VARCHAR,
    user_id         VARCHAR,
    record_count    BIGINT NOT NULL,
    file_size_bytes BIGINT NOT NULL,
    footer_size     BIGINT,
    order_rank      BIGINT NOT NULL,     -- which place its commit has among all commits of the backup
    statistics      VARCHAR NOT NULL,
    digest          VARCHAR NOT NULL,
    PRIMARY KEY (job_id, file_number)
);

-- Jobs that somebody asked for by a statement and that have not begun.
CREATE TABLE lakefork.job_request (
    request_id   VARCHAR PRIMARY KEY,
    job          VARCHAR NOT NULL,
    catalog_name VARCHAR NOT NULL,
    params       JSONB NOT NULL,
    requested_at TIMESTAMPTZ NOT NULL,
    requested_by VARCHAR
);
