-- Keep what the API server needs: tokens that were issued, logins, and receipts of requests.

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
CREATE INDEX api_token_expires ON lakefork.api_token (expires_at);

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
CREATE INDEX api_receipt_created ON lakefork.api_receipt USING brin (created_at);
