-- STREAM tables (functions/streams.sql). Their events lie in schema stream, in an UNLOGGED table per table id, which is
-- made at the first INSERT and shared by the catalogs that have the table. What is kept about them is UNLOGGED too:
-- after a crash Postgres empties all of it together.
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
