-- Flush: what is due, what was published, what can be trimmed. user_id is '' for shared tables.

-- The flush policy of a table: versions per user, and seconds; the defaults apply to tables without a policy.
CREATE FUNCTION lakefork.flush_policy(p_catalog_id bigint, p_table_id bigint, p_default_rows bigint,
    p_default_seconds bigint)
RETURNS TABLE (max_versions bigint, max_seconds bigint)
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN count(*) = 0 THEN p_default_rows ELSE max(g.value::bigint) FILTER (WHERE g.key = 'flush_rows') END,
           CASE WHEN count(*) = 0 THEN p_default_seconds
               ELSE max(g.value::bigint) FILTER (WHERE g.key = 'flush_interval') END
    FROM lakefork.visible_tag(p_catalog_id) g
    WHERE g.object_id = p_table_id AND g.key IN ('flush_rows', 'flush_interval')
$$;

-- Folds appended changes into the counts, and notifies channel lakefork_flush of tables that reached their limit.
-- Writers do not do that themselves: a transaction that notifies commits alone.
CREATE FUNCTION lakefork.fold_counts(p_default_rows bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    folded bigint;
    catalogs bigint[];
    tables bigint[];
    users text[];
BEGIN
    LOCK TABLE ONLY lakefork_locks.counts IN SHARE UPDATE EXCLUSIVE MODE;
    WITH changes AS (
        DELETE FROM lakefork.hot_delta RETURNING *
    ), sums AS (
        SELECT catalog_id, table_id, user_id, sum(versions) AS versions,
            min(counted_at) FILTER (WHERE versions > 0) AS written_at,
               max(counted_at) FILTER (WHERE versions <= 0) AS published_at
        FROM changes GROUP BY catalog_id, table_id, user_id
    ), counts AS (
        INSERT INTO lakefork.hot_count AS c (catalog_id, table_id, user_id, versions, oldest_at, published_at, notified)
        SELECT catalog_id, table_id, user_id, versions, coalesce(published_at, written_at), published_at, false
            FROM sums
        ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET
            versions = c.versions + excluded.versions,
            oldest_at = coalesce(excluded.published_at, c.oldest_at),
            published_at = coalesce(excluded.published_at, c.published_at),
            notified = c.notified AND excluded.published_at IS NULL
        RETURNING catalog_id, table_id, user_id, versions, notified
    ), reached AS (
        SELECT c.catalog_id, c.table_id, c.user_id
        FROM counts c CROSS JOIN LATERAL lakefork.flush_policy(c.catalog_id, c.table_id, p_default_rows, NULL) p
        WHERE NOT c.notified AND c.versions >= p.max_versions
    )
    SELECT (SELECT count(*) FROM changes), array_agg(catalog_id), array_agg(table_id), array_agg(user_id)
    INTO folded, catalogs, tables, users FROM reached;
    DELETE FROM lakefork.hot_count WHERE versions <= 0;
    UPDATE lakefork.hot_count c SET notified = true FROM unnest(catalogs, tables, users) AS r (catalog_id, table_id,
        user_id)
    WHERE c.catalog_id = r.catalog_id AND c.table_id = r.table_id AND c.user_id = r.user_id;
    PERFORM pg_notify('lakefork_flush', r.catalog_id || '/' || r.table_id)
    FROM (SELECT DISTINCT * FROM unnest(catalogs, tables) AS r (catalog_id, table_id)) r;
    RETURN folded;
END $$;

-- Tables that pause because their audits fail: 5 minutes after the first failure, twice as long after each further one,
-- at most 6 hours. One that has passed since is not among them.
CREATE FUNCTION lakefork.paused_flushes()
RETURNS TABLE (catalog_id bigint, table_id bigint, failures bigint, failed_at timestamptz, paused_until timestamptz)
LANGUAGE sql STABLE ROWS 10 AS $$
    SELECT f.catalog_id, f.table_id, n.failures, f.failed_at, f.failed_at + n.pause
    FROM (SELECT a.catalog_id, a.table_id, max(a.audited_at) AS failed_at FROM lakefork.flush_audit a
          WHERE NOT a.success AND a.audited_at > statement_timestamp() - interval '6 hours' GROUP BY a.catalog_id,
              a.table_id) f
    CROSS JOIN LATERAL (
        SELECT count(*) AS failures, least(interval '5 minutes' * 2 ^ (least(count(*), 10) - 1), interval '6 hours')
            AS pause
        FROM lakefork.flush_audit a
        WHERE a.catalog_id = f.catalog_id AND a.table_id = f.table_id AND NOT a.success
          AND a.audited_at > coalesce((SELECT max(g.audited_at) FROM lakefork.flush_audit g
                                       WHERE g.catalog_id = f.catalog_id AND g.table_id = f.table_id AND g.success),
                                           '-infinity')
    ) n
    WHERE n.failures > 0 AND f.failed_at + n.pause > statement_timestamp()
$$;

-- The users and tables to flush now, and why. Reads only tables with waiting rows, and by index those that are due. A
-- table whose audits fail pauses, unless the flush is forced or was requested after the last failure.
CREATE FUNCTION lakefork.due_flushes(
    p_catalog text, p_namespace text, p_table text, p_user text, p_force boolean, p_default_rows bigint,
        p_default_seconds bigint
)
RETURNS TABLE (catalog_id bigint, catalog_name varchar, namespace varchar, table_name varchar, table_id bigint,
    user_id varchar,
               versions bigint, oldest_at timestamptz, reason text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM lakefork.fold_counts(p_default_rows);
    DELETE FROM lakefork.flush_request r   -- of tables without waiting rows, or without a table
    WHERE NOT EXISTS (SELECT FROM lakefork.hot_count c WHERE c.catalog_id = r.catalog_id AND c.table_id = r.table_id)
      AND NOT EXISTS (SELECT FROM lakefork.hot_delta d WHERE d.catalog_id = r.catalog_id AND d.table_id = r.table_id);
    RETURN QUERY
    WITH RECURSIVE paused AS MATERIALIZED (
        SELECT * FROM lakefork.paused_flushes()
    ), waiting AS (
        (SELECT c.catalog_id, c.table_id FROM lakefork.hot_count c ORDER BY c.catalog_id, c.table_id LIMIT 1)
        UNION ALL
        SELECT n.catalog_id, n.table_id FROM waiting w CROSS JOIN LATERAL (
            SELECT c.catalog_id, c.table_id FROM lakefork.hot_count c
            WHERE (c.catalog_id, c.table_id) > (w.catalog_id, w.table_id) ORDER BY c.catalog_id, c.table_id LIMIT 1) n
    )
    SELECT w.catalog_id, t.catalog_name, t.namespace, t.table_name, w.table_id, d.user_id, d.versions, d.oldest_at,
        d.reason
    FROM waiting w
    JOIN lakefork.live_table t ON t.catalog_id = w.catalog_id AND t.table_id = w.table_id
        AND (p_catalog IS NULL OR t.catalog_name = p_catalog)
         AND (p_table IS NULL OR lower(t.table_name COLLATE "C") = lower(p_table COLLATE "C"))
         AND (p_namespace IS NULL OR lower(t.namespace COLLATE "C") = lower(p_namespace COLLATE "C"))
    CROSS JOIN LATERAL lakefork.flush_policy(w.catalog_id, w.table_id, p_default_rows, p_default_seconds) p
    LEFT JOIN paused z ON z.catalog_id = w.catalog_id AND z.table_id = w.table_id
    LEFT JOIN lakefork.flush_request r ON r.catalog_id = w.catalog_id AND r.table_id = w.table_id
         AND (z.failed_at IS NULL OR r.requested_at > z.failed_at)
    CROSS JOIN LATERAL (
        SELECT c.user_id, c.versions, c.oldest_at, CASE WHEN p_force THEN 'forced' ELSE 'requested' END AS reason
        FROM lakefork.hot_count c
        WHERE c.catalog_id = w.catalog_id AND c.table_id = w.table_id AND (p_force OR r.table_id IS NOT NULL)
        UNION ALL
        SELECT c.user_id, c.versions, c.oldest_at, 'rows' FROM lakefork.hot_count c
        WHERE c.catalog_id = w.catalog_id AND c.table_id = w.table_id AND NOT (p_force OR r.table_id IS NOT NULL)
          AND c.versions >= p.max_versions
        UNION ALL
        SELECT c.user_id, c.versions, c.oldest_at, 'interval' FROM lakefork.hot_count c
        WHERE c.catalog_id = w.catalog_id AND c.table_id = w.table_id AND NOT (p_force OR r.table_id IS NOT NULL)
          AND c.oldest_at <= statement_timestamp() - make_interval(secs => p.max_seconds)
          AND (p.max_versions IS NULL OR c.versions < p.max_versions)
    ) d
    WHERE (p_user IS NULL OR d.user_id = p_user) AND (p_force OR z.table_id IS NULL OR r.table_id IS NOT NULL)
    ORDER BY w.catalog_id, w.table_id, d.user_id COLLATE "C";
END $$;

-- The number of waiting versions of these users that the caller's transaction sees, folded or not.
CREATE FUNCTION lakefork.waiting_versions(p_catalogs bigint[], p_tables bigint[], p_users text[])
RETURNS TABLE (place bigint, versions bigint)
LANGUAGE sql STABLE AS $$
    WITH wanted AS (
        SELECT * FROM unnest(p_catalogs, p_tables, p_users) WITH ORDINALITY AS w (catalog_id, table_id, user_id, place)
    ), unfolded AS (
        SELECT catalog_id, table_id, user_id, sum(versions) AS versions FROM lakefork.hot_delta GROUP BY 1, 2, 3
    )
    SELECT w.place, (coalesce(c.versions, 0) + coalesce(u.versions, 0))::bigint
    FROM wanted w
    LEFT JOIN lakefork.hot_count c USING (catalog_id, table_id, user_id)
    LEFT JOIN unfolded u USING (catalog_id, table_id, user_id)
    ORDER BY w.place
$$;

-- Requests a flush of a table.
CREATE FUNCTION lakefork.request_flush(p_catalog_id bigint, p_table_id bigint, p_user text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.flush_request VALUES (p_catalog_id, p_table_id, clock_timestamp(), p_user)
    ON CONFLICT (catalog_id, table_id) DO UPDATE SET requested_at = excluded.requested_at,
        requested_by = excluded.requested_by;
    SELECT pg_notify('lakefork_flush', p_catalog_id || '/' || p_table_id);
$$;

CREATE FUNCTION lakefork.batch_path(p_directory text, p_number bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT p_directory || '/batch-' || p_number || '.parquet' $$;

-- Reserves numbers for new batches in these directories. The files are recorded as staged until published or removed.
CREATE FUNCTION lakefork.reserve_batches(p_job_id text, p_catalog_id bigint, p_table_id bigint, p_directories text[],
    p_counts bigint[])
RETURNS TABLE (place bigint, first_number bigint)
LANGUAGE sql AS $$
    WITH wanted AS (
        SELECT * FROM unnest(p_directories, p_counts) WITH ORDINALITY AS w (directory, files, place)
    ), numbers AS (
        INSERT INTO lakefork.batch_number AS b (directory, next_number) SELECT directory, files FROM wanted
            ORDER BY directory
        ON CONFLICT (directory) DO UPDATE SET next_number = b.next_number + excluded.next_number
        RETURNING directory, next_number
    ), staged AS (
        INSERT INTO lakefork.staged_file (path, catalog_id, table_id, job_id, staged_at)
        SELECT lakefork.batch_path(n.directory, n.next_number - i), p_catalog_id, p_table_id, p_job_id,
            clock_timestamp()
        FROM numbers n JOIN wanted w USING (directory) CROSS JOIN generate_series(1, w.files) i
    )
    SELECT w.place, n.next_number - w.files FROM numbers n JOIN wanted w USING (directory) ORDER BY w.place
$$;

-- The next number for a batch whose name is taken in storage by a file that this job did not write: the first that was
-- never given out and is not among those that were found there (p_found). Skipped ones are somebody else's, as is the
-- one that is taken.
CREATE FUNCTION lakefork.reserve_past_taken(
    p_job_id text, p_catalog_id bigint, p_table_id bigint, p_directory text, p_taken bigint, p_found bigint[]
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    given_out bigint;
    new_number bigint;
BEGIN
    SELECT b.next_number INTO given_out FROM lakefork.batch_number b WHERE b.directory = p_directory FOR UPDATE;
    SELECT n INTO new_number FROM (SELECT generate_series(given_out, given_out + cardinality(p_found)) EXCEPT
        SELECT unnest(p_found)) AS free (n)
    ORDER BY n LIMIT 1;
    UPDATE lakefork.batch_number b SET next_number = new_number + 1 WHERE b.directory = p_directory;
    PERFORM lakefork.note_foreign(p_job_id, ARRAY(
        SELECT lakefork.batch_path(p_directory, n) FROM unnest(p_found || p_taken) n
        WHERE n = p_taken OR n BETWEEN given_out AND new_number));
    INSERT INTO lakefork.staged_file (path, catalog_id, table_id, job_id, staged_at)
    VALUES (lakefork.batch_path(p_directory, new_number), p_catalog_id, p_table_id, p_job_id, clock_timestamp());
    RETURN new_number;
END $$;

-- Records files of somebody else that a job meant to write or to remove; they are never removed.
CREATE FUNCTION lakefork.note_foreign(p_job_id text, p_paths text[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM lakefork.staged_file f WHERE f.path = ANY (p_paths);
    INSERT INTO lakefork.foreign_file (path, job_id, found_at) SELECT DISTINCT p, p_job_id, clock_timestamp()
        FROM unnest(p_paths) p
    ON CONFLICT (path) DO NOTHING;
$$;

-- Raises unless this job holds the lease, and keeps it until the transaction ends.
CREATE FUNCTION lakefork.require_lease(p_name text, p_holder text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM lakefork.lease l WHERE l.name = p_name AND l.holder = p_holder
        AND l.expires_at >= clock_timestamp() FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION '% lost its lease on % and stops', p_holder, p_name USING ERRCODE = 'LFL01';
    END IF;
END $$;

CREATE FUNCTION lakefork.table_lease(p_catalog_id bigint, p_table_id bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'table/' || p_catalog_id || '/' || p_table_id $$;

-- Claims the files that a job staged for publishing; raises if some are no longer its own.
CREATE FUNCTION lakefork.take_staged(p_job_id text, p_paths text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    staged bigint;
BEGIN
    DELETE FROM lakefork.staged_file f USING unnest(p_paths) p WHERE f.path = p AND f.job_id = p_job_id;
    GET DIAGNOSTICS staged = ROW_COUNT;
    IF staged <> cardinality(p_paths) THEN   -- another run may have removed the files
        RAISE EXCEPTION '% of the % files that % staged are no longer its own; it stops',
            cardinality(p_paths) - staged,
            cardinality(p_paths), p_job_id USING ERRCODE = 'LFL01';
    END IF;
END $$;

-- Publishes what a flush staged for one table, in one transaction. The same run again returns the first result.
--   p_users, p_versions   whose rows were read, and how many of them were waiting
--   p_seen, p_read_at     the Postgres snapshot in which they were read, and when
--   p_requested_before    requests until then are answered by this (NULL: none, because it is about some users only)
-- p_paths               the files that are published; p_directories: where each user's manifest lies (NULL: no new
-- file)
CREATE FUNCTION lakefork.publish_flush(
    p_job_id text, p_run_id text, p_catalog_id bigint, p_table_id bigint, p_changes jsonb, p_hot_snapshots bigint[],
    p_users text[], p_versions bigint[], p_directories text[], p_seen pg_snapshot, p_read_at timestamptz,
    p_requested_before timestamptz, p_paths text[],
    p_counts jsonb,
    OUT snapshot_id bigint, OUT replayed boolean
-- others would hold copies of all that is published
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET work_mem = '64MB' AS $$
DECLARE
    new_key text := format('flush/%s/%s/%s', p_run_id, p_catalog_id, p_table_id);
BEGIN
    PERFORM lakefork.require_lease(lakefork.table_lease(p_catalog_id, p_table_id), p_job_id);
    SELECT k.snapshot_id, true INTO snapshot_id, replayed
    FROM lakefork.flush_log l LEFT JOIN lakefork.commit_key k ON k.commit_key = l.commit_key
    WHERE l.run_id = p_run_id AND l.catalog_id = p_catalog_id AND l.table_id = p_table_id;
    IF FOUND THEN
        RETURN;
    END IF;
    INSERT INTO lakefork.watermark AS w (catalog_id, table_id, hot_snapshot, user_id, seen, cluster_id, published_at,
        trimmed)
    SELECT p_catalog_id, p_table_id, h, u, p_seen::text, (SELECT lakefork.cluster_id()), clock_timestamp(), false
    FROM unnest(p_users) u CROSS JOIN unnest(p_hot_snapshots) h
    ON CONFLICT (catalog_id, table_id, hot_snapshot, user_id) DO UPDATE SET
        seen = excluded.seen, cluster_id = excluded.cluster_id, published_at = excluded.published_at, trimmed = false;
    INSERT INTO lakefork.hot_delta (catalog_id, table_id, user_id, versions, counted_at)
    SELECT p_catalog_id, p_table_id, u, -v, p_read_at FROM unnest(p_users, p_versions) AS r (u, v);
    DELETE FROM lakefork.flush_request r
    WHERE r.catalog_id = p_catalog_id AND r.table_id = p_table_id AND r.requested_at <= p_requested_before;
    PERFORM lakefork.take_staged(p_job_id, p_paths);
    INSERT INTO lakefork.manifest_pending (catalog_id, table_id, user_id, directory, run_id)
    SELECT p_catalog_id, p_table_id, u, d, p_run_id FROM unnest(p_users, p_directories) AS r (u, d) WHERE d IS NOT NULL
    ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET directory = excluded.directory, run_id = excluded.run_id;
    INSERT INTO lakefork.flush_log (run_id, catalog_id, table_id, job_id, published_at, commit_key, counts)
    SELECT p_run_id, p_catalog_id, p_table_id, p_job_id, clock_timestamp(), new_key,
           p_counts || jsonb_build_object('waited_seconds',
               round(extract(epoch FROM clock_timestamp() - min(c.oldest_at)), 3))
    FROM lakefork.hot_count c WHERE c.catalog_id = p_catalog_id AND c.table_id = p_table_id
        AND c.user_id = ANY (p_users);
    PERFORM lakefork.note_published(p_job_id, p_catalog_id, p_table_id, p_users, p_counts);
    replayed := false;
    IF cardinality(p_paths) > 0 THEN
        -- New files depend only on their table, so any base is valid.
        SELECT c.snapshot_id INTO snapshot_id
        FROM lakefork.commit(p_catalog_id, lakefork.newest_snapshot(), p_changes, 'flush', NULL, new_key,
                             p_run_id) c;
    END IF;
END $$;

-- Removes up to p_limit hot rows that were published, user by user, from after (p_after_user, p_after_seq) on; says
-- where it stopped. Only rows visible in the stored snapshot are removed: one that committed later stays, however low
-- its _seq.
CREATE FUNCTION lakefork.trim_hot(
    p_job_id text, p_hot regclass, p_catalog_id bigint, p_table_id bigint, p_hot_snapshot bigint, p_per_user boolean,
        p_after_user text, p_after_seq bigint,
    p_limit bigint, OUT deleted bigint, OUT last_user text, OUT last_seq bigint
) LANGUAGE plpgsql AS $$
DECLARE
    w lakefork.watermark;
    gone bigint;
    newest_gone bigint;
    owner text := CASE WHEN p_per_user THEN 'AND _user_id = $2' ELSE 'AND $2 IS NOT NULL' END;
BEGIN
    deleted := 0;
    PERFORM lakefork.require_lease(lakefork.table_lease(p_catalog_id, p_table_id), p_job_id);
    FOR w IN SELECT * FROM lakefork.watermark m
             WHERE m.catalog_id = p_catalog_id AND m.table_id = p_table_id AND m.hot_snapshot = p_hot_snapshot
                 AND NOT m.trimmed
               AND m.user_id COLLATE "C" >= p_after_user COLLATE "C"
             ORDER BY m.user_id COLLATE "C" LOOP
        IF w.cluster_id <> lakefork.cluster_id() THEN
            RAISE EXCEPTION 'the watermarks of % were written on another Postgres, whose transaction ids mean '
                'nothing here: call lakefork.adopt_hot_rows() once, and flush again', p_hot
                USING ERRCODE = 'LFV01';
        END IF;
        last_seq := CASE WHEN w.user_id = p_after_user THEN p_after_seq ELSE -1 END;
        last_user := w.user_id;
        EXECUTE format(
            'WITH doomed AS (SELECT ctid AS place, _seq, _xid FROM %1$s WHERE catalog_id = $1 %2$s AND _seq > $3
                                   AND pg_visible_in_snapshot(_xid, $4) ORDER BY _seq LIMIT $5),
                  gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT place FROM doomed)))
             SELECT count(*), coalesce(max(_seq), $3), max(_xid::text::bigint) FROM doomed', p_hot, owner)
        INTO gone, last_seq, newest_gone
        USING p_catalog_id, w.user_id, last_seq, w.seen::pg_snapshot, p_limit - deleted;
        deleted := deleted + gone;
        PERFORM lakefork.note_trimmed(p_catalog_id, p_table_id, w.user_id, newest_gone::text::xid8);
        IF deleted >= p_limit THEN
            RETURN;
        END IF;
        UPDATE lakefork.watermark m SET trimmed = true
        WHERE m.catalog_id = w.catalog_id AND m.table_id = w.table_id AND m.hot_snapshot = w.hot_snapshot
            AND m.user_id = w.user_id
          AND m.seen = w.seen;
    END LOOP;
    last_user := NULL;
END $$;

-- After a restore into another Postgres: marks all hot rows as unpublished. Published ones are published again, which
-- changes no result.
CREATE FUNCTION lakefork.adopt_hot_rows() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    hot record;
BEGIN
    FOR hot IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'hot'::regnamespace
        AND c.relkind = 'r' LOOP
        EXECUTE format('UPDATE %s SET _xid = pg_current_xact_id()', hot.name);
    END LOOP;
    DELETE FROM lakefork.watermark;
    DELETE FROM lakefork.crash_mark;   -- cursors of the change feed mean nothing any more
    PERFORM lakefork.recount_hot_rows();
END $$;

-- Recounts the waiting versions from all hot rows; blocks writers.
CREATE FUNCTION lakefork.recount_hot_rows() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    hot record;
BEGIN
    LOCK TABLE ONLY lakefork_locks.counts IN SHARE UPDATE EXCLUSIVE MODE;
    LOCK TABLE lakefork.hot_delta IN EXCLUSIVE MODE;
    DELETE FROM lakefork.hot_delta;
    DELETE FROM lakefork.hot_count;
    FOR hot IN SELECT DISTINCT h.table_id, h.hot_snapshot, format('hot.%I', h.hot_table) AS name,
                      EXISTS (SELECT FROM pg_attribute a
                              WHERE a.attrelid = format('hot.%I', h.hot_table)::regclass
                                  AND a.attname = '_user_id') AS per_user
               FROM lakefork.retained_hot_table h LOOP
        EXECUTE format(
            'INSERT INTO lakefork.hot_delta
             SELECT h.catalog_id, $1, %2$s, count(*), clock_timestamp()
             FROM %1$s h LEFT JOIN lakefork.current_watermark w
               ON w.catalog_id = h.catalog_id AND w.table_id = $1 AND w.hot_snapshot = $2 AND w.user_id = %2$s
             WHERE w.seen IS NULL OR NOT pg_visible_in_snapshot(h._xid, w.seen) GROUP BY 1, 3',
            hot.name, CASE WHEN hot.per_user THEN 'h._user_id' ELSE '''''' END) USING hot.table_id, hot.hot_snapshot;
    END LOOP;
END $$;
