-- register_token: what is known of a token, besides itself
INSERT INTO lakefork.api_token (token_id, catalog_id, user_id, role, created_by, expires_at)
VALUES (%(token_id)s, %(catalog_id)s, %(user_id)s, %(role)s, %(created_by)s, %(expires_at)s);

-- list_tokens: those that have not expired, or lately
SELECT t.token_id, c.catalog_name AS catalog, t.user_id AS "user", t.role, t.created_at, t.created_by, t.expires_at,
    t.revoked_at
FROM lakefork.api_token t JOIN lakefork.visible_catalog() c USING (catalog_id)
ORDER BY t.created_at, t.token_id;

-- revoke_token: one, or all of a user
UPDATE lakefork.api_token t SET revoked_at = now()
FROM lakefork.visible_catalog() c
WHERE c.catalog_id = t.catalog_id AND t.revoked_at IS NULL
  AND (t.token_id = %(token_id)s OR (c.catalog_name = %(catalog)s AND t.user_id = %(user)s))
RETURNING t.token_id;

-- forget_tokens: those that expired a month ago
DELETE FROM lakefork.api_token WHERE expires_at < now() - interval '30 days';

-- session: the catalog and role of who presents a token, noted as a login; no row if the token is not good (any more)
WITH who AS (
    SELECT c.catalog_id, c.catalog_uuid, u.user_id, coalesce(u.role, 'user') AS role, u.last_login
    FROM lakefork.visible_catalog() c
    LEFT JOIN system.users u ON u.catalog_name = c.catalog_name AND u.user_id = %(user)s
    WHERE c.catalog_name = %(catalog)s AND u.deleted_at IS NULL
      AND (%(issued_here)s IS FALSE OR EXISTS (
              SELECT 1 FROM lakefork.api_token t
              WHERE t.token_id = %(token_id)s AND t.catalog_id = c.catalog_id AND t.user_id = %(user)s
                  AND t.revoked_at IS NULL))
), login AS (
    INSERT INTO lakefork.user_login (catalog_id, user_id, last_login)
    SELECT catalog_id, user_id, now() FROM who
    WHERE user_id IS NOT NULL AND (last_login IS NULL OR last_login < now() - interval '1 minute')
    ON CONFLICT (catalog_id, user_id) DO UPDATE SET last_login = excluded.last_login
)
SELECT catalog_id, role FROM who;

-- forget_receipts: those of requests that nobody repeats any more
DELETE FROM lakefork.api_receipt WHERE created_at < now() - make_interval(secs => %(seconds)s);
