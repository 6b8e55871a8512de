-- The change feed and live queries: positions in the feed, what it missed, and who is subscribed to what.

-- Where the feed stands: which Postgres this is, its mark, the newest snapshot of the catalogs, and what is visible.
CREATE FUNCTION lakefork.feed_position(
    OUT cluster text, OUT timeline integer, OUT mark uuid, OUT catalog_snapshot bigint, OUT seen text
) LANGUAGE sql STABLE AS $$
    SELECT lakefork.cluster_id() || '-' || (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
           (pg_control_checkpoint()).timeline_id, (SELECT m.mark FROM lakefork.crash_mark m),
           lakefork.newest_snapshot(), pg_current_snapshot()::text
$$;

-- Whether one Postgres snapshot saw all that was written by transactions up to an id, of those that have ended.
CREATE FUNCTION lakefork.saw_all_until(p_since pg_snapshot, p_xid xid8) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT p_xid IS NULL OR (pg_visible_in_snapshot(p_xid, p_since)
        AND NOT EXISTS (SELECT FROM pg_snapshot_xip(p_since) x
                        WHERE x <= p_xid AND pg_visible_in_snapshot(x, pg_current_snapshot())))
$$;

-- The owners of whose versions trim removed some that a Postgres snapshot had not seen.
CREATE FUNCTION lakefork.trimmed_since(p_catalog_id bigint, p_table_id bigint, p_since pg_snapshot)
RETURNS TABLE (user_id varchar)
LANGUAGE sql STABLE AS $$
    SELECT t.user_id FROM lakefork.trimmed t
    WHERE t.catalog_id = p_catalog_id AND t.table_id = p_table_id AND NOT lakefork.saw_all_until(p_since, t.xid)
$$;

CREATE FUNCTION lakefork.note_trimmed(p_catalog_id bigint, p_table_id bigint, p_user_id text, p_xid xid8) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.trimmed AS t (catalog_id, table_id, user_id, xid)
    SELECT p_catalog_id, p_table_id, p_user_id, p_xid WHERE p_xid IS NOT NULL
    ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET xid = excluded.xid WHERE t.xid < excluded.xid
$$;

-- Who committed files of a table after a snapshot: 'flush', 'snapshot_dedup', or 'other' if rows came or went in files.
CREATE FUNCTION lakefork.file_commits_since(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint)
RETURNS TABLE (author text)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT CASE WHEN c.author IN ('flush', 'snapshot_dedup') THEN c.author ELSE 'other' END
    FROM (
        SELECT f.begin_snapshot AS snapshot_id FROM lakefork.retained_data_file f
        WHERE f.catalog_id = p_catalog_id AND f.table_id = p_table_id AND f.begin_snapshot > p_snapshot
        UNION
        SELECT f.end_snapshot FROM lakefork.retained_data_file f
        WHERE f.catalog_id = p_catalog_id AND f.table_id = p_table_id AND f.end_snapshot > p_snapshot
    ) s
    LEFT JOIN lakefork.retained_snapshot c ON c.snapshot_id = s.snapshot_id
$$;

-- Subscriptions -----------------------------------------------------------------------------------

CREATE VIEW lakefork.live_subscription AS
    SELECT q.*, s.node FROM lakefork.live_query q JOIN lakefork.live_server s USING (server_id)
    WHERE s.expires_at > statement_timestamp() AND q.end_reason IS NULL;

-- Renews the lease of a server; false: it is not known (any more), and neither are its subscriptions.
CREATE FUNCTION lakefork.renew_live_server(
    p_server_id uuid, p_seconds double precision, p_rate double precision, p_resyncs bigint, p_look double precision
) RETURNS boolean
LANGUAGE sql AS $$
    WITH renewed AS (
        UPDATE lakefork.live_server SET expires_at = clock_timestamp() + make_interval(secs => p_seconds),
            messages_per_second = p_rate, resyncs = p_resyncs, look_seconds = p_look
        WHERE server_id = p_server_id RETURNING 1
    )
    SELECT EXISTS (SELECT FROM renewed)
$$;

-- Makes a server known, and forgets those that have been gone for a while.
CREATE FUNCTION lakefork.add_live_server(p_server_id uuid, p_node text, p_seconds double precision) RETURNS void
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM lakefork.live_server WHERE expires_at < clock_timestamp() - interval '10 seconds'
        RETURNING server_id
    )
    DELETE FROM lakefork.live_query q USING gone WHERE q.server_id = gone.server_id;
    INSERT INTO lakefork.live_server VALUES (p_server_id, p_node, clock_timestamp() + make_interval(secs => p_seconds))
    ON CONFLICT (server_id) DO UPDATE SET expires_at = excluded.expires_at;
$$;

-- Raises if a table is subscribed, or one of some columns of it; p_force ends these subscriptions instead.
CREATE FUNCTION lakefork.guard_subscribed(
    p_catalog_id bigint, p_table_id bigint, p_column_ids bigint[], p_name text, p_force boolean
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    subscribed uuid[];
BEGIN
    SELECT array_agg(s.live_id ORDER BY s.created_at) INTO subscribed FROM lakefork.live_subscription s
    WHERE s.catalog_id = p_catalog_id AND s.table_id = p_table_id
      AND (p_column_ids IS NULL OR s.column_ids && p_column_ids);
    IF subscribed IS NULL THEN
        RETURN;
    ELSIF p_force THEN
        UPDATE lakefork.live_query q SET end_reason = p_name || ' was dropped' WHERE q.live_id = ANY (subscribed);
        RETURN;
    END IF;
    RAISE EXCEPTION '% is used by % live quer%: %; end them by KILL LIVE QUERY, or add FORCE', p_name,
        cardinality(subscribed), CASE cardinality(subscribed) WHEN 1 THEN 'y' ELSE 'ies' END,
        array_to_string(subscribed[:10], ', ') || CASE WHEN cardinality(subscribed) > 10 THEN ', …' ELSE '' END
        USING ERRCODE = 'LFC01';
END $$;

-- Whether somebody gets the events that a user writes.
CREATE FUNCTION lakefork.has_subscribers(p_catalog_id bigint, p_table_id bigint, p_user_id text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM lakefork.live_subscription s
                   WHERE s.catalog_id = p_catalog_id AND s.table_id = p_table_id
                     AND (s.owner_id IS NULL OR s.owner_id = p_user_id))
$$;

-- The live queries of a catalog; bandwidth: bytes sent so far.
CREATE FUNCTION lakefork.live_queries(p_catalog_id bigint)
RETURNS TABLE (id uuid, user_id varchar, query varchar, created_at timestamptz, bandwidth bigint, messages bigint,
    node varchar, namespace varchar, table_name varchar, subscription_id varchar)
LANGUAGE sql STABLE AS $$
    WITH named AS MATERIALIZED (
        SELECT t.table_id, t.namespace, t.table_name FROM lakefork.visible_named_table(p_catalog_id) t
        WHERE t.table_id IN (SELECT s.table_id FROM lakefork.live_query s WHERE s.catalog_id = p_catalog_id)
    )
    SELECT s.live_id, s.user_id, s.query, s.created_at, s.bytes, s.messages, s.node, n.namespace, n.table_name,
        s.subscription_id
    FROM lakefork.live_subscription s LEFT JOIN named n USING (table_id) WHERE s.catalog_id = p_catalog_id
$$;

-- Has the server of a live query end it; p_user_id: only if it is this user's. False: there is none.
CREATE FUNCTION lakefork.kill_live_query(p_catalog_id bigint, p_id uuid, p_user_id text, p_reason text) RETURNS boolean
LANGUAGE sql AS $$
    WITH killed AS (
        UPDATE lakefork.live_query q SET end_reason = p_reason
        WHERE q.live_id = p_id AND q.catalog_id = p_catalog_id AND (p_user_id IS NULL OR q.user_id = p_user_id)
          AND EXISTS (SELECT FROM lakefork.live_subscription s WHERE s.live_id = q.live_id)
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM killed)
$$;
