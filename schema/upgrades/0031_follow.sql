-- Keep how far sources of copies are followed.
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
    warning      VARCHAR,                  -- about the slot, after the last run
    CHECK (status IN ('following', 'copy_required', 'stopped', 'cut_over'))
);
