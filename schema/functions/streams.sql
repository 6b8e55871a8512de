-- Events of STREAM tables: who may write them, what a buffer holds, and what goes.
--
-- A buffer holds the newest events of a table in one catalog, at most max_buffer of them and none older than retention.
-- Readers look only at these; whatever else is there is evicted within a second. Events are ordered by the time of
-- Postgres, _at, and of the same time by _seq.

CREATE FUNCTION lakefork.stream_table(p_table_id bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 'stream.t' || p_table_id $$;

-- What a STREAM table keeps; no row: the catalog does not have it any more. The only place with the defaults.
CREATE FUNCTION lakefork.stream_options(p_catalog_id bigint, p_table_id bigint)
RETURNS TABLE (retention interval, max_buffer bigint, ephemeral boolean)
LANGUAGE sql STABLE AS $$
    SELECT coalesce(o.retention, '1h'), coalesce(o.max_buffer, 10000), coalesce(o.ephemeral, false)
    FROM lakefork.visible_table(p_catalog_id) t
    CROSS JOIN LATERAL (
        SELECT (max(g.value) FILTER (WHERE g.key = 'option.retention')::jsonb #>> '{}')::interval AS retention,
               max(g.value) FILTER (WHERE g.key = 'option.max_buffer')::bigint AS max_buffer,
               max(g.value) FILTER (WHERE g.key = 'option.ephemeral')::boolean AS ephemeral
        FROM lakefork.visible_tag(p_catalog_id) g WHERE g.object_id = t.table_id
    ) o
    WHERE t.table_id = p_table_id
      AND EXISTS (SELECT FROM lakefork.visible_catalog() c WHERE c.catalog_id = p_catalog_id)
$$;

-- Where a buffer begins: it holds the events after that. The table of its events exists, and the catalog has the table.
CREATE FUNCTION lakefork.buffer_begin(p_catalog_id bigint, p_table_id bigint, OUT at timestamptz, OUT seq bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    options record;
    expired_until timestamptz;
BEGIN
    SELECT * INTO options FROM lakefork.stream_options(p_catalog_id, p_table_id);
    expired_until := clock_timestamp() - options.retention;
    EXECUTE format('SELECT _at, _seq FROM %s WHERE catalog_id = $1 ORDER BY _at DESC, _seq DESC OFFSET $2 LIMIT 1',
        lakefork.stream_table(p_table_id)) INTO at, seq USING p_catalog_id, options.max_buffer;
    IF at IS NULL OR at < expired_until THEN
        at := expired_until;
        seq := 0;
    END IF;
END $$;

-- Notes that a table has a buffer, which is to be looked at soon.
CREATE FUNCTION lakefork.note_buffer(p_catalog_id bigint, p_table_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    next_look timestamptz;
    soon timestamptz := clock_timestamp() + interval '0.5 seconds';
BEGIN
    SELECT b.look_at INTO next_look FROM lakefork.stream_buffer b
    WHERE b.catalog_id = p_catalog_id AND b.table_id = p_table_id;
    IF next_look IS NULL THEN
        INSERT INTO lakefork.stream_buffer (catalog_id, table_id, look_at) VALUES (p_catalog_id, p_table_id, soon)
        ON CONFLICT DO NOTHING;
    ELSIF next_look > soon THEN   -- a table that is written all the time is looked at anyway, and not touched here
        UPDATE lakefork.stream_buffer b SET look_at = soon
        WHERE b.catalog_id = p_catalog_id AND b.table_id = p_table_id AND b.look_at > soon;
    END IF;
END $$;

-- Guards a write of events as lakefork.guard_write does: p_actor exists, under these rules. False: the table is
-- ephemeral, and nobody gets events of p_owner.
CREATE FUNCTION lakefork.admit_events(
    p_catalog_id bigint, p_catalog_name text, p_table_id bigint, p_definition_snapshot bigint, p_actor text,
    p_rules text[], p_ephemeral boolean, p_owner text
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ignored text;
BEGIN
    ignored := lakefork.guard_write(p_catalog_id, p_catalog_name, p_table_id, p_definition_snapshot, p_actor, p_rules);
    IF p_ephemeral AND NOT lakefork.has_subscribers(p_catalog_id, p_table_id, p_owner) THEN
        RETURN false;
    END IF;
    ignored := lakefork.note_buffer(p_catalog_id, p_table_id);
    RETURN true;
END $$;

-- What a crash of Postgres changes: it empties UNLOGGED tables, and counts transactions again that left no trace.
CREATE FUNCTION lakefork.ensure_crash_mark() RETURNS uuid
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lakefork.crash_mark (mark) SELECT gen_random_uuid() WHERE NOT EXISTS (SELECT FROM lakefork.crash_mark)
    ON CONFLICT DO NOTHING;
    RETURN (SELECT m.mark FROM lakefork.crash_mark m);
END $$;

-- Why whoever has got the events that a Postgres snapshot saw cannot get all others any more; NULL: they are there.
-- p_mark: the crash mark at that time.
-- Of events that were evicted since, only the newest transaction is known: one that was under way then and has ended
-- may have had some, too.
CREATE FUNCTION lakefork.missed_events(p_catalog_id bigint, p_table_id bigint, p_since pg_snapshot, p_mark uuid)
RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN NOT EXISTS (SELECT FROM lakefork.crash_mark m WHERE m.mark = p_mark)
            THEN 'Postgres crashed, which empties STREAM tables'
        WHEN NOT pg_visible_in_snapshot(b.evicted_by, p_since)
             AND (NOT pg_visible_in_snapshot(b.evicted_xid, p_since)
                  OR EXISTS (SELECT FROM pg_snapshot_xip(p_since) x
                             WHERE x <= b.evicted_xid AND pg_visible_in_snapshot(x, pg_current_snapshot())))
            THEN 'events went by retention or max_buffer before they were delivered' END
    FROM (VALUES (p_catalog_id, p_table_id)) AS t (catalog_id, table_id)
    LEFT JOIN lakefork.stream_buffer b USING (catalog_id, table_id)
$$;

-- Removes the buffer of a table in one catalog: it was dropped there.
CREATE FUNCTION lakefork.discard_events(p_catalog_id bigint, p_table_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass(lakefork.stream_table(p_table_id)) IS NOT NULL THEN
        EXECUTE format('DELETE FROM %s WHERE catalog_id = $1', lakefork.stream_table(p_table_id)) USING p_catalog_id;
    END IF;
    DELETE FROM lakefork.stream_buffer b WHERE b.catalog_id = p_catalog_id AND b.table_id = p_table_id;
END $$;

-- Has the next eviction look at a table: its options changed.
CREATE FUNCTION lakefork.look_at_events(p_catalog_id bigint, p_table_id bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.stream_buffer b SET look_at = now()
    WHERE b.catalog_id = p_catalog_id AND b.table_id = p_table_id
$$;

-- Removes the events of one buffer that it no longer holds, and decides when to look again: soon while events come in,
-- otherwise when the oldest expires. An event that comes in with a statement that began before this look may not be
-- known to it, so that every buffer is looked at twice a minute.
CREATE FUNCTION lakefork.evict_buffer(p_buffer lakefork.stream_buffer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    events text := lakefork.stream_table(p_buffer.table_id);
    moment timestamptz := clock_timestamp();
    retention interval;
    evicted bigint;
    newest_evicted bigint;
    oldest timestamptz;
    newest timestamptz;
BEGIN
    SELECT o.retention INTO retention FROM lakefork.stream_options(p_buffer.catalog_id, p_buffer.table_id) o;
    IF NOT FOUND OR to_regclass(events) IS NULL THEN
        PERFORM lakefork.discard_events(p_buffer.catalog_id, p_buffer.table_id);
        RETURN 0;
    END IF;
    EXECUTE format('WITH gone AS (DELETE FROM %s WHERE catalog_id = $1 AND (_at, _seq) <= '
        '(SELECT b.at, b.seq FROM lakefork.buffer_begin($1, $2) b) RETURNING _xid) '
        'SELECT count(*), max(_xid::text::bigint) FROM gone', events)
    INTO evicted, newest_evicted USING p_buffer.catalog_id, p_buffer.table_id;
    EXECUTE format('SELECT (SELECT _at FROM %1$s WHERE catalog_id = $1 ORDER BY _at, _seq LIMIT 1), '
        '(SELECT _at FROM %1$s WHERE catalog_id = $1 ORDER BY _at DESC, _seq DESC LIMIT 1)', events)
    INTO oldest, newest USING p_buffer.catalog_id;
    UPDATE lakefork.stream_buffer b
    SET look_at = CASE WHEN newest IS DISTINCT FROM p_buffer.newest_at THEN moment + interval '0.5 seconds'
                       ELSE greatest(moment + interval '0.5 seconds',
                           least(moment + interval '30 seconds', oldest + retention)) END,
        newest_at = newest,
        evicted_xid = greatest(b.evicted_xid::text::bigint, newest_evicted)::text::xid8,
        evicted_by = CASE WHEN evicted > 0 THEN pg_current_xact_id() ELSE b.evicted_by END
    WHERE b.catalog_id = p_buffer.catalog_id AND b.table_id = p_buffer.table_id;
    RETURN evicted;
END $$;

-- Records a failed eviction where people look for failed jobs, at most every ten minutes.
CREATE FUNCTION lakefork.note_failed_eviction(p_catalog_id bigint, p_table_id bigint, p_error text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.job_run (job_id, job, run_id, trace, params, status, started_at, heartbeat_at, finished_at,
        error, retryable, node_id)
    SELECT id, 'evict_events', id, 'cli/' || id, p.params, 'failed', clock_timestamp(), clock_timestamp(),
           clock_timestamp(), p_error, true, ''
    FROM (SELECT 'evict_events_' || gen_random_uuid() AS id) i,
         (SELECT jsonb_build_object('catalog', c.catalog_name, 'namespace', t.namespace, 'table', t.table_name)
              AS params
          FROM lakefork.visible_catalog() c, lakefork.visible_named_table(p_catalog_id) t
          WHERE c.catalog_id = p_catalog_id AND t.table_id = p_table_id) p
    WHERE NOT EXISTS (SELECT FROM lakefork.job_run r WHERE r.job = 'evict_events' AND r.params = p.params
                      AND r.started_at > clock_timestamp() - interval '10 minutes')
$$;

-- Evicts from up to p_limit buffers that are to be looked at; returns how many these were. One that fails is recorded,
-- tried again and stops no other. Processes that do this at the same time share the work.
CREATE FUNCTION lakefork.evict_events(p_limit bigint DEFAULT 50) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    buffer lakefork.stream_buffer;
    looked_at bigint := 0;
BEGIN
    FOR buffer IN SELECT * FROM lakefork.stream_buffer b WHERE b.look_at <= moment
                  ORDER BY b.look_at LIMIT p_limit FOR UPDATE SKIP LOCKED LOOP
        looked_at := looked_at + 1;
        BEGIN
            PERFORM lakefork.evict_buffer(buffer);
        EXCEPTION WHEN OTHERS THEN
            PERFORM lakefork.note_failed_eviction(buffer.catalog_id, buffer.table_id, SQLERRM);
            UPDATE lakefork.stream_buffer b SET look_at = clock_timestamp() + interval '5 seconds'
            WHERE b.catalog_id = buffer.catalog_id AND b.table_id = buffer.table_id;
        END;
    END LOOP;
    RETURN looked_at;
END $$;

-- Drops the tables of events that no catalog can have again: their ids are in none, past definitions included.
CREATE FUNCTION lakefork.drop_unused_streams() RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    unused text;
    dropped bigint := 0;
BEGIN
    FOR unused IN
        SELECT format('stream.%I', c.relname) FROM pg_class c
        WHERE c.relnamespace = 'stream'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^t\d+$'
          AND NOT EXISTS (SELECT FROM lakefork.retained_table t WHERE t.table_id = substr(c.relname, 2)::bigint)
    LOOP
        EXECUTE format('DROP TABLE %s', unused);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
