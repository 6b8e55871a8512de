-- Leases: one holder at a time, for as long as it renews. A job that deletes checks its token before each batch.

-- Returns the new token, or NULL while another holder has the lease. Taking one's own lease again renews it.
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

-- Takes many leases; returns those that were free. In a fixed order, to avoid deadlocks.
CREATE FUNCTION lakefork.take_leases(p_names text[], p_holder text, p_seconds double precision) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT n FROM (SELECT n FROM unnest(p_names) n ORDER BY n COLLATE "C") o
        WHERE lakefork.take_lease(n, p_holder, p_seconds) IS NOT NULL
$$;

-- Renews all leases of a holder; returns their number. If there are fewer than before, others may have been taken.
CREATE FUNCTION lakefork.renew_leases(p_holder text, p_seconds double precision) RETURNS bigint
LANGUAGE sql AS $$
    WITH renewed AS (
        UPDATE lakefork.lease SET expires_at = clock_timestamp() + make_interval(secs => p_seconds)
        WHERE holder = p_holder AND expires_at >= clock_timestamp() RETURNING 1
    )
    SELECT count(*) FROM renewed
$$;

-- Kept as expired rows, so that tokens keep growing.
CREATE FUNCTION lakefork.release_leases(p_holder text) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.lease SET expires_at = '-infinity' WHERE holder = p_holder
$$;
