-- Nodes: the part of a _seq that distinguishes processes. Each holder has a node and an exclusive range of time on it:
-- ids never repeat because ranges never overlap, whatever clocks say and however long a holder is paused.

-- The node at which the search for a name starts; sha256, because hashtext differs between versions of Postgres.
CREATE FUNCTION lakefork.first_node(p_node_id text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT (get_byte(hash, 0) << 8 | get_byte(hash, 1)) % 1024 FROM sha256(convert_to(p_node_id, 'UTF8')) hash
$$;

-- Leases a node and the milliseconds from first_ms up to but excluding until_ms; a holder keeps its node. Commit before
-- using them.
CREATE FUNCTION lakefork.lease_node(
    p_node_id text, p_holder text, p_first_ms bigint, p_reserve_ms bigint, p_seconds double precision,
    OUT node integer, OUT first_ms bigint, OUT until_ms bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);   -- a range lost in a crash would be reused
    END IF;
    LOOP
        UPDATE lakefork.node n
        SET until_ms = greatest(n.until_ms, greatest(n.first_ms, p_first_ms) + p_reserve_ms),
            node_id = p_node_id, expires_at = clock_timestamp() + make_interval(secs => p_seconds)
        WHERE n.holder = p_holder
        RETURNING n.node, greatest(n.first_ms, p_first_ms), n.until_ms INTO node, first_ms, until_ms;
        EXIT WHEN FOUND;
        SELECT * INTO node, first_ms, until_ms
        FROM lakefork.take_node(p_node_id, p_holder, p_first_ms, p_reserve_ms, p_seconds) t;
        EXIT WHEN node IS NOT NULL;
    END LOOP;
END $$;

-- A node that nobody holds, or NULLs when its holder renewed it just then. Only for lease_node.
CREATE FUNCTION lakefork.take_node(
    p_node_id text, p_holder text, p_first_ms bigint, p_reserve_ms bigint, p_seconds double precision,
    OUT node integer, OUT first_ms bigint, OUT until_ms bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- or all who race would try the same node, again and again
    LOCK TABLE ONLY lakefork_locks.nodes IN SHARE UPDATE EXCLUSIVE MODE;
    INSERT INTO lakefork.node AS n (node, node_id, holder, first_ms, until_ms, expires_at)
    VALUES (lakefork.free_node(p_node_id, p_first_ms), p_node_id, p_holder, p_first_ms, p_first_ms + p_reserve_ms,
            clock_timestamp() + make_interval(secs => p_seconds))
    ON CONFLICT (node) DO UPDATE
    SET node_id = excluded.node_id, holder = excluded.holder, expires_at = excluded.expires_at,
        first_ms = greatest(n.until_ms, excluded.first_ms),
        until_ms = greatest(n.until_ms, excluded.first_ms) + p_reserve_ms
    WHERE n.expires_at <= clock_timestamp()
    RETURNING n.node, n.first_ms, n.until_ms INTO node, first_ms, until_ms;
END $$;

-- The first free node from that of the name on; those that would push the caller's time ahead come last.
CREATE FUNCTION lakefork.free_node(p_node_id text, p_first_ms bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    free integer;
BEGIN
    SELECT c.node INTO free
    FROM generate_series(0, 1023) AS c(node) LEFT JOIN lakefork.node n ON n.node = c.node
    WHERE n.node IS NULL OR n.expires_at <= clock_timestamp()
    ORDER BY greatest(n.until_ms - p_first_ms, 0), (c.node - lakefork.first_node(p_node_id) + 1024) % 1024
    LIMIT 1;
    IF free IS NULL THEN
        RAISE EXCEPTION 'all 1,024 nodes are in use: reduce the number of writing processes, or wait % seconds until a '
            'lease expires',
            (SELECT ceil(extract(epoch FROM min(expires_at) - clock_timestamp())) FROM lakefork.node)
                USING ERRCODE = 'LFC01';
    END IF;
    RETURN free;
END $$;

-- Kept as an expired row, so that its mark stays; a holder that says up to where it gave out ids returns the rest.
CREATE FUNCTION lakefork.release_node(p_node integer, p_holder text, p_until_ms bigint DEFAULT NULL) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.node
    SET expires_at = '-infinity', until_ms = greatest(first_ms, least(until_ms, p_until_ms))
    WHERE node = p_node AND holder = p_holder
$$;
