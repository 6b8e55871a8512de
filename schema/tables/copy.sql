-- Copies of Postgres databases (postgres_copy). Sources and targets are names of connections: no host, no password.
CREATE TABLE lakefork.copy (
    copy_id         VARCHAR PRIMARY KEY,
    source          VARCHAR NOT NULL,
    target          VARCHAR,               -- a connection's name, or …
    into_catalog    VARCHAR,               -- … a catalog of this installation
    source_identity VARCHAR NOT NULL,      -- system identifier, database and role
    target_identity VARCHAR,
    setup           JSONB NOT NULL,        -- filters, split and all else that a resumed copy must have in common
    status          VARCHAR NOT NULL,      -- running, failed, completed or abandoned
    phase           VARCHAR NOT NULL,      -- what the run does now
    phases_done     VARCHAR[] NOT NULL DEFAULT '{}',
    run_id          VARCHAR NOT NULL,      -- of the last run
    snapshot_name   VARCHAR,               -- as the holder exported it
    snapshot_lsn    VARCHAR,               -- where the source's WAL was then
    snapshot_at     TIMESTAMPTZ,
    slot_name       VARCHAR,               -- the replication slot that begins at the snapshot
    snapshots       INTEGER NOT NULL DEFAULT 0,   -- how many were taken: more than one after not_consistent
    started_at      TIMESTAMPTZ NOT NULL,
    finished_at     TIMESTAMPTZ,
    snapshot_id     BIGINT,                -- of the commit, for a copy into a catalog
    notes           VARCHAR[] NOT NULL DEFAULT '{}',   -- what was left out, and why
    differences     VARCHAR[],             -- what the comparison found; NULL: it was not made
    error           VARCHAR,
    CHECK (status IN ('running', 'failed', 'completed', 'abandoned'))
);
CREATE INDEX copy_started ON lakefork.copy (started_at DESC);

-- The tables that a copy is about, as they were at its snapshot.
CREATE TABLE lakefork.copy_table (
    copy_id    VARCHAR NOT NULL,
    table_oid  BIGINT NOT NULL,            -- on the source
    namespace  VARCHAR NOT NULL,
    name       VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    definition JSONB NOT NULL,
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
    detail      JSONB NOT NULL,
    status      VARCHAR NOT NULL,          -- waiting, ready, running or done
    worker      VARCHAR,
    rows        BIGINT,
    bytes       BIGINT,
    digest      VARCHAR,                   -- of what was read
    seconds     DOUBLE PRECISION,
    started_at  TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    result      JSONB,                     -- the files of a part that became batches
    PRIMARY KEY (copy_id, step_id),
    CHECK (status IN ('waiting', 'ready', 'running', 'done'))
);
CREATE INDEX copy_step_ready ON lakefork.copy_step (copy_id, pool, priority DESC) WHERE status = 'ready';
CREATE INDEX copy_step_running ON lakefork.copy_step (copy_id, pool) WHERE status = 'running';
CREATE INDEX copy_step_table ON lakefork.copy_step (copy_id, table_oid, stage) WHERE status <> 'done';
