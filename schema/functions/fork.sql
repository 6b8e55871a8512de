-- Forks: catalogs that begin with everything that another one has, and share its files.
--
-- All rows are copied by one statement, so that files, definitions and hot rows are those of one moment, before the
-- lock of commits is taken: that is held only while the new catalogs are announced. What is copied therefore begins
-- with the snapshot that was next when it was read, which is the fork's own unless others committed in between.

-- The default data path of a fork: next to that of its parent.
CREATE FUNCTION lakefork.default_data_path(p_parent_id bigint, p_name text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    beside text := substring(lakefork.data_path(p_parent_id) FROM '^(.*[^/:])/[^/]+$');
BEGIN
    IF beside IS NULL THEN
        RAISE EXCEPTION 'no directory can be derived next to %: specify a data path for fork %',
            lakefork.data_path(p_parent_id), quote_literal(p_name)
            USING ERRCODE = 'LFV01';
    END IF;
    RETURN beside || '/' || p_name;
END $$;

-- The hot tables of tables with rows that no file has.
CREATE FUNCTION lakefork.waiting_hot_tables(p_catalog_id bigint) RETURNS SETOF lakefork.retained_hot_table
LANGUAGE sql STABLE AS $$
    SELECT h.* FROM lakefork.visible_hot_table(p_catalog_id) h
    WHERE EXISTS (SELECT FROM lakefork.hot_count c WHERE c.catalog_id = p_catalog_id AND c.table_id = h.table_id)
       OR EXISTS (SELECT FROM lakefork.hot_delta d WHERE d.catalog_id = p_catalog_id AND d.table_id = h.table_id)
$$;

-- Rows that a flush has published are in files; a watermark of another Postgres says nothing here, and what is copied
-- twice is read once.
CREATE FUNCTION lakefork.copy_hot_rows(p_place bigint, p_hot lakefork.retained_hot_table) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT format($sql$, hot_%1$s AS (
            INSERT INTO %2$s (catalog_id, %3$s)
            SELECT n.catalog_id, %4$s FROM %2$s h CROSS JOIN new n
            WHERE h.catalog_id = $1 AND NOT EXISTS (
                SELECT FROM lakefork.current_watermark w
                WHERE w.catalog_id = $1 AND w.table_id = %5$s AND w.hot_snapshot = %6$s AND w.user_id COLLATE "C" = %7$s
                  AND pg_visible_in_snapshot(h._xid, w.seen))
            RETURNING catalog_id, %8$s AS user_id
        ), counted_%1$s AS (
            INSERT INTO lakefork.hot_delta (catalog_id, table_id, user_id, versions, counted_at)
            SELECT catalog_id, %5$s, user_id, count(*), clock_timestamp() FROM hot_%1$s GROUP BY catalog_id, user_id
        )$sql$,
        p_place, format('hot.%I', p_hot.hot_table), string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum),
        string_agg('h.' || quote_ident(a.attname), ', ' ORDER BY a.attnum),
        p_hot.table_id, p_hot.hot_snapshot, CASE WHEN bool_or(a.attname = '_user_id') THEN 'h._user_id' ELSE '''''' END,
        CASE WHEN bool_or(a.attname = '_user_id') THEN '_user_id' ELSE '''''' END)
    FROM pg_attribute a
    WHERE a.attrelid = format('hot.%I', p_hot.hot_table)::regclass AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attname NOT IN ('catalog_id', '_xid')
$$;

DO $generate$
DECLARE
    e lakefork.entity;
    copied text;
    source text;
    statement text := $sql$
        WITH base AS MATERIALIZED (
            SELECT coalesce($2, max(s.snapshot_id)) AS snapshot_id, max(s.snapshot_id) + 1 AS begin_snapshot
                FROM public.ducklake_snapshot s
        ), new AS MATERIALIZED (
            SELECT n AS catalog_id FROM unnest($3) n
        ), tables AS MATERIALIZED (
            SELECT t.table_id, lakefork.normal_path(lakefork.join_path(
                       lakefork.join_path(lakefork.data_path($1), s.path, s.path_is_relative), t.path,
                           t.path_is_relative)) AS path
            FROM lakefork.visible_table($1, $2) t JOIN lakefork.visible_schema($1, $2) s USING (schema_id)
        ), versions AS MATERIALIZED (
            SELECT v.*, v.begin_snapshot < max(v.begin_snapshot) OVER (PARTITION BY v.table_id) AS is_old
            FROM lakefork.visible_schema_versions($1, $2) v JOIN tables USING (table_id)
        ), old_definitions AS MATERIALIZED (
            SELECT v.table_id, v.begin_snapshot, lakefork.table_definition($1, v.table_id, v.begin_snapshot)
                AS definition
            FROM versions v WHERE v.is_old
        ), copied_versions AS (
            INSERT INTO public.ducklake_schema_versions (catalog_id, begin_snapshot, schema_version, table_id)
            SELECT n.catalog_id, v.begin_snapshot, v.schema_version, v.table_id FROM versions v CROSS JOIN new n
        ), copied_definitions AS (
            INSERT INTO lakefork.kept_definition (catalog_id, table_id, begin_snapshot, definition)
            SELECT n.catalog_id, d.table_id, d.begin_snapshot, d.definition FROM old_definitions d CROSS JOIN new n
                WHERE d.definition IS NOT NULL
        ), copied_dates AS (
            INSERT INTO lakefork.definition_date (catalog_id, object_id, begin_snapshot, defined_at, author)
            SELECT n.catalog_id, d.object_id, d.begin_snapshot, d.defined_at, d.author
            FROM (SELECT table_id AS object_id FROM tables UNION ALL SELECT schema_id
                FROM lakefork.visible_schema($1, $2)) o
            JOIN lakefork.definition_date d ON d.catalog_id = $1 AND d.object_id = o.object_id
                AND ($2 IS NULL OR d.begin_snapshot <= $2)
            CROSS JOIN new n
        ), totals AS MATERIALIZED (
            SELECT t.table_id, coalesce(sum(f.record_count), 0) AS records,
                coalesce(sum(f.file_size_bytes), 0) AS bytes,
                   greatest(max(s.next_row_id), max(f.row_id_start + f.record_count), 0) AS next_row_id
            FROM tables t
            LEFT JOIN lakefork.visible_data_file($1, $2) f USING (table_id)
            LEFT JOIN public.ducklake_table_stats s ON s.catalog_id = $1 AND s.table_id = t.table_id
            GROUP BY t.table_id
        ), copied_totals AS (
            INSERT INTO public.ducklake_table_stats (catalog_id, table_id, record_count, next_row_id, file_size_bytes)
            SELECT n.catalog_id, t.table_id, t.records, t.next_row_id, t.bytes FROM totals t CROSS JOIN new n
        ), copied_users AS (
            INSERT INTO lakefork.app_user (catalog_id, user_id, username, role, permissions, created_at, deleted_at)
            SELECT n.catalog_id, u.user_id, u.username, u.role, u.permissions, u.created_at, u.deleted_at
            FROM lakefork.app_user u CROSS JOIN new n WHERE u.catalog_id = $1
        ), copied_locations AS (
            INSERT INTO lakefork.storage_location (catalog_id, location_name, location_type, path, credentials_ref,
                created_at)
            SELECT n.catalog_id, l.location_name, l.location_type, l.path, l.credentials_ref, l.created_at
            FROM lakefork.storage_location l CROSS JOIN new n WHERE l.catalog_id = $1
        ), copied_clean AS (
            INSERT INTO lakefork.clean_snapshot (catalog_id, table_id, snapshot_id)
            SELECT n.catalog_id, c.table_id, c.snapshot_id
            FROM lakefork.inheritable_clean($1, $2) c JOIN tables USING (table_id) CROSS JOIN new n
        )$sql$;
BEGIN
    FOR e IN SELECT * FROM lakefork.entity ORDER BY rank, entity LOOP
        source := format('lakefork.%s($1, $2) t', replace(e.entity, 'ducklake_', 'visible_'));
        IF e.entity IN ('ducklake_data_file', 'ducklake_delete_file') THEN
            source := source || ' JOIN tables USING (table_id)';
        END IF;
        SELECT string_agg(CASE
                   WHEN name = 'catalog_id' THEN 'n.catalog_id'
                   WHEN name = 'begin_snapshot' THEN 'b.begin_snapshot'
                   WHEN name = 'end_snapshot' THEN 'NULL'
                   -- Files stay where they are; what the fork writes goes below its own data path, also of tables with
                   -- a LOCATION.
                   WHEN name = 'path' AND e.entity IN ('ducklake_data_file', 'ducklake_delete_file') THEN
                       'CASE WHEN t.path_is_relative THEN rtrim(tables.path, ''/'') || ''/'' || t.path ELSE t.path END'
                   WHEN name = 'path_is_relative' AND e.entity IN ('ducklake_data_file', 'ducklake_delete_file')
                       THEN 'false'
                   WHEN name = 'path' THEN format(
                       'CASE WHEN t.path_is_relative THEN t.path ELSE regexp_replace(t.%1$s_name, ''[^A-Za-z0-9_-]'', '
                           '''_'', ''g'') || ''_'' || t.%1$s_id END',
                       replace(e.entity, 'ducklake_', ''))
                   WHEN name = 'path_is_relative' THEN 'true'
                   ELSE 't.' || quote_ident(name) END, ', ')
        INTO copied FROM lakefork.entity_columns(e.entity);
        statement := statement || format($sql$, %1$s AS (
            INSERT INTO public.%1$I (%2$s) SELECT %3$s FROM %4$s CROSS JOIN new n CROSS JOIN base b WHERE %5$s
        )$sql$, e.entity, (SELECT string_agg(quote_ident(name), ', ') FROM lakefork.entity_columns(e.entity)), copied,
            source,
            CASE e.entity WHEN 'ducklake_inlined_data_tables' THEN '$2 IS NULL'   -- hot rows belong to the present
                          WHEN 'ducklake_tag' THEN 't.key NOT IN (''location'', ''location_reference'')'
                              ELSE 'true' END);
    END LOOP;
    EXECUTE format('CREATE FUNCTION lakefork.copy_entities_statement() RETURNS text LANGUAGE sql IMMUTABLE AS %L',
        format('SELECT %L::text', statement));
END $generate$;

-- The statement that copies a catalog: $1 the parent, $2 the snapshot (NULL: now, with hot rows), $3 the ids of the
-- forks. p_hot: the hot tables whose waiting rows are copied.
CREATE FUNCTION lakefork.copy_statement(p_hot lakefork.retained_hot_table[]) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT lakefork.copy_entities_statement() || coalesce(string_agg(lakefork.copy_hot_rows(h.place, p_hot[h.place]), ''
        ORDER BY h.place), '') || '
        SELECT b.snapshot_id, (SELECT array_agg(h.hot_table::text ORDER BY h.hot_table) FROM '
            'lakefork.waiting_hot_tables($1) h WHERE $2 IS NULL)
        FROM base b'
    FROM generate_subscripts(p_hot, 1) AS h (place)
$$;

-- Copies all that a catalog has, now or at a snapshot, into new catalogs; returns the snapshot. Hot tables that come
-- into use between the list of them and the copy are noticed by the copy. It is then done again with all that there
-- are, and while nobody commits, so that there are no new ones.
CREATE FUNCTION lakefork.copy_catalog(p_parent_id bigint, p_as_of bigint, p_new_ids bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        RETURN lakefork.copy_with_hot_tables(p_parent_id, p_as_of, p_new_ids, ARRAY(
            SELECT h FROM lakefork.waiting_hot_tables(p_parent_id) h WHERE p_as_of IS NULL));
    EXCEPTION WHEN SQLSTATE 'LFC02' THEN
        PERFORM lakefork.lock_commits();
        RETURN lakefork.copy_with_hot_tables(p_parent_id, p_as_of, p_new_ids, ARRAY(
            SELECT h FROM lakefork.visible_hot_table(p_parent_id) h));
    END;
END $$;

-- By index: where statistics are older than the last forks, Postgres takes all rows for the parent's, and would read
-- those of all catalogs.
CREATE FUNCTION lakefork.copy_with_hot_tables(p_parent_id bigint, p_as_of bigint, p_new_ids bigint[],
    p_hot lakefork.retained_hot_table[])
RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    waiting text[];
    base bigint;
BEGIN
    EXECUTE lakefork.copy_statement(p_hot)
    INTO base, waiting USING p_parent_id, p_as_of, p_new_ids;
    IF NOT coalesce(waiting, '{}') <@ ARRAY(SELECT h.hot_table::text FROM unnest(p_hot) h) THEN
        RAISE EXCEPTION 'hot tables of catalog % came into use', p_parent_id USING ERRCODE = 'LFC02';
    END IF;
    RETURN base;
END $$;

-- Writes out what was copied now: otherwise COMMIT would, while everybody waits for the lock of commits. Before
-- Postgres 17 there is no way to.
CREATE FUNCTION lakefork.flush_wal() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE $sql$ SELECT pg_logical_emit_message(false, 'lakefork', '', true) $sql$;
    END IF;
END $$;

-- Copies take turns: many at once would leave commits of others no time, and be no sooner done. Who waited for half a
-- second, because somebody forks very much, goes on beside the others. The turn ends with the copy, long before the
-- transaction.
CREATE FUNCTION lakefork.copy_in_turn(p_parent bigint, p_as_of bigint, p_new_ids bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    usual text := current_setting('lock_timeout');
    is_my_turn boolean := true;
    base bigint;
BEGIN
    BEGIN
        PERFORM set_config('lock_timeout', '500ms', true);
        PERFORM pg_advisory_lock(lakefork.copy_lock());
    EXCEPTION WHEN lock_not_available THEN
        is_my_turn := false;
    END;
    PERFORM set_config('lock_timeout', usual, true);
    base := lakefork.copy_catalog(p_parent, p_as_of, p_new_ids);
    PERFORM pg_advisory_unlock(lakefork.copy_lock()) WHERE is_my_turn;
    RETURN base;
EXCEPTION WHEN query_canceled OR OTHERS THEN   -- the lock is the session's, so that it can end before the transaction
    PERFORM pg_advisory_unlock(lakefork.copy_lock()) WHERE is_my_turn;
    RAISE;
END $$;

-- Makes forks of one catalog, in one transaction, each with a snapshot of its own.
--   p_data_paths     where their files go, one each (NULL: beside those of the parent)
--   p_as_of          a snapshot that the parent retains (NULL: now)
--   p_expires_after  for how long they are wanted (NULL: until they are dropped)
CREATE FUNCTION lakefork.fork_catalogs(
    p_parent text, p_names text[], p_data_paths text[] DEFAULT NULL, p_as_of bigint DEFAULT NULL,
        p_expires_after interval DEFAULT NULL,
    p_author text DEFAULT NULL, p_run_id text DEFAULT NULL
) RETURNS TABLE (catalog_name varchar, catalog_id bigint, snapshot_id bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    parent bigint;
    new_ids bigint[];
    paths text[];
    base bigint;
    newest public.ducklake_snapshot;
BEGIN
    LOCK TABLE ONLY lakefork_locks.fence IN ROW SHARE MODE;   -- no file is deleted before this is committed
    parent := lakefork.live_catalog_id(p_parent);
    paths := ARRAY(SELECT coalesce(path, lakefork.default_data_path(parent, name))
        FROM unnest(p_names, p_data_paths) AS f (name, path));
    PERFORM lakefork.check_new_catalogs(p_names, paths);
    PERFORM lakefork.require_retained(parent, p_as_of, true);
    IF p_expires_after <= interval '0' THEN
        RAISE EXCEPTION 'a fork cannot expire after %: specify a time in the future', p_expires_after
            USING ERRCODE = 'LFV01';
    END IF;
    PERFORM lakefork.note_last_publish(m.catalog_id, m.table_id)   -- the publishing job may have died before
    FROM (SELECT DISTINCT m.catalog_id, m.table_id FROM lakefork.manifest_pending m WHERE m.catalog_id = parent
        ORDER BY m.table_id) m;
    new_ids := lakefork.reserve_catalog_ids(cardinality(p_names));
    base := lakefork.copy_in_turn(parent, p_as_of, new_ids);
    -- what expired before the copy is missing in it
    PERFORM lakefork.require_retained(parent, p_as_of, true);
    PERFORM lakefork.flush_wal();

    newest := lakefork.begin_commit();
    IF lakefork.live_catalog_id(p_parent) <> parent THEN
        RAISE EXCEPTION 'catalog % was dropped and recreated concurrently', quote_literal(p_parent)
            USING ERRCODE = 'LFC01';
    END IF;
    PERFORM lakefork.check_new_catalogs(p_names, paths);
    RETURN QUERY
    WITH forks AS MATERIALIZED (
        SELECT f.name, lakefork.normal_path(f.path) AS path, f.id, newest.snapshot_id + f.place AS snapshot,
               greatest(newest.next_catalog_id, max(f.id) OVER (ORDER BY f.place) + 1) AS next_catalog_id
        FROM unnest(p_names, paths, new_ids) WITH ORDINALITY AS f (name, path, id, place)
    ), snapshots AS (
        INSERT INTO public.ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
        SELECT f.snapshot, clock_timestamp(), newest.schema_version, f.next_catalog_id, newest.next_file_id FROM forks f
    ), changes AS (
        INSERT INTO public.ducklake_snapshot_changes (snapshot_id, catalog_id, changes_made, author, commit_extra_info)
        SELECT f.snapshot, f.id, 'forked_from:' || parent, p_author, jsonb_build_object('parent', p_parent,
            'snapshot_id', base)::text FROM forks f
    ), catalogs AS (
        INSERT INTO public.ducklake_catalog (catalog_id, catalog_name, begin_snapshot) SELECT f.id, f.name, f.snapshot
            FROM forks f
    ), roots AS (
        INSERT INTO public.ducklake_metadata (key, value, scope, scope_id) SELECT 'data_path', f.path, 'catalog', f.id
            FROM forks f
    ), lineage AS (
        INSERT INTO lakefork.fork (catalog_id, parent_id, parent_snapshot, created_at, expires_at, run_id)
        SELECT f.id, parent, base, c.now, c.now + p_expires_after, p_run_id FROM forks f
            CROSS JOIN (SELECT clock_timestamp() AS now) c
    )
    SELECT f.name::varchar, f.id, f.snapshot FROM forks f;
END $$;

-- A catalog that was there before counts only if it is a fork of that parent.
CREATE FUNCTION lakefork.existing_fork(p_parent text, p_name text) RETURNS TABLE (catalog_id bigint, snapshot_id bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    parent bigint := lakefork.live_catalog_id(p_parent);
BEGIN
    RETURN QUERY
    SELECT c.catalog_id, lakefork.catalog_birth(c.catalog_id) FROM lakefork.visible_catalog() c JOIN lakefork.fork f
        USING (catalog_id)
    WHERE c.catalog_name = p_name AND f.parent_id = parent;
    IF NOT FOUND AND EXISTS (SELECT FROM lakefork.visible_catalog() c WHERE c.catalog_name = p_name) THEN
        RAISE EXCEPTION 'catalog % already exists and is not a fork of %', quote_literal(p_name),
            quote_literal(p_parent)
            USING ERRCODE = 'LFX01';
    END IF;
END $$;

-- Creates one fork: SELECT * FROM ducklake_fork_catalog('main', 'mine', '/data/mine'), or with CALL.
CREATE FUNCTION public.ducklake_fork_catalog(
    parent text, name text, data_path text DEFAULT NULL, as_of bigint DEFAULT NULL, expires_after interval DEFAULT NULL,
        if_not_exists boolean DEFAULT false
) RETURNS TABLE (catalog_id bigint, snapshot_id bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF if_not_exists THEN
        RETURN QUERY SELECT * FROM lakefork.existing_fork(parent, name);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT f.catalog_id, f.snapshot_id
                 FROM lakefork.fork_catalogs(parent, ARRAY[name], ARRAY[data_path], as_of, expires_after,
                     session_user::text) f;
EXCEPTION WHEN SQLSTATE 'LFX01' THEN   -- it may have been created concurrently
    IF NOT if_not_exists THEN
        RAISE;
    END IF;
    RETURN QUERY SELECT * FROM lakefork.existing_fork(parent, name);
END $$;

-- Different argument types, because a procedure and a function cannot have the same signature.
CREATE DOMAIN lakefork.fork_argument AS text;
CREATE PROCEDURE public.ducklake_fork_catalog(
    parent lakefork.fork_argument, name lakefork.fork_argument, data_path lakefork.fork_argument DEFAULT NULL,
        as_of bigint DEFAULT NULL,
    expires_after interval DEFAULT NULL, if_not_exists boolean DEFAULT false
)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.ducklake_fork_catalog(parent::text, name::text, data_path::text, as_of, expires_after,
        if_not_exists);
END $$;

-- Totals of catalogs: files that they wrote themselves, and files that they inherited. Only rows in files count.
CREATE FUNCTION lakefork.catalog_usage(p_catalog_ids bigint[])
RETURNS TABLE (catalog_id bigint, own_files bigint, own_rows bigint, own_bytes bigint, shared_files bigint,
    shared_rows bigint, shared_bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT c, count(f.catalog_id) FILTER (WHERE f.is_own), coalesce(sum(f.record_count) FILTER (WHERE f.is_own), 0),
           coalesce(sum(f.file_size_bytes) FILTER (WHERE f.is_own), 0),
           count(f.catalog_id) FILTER (WHERE NOT f.is_own), coalesce(sum(f.record_count) FILTER (WHERE NOT f.is_own),
               0),
           coalesce(sum(f.file_size_bytes) FILTER (WHERE NOT f.is_own), 0)
    FROM unnest(p_catalog_ids) c
    LEFT JOIN lakefork.retained_owned_file f ON f.catalog_id = c AND f.end_snapshot IS NULL
    GROUP BY c
$$;

-- What dropping a catalog would eventually free (pinned_by NULL), and what other catalogs keep, ended versions
-- included. A file that several others have counts for each of them.
CREATE FUNCTION lakefork.reclaim(p_catalog text) RETURNS TABLE (pinned_by varchar, files bigint, bytes bigint)
LANGUAGE sql STABLE AS $$
    WITH mine AS MATERIALIZED (
        SELECT f.data_file_id, f.file_size_bytes FROM lakefork.retained_data_file f
        WHERE f.catalog_id = (SELECT c.catalog_id FROM lakefork.visible_catalog() c WHERE c.catalog_name = p_catalog)
    ), held AS (
        SELECT m.data_file_id, m.file_size_bytes, o.catalog_id
        FROM mine m
        LEFT JOIN lakefork.retained_data_file o ON o.data_file_id = m.data_file_id
              AND o.catalog_id <> (SELECT c.catalog_id FROM lakefork.visible_catalog() c
                  WHERE c.catalog_name = p_catalog)
    )
    SELECT lakefork.last_name(h.catalog_id), count(*), coalesce(sum(h.file_size_bytes), 0)::bigint
    FROM held h GROUP BY h.catalog_id ORDER BY h.catalog_id NULLS FIRST
$$;
