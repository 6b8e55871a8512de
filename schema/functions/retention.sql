-- Retention: which snapshots a catalog gives up, and what goes with them. First planned, then carried out in bounded
-- transactions.
--
-- A catalog retains its own commits from a floor on (lakefork.retained_from), and tagged snapshots. A version is no
-- longer needed when it ended at or before the floor and no tagged snapshot lies within it. Of table_id 0 are the items
-- that are about a catalog as a whole.

CREATE FUNCTION lakefork.gc_lease() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'retention_gc' $$;

-- A table's name with its namespace, or the last one that it had.
CREATE FUNCTION lakefork.last_table_name(p_catalog_id bigint, p_table_id bigint) RETURNS varchar
LANGUAGE sql STABLE AS $$
    SELECT s.schema_name || '.' || t.table_name
    FROM lakefork.retained_table t JOIN lakefork.retained_schema s ON s.catalog_id = t.catalog_id
        AND s.schema_id = t.schema_id
    WHERE t.catalog_id = p_catalog_id AND t.table_id = p_table_id ORDER BY t.begin_snapshot DESC, s.begin_snapshot DESC
        LIMIT 1
$$;

-- Expired forks.
CREATE FUNCTION lakefork.expired_forks(p_catalog text DEFAULT NULL)
    RETURNS TABLE (catalog_id bigint, catalog_name varchar, expires_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT f.catalog_id, c.catalog_name, f.expires_at
    FROM lakefork.fork f JOIN lakefork.visible_catalog() c ON c.catalog_id = f.catalog_id
    WHERE f.expires_at <= now() AND (p_catalog IS NULL OR c.catalog_name = p_catalog) ORDER BY f.expires_at
$$;

-- The floor of a table: its own, or that of its catalog (table_id 0). NULL: nothing has expired.
CREATE FUNCTION lakefork.first_kept(p_catalog_id bigint, p_table_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT r.snapshot_id FROM lakefork.retained_from r
    WHERE r.catalog_id = p_catalog_id AND r.table_id IN (0, p_table_id) ORDER BY r.table_id DESC LIMIT 1
$$;

-- A tagged snapshot needs this version.
CREATE FUNCTION lakefork.is_tagged(p_catalog_id bigint, p_begin bigint, p_end bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM lakefork.snapshot_tag g WHERE g.catalog_id = p_catalog_id AND g.snapshot_id >= p_begin
        AND g.snapshot_id < p_end)
$$;

-- What decides over the snapshots of each catalog, and of each table with a retention of its own. Of the run's, the
-- table's, its namespace's, the catalog's and the general policy the first one counts that says anything. by_count,
-- by_age   the first of its own commits that are kept because of the policy's number, and because of its time
--   is_unpinned        it has files from before what it keeps: tags that kept them are gone
CREATE FUNCTION lakefork.retention_facts(
    p_catalog text, p_asked_snapshots bigint, p_asked_for interval, p_default_snapshots bigint, p_default_for interval
)
RETURNS TABLE (catalog_id bigint, catalog_name varchar, table_id bigint, table_name text, retain_snapshots bigint,
    retain_for interval, is_dropped boolean,
               dropped_at timestamptz, tags bigint, birth bigint, kept_from bigint, newest bigint, by_count bigint,
               by_age bigint, is_unpinned boolean)
LANGUAGE sql STABLE AS $$
    WITH catalogs AS (
        SELECT DISTINCT ON (c.catalog_id) c.catalog_id, c.catalog_name, c.end_snapshot
        FROM public.ducklake_catalog c ORDER BY c.catalog_id, c.begin_snapshot DESC
    ), of_catalogs AS (
        SELECT c.catalog_id, c.catalog_name, 0::bigint AS table_id, NULL::text AS table_name, c.end_snapshot,
               max(m.value) FILTER (WHERE m.key = 'retain_snapshots')::bigint AS snapshots,
               max(m.value) FILTER (WHERE m.key = 'retain_for')::interval AS time
        FROM catalogs c
        LEFT JOIN lakefork.catalog_setting m ON m.catalog_id = c.catalog_id
            AND m.key IN ('retain_snapshots', 'retain_for')
        WHERE p_catalog IS NULL OR c.catalog_name = p_catalog
        GROUP BY c.catalog_id, c.catalog_name, c.end_snapshot
    ), of_tables AS (
        SELECT c.catalog_id, c.catalog_name, t.table_id, max(t.table_name)::text, c.end_snapshot,
               max(g.value) FILTER (WHERE g.key = 'option.retain_snapshots')::bigint,
               CASE WHEN bool_or(g.key <> 'option.retention_days')
                   THEN (max(g.value) FILTER (WHERE g.key = 'option.retain_for')::jsonb #>> '{}')::interval
                    ELSE make_interval(days => max(g.value)::integer) END
        FROM of_catalogs c
        JOIN public.ducklake_tag g ON g.catalog_id = c.catalog_id AND g.end_snapshot IS NULL
                                  AND g.key IN ('option.retain_snapshots', 'option.retain_for', 'option.retention_days')
        CROSS JOIN LATERAL (   -- an option of the table, or of its namespace
            SELECT t.table_id, t.table_name FROM public.ducklake_table t
            WHERE t.catalog_id = c.catalog_id AND t.table_id = g.object_id AND t.end_snapshot IS NULL
                AND g.key <> 'option.retention_days'
            UNION ALL
            SELECT t.table_id, t.table_name FROM public.ducklake_table t
            WHERE t.catalog_id = c.catalog_id AND t.schema_id = g.object_id AND t.end_snapshot IS NULL
                AND g.key = 'option.retention_days'
        ) t
        WHERE c.end_snapshot IS NULL AND p_asked_snapshots IS NULL AND p_asked_for IS NULL
        GROUP BY c.catalog_id, c.catalog_name, t.table_id, c.end_snapshot
    ), policies AS MATERIALIZED (
        SELECT o.catalog_id, o.catalog_name, o.table_id, o.table_name, o.end_snapshot,
               CASE WHEN coalesce(p_asked_snapshots::text, p_asked_for::text) IS NOT NULL THEN p_asked_snapshots
                    WHEN coalesce(o.snapshots::text, o.time::text) IS NOT NULL THEN o.snapshots
                        ELSE p_default_snapshots END AS snapshots,
               CASE WHEN coalesce(p_asked_snapshots::text, p_asked_for::text) IS NOT NULL THEN p_asked_for
                    WHEN coalesce(o.snapshots::text, o.time::text) IS NOT NULL THEN o.time
                        ELSE p_default_for END AS time
        FROM (SELECT * FROM of_catalogs UNION ALL SELECT * FROM of_tables) o
    ), times AS MATERIALIZED (   -- the first snapshot that is younger, looked for once per time
        SELECT t.time, (SELECT min(s.snapshot_id) FROM public.ducklake_snapshot s
            WHERE s.snapshot_time > now() - t.time) AS first_younger
        FROM (SELECT DISTINCT p.time FROM policies p WHERE p.time IS NOT NULL) t
    )
    SELECT p.catalog_id, p.catalog_name, p.table_id, p.table_name, p.snapshots, p.time, p.end_snapshot IS NOT NULL,
        d.snapshot_time,
           (SELECT count(*) FROM lakefork.snapshot_tag g WHERE g.catalog_id = p.catalog_id),
           lakefork.catalog_birth(p.catalog_id),
           lakefork.first_kept(p.catalog_id, p.table_id),
           (SELECT max(c.snapshot_id) FROM public.ducklake_snapshot_changes c WHERE c.catalog_id = p.catalog_id),
           coalesce((SELECT c.snapshot_id FROM public.ducklake_snapshot_changes c WHERE c.catalog_id = p.catalog_id
                     ORDER BY c.snapshot_id DESC OFFSET p.snapshots - 1 LIMIT 1),
                    CASE WHEN p.snapshots IS NOT NULL THEN lakefork.catalog_birth(p.catalog_id) END),
           (SELECT min(c.snapshot_id) FROM public.ducklake_snapshot_changes c WHERE c.catalog_id = p.catalog_id
               AND c.snapshot_id >= t.first_younger),
           p.table_id = 0 AND EXISTS (
               SELECT FROM public.ducklake_data_file f
               WHERE f.catalog_id = p.catalog_id AND f.end_snapshot <= (SELECT max(r.snapshot_id)
                   FROM lakefork.retained_from r WHERE r.catalog_id = p.catalog_id)
                 AND f.end_snapshot <= lakefork.first_kept(f.catalog_id, f.table_id)
                     AND NOT lakefork.is_tagged(f.catalog_id, f.begin_snapshot, f.end_snapshot))
    FROM policies p
    LEFT JOIN times t ON t.time = p.time
    LEFT JOIN public.ducklake_snapshot d ON d.snapshot_id = p.end_snapshot
    ORDER BY p.catalog_id, p.table_id
$$;

-- The files that a plan takes from catalogs. All of a catalog's that goes as a whole, otherwise those that ended before
-- what is kept.
CREATE FUNCTION lakefork.doomed_files(p_plan_id text, p_catalog_ids bigint[])
RETURNS TABLE (catalog_id bigint, data_file_id bigint, table_id bigint, begin_snapshot bigint, end_snapshot bigint,
    file_size_bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT f.catalog_id, f.data_file_id, f.table_id, f.begin_snapshot, f.end_snapshot, f.file_size_bytes
    FROM lakefork.gc_item i JOIN public.ducklake_data_file f ON f.catalog_id = i.catalog_id
        AND f.end_snapshot <= i.highest_floor
    LEFT JOIN lakefork.gc_item o ON o.plan_id = i.plan_id AND o.catalog_id = i.catalog_id AND o.table_id = f.table_id
    WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND NOT i.is_whole
        AND (p_catalog_ids IS NULL OR i.catalog_id = ANY (p_catalog_ids))
      AND f.end_snapshot <= coalesce(o.floor, i.floor)
      AND NOT EXISTS (SELECT FROM lakefork.snapshot_tag g   -- as is_tagged, which is called for each row
                      WHERE g.catalog_id = f.catalog_id AND g.snapshot_id >= f.begin_snapshot
                          AND g.snapshot_id < f.end_snapshot)
    UNION ALL
    SELECT f.catalog_id, f.data_file_id, f.table_id, f.begin_snapshot, f.end_snapshot, f.file_size_bytes
    FROM lakefork.gc_item i JOIN public.ducklake_data_file f ON f.catalog_id = i.catalog_id
    WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND i.is_whole
        AND (p_catalog_ids IS NULL OR i.catalog_id = ANY (p_catalog_ids))
$$;

-- The snapshots that a plan takes: a catalog's own, but neither tagged ones nor the newest of all; the first one says
-- when it began.
CREATE FUNCTION lakefork.doomed_snapshots(p_plan_id text, p_catalog_ids bigint[])
    RETURNS TABLE (catalog_id bigint, snapshot_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT i.catalog_id, c.snapshot_id
    FROM lakefork.gc_item i
    JOIN public.ducklake_snapshot_changes c ON c.catalog_id = i.catalog_id
    WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND (p_catalog_ids IS NULL OR i.catalog_id = ANY (p_catalog_ids))
      AND (i.is_whole OR c.snapshot_id < i.lowest_floor AND c.snapshot_id <> i.birth)
      AND c.snapshot_id < (SELECT max(s.snapshot_id) FROM public.ducklake_snapshot s)
      AND NOT EXISTS (SELECT FROM lakefork.snapshot_tag g WHERE g.snapshot_id = c.snapshot_id)
$$;

-- Saves a plan: what was decided (as JSON: catalog_id, table_id, floor, is_whole), and which forks it drops. What it
-- takes is counted next.
CREATE FUNCTION lakefork.save_gc_plan(p_plan_id text, p_run_id text, p_params jsonb, p_items jsonb, p_dropped bigint[])
    RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params)
        VALUES (p_plan_id, 'retention_gc', p_run_id, clock_timestamp(), p_params);
    INSERT INTO lakefork.gc_item (plan_id, catalog_id, table_id, floor, is_whole, lowest_floor, highest_floor, birth)
    SELECT p_plan_id, r.catalog_id, r.table_id, r.floor, r.is_whole, min(r.floor) OVER c, max(r.floor) OVER c,
        lakefork.catalog_birth(r.catalog_id)
    FROM jsonb_to_recordset(p_items) AS r (catalog_id bigint, table_id bigint, floor bigint, is_whole boolean)
    WINDOW c AS (PARTITION BY r.catalog_id);
    INSERT INTO lakefork.gc_drop (plan_id, catalog_id, expires_at)
    SELECT p_plan_id, f.catalog_id, f.expires_at FROM lakefork.fork f WHERE f.catalog_id = ANY (p_dropped);
$$;

-- Counts up to p_limit of the files and snapshots that a plan takes, from after a file of a catalog on, and says where
-- it stopped; NULL: at the end. A file is freed if no catalog keeps it, and counts once: for the first of the catalogs
-- that give it up.
--   p_count_id   whose count it is: the plan's own, or another one to compare with
CREATE FUNCTION lakefork.count_gc_plan(p_plan_id text, p_count_id text, p_catalog_id bigint, p_file_id bigint,
    p_limit bigint,
                                       OUT last_catalog_id bigint, OUT last_file_id bigint)
LANGUAGE plpgsql AS $$
DECLARE
    rest bigint := p_limit;
    files bigint;
    snapshots bigint;
BEGIN
    FOR last_catalog_id IN SELECT i.catalog_id FROM lakefork.gc_item i
                           WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND i.catalog_id >= p_catalog_id
                               ORDER BY i.catalog_id LOOP
        WITH page AS MATERIALIZED (
            SELECT d.* FROM lakefork.doomed_files(p_plan_id, ARRAY[last_catalog_id]) d
            WHERE last_catalog_id > p_catalog_id OR d.data_file_id > p_file_id ORDER BY d.data_file_id LIMIT rest
        ), judged AS (
            SELECT p.table_id, p.file_size_bytes,
                   CASE WHEN NOT EXISTS (SELECT FROM public.ducklake_data_file o WHERE o.data_file_id = p.data_file_id
                       AND o.catalog_id <> p.catalog_id) THEN true
                        WHEN EXISTS (SELECT FROM public.ducklake_data_file o WHERE o.data_file_id = p.data_file_id
                            AND o.catalog_id < p.catalog_id) THEN false
                        ELSE (SELECT count(*) FROM public.ducklake_data_file o WHERE o.data_file_id = p.data_file_id)
                             = (SELECT count(*) FROM lakefork.doomed_files(p_plan_id, NULL) d
                                 WHERE d.data_file_id = p.data_file_id) END AS is_free
            FROM page p
        ), counted AS (
            INSERT INTO lakefork.gc_count AS c (plan_id, catalog_id, table_id, files, bytes, freed_files, freed_bytes)
            SELECT p_count_id, last_catalog_id, j.table_id, count(*), coalesce(sum(j.file_size_bytes), 0),
                count(*) FILTER (WHERE j.is_free),
                   coalesce(sum(j.file_size_bytes) FILTER (WHERE j.is_free), 0)
            FROM judged j GROUP BY j.table_id
            ON CONFLICT (plan_id, catalog_id, table_id) DO UPDATE SET
                files = c.files + excluded.files, bytes = c.bytes + excluded.bytes,
                freed_files = c.freed_files + excluded.freed_files, freed_bytes = c.freed_bytes + excluded.freed_bytes
        )
        SELECT count(*), max(p.data_file_id) INTO files, last_file_id FROM page p;
        IF files = rest THEN   -- there may be more
            RETURN;
        END IF;
        INSERT INTO lakefork.gc_count (plan_id, catalog_id, table_id, snapshots)
        SELECT p_count_id, last_catalog_id, 0, count(*)
            FROM lakefork.doomed_snapshots(p_plan_id, ARRAY[last_catalog_id])
        RETURNING gc_count.snapshots INTO snapshots;
        rest := rest - files - snapshots;
        IF rest <= 0 THEN
            last_catalog_id := last_catalog_id + 1;
            last_file_id := -1;
            RETURN;
        END IF;
    END LOOP;
    last_catalog_id := NULL;
END $$;

-- What a plan was made of, by one count. If it is another one when the plan is carried out, somebody tagged, forked,
-- dropped or cleaned up since, or prolonged a fork.
CREATE FUNCTION lakefork.gc_digest(p_plan_id text, p_count_id text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT md5(concat_ws('|',
        (SELECT string_agg(i::text, ';' ORDER BY i.catalog_id, i.table_id) FROM lakefork.gc_item i
            WHERE i.plan_id = p_plan_id),
        (SELECT string_agg(concat_ws(' ', c.catalog_id, c.table_id, c.snapshots, c.files, c.bytes, c.freed_files,
            c.freed_bytes), ';'
                           ORDER BY c.catalog_id, c.table_id)
         FROM lakefork.gc_count c WHERE c.plan_id = p_count_id),
        (SELECT string_agg(format('%s %s', g.catalog_id, g.snapshot_id), ';' ORDER BY g.catalog_id, g.snapshot_id)
         FROM lakefork.snapshot_tag g JOIN lakefork.gc_item i ON i.plan_id = p_plan_id AND i.catalog_id = g.catalog_id
             AND i.table_id = 0),
        (SELECT string_agg(c.catalog_id || ' ' || coalesce(c.end_snapshot::text, ''), ';' ORDER BY c.catalog_id,
            c.begin_snapshot)
         FROM public.ducklake_catalog c JOIN lakefork.gc_item i ON i.plan_id = p_plan_id AND i.catalog_id = c.catalog_id
             AND i.table_id = 0),
        (SELECT string_agg(d.catalog_id || ' ' || coalesce(f.expires_at::text, ''), ';' ORDER BY d.catalog_id)
         FROM lakefork.gc_drop d LEFT JOIN lakefork.fork f ON f.catalog_id = d.catalog_id
             AND lakefork.is_live(d.catalog_id)
         WHERE d.plan_id = p_plan_id)))
$$;

-- Raises unless the plan can be carried out: it exists, is complete, and a new count equals the recorded one.
CREATE FUNCTION lakefork.begin_gc_plan(p_plan_id text, p_count_id text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    made lakefork.plan;
BEGIN
    SELECT * INTO made FROM lakefork.plan p WHERE p.plan_id = p_plan_id AND p.job = 'retention_gc';
    IF made.begun_at IS NOT NULL THEN
        RETURN;   -- it is resumed
    ELSIF lakefork.gc_digest(p_plan_id, p_count_id) IS DISTINCT FROM made.digest THEN
        RAISE EXCEPTION 'what plan % was made from has changed since %: make a new one', quote_literal(p_plan_id),
            made.created_at USING ERRCODE = 'LFV01';
    END IF;
    UPDATE lakefork.plan p SET begun_at = clock_timestamp() WHERE p.plan_id = p_plan_id;
    DELETE FROM lakefork.gc_count c WHERE c.plan_id = p_count_id AND p_count_id <> p_plan_id;
END $$;

-- From now on what the plan takes can neither be read nor forked. A floor never goes down:
--   a table that gets one of its own begins with what its catalog gave up before
--   a table that has one, and no item in this plan, gives up what its catalog does
CREATE FUNCTION lakefork.raise_floors(p_plan_id text, p_job_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.require_lease(lakefork.gc_lease(), p_job_id);
    WITH lifted AS (
        SELECT i.catalog_id, i.table_id, greatest(i.floor, lakefork.first_kept(i.catalog_id, i.table_id)) AS floor
        FROM lakefork.gc_item i WHERE i.plan_id = p_plan_id AND NOT i.is_whole
        UNION ALL
        SELECT r.catalog_id, r.table_id, greatest(i.floor, r.snapshot_id)
        FROM lakefork.gc_item i JOIN lakefork.retained_from r ON r.catalog_id = i.catalog_id AND r.table_id > 0
        WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND NOT i.is_whole
          AND NOT EXISTS (SELECT FROM lakefork.gc_item o WHERE o.plan_id = i.plan_id AND o.catalog_id = i.catalog_id
              AND o.table_id = r.table_id)
    )
    INSERT INTO lakefork.retained_from AS r (catalog_id, table_id, snapshot_id) SELECT l.catalog_id, l.table_id, l.floor
        FROM lifted l
    ON CONFLICT (catalog_id, table_id) DO UPDATE SET snapshot_id = greatest(r.snapshot_id, excluded.snapshot_id);
END $$;

-- A snapshot can be kept for ever only as a whole: neither the catalog nor any table that it has there has given up
-- something of it.
CREATE FUNCTION lakefork.require_complete(p_catalog_id bigint, p_snapshot bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM lakefork.require_retained(p_catalog_id, p_snapshot);
    PERFORM lakefork.require_kept(p_catalog_id, p_snapshot, lakefork.first_kept(p_catalog_id, 0), 'this catalog');
    PERFORM lakefork.require_table_kept(p_catalog_id, t.table_id, p_snapshot, s.schema_name || '.' || t.table_name)
    FROM lakefork.visible_table(p_catalog_id, p_snapshot) t JOIN lakefork.visible_schema(p_catalog_id, p_snapshot) s
        USING (schema_id);
END $$;

-- Tags a snapshot, which never expires.
CREATE FUNCTION lakefork.tag_snapshot(p_catalog text, p_snapshot bigint, p_name text, p_author text DEFAULT NULL)
    RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tagged bigint := lakefork.live_catalog_id(p_catalog);
BEGIN
    -- no snapshot expires between the check and the tag
    LOCK TABLE ONLY lakefork_locks.gc IN SHARE UPDATE EXCLUSIVE MODE;
    IF p_name IS NULL OR p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$' THEN
        RAISE EXCEPTION 'tag name % is invalid: use up to 100 letters, digits, _ . and -',
            coalesce(quote_literal(p_name), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
    PERFORM lakefork.require_complete(tagged, p_snapshot);
    INSERT INTO lakefork.snapshot_tag (catalog_id, name, snapshot_id, tagged_at, tagged_by)
        VALUES (tagged, p_name, p_snapshot, clock_timestamp(), p_author);
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'catalog % already has a tag %', quote_literal(p_catalog), quote_literal(p_name)
        USING ERRCODE = 'LFX01';
END $$;
