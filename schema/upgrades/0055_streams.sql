-- Keep events of STREAM tables, which nothing had before.
CREATE SCHEMA stream;

CREATE UNLOGGED TABLE lakefork.stream_buffer (
    catalog_id  BIGINT NOT NULL,
    table_id    BIGINT NOT NULL,
    look_at     TIMESTAMPTZ NOT NULL,   -- when there may be something to evict
    newest_at   TIMESTAMPTZ,            -- of the newest event at the last look
    evicted_xid XID8,                   -- the newest transaction of which an event was evicted
    evicted_by  XID8,                   -- the last transaction that evicted one
    PRIMARY KEY (catalog_id, table_id)
);
CREATE INDEX stream_buffer_look ON lakefork.stream_buffer (look_at);

-- One row, another one after each crash of Postgres.
CREATE UNLOGGED TABLE lakefork.crash_mark (
    only_row BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
    mark     UUID NOT NULL
);
