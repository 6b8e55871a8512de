-- add_server: makes this server known, with a lease
SELECT lakefork.add_live_server(%(server)s, %(node)s, %(seconds)s);

-- renew_server: false if the server is unknown by now
SELECT lakefork.renew_live_server(%(server)s, %(seconds)s, %(rate)s, %(resyncs)s, %(look)s) AS known;

-- remove_server: it stops
WITH gone AS (DELETE FROM lakefork.live_server WHERE server_id = %(server)s)
DELETE FROM lakefork.live_query WHERE server_id = %(server)s;

-- add_queries: subscriptions of this server
INSERT INTO lakefork.live_query (live_id, server_id, catalog_id, table_id, user_id, owner_id, subscription_id, query,
    column_ids, created_at, messages, bytes)
SELECT q.live_id, %(server)s, q.catalog_id, q.table_id, q.user_id, q.owner_id, q.subscription_id, q.query,
    q.column_ids::bigint[], to_timestamp(q.created_at), 0, 0
FROM unnest(%(ids)s::uuid[], %(catalogs)s::bigint[], %(tables)s::bigint[], %(users)s::text[], %(owners)s::text[],
    %(names)s::text[], %(queries)s::text[], %(columns)s::text[], %(times)s::float8[])
    AS q (live_id, catalog_id, table_id, user_id, owner_id, subscription_id, query, column_ids, created_at)
ON CONFLICT (live_id) DO UPDATE SET owner_id = excluded.owner_id, column_ids = excluded.column_ids;

-- remove_queries: subscriptions that ended
DELETE FROM lakefork.live_query WHERE live_id = ANY (%(ids)s);

-- count: what was sent
UPDATE lakefork.live_query q SET messages = s.messages, bytes = s.bytes
FROM unnest(%(ids)s::uuid[], %(messages)s::bigint[], %(bytes)s::bigint[]) AS s (live_id, messages, bytes)
WHERE q.live_id = s.live_id;

-- ended: subscriptions of this server that somebody else ends
SELECT live_id, end_reason FROM lakefork.live_query WHERE server_id = %(server)s AND end_reason IS NOT NULL;

-- permissions: what decides what users may see, for each of some users and tokens; state differs when it changes
SELECT w.place, c.catalog_id IS NULL OR u.deleted_at IS NOT NULL
        OR (w.token_id IS NOT NULL AND (t.token_id IS NULL OR t.revoked_at IS NOT NULL)) AS is_gone,
    md5(coalesce(u.role, 'user') || coalesce(u.permissions::text, '')) AS state
FROM unnest(%(catalogs)s::text[], %(users)s::text[], %(tokens)s::uuid[]) WITH ORDINALITY
    AS w (catalog_name, user_id, token_id, place)
LEFT JOIN lakefork.visible_catalog() c ON c.catalog_name = w.catalog_name
LEFT JOIN lakefork.app_user u ON u.catalog_id = c.catalog_id AND u.user_id = w.user_id
LEFT JOIN lakefork.api_token t ON t.token_id = w.token_id
ORDER BY w.place;
