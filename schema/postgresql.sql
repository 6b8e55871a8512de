-- The Lakefork catalog for PostgreSQL 14 and later.
--
--   psql -v ON_ERROR_STOP=1 -f schema/postgresql.sql      (or: lakefork init)
--
-- Apply it to an empty database; `lakefork upgrade` brings one from before to this (upgrades/README.md).
-- schema/duckdb.sql holds the same tables.
-- ducklake_* in public: the catalog.  lakefork.*: functions, and tables that serve them.  lakefork_locks.*: locks.
-- system.*: what people read.  ducklake_client.*: what stock DuckDB reads.
-- hot.*: rows not yet in files, a table per table and schema version (jobs/lakefork/hot).  stream.*: events.
\set ON_ERROR_STOP on
BEGIN;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;   -- as newer Postgres have it from the start
CREATE SCHEMA lakefork;
CREATE SCHEMA system;
CREATE SCHEMA hot;
CREATE SCHEMA ducklake_client;

-- Global ---------------------------------------------------------------------------------------

CREATE TABLE public.ducklake_metadata (
    key      VARCHAR NOT NULL,
    value    VARCHAR NOT NULL,
    scope    VARCHAR,
    scope_id BIGINT
);
CREATE UNIQUE INDEX ducklake_metadata_key
    ON public.ducklake_metadata (key, coalesce(scope, ''), coalesce(scope_id, -1));
CREATE INDEX ducklake_metadata_data_path
    ON public.ducklake_metadata (value COLLATE "C") WHERE key = 'data_path' AND scope = 'catalog';

-- One row per commit of any catalog; the counters of the newest row give the next ids.
CREATE TABLE public.ducklake_snapshot (
    snapshot_id     BIGINT PRIMARY KEY,
    snapshot_time   TIMESTAMPTZ,
    schema_version  BIGINT,
    next_catalog_id BIGINT,
    next_file_id    BIGINT
);
CREATE INDEX idx_snapshot_global ON public.ducklake_snapshot (snapshot_id DESC);

-- catalog_id: the catalog that made the commit.
CREATE TABLE public.ducklake_snapshot_changes (
    snapshot_id       BIGINT PRIMARY KEY,
    catalog_id        BIGINT NOT NULL,
    changes_made      VARCHAR,
    author            VARCHAR,
    commit_message    VARCHAR,
    commit_extra_info VARCHAR
);
CREATE INDEX idx_snapshot_changes_catalog ON public.ducklake_snapshot_changes (catalog_id, snapshot_id);

CREATE TABLE public.ducklake_catalog (
    catalog_id     BIGINT,
    catalog_uuid   UUID NOT NULL DEFAULT gen_random_uuid(),
    catalog_name   VARCHAR NOT NULL,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    PRIMARY KEY (catalog_id, begin_snapshot)
);
CREATE UNIQUE INDEX ducklake_catalog_live ON public.ducklake_catalog (catalog_id) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX ducklake_catalog_live_name ON public.ducklake_catalog (catalog_name) WHERE end_snapshot IS NULL;

-- Entities of a catalog ------------------------------------------------------------------------

CREATE TABLE public.ducklake_schema (
    catalog_id       BIGINT NOT NULL,
    schema_id        BIGINT NOT NULL,
    schema_uuid      UUID DEFAULT gen_random_uuid(),
    begin_snapshot   BIGINT,
    end_snapshot     BIGINT,
    schema_name      VARCHAR,
    path             VARCHAR,
    path_is_relative BOOLEAN,
    PRIMARY KEY (catalog_id, schema_id, begin_snapshot)
);
CREATE INDEX idx_schema_catalog ON public.ducklake_schema (catalog_id);
CREATE INDEX idx_schema_absolute_path ON public.ducklake_schema (catalog_id) WHERE NOT path_is_relative;
CREATE UNIQUE INDEX ducklake_schema_live ON public.ducklake_schema (catalog_id, schema_id) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX ducklake_schema_live_name
    ON public.ducklake_schema (catalog_id, lower(schema_name COLLATE "C")) WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_table (
    catalog_id       BIGINT NOT NULL,
    table_id         BIGINT NOT NULL,
    table_uuid       UUID DEFAULT gen_random_uuid(),
    begin_snapshot   BIGINT,
    end_snapshot     BIGINT,
    schema_id        BIGINT,
    table_name       VARCHAR,
    path             VARCHAR,
    path_is_relative BOOLEAN,
    PRIMARY KEY (catalog_id, table_id, begin_snapshot)
);
CREATE INDEX idx_table_catalog ON public.ducklake_table (catalog_id);
CREATE UNIQUE INDEX ducklake_table_live ON public.ducklake_table (catalog_id, table_id) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX ducklake_table_live_name
    ON public.ducklake_table (catalog_id, schema_id, lower(table_name COLLATE "C")) WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_view (
    catalog_id     BIGINT NOT NULL,
    view_id        BIGINT NOT NULL,
    view_uuid      UUID DEFAULT gen_random_uuid(),
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    schema_id      BIGINT,
    view_name      VARCHAR,
    dialect        VARCHAR,
    sql            VARCHAR,
    column_aliases VARCHAR,
    PRIMARY KEY (catalog_id, view_id, begin_snapshot)
);
CREATE UNIQUE INDEX ducklake_view_live ON public.ducklake_view (catalog_id, view_id) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX ducklake_view_live_name
    ON public.ducklake_view (catalog_id, schema_id, lower(view_name COLLATE "C")) WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_macro (
    catalog_id     BIGINT NOT NULL,
    schema_id      BIGINT,
    macro_id       BIGINT NOT NULL,
    macro_name     VARCHAR,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    PRIMARY KEY (catalog_id, macro_id, begin_snapshot)
);
CREATE UNIQUE INDEX ducklake_macro_live ON public.ducklake_macro (catalog_id, macro_id) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX ducklake_macro_live_name
    ON public.ducklake_macro (catalog_id, schema_id, lower(macro_name COLLATE "C")) WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_macro_impl (
    catalog_id BIGINT NOT NULL,
    macro_id   BIGINT NOT NULL,
    impl_id    BIGINT NOT NULL,
    dialect    VARCHAR,
    sql        VARCHAR,
    type       VARCHAR,
    PRIMARY KEY (catalog_id, macro_id, impl_id)
);

CREATE TABLE public.ducklake_macro_parameters (
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

CREATE TABLE public.ducklake_column (
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
CREATE UNIQUE INDEX ducklake_column_live
    ON public.ducklake_column (catalog_id, table_id, column_id) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX ducklake_column_live_name
    ON public.ducklake_column (catalog_id, table_id, coalesce(parent_column, -1), lower(column_name COLLATE "C"))
    WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_partition_info (
    catalog_id     BIGINT NOT NULL,
    partition_id   BIGINT NOT NULL,
    table_id       BIGINT,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    PRIMARY KEY (catalog_id, partition_id)
);
CREATE UNIQUE INDEX ducklake_partition_info_live
    ON public.ducklake_partition_info (catalog_id, table_id) WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_partition_column (
    catalog_id          BIGINT NOT NULL,
    partition_id        BIGINT NOT NULL,
    table_id            BIGINT,
    partition_key_index BIGINT NOT NULL,
    column_id           BIGINT,
    transform           VARCHAR,
    PRIMARY KEY (catalog_id, partition_id, partition_key_index)
);

CREATE TABLE public.ducklake_data_file (
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
CREATE INDEX idx_data_file_catalog ON public.ducklake_data_file (catalog_id, table_id, begin_snapshot);
CREATE INDEX idx_data_file_snapshot ON public.ducklake_data_file (catalog_id, begin_snapshot, end_snapshot);
-- For what ended since a clean state of a table, and what expires with snapshots of a catalog.
CREATE INDEX idx_data_file_ended ON public.ducklake_data_file (catalog_id, table_id, end_snapshot)
    WHERE end_snapshot IS NOT NULL;
CREATE INDEX idx_data_file_expiry ON public.ducklake_data_file (catalog_id, end_snapshot)
    WHERE end_snapshot IS NOT NULL;
-- For finding all references to a file.
CREATE INDEX idx_data_file_id ON public.ducklake_data_file (data_file_id, catalog_id);

CREATE TABLE public.ducklake_delete_file (
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
CREATE INDEX idx_delete_file_live ON public.ducklake_delete_file (catalog_id, table_id) WHERE end_snapshot IS NULL;
CREATE INDEX idx_delete_file_data_file ON public.ducklake_delete_file (catalog_id, data_file_id);
CREATE INDEX idx_delete_file_id ON public.ducklake_delete_file (delete_file_id, catalog_id);

CREATE TABLE public.ducklake_file_column_stats (
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

CREATE TABLE public.ducklake_file_partition_value (
    catalog_id          BIGINT NOT NULL,
    data_file_id        BIGINT NOT NULL,
    table_id            BIGINT,
    partition_key_index BIGINT NOT NULL,
    partition_value     VARCHAR,
    PRIMARY KEY (catalog_id, data_file_id, partition_key_index)
);
CREATE INDEX idx_file_partition_value ON public.ducklake_file_partition_value (catalog_id, table_id, partition_value);

-- Maintained by the commit function from the files that it adds and ends.
CREATE TABLE public.ducklake_table_stats (
    catalog_id      BIGINT NOT NULL,
    table_id        BIGINT NOT NULL,
    record_count    BIGINT,
    next_row_id     BIGINT,
    file_size_bytes BIGINT,
    PRIMARY KEY (catalog_id, table_id)
) WITH (fillfactor = 50);   -- room to update in place

-- Stays empty: lakefork.visible_table_column_stats derives the bounds from the files.
CREATE TABLE public.ducklake_table_column_stats (
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

CREATE TABLE public.ducklake_column_mapping (
    catalog_id BIGINT NOT NULL,
    mapping_id BIGINT NOT NULL,
    table_id   BIGINT,
    type       VARCHAR,
    PRIMARY KEY (catalog_id, mapping_id)
);

CREATE TABLE public.ducklake_name_mapping (
    catalog_id      BIGINT NOT NULL,
    mapping_id      BIGINT NOT NULL,
    column_id       BIGINT NOT NULL,
    source_name     VARCHAR,
    target_field_id BIGINT,
    parent_column   BIGINT,
    is_partition    BOOLEAN,
    PRIMARY KEY (catalog_id, mapping_id, column_id)
);

CREATE TABLE public.ducklake_tag (
    catalog_id     BIGINT NOT NULL,
    object_id      BIGINT NOT NULL,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    key            VARCHAR NOT NULL,
    value          VARCHAR,
    PRIMARY KEY (catalog_id, object_id, key, begin_snapshot)
);
CREATE UNIQUE INDEX ducklake_tag_live ON public.ducklake_tag (catalog_id, object_id, key) WHERE end_snapshot IS NULL;
CREATE INDEX ducklake_tag_location ON public.ducklake_tag (catalog_id, object_id) WHERE key = 'location'
    AND end_snapshot IS NULL;

CREATE TABLE public.ducklake_column_tag (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    column_id      BIGINT NOT NULL,
    begin_snapshot BIGINT,
    end_snapshot   BIGINT,
    key            VARCHAR NOT NULL,
    value          VARCHAR,
    PRIMARY KEY (catalog_id, table_id, column_id, key, begin_snapshot)
);
CREATE UNIQUE INDEX ducklake_column_tag_live
    ON public.ducklake_column_tag (catalog_id, table_id, column_id, key) WHERE end_snapshot IS NULL;

CREATE TABLE public.ducklake_inlined_data_tables (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    table_name     VARCHAR,
    schema_version BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, table_id, schema_version)
);

-- Written by the commit function: the tables whose definition a commit changed.
CREATE TABLE public.ducklake_schema_versions (
    catalog_id     BIGINT NOT NULL,
    begin_snapshot BIGINT,
    schema_version BIGINT,
    table_id       BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, begin_snapshot, table_id)
);
CREATE INDEX ducklake_schema_versions_table ON public.ducklake_schema_versions (catalog_id, table_id, begin_snapshot);

CREATE TABLE public.ducklake_files_scheduled_for_deletion (
    catalog_id       BIGINT NOT NULL,
    data_file_id     BIGINT NOT NULL,
    path             VARCHAR,
    path_is_relative BOOLEAN,
    schedule_start   TIMESTAMPTZ,
    PRIMARY KEY (catalog_id, data_file_id)
);
CREATE INDEX files_scheduled_start ON public.ducklake_files_scheduled_for_deletion (schedule_start);

-- Tables of the functions ------------------------------------------------------------------------

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
CREATE INDEX commit_key_committed_at ON lakefork.commit_key USING brin (committed_at);

-- Ranges of snapshots that have expired.
CREATE TABLE lakefork.expired_snapshots (
    first_snapshot BIGINT PRIMARY KEY,
    last_snapshot  BIGINT NOT NULL,
    expired_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    CHECK (first_snapshot <= last_snapshot)
);

-- The floor of a catalog, or of a table with its own retention: the first snapshot that it still has.
CREATE TABLE lakefork.retained_from (
    catalog_id  BIGINT NOT NULL,
    table_id    BIGINT NOT NULL DEFAULT 0,   -- 0: the catalog
    snapshot_id BIGINT NOT NULL,
    PRIMARY KEY (catalog_id, table_id)
);

-- Tagged snapshots, which never expire.
CREATE TABLE lakefork.snapshot_tag (
    catalog_id  BIGINT NOT NULL,
    name        VARCHAR NOT NULL,
    snapshot_id BIGINT NOT NULL,
    tagged_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    tagged_by   VARCHAR,
    PRIMARY KEY (catalog_id, name)
);
CREATE INDEX snapshot_tag_snapshot ON lakefork.snapshot_tag (catalog_id, snapshot_id);

-- Leases: the exclusive holder of a name, and until when. The token grows with each holder.
CREATE TABLE lakefork.lease (
    name        VARCHAR PRIMARY KEY,
    holder      VARCHAR NOT NULL,
    token       BIGINT NOT NULL,
    acquired_at TIMESTAMPTZ NOT NULL,
    expires_at  TIMESTAMPTZ NOT NULL
);
CREATE INDEX lease_holder ON lakefork.lease (holder);

-- Nodes for SeqIds and their holders. Times are in milliseconds since 2025; a node's ranges never overlap.
CREATE TABLE lakefork.node (
    node       INTEGER PRIMARY KEY CHECK (node BETWEEN 0 AND 1023),
    node_id    VARCHAR NOT NULL,            -- the configured name
    holder     VARCHAR NOT NULL UNIQUE,     -- one generator in one process
    first_ms   BIGINT NOT NULL,             -- earlier ids are those of other holders
    until_ms   BIGINT NOT NULL,             -- earlier ids may have been given out
    expires_at TIMESTAMPTZ NOT NULL,
    CHECK (first_ms <= until_ms)
);

-- The users of a catalog. A deleted user stays, so that the id is not reused unnoticed.
CREATE TABLE lakefork.app_user (
    catalog_id  BIGINT NOT NULL,
    user_id     VARCHAR NOT NULL,
    username    VARCHAR,
    role        VARCHAR NOT NULL DEFAULT 'user',
    permissions VARCHAR[] NOT NULL DEFAULT '{}',   -- rules, OR-ed; see docs/sql.md
    created_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    deleted_at  TIMESTAMPTZ,
    PRIMARY KEY (catalog_id, user_id),
    CONSTRAINT app_user_role CHECK (role IN ('user', 'service', 'admin', 'system'))
);

-- Storage locations that CREATE TABLE can name. A table keeps the path that it was created with.
CREATE TABLE lakefork.storage_location (
    catalog_id      BIGINT NOT NULL,
    location_name   VARCHAR NOT NULL,
    location_type   VARCHAR NOT NULL,
    path            VARCHAR NOT NULL,
    credentials_ref VARCHAR,                       -- a name, never the credentials
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (catalog_id, location_name),
    CONSTRAINT storage_location_type CHECK (location_type IN ('filesystem', 's3'))
);

-- Uses of AS USER.
CREATE TABLE lakefork.audit (
    audit_id      BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    catalog_id    BIGINT NOT NULL,
    occurred_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actor         VARCHAR NOT NULL,
    role          VARCHAR NOT NULL,
    subject       VARCHAR NOT NULL,
    action        VARCHAR NOT NULL,
    table_name    VARCHAR NOT NULL,
    affected_rows BIGINT NOT NULL
);
CREATE INDEX audit_catalog ON lakefork.audit (catalog_id, occurred_at);

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
CREATE INDEX hot_count_versions ON lakefork.hot_count (catalog_id, table_id, versions);
CREATE INDEX hot_count_oldest ON lakefork.hot_count (catalog_id, table_id, oldest_at);
CREATE INDEX hot_count_empty ON lakefork.hot_count (versions) WHERE versions <= 0;

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
CREATE INDEX watermark_untrimmed ON lakefork.watermark (catalog_id, table_id) WHERE NOT trimmed;
CREATE INDEX watermark_untrimmed_time ON lakefork.watermark (published_at) WHERE NOT trimmed;

-- The next batch number of a directory. Kept after tables and catalogs are gone, so that a number is never reused.
CREATE TABLE lakefork.batch_number (
    directory   VARCHAR PRIMARY KEY,
    next_number BIGINT NOT NULL
);
CREATE INDEX batch_number_directory ON lakefork.batch_number (directory COLLATE "C");

-- Batches in our directories that this installation did not write: somebody else's, or its own before Postgres was
-- restored to an earlier time.
CREATE TABLE lakefork.foreign_file (
    path     VARCHAR PRIMARY KEY,
    job_id   VARCHAR NOT NULL,             -- the job that found it
    found_at TIMESTAMPTZ NOT NULL
);

-- Directories and S3 prefixes below which LOCATION may place tables. The operator's list.
CREATE TABLE lakefork.allowed_root (
    path     VARCHAR PRIMARY KEY,          -- a place
    added_at TIMESTAMPTZ NOT NULL,
    added_by VARCHAR
);

-- The parents of forks.
CREATE TABLE lakefork.fork (
    catalog_id      BIGINT PRIMARY KEY,
    parent_id       BIGINT NOT NULL,
    parent_snapshot BIGINT NOT NULL,       -- the parent's snapshot that was forked
    created_at      TIMESTAMPTZ NOT NULL,
    expires_at      TIMESTAMPTZ,           -- when the fork expires
    run_id          VARCHAR                -- of the job that created it
);
CREATE INDEX fork_parent ON lakefork.fork (parent_id);
CREATE INDEX fork_expires ON lakefork.fork (expires_at) WHERE expires_at IS NOT NULL;

-- Old definitions of tables whose rows are gone: a fork copies only what is current, and expiry takes the rest. As
-- lakefork.table_definition returns them.
CREATE TABLE lakefork.kept_definition (
    catalog_id     BIGINT NOT NULL,
    table_id       BIGINT NOT NULL,
    begin_snapshot BIGINT NOT NULL,
    definition     JSONB NOT NULL,
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
CREATE INDEX staged_file_table ON lakefork.staged_file (catalog_id, table_id);

-- What each run of flush published for a table.
CREATE TABLE lakefork.flush_log (
    run_id       VARCHAR NOT NULL,
    catalog_id   BIGINT NOT NULL,
    table_id     BIGINT NOT NULL,
    job_id       VARCHAR NOT NULL,
    published_at TIMESTAMPTZ NOT NULL,
    commit_key   VARCHAR NOT NULL,
    counts       JSONB NOT NULL,
    PRIMARY KEY (run_id, catalog_id, table_id)
);
CREATE INDEX flush_log_table ON lakefork.flush_log (catalog_id, table_id, published_at);
CREATE INDEX flush_log_time ON lakefork.flush_log (published_at);

-- Directories whose manifest.json does not show the last publish yet; run_id: whose publish, or which commit of a run
-- that makes several.
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
    PRIMARY KEY (catalog_id, table_id, user_id),
    CONSTRAINT manifest_cache_state CHECK (sync_state IN ('in_sync', 'stale', 'error'))
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
    results    JSONB NOT NULL,
    quarantine VARCHAR,
    PRIMARY KEY (job_id, catalog_id, table_id)
);
CREATE INDEX flush_audit_table ON lakefork.flush_audit (catalog_id, table_id, audited_at);
CREATE INDEX flush_audit_time ON lakefork.flush_audit (audited_at);
CREATE INDEX flush_audit_failed ON lakefork.flush_audit (audited_at) WHERE NOT success;

-- Plans of retention_gc and file_cleanup.
CREATE TABLE lakefork.plan (
    plan_id    VARCHAR PRIMARY KEY,
    job        VARCHAR NOT NULL,
    run_id     VARCHAR NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    params     JSONB NOT NULL,
    digest     VARCHAR,                    -- digest of the facts it is based on
    begun_at   TIMESTAMPTZ,
    done_at    TIMESTAMPTZ
);

-- What a plan of retention_gc takes from each catalog.
CREATE TABLE lakefork.gc_item (
    plan_id       VARCHAR NOT NULL,
    catalog_id    BIGINT NOT NULL,
    table_id      BIGINT NOT NULL,         -- 0: the catalog; others: tables with a retention of their own
    floor         BIGINT NOT NULL,         -- the first snapshot that is kept
    is_whole      BOOLEAN NOT NULL,        -- the catalog was dropped, and nothing of it is kept
    lowest_floor  BIGINT NOT NULL,         -- of all items of the catalog
    highest_floor BIGINT NOT NULL,
    birth         BIGINT,
    PRIMARY KEY (plan_id, catalog_id, table_id)
);

-- Counts of what a plan takes.
CREATE TABLE lakefork.gc_count (
    plan_id     VARCHAR NOT NULL,
    catalog_id  BIGINT NOT NULL,
    table_id    BIGINT NOT NULL,           -- 0: the catalog's snapshots
    snapshots   BIGINT NOT NULL DEFAULT 0,
    files       BIGINT NOT NULL DEFAULT 0,
    bytes       BIGINT NOT NULL DEFAULT 0,
    freed_files BIGINT NOT NULL DEFAULT 0,  -- those that no other catalog keeps
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

-- Why files were scheduled for deletion.
CREATE TABLE lakefork.scheduled_file (
    catalog_id      BIGINT NOT NULL,
    data_file_id    BIGINT NOT NULL,
    file_size_bytes BIGINT,
    last_catalog    VARCHAR,
    last_table_id   BIGINT,
    last_snapshot   BIGINT,                -- the snapshot at which it ended there
    reason          VARCHAR NOT NULL,
    plan_id         VARCHAR,
    PRIMARY KEY (catalog_id, data_file_id)
);

-- The ledger: every file that cleanup removed, recorded before the removal.
CREATE TABLE lakefork.deletion (
    deletion_id   BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
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
CREATE INDEX deletion_run ON lakefork.deletion (run_id);
CREATE INDEX deletion_open ON lakefork.deletion (deletion_id) WHERE removed_at IS NULL;

-- What each attempt of a job reports.
CREATE TABLE lakefork.job_run (
    job_id         VARCHAR PRIMARY KEY,
    job            VARCHAR NOT NULL,
    run_id         VARCHAR NOT NULL,
    trace          VARCHAR NOT NULL,       -- 'cli/' and the job's id, or where to find it in Airflow: DAG/run/task/try
    params         JSONB NOT NULL,
    status         VARCHAR NOT NULL,       -- running, completed or failed
    started_at     TIMESTAMPTZ NOT NULL,
    heartbeat_at   TIMESTAMPTZ NOT NULL,
    finished_at    TIMESTAMPTZ,
    result         JSONB,
    error          VARCHAR,
    retryable      BOOLEAN,                -- whether a retry can succeed
    peak_memory_mb BIGINT,
    cpu_seconds    DOUBLE PRECISION,
    node_id        VARCHAR NOT NULL,
    CHECK (status IN ('running', 'completed', 'failed'))
);
CREATE INDEX job_run_started ON lakefork.job_run (started_at DESC);
CREATE INDEX job_run_job ON lakefork.job_run (job, started_at DESC);
CREATE UNIQUE INDEX job_run_trace ON lakefork.job_run (trace);

-- Schema files that are to be written or removed: noted before a change is committed, and until its files are there.
-- Names folded; table '': all of the namespace.
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

\ir tables/copy.sql
\ir tables/follow.sql

-- The scripts of schema/upgrades that this database has had, or never needed.
CREATE TABLE lakefork.schema_upgrade (
    name             VARCHAR PRIMARY KEY,
    applied_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    lakefork_version VARCHAR NOT NULL      -- that applied it
);

-- Locks that stop everybody (functions/locks.sql): empty tables, because every login can take an advisory lock, but a
-- table only with rights on it.
CREATE SCHEMA lakefork_locks;
-- commits and forks share it (ROW SHARE), file cleanup takes it alone (EXCLUSIVE)
CREATE TABLE lakefork_locks.fence ();
CREATE TABLE lakefork_locks.commits ();   -- one commit at a time
CREATE TABLE lakefork_locks.gc ();        -- one batch of retention_gc or one tag at a time
CREATE TABLE lakefork_locks.counts ();    -- one at a time folds counts of hot rows
CREATE TABLE lakefork_locks.nodes ();     -- one at a time takes a node for SeqIds

\ir tables/server.sql
\ir tables/backup.sql
\ir tables/streams.sql
\ir tables/live.sql

\ir code.sql
\ir indexes.sql
\ir public_rights.sql

INSERT INTO public.ducklake_metadata (key, value)
VALUES ('version', '0.5-dev1'), ('created_by', 'Lakefork'), ('installation', gen_random_uuid()::text),
    ('lakefork_version', '0.2.0');
-- all of schema/upgrades: these tables need none of them
INSERT INTO lakefork.schema_upgrade (name, lakefork_version) VALUES
    ('0001_upgrades', '0.2.0'),
    ('0002_jobs_and_schema_files', '0.2.0'),
    ('0020_api_server', '0.2.0'),
    ('0030_copies', '0.2.0'),
    ('0031_follow', '0.2.0'),
    ('0040_backup', '0.2.0'),
    ('0055_streams', '0.2.0'),
    ('0056_live', '0.2.0');
INSERT INTO public.ducklake_snapshot VALUES (0, now(), 0, 1, 0);
INSERT INTO public.ducklake_snapshot_changes (snapshot_id, catalog_id, changes_made) VALUES (0, 0, 'created_database');

COMMIT;
