-- Note live queries, and what trim removed before they read it.
-- Server processes with subscriptions; one that does not renew its lease is gone, with all of them.
CREATE UNLOGGED TABLE lakefork.live_server (
    server_id  UUID PRIMARY KEY,
    node       VARCHAR NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    messages_per_second DOUBLE PRECISION NOT NULL DEFAULT 0,
    resyncs             BIGINT NOT NULL DEFAULT 0,
    look_seconds        DOUBLE PRECISION NOT NULL DEFAULT 0   -- that the last look at changes took
);

CREATE UNLOGGED TABLE lakefork.live_query (
    live_id         UUID PRIMARY KEY,
    server_id       UUID NOT NULL,
    catalog_id      BIGINT NOT NULL,
    table_id        BIGINT NOT NULL,
    user_id         VARCHAR NOT NULL,       -- who subscribed
    owner_id        VARCHAR,                -- whose rows; NULL: those of all users
    subscription_id VARCHAR NOT NULL,       -- as the client calls it
    query           VARCHAR NOT NULL,
    column_ids      BIGINT[] NOT NULL,      -- that the query names
    created_at      TIMESTAMPTZ NOT NULL,
    messages        BIGINT NOT NULL,
    bytes           BIGINT NOT NULL,
    end_reason      VARCHAR                 -- the server is to end it
) WITH (fillfactor = 70);
CREATE INDEX live_query_table ON lakefork.live_query (catalog_id, table_id);
CREATE INDEX live_query_server ON lakefork.live_query (server_id);

-- The newest transaction of which trim removed a version, by owner ('': a shared table).
CREATE UNLOGGED TABLE lakefork.trimmed (
    catalog_id BIGINT NOT NULL,
    table_id   BIGINT NOT NULL,
    user_id    VARCHAR NOT NULL,
    xid        XID8 NOT NULL,
    PRIMARY KEY (catalog_id, table_id, user_id)
);
