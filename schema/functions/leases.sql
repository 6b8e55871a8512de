-- Leases: one holder at a time, for as long as it renews. Whoever deletes checks its token before each batch.

-- The new token, or NULL while somebody else holds it. Taking one's own lease again renews it.
CREATE FUNCTION lakefork.take_lease(p_name text, p_holder text, p_seconds double precision) RETURNS bigint
LANGUAGE sql AS $$
    INSERT INTO lakefork.lease AS l (name, holder, token, acquired_at, expires_at)
    VALUES (p_name, p_holder, 1, clock_timestamp(), clock_timestamp() + make_interval(secs => p_seconds))
    ON CONFLICT (name) DO UPDATE SET
        holder = excluded.holder, expires_at = excluded.expires_at,
        token = l.token + CASE WHEN l.holder = excluded.holder THEN 0 ELSE 1 END,
        acquired_at = CASE WHEN l.holder = excluded.holder THEN l.acquired_at ELSE excluded.acquired_at END
    WHERE l.holder = excluded.holder OR l.expires_at < clock_timestamp()
    RETURNING token
$$;

-- False when the lease ran out and somebody else may have it: stop working.
CREATE FUNCTION lakefork.renew_lease(p_name text, p_holder text, p_token bigint, p_seconds double precision) RETURNS boolean
LANGUAGE sql AS $$
    WITH renewed AS (
        UPDATE lakefork.lease SET expires_at = clock_timestamp() + make_interval(secs => p_seconds)
        WHERE name = p_name AND holder = p_holder AND token = p_token AND expires_at >= clock_timestamp()
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM renewed)
$$;

-- Kept as an expired row, so that tokens go on growing.
CREATE FUNCTION lakefork.release_lease(p_name text, p_holder text, p_token bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.lease SET expires_at = '-infinity' WHERE name = p_name AND holder = p_holder AND token = p_token
$$;
