-- The Lakefork catalog for DuckDB: the same tables as schema/postgresql.sql, for `lakefork dump` and for analysis.
CREATE SCHEMA lakefork;

CREATE TABLE ducklake_metadata (
    key      VARCHAR NOT NULL,
    value    VARCHAR NOT NULL,
    scope    VARCHAR,
    scope_id BIGINT
);

-- One row per commit of any catalog; the counters of the newest row give the next ids.
CREATE TABLE ducklake_snapshot (
    snapshot_id     BIGINT PRIMARY KEY,
    snapshot_time   TIMESTAMPTZ,
    schema_version  BIGINT,
    next_catalog_id BIGINT,
    next_file_id    BIGINT
);

-- catalog_id: the catalog that made the commit.
CREATE TABLE ducklake_snapshot_changes (
    snapshot_id       BIGINT PRIMARY KEY,
    catalog_id        BIGINT NOT NULL,
    changes_made      VARCHAR,
    author            VARCHAR,
    commit_message    VARCHAR,
    commit_extra_info VARCHAR
);

CREATE TABLE ducklake_catalog (
    catalog_id     BIGINT,
    catalog_uuid   UUID NOT NULL DEFAULT uuid(),
    catalog_name   VARCHAR NOT NULL,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    PRIMARY KEY (catalog_id, begin_snapshot)
);

CREATE TABLE ducklake_schema (
    catalog_id       BIGINT NOT NULL,
    schema_id        BIGINT NOT NULL,
    schema_uuid      UUID DEFAULT uuid(),
    begin_snapshot   BIGINT,
    end_snapshot     BIGINT,
    schema_name      VARCHAR,
    path             VARCHAR,
    path_is_relative BOOLEAN,
    PRIMARY KEY (catalog_id, schema_id, begin_snapshot)
);

CREATE TABLE ducklake_table (
    catalog_id       BIGINT NOT NULL,
    table_id         BIGINT NOT NULL,
    table_uuid       UUID DEFAULT uuid(),
    begin_snapshot   BIGINT,
    end_snapshot     BIGINT,
    schema_id        BIGINT,
    table_name       VARCHAR,
    path             VARCHAR,
    path_is_relative BOOLEAN,
    PRIMARY KEY (catalog_id, table_id, begin_snapshot)
);

CREATE TABLE ducklake_view (
    catalog_id     BIGINT NOT NULL,
    view_id        BIGINT NOT NULL,
    view_uuid      UUID DEFAULT uuid(),
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    schema_id      BIGINT,
    view_name      VARCHAR,
    dialect        VARCHAR,
    sql            VARCHAR,
    column_aliases VARCHAR,
    PRIMARY KEY (catalog_id, view_id, begin_snapshot)
);

CREATE TABLE ducklake_macro (
    catalog_id     BIGINT NOT NULL,
    schema_id      BIGINT,
    macro_id       BIGINT NOT NULL,
    macro_name     VARCHAR,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    PRIMARY KEY (catalog_id, macro_id, begin_snapshot)
);

CREATE TABLE ducklake_macro_impl (
    catalog_id BIGINT NOT NULL,
    macro_id   BIGINT NOT NULL,
    impl_id    BIGINT NOT NULL,
    dialect    VARCHAR,
    sql        VARCHAR,
    type       VARCHAR,
    PRIMARY KEY (catalog_id, macro_id, impl_id)
);

CREATE TABLE ducklake_macro_parameters (
    catalog_id         BIGINT NOT NULL,
    macro_id           BIGINT NOT NULL,
    impl_id            BIGINT NOT NULL,
    column_id          BIGINT NOT NULL,
    parameter_name     VARCHAR,
    parameter_type     VARCHAR,
    default_value      VARCHAR,
    default_value_type VARCHAR,
    PRIMARY KEY (catalog_id, macro_id, impl_id, column_id)
);

CREATE TABLE ducklake_column (
    catalog_id            BIGINT NOT NULL,
    table_id              BIGINT NOT NULL,
    column_id             BIGINT NOT NULL,
    begin_snapshot        BIGINT,
    end_snapshot          BIGINT,
    column_order          BIGINT,
    column_name           VARCHAR,
    column_type           VARCHAR,
    initial_default       VARCHAR,
    default_value         VARCHAR,
    nulls_allowed         BOOLEAN,
    parent_column         BIGINT,
    default_value_type    VARCHAR,
    default_value_dialect VARCHAR,
    PRIMARY KEY (catalog_id, table_id, column_id, begin_snapshot)
);

CREATE TABLE ducklake_partition_info (
    catalog_id     BIGINT NOT NULL,
    partition_id   BIGINT NOT NULL,
    table_id       BIGINT,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    PRIMARY KEY (catalog_id, partition_id)
);

CREATE TABLE ducklake_partition_column (
    catalog_id          BIGINT NOT NULL,
    partition_id        BIGINT NOT NULL,
    table_id            BIGINT,
    partition_key_index BIGINT NOT NULL,
    column_id           BIGINT,
    transform           VARCHAR,
    PRIMARY KEY (catalog_id, partition_id, partition_key_index)
);

CREATE TABLE ducklake_data_file (
    catalog_id        BIGINT NOT NULL,
    data_file_id      BIGINT NOT NULL,
    table_id          BIGINT,
    begin_snapshot    BIGINT,
    end_snapshot      BIGINT,
    file_order        BIGINT,
    path              VARCHAR,
    path_is_relative  BOOLEAN,
    file_format       VARCHAR,
    record_count      BIGINT,
    file_size_bytes   BIGINT,
    footer_size       BIGINT,
    row_id_start      BIGINT,
    partition_id      BIGINT,
    encryption_key    VARCHAR,
    partial_file_info VARCHAR,
    mapping_id        BIGINT,
    PRIMARY KEY (catalog_id, data_file_id)
);

CREATE TABLE ducklake_delete_file (
    catalog_id        BIGINT NOT NULL,
    delete_file_id    BIGINT NOT NULL,
    table_id          BIGINT,
    begin_snapshot    BIGINT,
    end_snapshot      BIGINT,
    data_file_id      BIGINT,
    path              VARCHAR,
    path_is_relative  BOOLEAN,
    format            VARCHAR,
    delete_count      BIGINT,
    file_size_bytes   BIGINT,
    footer_size       BIGINT,
    encryption_key    VARCHAR,
    PRIMARY KEY (catalog_id, delete_file_id)
);

CREATE TABLE ducklake_file_column_stats (
    catalog_id        BIGINT NOT NULL,
    data_file_id      BIGINT NOT NULL,
    table_id          BIGINT,
    column_id         BIGINT NOT NULL,
    column_size_bytes BIGINT,
    value_count       BIGINT,
    null_count        BIGINT,
    min_value         VARCHAR,
    max_value         VARCHAR,
    contains_nan      BOOLEAN,
    extra_stats       VARCHAR,
    PRIMARY KEY (catalog_id, data_file_id, column_id)
);

CREATE TABLE ducklake_file_partition_value (
    catalog_id          BIGINT NOT NULL,
    data_file_id        BIGINT NOT NULL,
    table_id            BIGINT,
    partition_key_index BIGINT NOT NULL,
    partition_value     VARCHAR,
    PRIMARY KEY (catalog_id, data_file_id, partition_key_index)
);

-- Maintained by the commit function from the files that it adds and ends.
CREATE TABLE ducklake_table_stats (
    catalog_id      BIGINT NOT NULL,
    table_id        BIGINT NOT NULL,
    record_count    BIGINT,
    next_row_id     BIGINT,
    file_size_bytes BIGINT,
    PRIMARY KEY (catalog_id, table_id)
);

-- Stays empty: lakefork.visible_table_column_stats derives the bounds from the files.
CREATE TABLE ducklake_table_column_stats (
    catalog_id    BIGINT NOT NULL,
    table_id      BIGINT NOT NULL,
    column_id     BIGINT NOT NULL,
    contains_null BOOLEAN,
    contains_nan  BOOLEAN,
    min_value     VARCHAR,
    max_value     VARCHAR,
    extra_stats   VARCHAR,
    PRIMARY KEY (catalog_id, table_id, column_id)
);

CREATE TABLE ducklake_column_mapping (
    catalog_id BIGINT NOT NULL,
    mapping_id BIGINT NOT NULL,
    table_id   BIGINT,
    type       VARCHAR,
    PRIMARY KEY (catalog_id, mapping_id)
);

CREATE TABLE ducklake_name_mapping (
    catalog_id      BIGINT NOT NULL,
    mapping_id      BIGINT NOT NULL,
    column_id       BIGINT NOT NULL,
    source_name     VARCHAR,
    target_field_id BIGINT,
    parent_column   BIGINT,
    is_partition    BOOLEAN,
    PRIMARY KEY (catalog_id, mapping_id, column_id)
);

CREATE TABLE ducklake_tag (
    catalog_id     BIGINT NOT NULL,
    object_id      BIGINT NOT NULL,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    key            VARCHAR NOT NULL,
    value          VARCHAR,
    PRIMARY KEY (catalog_id, object_id, key, begin_snapshot)
);

CREATE TABLE ducklake_column_tag (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    column_id      BIGINT NOT NULL,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    key            VARCHAR NOT NULL,
    value          VARCHAR,
    PRIMARY KEY (catalog_id, table_id, column_id, key, begin_snapshot)
);

CREATE TABLE ducklake_inlined_data_tables (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    table_name     VARCHAR,
    schema_version BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, table_id, schema_version)
);

-- Written by the commit function: the tables whose definition a commit changed.
CREATE TABLE ducklake_schema_versions (
    catalog_id     BIGINT NOT NULL,
    begin_snapshot BIGINT,
    schema_version BIGINT,
    table_id       BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, begin_snapshot, table_id)
);

CREATE TABLE ducklake_files_scheduled_for_deletion (
    catalog_id       BIGINT NOT NULL,
    data_file_id     BIGINT NOT NULL,
    path             VARCHAR,
    path_is_relative BOOLEAN,
    schedule_start   TIMESTAMPTZ,
    PRIMARY KEY (catalog_id, data_file_id)
);

-- Describes the entity tables; commit, visible_*, fsck and fork are generated from these rows.
CREATE TABLE lakefork.entity (
    entity         VARCHAR PRIMARY KEY,
    rank           INTEGER NOT NULL,    -- parents before children
    key_columns    VARCHAR[] NOT NULL,  -- identifies an object, in addition to catalog_id
    id_column      VARCHAR,             -- a new object takes its id from a counter …
    id_counter     VARCHAR,             -- … 'catalog' (next_catalog_id) or 'file' (next_file_id)
    catalog_refs   VARCHAR[] NOT NULL,  -- columns that hold ids of the catalog counter
    file_refs      VARCHAR[] NOT NULL,  -- columns that hold ids of the file counter
    versioned      BOOLEAN NOT NULL,    -- has begin_snapshot and end_snapshot
    parent         VARCHAR,             -- must be live for as long as this is …
    parent_columns VARCHAR[],           -- … found by these columns, named alike in both
    defines_table  VARCHAR              -- the column with the table whose definition this is part of
);

-- A commit with a known key is not repeated. Kept longer than the snapshots.
CREATE TABLE lakefork.commit_key (
    commit_key       VARCHAR PRIMARY KEY,
    catalog_id       BIGINT NOT NULL,
    snapshot_id      BIGINT NOT NULL,
    schema_version   BIGINT NOT NULL,
    first_catalog_id BIGINT NOT NULL,
    first_file_id    BIGINT NOT NULL,
    committed_at     TIMESTAMPTZ NOT NULL
);

-- Ranges of snapshots that have expired.
CREATE TABLE lakefork.expired_snapshots (
    first_snapshot BIGINT PRIMARY KEY,
    last_snapshot  BIGINT NOT NULL,
    expired_at     TIMESTAMPTZ NOT NULL
);

-- Leases: the exclusive holder of a name, and until when. The token grows with each holder.
CREATE TABLE lakefork.retained_from (
    catalog_id  BIGINT NOT NULL,
    table_id    BIGINT NOT NULL DEFAULT 0,
    snapshot_id BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, table_id)
);

CREATE TABLE lakefork.snapshot_tag (
    catalog_id  BIGINT NOT NULL,
    name        VARCHAR NOT NULL,
    snapshot_id BIGINT NOT NULL,
    tagged_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    tagged_by   VARCHAR,
    PRIMARY KEY (catalog_id, name)
);

CREATE TABLE lakefork.lease (
    name        VARCHAR PRIMARY KEY,
    holder      VARCHAR NOT NULL,
    token       BIGINT NOT NULL,
    acquired_at TIMESTAMPTZ NOT NULL,
    expires_at  TIMESTAMPTZ NOT NULL
);

-- Nodes for SeqIds and their holders. Times are in milliseconds since 2025; a node's ranges never overlap.
CREATE TABLE lakefork.node (
    node       INTEGER PRIMARY KEY,
    node_id    VARCHAR NOT NULL,            -- the configured name
    holder     VARCHAR NOT NULL,            -- one generator in one process
    first_ms   BIGINT NOT NULL,             -- earlier ids are those of other holders
    until_ms   BIGINT NOT NULL,             -- earlier ids may have been given out
    expires_at TIMESTAMPTZ NOT NULL
);

-- The users of a catalog. A deleted user stays, so that the id is not reused unnoticed.
CREATE TABLE lakefork.app_user (
    catalog_id  BIGINT NOT NULL,
    user_id     VARCHAR NOT NULL,
    username    VARCHAR,
    role        VARCHAR NOT NULL DEFAULT 'user',
    permissions VARCHAR[] NOT NULL DEFAULT [],     -- rules, OR-ed; see docs/sql.md
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    deleted_at  TIMESTAMPTZ,
    PRIMARY KEY (catalog_id, user_id)
);

-- Storage locations that CREATE TABLE can name. A table keeps the path that it was created with.
CREATE TABLE lakefork.storage_location (
    catalog_id      BIGINT NOT NULL,
    location_name   VARCHAR NOT NULL,
    location_type   VARCHAR NOT NULL,
    path            VARCHAR NOT NULL,
    credentials_ref VARCHAR,                       -- a name, never the credentials
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (catalog_id, location_name)
);

-- Uses of AS USER.
CREATE TABLE lakefork.audit (
    audit_id      BIGINT PRIMARY KEY,
    catalog_id    BIGINT NOT NULL,
    occurred_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    actor         VARCHAR NOT NULL,
    role          VARCHAR NOT NULL,
    subject       VARCHAR NOT NULL,
    action        VARCHAR NOT NULL,
    table_name    VARCHAR NOT NULL,
    affected_rows BIGINT NOT NULL
);

-- Counts of versions that are written but not published, appended so that writers never update one row. user_id is ''
-- for shared tables.
CREATE TABLE lakefork.hot_delta (
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    versions   BIGINT NOT NULL,       -- negative: this many were published …
    counted_at TIMESTAMPTZ NOT NULL   -- … by a flush that read at this time
);

-- The sums of hot_delta, folded from time to time (lakefork.fold_counts).
CREATE TABLE lakefork.hot_count (
    catalog_id   BIGINT NOT NULL,
    table_id     BIGINT NOT NULL,
    user_id      VARCHAR NOT NULL,
    versions     BIGINT NOT NULL,
    oldest_at    TIMESTAMPTZ NOT NULL,   -- none of them is older
    published_at TIMESTAMPTZ,            -- when the last flush read
    notified     BOOLEAN NOT NULL,       -- listeners were notified that the row limit is reached
    PRIMARY KEY (catalog_id, table_id, user_id)
);

-- Requests to flush a table (FLUSH TABLE).
CREATE TABLE lakefork.flush_request (
    catalog_id   BIGINT NOT NULL,
    table_id     BIGINT NOT NULL,
    requested_at TIMESTAMPTZ NOT NULL,
    requested_by VARCHAR,
    PRIMARY KEY (catalog_id, table_id)
);

-- What was published of a hot table: the rows that are visible in a Postgres snapshot, whatever their _seq.
CREATE TABLE lakefork.watermark (
    catalog_id    BIGINT NOT NULL,
    table_id      BIGINT NOT NULL,
    hot_snapshot  BIGINT NOT NULL,       -- the definition that the hot table is for
    user_id       VARCHAR NOT NULL,
    seen          VARCHAR NOT NULL,      -- a pg_snapshot
    cluster_id    BIGINT NOT NULL,       -- whose transactions it names
    published_at  TIMESTAMPTZ NOT NULL,
    trimmed       BOOLEAN NOT NULL,      -- the hot table no longer holds any of these rows
    PRIMARY KEY (catalog_id, table_id, hot_snapshot, user_id)
);

-- The next batch number of a directory. Kept after tables and catalogs are gone, so that a number is never reused.
CREATE TABLE lakefork.batch_number (
    directory   VARCHAR PRIMARY KEY,
    next_number BIGINT NOT NULL
);

-- Batches in our directories that this installation did not write.
CREATE TABLE lakefork.foreign_file (
    path     VARCHAR PRIMARY KEY,
    job_id   VARCHAR NOT NULL,
    found_at TIMESTAMPTZ NOT NULL
);

-- Directories and S3 prefixes below which LOCATION may place tables.
CREATE TABLE lakefork.allowed_root (
    path     VARCHAR PRIMARY KEY,
    added_at TIMESTAMPTZ NOT NULL,
    added_by VARCHAR
);

CREATE TABLE lakefork.fork (
    catalog_id      BIGINT PRIMARY KEY,
    parent_id       BIGINT NOT NULL,
    parent_snapshot BIGINT NOT NULL,
    created_at      TIMESTAMPTZ NOT NULL,
    expires_at      TIMESTAMPTZ,
    run_id          VARCHAR
);

CREATE TABLE lakefork.kept_definition (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    begin_snapshot BIGINT NOT NULL,
    definition     JSON NOT NULL,
    PRIMARY KEY (catalog_id, table_id, begin_snapshot)
);

-- Date and author of each definition of a namespace or table. Kept longer than the snapshots, and inherited by forks.
CREATE TABLE lakefork.definition_date (
    catalog_id     BIGINT NOT NULL,
    object_id      BIGINT NOT NULL,        -- a namespace or a table
    begin_snapshot BIGINT NOT NULL,
    defined_at     TIMESTAMPTZ NOT NULL,
    author         VARCHAR,
    PRIMARY KEY (catalog_id, object_id, begin_snapshot)
);

-- Snapshots after which a table was clean (functions/clean.sql); for others this is unknown.
CREATE TABLE lakefork.clean_snapshot (
    catalog_id  BIGINT NOT NULL,
    table_id    BIGINT NOT NULL,
    snapshot_id BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, table_id, snapshot_id)
);

-- Roles that may read catalogs by the views for stock DuckDB.
CREATE TABLE lakefork.client_role (
    role_name  VARCHAR PRIMARY KEY,
    catalog_id BIGINT                      -- NULL: any
);

-- Files that jobs have reserved or written but not published.
CREATE TABLE lakefork.staged_file (
    path       VARCHAR PRIMARY KEY,
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    job_id     VARCHAR NOT NULL,
    staged_at  TIMESTAMPTZ NOT NULL
);

-- What each run of flush published for a table.
CREATE TABLE lakefork.flush_log (
    run_id       VARCHAR NOT NULL,
    catalog_id   BIGINT NOT NULL,
    table_id     BIGINT NOT NULL,
    job_id       VARCHAR NOT NULL,
    published_at TIMESTAMPTZ NOT NULL,
    commit_key   VARCHAR NOT NULL,
    counts       JSON NOT NULL,
    PRIMARY KEY (run_id, catalog_id, table_id)
);

-- Directories whose manifest.json does not show the last publish yet.
CREATE TABLE lakefork.manifest_pending (
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    directory  VARCHAR NOT NULL,
    run_id     VARCHAR NOT NULL,
    PRIMARY KEY (catalog_id, table_id, user_id)
);

-- A cache of manifests, in front of storage.
CREATE TABLE lakefork.manifest_cache (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    user_id        VARCHAR NOT NULL,
    directory      VARCHAR NOT NULL,
    content        VARCHAR NOT NULL,
    etag           VARCHAR NOT NULL,
    last_refreshed TIMESTAMPTZ NOT NULL,
    sync_state     VARCHAR NOT NULL,
    PRIMARY KEY (catalog_id, table_id, user_id)
);

-- Results of audits: one row per table and run.
CREATE TABLE lakefork.flush_audit (
    job_id     VARCHAR NOT NULL,
    run_id     VARCHAR NOT NULL,
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    audited_at TIMESTAMPTZ NOT NULL,
    success    BOOLEAN NOT NULL,
    files      BIGINT NOT NULL,
    results    JSON NOT NULL,
    quarantine VARCHAR,
    PRIMARY KEY (job_id, catalog_id, table_id)
);

-- What each attempt of a job reports.
CREATE TABLE lakefork.plan (
    plan_id    VARCHAR PRIMARY KEY,
    job        VARCHAR NOT NULL,
    run_id     VARCHAR NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    params     JSON NOT NULL,
    digest     VARCHAR,
    begun_at   TIMESTAMPTZ,
    done_at    TIMESTAMPTZ
);

CREATE TABLE lakefork.gc_item (
    plan_id       VARCHAR NOT NULL,
    catalog_id    BIGINT NOT NULL,
    table_id      BIGINT NOT NULL,
    floor         BIGINT NOT NULL,
    is_whole      BOOLEAN NOT NULL,
    lowest_floor  BIGINT NOT NULL,
    highest_floor BIGINT NOT NULL,
    birth         BIGINT,
    PRIMARY KEY (plan_id, catalog_id, table_id)
);

-- Counts of what a plan takes.
CREATE TABLE lakefork.gc_count (
    plan_id     VARCHAR NOT NULL,
    catalog_id  BIGINT NOT NULL,
    table_id    BIGINT NOT NULL,
    snapshots   BIGINT NOT NULL DEFAULT 0,
    files       BIGINT NOT NULL DEFAULT 0,
    bytes       BIGINT NOT NULL DEFAULT 0,
    freed_files BIGINT NOT NULL DEFAULT 0,
    freed_bytes BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (plan_id, catalog_id, table_id)
);

-- Expired forks that a plan of retention_gc drops.
CREATE TABLE lakefork.gc_drop (
    plan_id    VARCHAR NOT NULL,
    catalog_id BIGINT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (plan_id, catalog_id)
);

CREATE TABLE lakefork.scheduled_file (
    catalog_id      BIGINT NOT NULL,
    data_file_id    BIGINT NOT NULL,
    file_size_bytes BIGINT,
    last_catalog    VARCHAR,
    last_table_id   BIGINT,
    last_snapshot   BIGINT,
    reason          VARCHAR NOT NULL,
    plan_id         VARCHAR,
    PRIMARY KEY (catalog_id, data_file_id)
);

CREATE TABLE lakefork.deletion (
    deletion_id   BIGINT PRIMARY KEY,
    run_id        VARCHAR NOT NULL,
    job_id        VARCHAR NOT NULL,
    plan_id       VARCHAR,
    file_id       BIGINT,
    path          VARCHAR NOT NULL,
    size_bytes    BIGINT,
    last_catalog  VARCHAR,
    last_table_id BIGINT,
    last_snapshot BIGINT,
    reason        VARCHAR NOT NULL,
    decided_at    TIMESTAMPTZ NOT NULL,
    removed_at    TIMESTAMPTZ,
    outcome       VARCHAR,
    trash_path    VARCHAR,
    restored_at   TIMESTAMPTZ
);

CREATE TABLE lakefork.schema_upgrade (
    name             VARCHAR PRIMARY KEY,
    applied_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    lakefork_version VARCHAR NOT NULL
);

CREATE TABLE lakefork.job_run (
    job_id         VARCHAR PRIMARY KEY,
    job            VARCHAR NOT NULL,
    run_id         VARCHAR NOT NULL,
    trace          VARCHAR NOT NULL,       -- 'cli/' and the job's id, or where to find it in Airflow: DAG/run/task/try
    params         JSON NOT NULL,
    status         VARCHAR NOT NULL,       -- running, completed or failed
    started_at     TIMESTAMPTZ NOT NULL,
    heartbeat_at   TIMESTAMPTZ NOT NULL,
    finished_at    TIMESTAMPTZ,
    result         JSON,
    error          VARCHAR,
    retryable      BOOLEAN,                -- whether a retry can succeed
    peak_memory_mb BIGINT,
    cpu_seconds    DOUBLE,
    node_id        VARCHAR NOT NULL
);

-- Copies of Postgres databases (postgres_copy). Sources and targets are names of connections: no host, no password.
CREATE TABLE lakefork.copy (
    copy_id         VARCHAR PRIMARY KEY,
    source          VARCHAR NOT NULL,
    target          VARCHAR,               -- a connection's name, or …
    into_catalog    VARCHAR,               -- … a catalog of this installation
    source_identity VARCHAR NOT NULL,      -- system identifier, database and role
    target_identity VARCHAR,
    setup           JSON NOT NULL,        -- filters, split and all else that a resumed copy must have in common
    status          VARCHAR NOT NULL,      -- running, failed, completed or abandoned
    phase           VARCHAR NOT NULL,      -- what the run does now
    phases_done     VARCHAR[] NOT NULL,
    run_id          VARCHAR NOT NULL,      -- of the last run
    snapshot_name   VARCHAR,               -- as the holder exported it
    snapshot_lsn    VARCHAR,               -- where the source's WAL was then
    snapshot_at     TIMESTAMPTZ,
    slot_name       VARCHAR,               -- the replication slot that begins at the snapshot
    snapshots       INTEGER NOT NULL DEFAULT 0,   -- how many were taken: more than one after not_consistent
    started_at      TIMESTAMPTZ NOT NULL,
    finished_at     TIMESTAMPTZ,
    snapshot_id     BIGINT,                -- of the commit, for a copy into a catalog
    notes           VARCHAR[] NOT NULL,   -- what was left out, and why
    differences     VARCHAR[],             -- what the comparison found; NULL: it was not made
    error           VARCHAR
);

-- The tables that a copy is about, as they were at its snapshot.
CREATE TABLE lakefork.copy_table (
    copy_id    VARCHAR NOT NULL,
    table_oid  BIGINT NOT NULL,            -- on the source
    namespace  VARCHAR NOT NULL,
    name       VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    definition JSON NOT NULL,
    PRIMARY KEY (copy_id, table_oid)
);

-- What a copy has to do, piece by piece.
CREATE TABLE lakefork.copy_step (
    copy_id     VARCHAR NOT NULL,
    step_id     BIGINT NOT NULL,
    kind        VARCHAR NOT NULL,          -- part, large_objects, index, constraint, vacuum, foreign_key
    pool        VARCHAR NOT NULL,          -- table, index or large_object: whose limit counts
    table_oid   BIGINT NOT NULL,           -- 0: of no table
    stage       INTEGER NOT NULL,          -- steps of a table are ready when those of lower stages are done
    priority    BIGINT NOT NULL,           -- higher ones are taken first
    name        VARCHAR NOT NULL,
    size_bytes  BIGINT NOT NULL,
    detail      JSON NOT NULL,
    status      VARCHAR NOT NULL,          -- waiting, ready, running or done
    worker      VARCHAR,
    rows        BIGINT,
    bytes       BIGINT,
    digest      VARCHAR,                   -- of what was read
    seconds     DOUBLE,
    started_at  TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    result      JSON,                     -- the files of a part that became batches
    PRIMARY KEY (copy_id, step_id)
);

-- Copies whose source is followed (postgres_follow), and how far.
CREATE TABLE lakefork.follow (
    copy_id      VARCHAR PRIMARY KEY,
    status       VARCHAR NOT NULL,         -- following, copy_required, stopped or cut_over
    position     VARCHAR NOT NULL,         -- everything before it is at the target; of a catalog, this row decides
    committed_at TIMESTAMPTZ,              -- when the source committed what was applied last
    drained_at   TIMESTAMPTZ,              -- when the target last had all that the source had
    transactions BIGINT NOT NULL DEFAULT 0,
    changes      BIGINT NOT NULL DEFAULT 0,
    run_id       VARCHAR,                  -- of the last run
    run_at       TIMESTAMPTZ,
    ended_at     TIMESTAMPTZ,
    error        VARCHAR,
    wal_kept     BIGINT,                   -- bytes of WAL that the source kept for the slot after the last run
    warning      VARCHAR                   -- about the slot, after the last run
);

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
    verified_percent DOUBLE,   -- of the files whose content was read then
    problem_count    BIGINT              -- that were found then
);

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
    params       JSON NOT NULL,
    requested_at TIMESTAMPTZ NOT NULL,
    requested_by VARCHAR
);

CREATE TABLE lakefork.schema_pending (
    catalog_id BIGINT NOT NULL,
    namespace  VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    noted_at   TIMESTAMPTZ NOT NULL,
    problem    VARCHAR,
    PRIMARY KEY (catalog_id, namespace, table_name)
);

CREATE TABLE lakefork.job_table (
    job_id     VARCHAR NOT NULL,
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    namespace  VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    counts     JSON NOT NULL,
    PRIMARY KEY (job_id, catalog_id, table_id)
);

CREATE TABLE lakefork.job_user (
    job_id     VARCHAR NOT NULL,
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    PRIMARY KEY (job_id, catalog_id, table_id, user_id)
);

CREATE INDEX idx_data_file_catalog ON ducklake_data_file (catalog_id, table_id, begin_snapshot);
CREATE INDEX idx_data_file_snapshot ON ducklake_data_file (catalog_id, begin_snapshot, end_snapshot);
CREATE INDEX idx_data_file_id ON ducklake_data_file (data_file_id, catalog_id);
CREATE INDEX idx_table_catalog ON ducklake_table (catalog_id);
CREATE INDEX idx_schema_catalog ON ducklake_schema (catalog_id);
CREATE INDEX idx_snapshot_global ON ducklake_snapshot (snapshot_id);

INSERT INTO ducklake_metadata (key, value) VALUES ('version', '0.5-dev1'), ('created_by', 'Lakefork');

-- Tokens that were issued here; the tokens themselves are nowhere, only their ids.
CREATE TABLE lakefork.api_token (
    token_id   UUID PRIMARY KEY,
    catalog_id BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    role       VARCHAR NOT NULL,             -- the highest that the token gives
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    created_by VARCHAR,
    expires_at TIMESTAMPTZ NOT NULL,
    revoked_at TIMESTAMPTZ
);

-- When users were last seen by the API, to the minute.
CREATE TABLE lakefork.user_login (
    catalog_id BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    last_login TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (catalog_id, user_id)
);

-- What the statements of a request with an Idempotency-Key did, each written in the transaction of its change.
CREATE TABLE lakefork.api_receipt (
    catalog_id    BIGINT NOT NULL,
    user_id       VARCHAR NOT NULL,
    request_key   VARCHAR NOT NULL,
    statement     INTEGER NOT NULL,          -- its position in the request, from 0
    digest        VARCHAR NOT NULL,          -- of the request; another one with the same key is refused
    affected_rows BIGINT,                    -- NULL for statements that count none
    created_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (catalog_id, user_id, request_key, statement)
);
