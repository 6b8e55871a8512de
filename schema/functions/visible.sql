-- How readers see a catalog. Everything but what writes, expires and checks reads the catalog through what is made
-- here, so that how a fork is stored is known in one place (tests/unit/test_catalog_readers.py).
--   visible_<entity>(catalog, snapshot)   what a catalog held at a snapshot; without one: what it holds now
-- retained_<entity>                     all versions, ended ones included until they expire; catalog_id says who holds
-- them
--   live_<…>                              what live catalogs hold now, of all of them
-- Postgres inlines them, so that filters reach the indexes: LANGUAGE sql STABLE, without SET, STRICT and SECURITY
-- DEFINER, and never called with a subquery as argument. Only p_snapshot's default, or a constant, lets the indexes
-- over live rows be used. A function with an outer join in it is not called LATERAL: Postgres would run it as a whole
-- for each row.

-- Catalogs, snapshots and settings ---------------------------------------------------------------

CREATE VIEW lakefork.retained_catalog AS SELECT * FROM public.ducklake_catalog;

-- All catalogs of the database at a snapshot.
CREATE FUNCTION lakefork.visible_catalog(p_snapshot bigint DEFAULT NULL) RETURNS SETOF public.ducklake_catalog
LANGUAGE sql STABLE AS $$
    SELECT * FROM public.ducklake_catalog
    WHERE (p_snapshot IS NULL AND end_snapshot IS NULL)
       OR (begin_snapshot <= p_snapshot AND (end_snapshot IS NULL OR end_snapshot > p_snapshot))
$$;

CREATE FUNCTION lakefork.newest_snapshot() RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT max(snapshot_id) FROM public.ducklake_snapshot $$;

CREATE FUNCTION lakefork.oldest_snapshot() RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT min(snapshot_id) FROM public.ducklake_snapshot $$;

CREATE FUNCTION lakefork.newest_snapshot_before(p_time timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT max(snapshot_id) FROM public.ducklake_snapshot WHERE snapshot_time <= p_time $$;

-- Snapshots that have not expired, with who made them (catalog_id) and what they changed.
CREATE VIEW lakefork.retained_snapshot AS
    SELECT s.snapshot_id, s.snapshot_time, s.schema_version, s.next_catalog_id, s.next_file_id,
           c.catalog_id, c.changes_made, c.author, c.commit_message, c.commit_extra_info
    FROM public.ducklake_snapshot s LEFT JOIN public.ducklake_snapshot_changes c USING (snapshot_id);

-- Settings of catalogs: data_path, and the policies of retention. Both conditions, because one index needs the one,
-- another the other.
CREATE VIEW lakefork.catalog_setting AS
    SELECT coalesce(m.scope_id, -1) AS catalog_id, m.key, m.value FROM public.ducklake_metadata m
    WHERE m.scope = 'catalog' AND coalesce(m.scope, '') = 'catalog';

-- Settings of the whole database.
CREATE FUNCTION lakefork.global_setting(p_key text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT m.value FROM public.ducklake_metadata m
    WHERE m.key = p_key AND coalesce(m.scope, '') = '' AND coalesce(m.scope_id, -1) = -1
$$;

CREATE FUNCTION lakefork.data_path(p_catalog_id bigint) RETURNS text
LANGUAGE sql STABLE AS $$ SELECT d.value FROM lakefork.catalog_setting d WHERE d.key = 'data_path'
    AND d.catalog_id = p_catalog_id $$;

-- The id of this Postgres cluster; transaction ids mean nothing on another one.
CREATE FUNCTION lakefork.cluster_id() RETURNS bigint
    LANGUAGE sql STABLE AS 'SELECT system_identifier FROM pg_control_system()';

-- What flushes have published of hot tables: the rows that are visible in these snapshots. Watermarks of another
-- Postgres say nothing here.
CREATE VIEW lakefork.current_watermark AS
    SELECT w.catalog_id, w.table_id, w.hot_snapshot, w.user_id, w.seen::pg_snapshot AS seen
    FROM lakefork.watermark w WHERE w.cluster_id = (SELECT lakefork.cluster_id());

-- Entities ---------------------------------------------------------------------------------------

CREATE VIEW lakefork.retained_schema_versions AS SELECT * FROM public.ducklake_schema_versions;

CREATE FUNCTION lakefork.visible_schema_versions(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL)
RETURNS SETOF public.ducklake_schema_versions
LANGUAGE sql STABLE AS $$
    SELECT * FROM public.ducklake_schema_versions
    WHERE catalog_id = p_catalog_id AND (p_snapshot IS NULL OR begin_snapshot <= p_snapshot)
$$;

DO $generate$
DECLARE
    e lakefork.entity;
    at_snapshot text;
BEGIN
    FOR e IN SELECT * FROM lakefork.entity ORDER BY rank, entity LOOP
        IF e.versioned THEN
            at_snapshot := '((p_snapshot IS NULL AND t.end_snapshot IS NULL)
                OR (t.begin_snapshot <= p_snapshot AND (t.end_snapshot IS NULL OR t.end_snapshot > p_snapshot)))';
        ELSE
            -- The table id, where both have it, lets a filter on it reach the parent's index.
            SELECT format('EXISTS (SELECT FROM lakefork.%s(p_catalog_id, p_snapshot) p WHERE %s)',
                          replace(e.parent, 'ducklake_', 'visible_'), string_agg(format('p.%1$I = t.%1$I', c), ' AND '))
            INTO at_snapshot
            FROM (SELECT unnest(e.parent_columns)
                  UNION
                  SELECT 'table_id' FROM lakefork.entity_columns(e.entity) a JOIN lakefork.entity_columns(e.parent) b
                      USING (name)
                  WHERE name = 'table_id') columns (c);
        END IF;
        EXECUTE format($sql$
            CREATE FUNCTION lakefork.%1$s(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL) RETURNS SETOF public.%2$I
            LANGUAGE sql STABLE AS $body$ SELECT t.* FROM public.%2$I t WHERE t.catalog_id = p_catalog_id
                AND %3$s $body$
            $sql$, replace(e.entity, 'ducklake_', 'visible_'), e.entity, at_snapshot);
        EXECUTE format('CREATE VIEW lakefork.%I AS SELECT * FROM public.%I',
            replace(e.entity, 'ducklake_', 'retained_'), e.entity);
    END LOOP;
END $generate$;

-- Totals are kept for the present only, of the live tables of live catalogs: that there are some tells that a table is
-- live.
CREATE VIEW lakefork.retained_table_stats AS SELECT * FROM public.ducklake_table_stats;

CREATE FUNCTION lakefork.visible_table_stats(p_catalog_id bigint) RETURNS SETOF public.ducklake_table_stats
LANGUAGE sql STABLE AS $$ SELECT * FROM public.ducklake_table_stats WHERE catalog_id = p_catalog_id $$;

-- Tables with the names of their namespaces, and files with their paths and owners ---------------

CREATE FUNCTION lakefork.visible_named_table(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL)
RETURNS TABLE (catalog_id bigint, schema_id bigint, namespace varchar, table_id bigint, table_name varchar,
    begin_snapshot bigint, path text)
LANGUAGE sql STABLE AS $$
    SELECT t.catalog_id, t.schema_id, s.schema_name, t.table_id, t.table_name, t.begin_snapshot,
           lakefork.join_path(lakefork.join_path(
               (SELECT d.value FROM lakefork.catalog_setting d WHERE d.key = 'data_path'
                   AND d.catalog_id = p_catalog_id),
               s.path, s.path_is_relative), t.path, t.path_is_relative)
    FROM lakefork.visible_table(p_catalog_id, p_snapshot) t
    JOIN lakefork.visible_schema(p_catalog_id, p_snapshot) s ON s.schema_id = t.schema_id
$$;

-- The live tables of all live catalogs.
CREATE VIEW lakefork.live_table AS
    SELECT c.catalog_id, c.catalog_name, t.schema_id, t.namespace, t.table_id, t.table_name, t.begin_snapshot, t.path
    FROM lakefork.visible_catalog() c CROSS JOIN LATERAL lakefork.visible_named_table(c.catalog_id) t;

-- Data files with their owners (NULL: of a shared table). is_own: the catalog wrote it itself; what a fork inherited
-- lies elsewhere.
CREATE VIEW lakefork.retained_owned_file AS
    SELECT f.catalog_id, f.table_id, f.data_file_id, f.begin_snapshot, f.end_snapshot, f.file_order, f.path,
        f.path_is_relative, f.path_is_relative AS is_own,
           f.record_count, f.file_size_bytes, v.partition_value AS user_id
    FROM public.ducklake_data_file f
    LEFT JOIN public.ducklake_file_partition_value v
           ON v.catalog_id = f.catalog_id AND v.table_id = f.table_id AND v.data_file_id = f.data_file_id
               AND v.partition_key_index = 0;

CREATE VIEW lakefork.live_owned_file AS
    SELECT f.* FROM lakefork.retained_owned_file f JOIN lakefork.visible_catalog() c ON c.catalog_id = f.catalog_id
        WHERE f.end_snapshot IS NULL;

CREATE FUNCTION lakefork.visible_owned_file(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL)
    RETURNS SETOF lakefork.retained_owned_file
LANGUAGE sql STABLE AS $$
    SELECT f.catalog_id, f.table_id, f.data_file_id, f.begin_snapshot, f.end_snapshot, f.file_order, f.path,
        f.path_is_relative, f.path_is_relative,
           f.record_count, f.file_size_bytes, v.partition_value
    FROM lakefork.visible_data_file(p_catalog_id, p_snapshot) f
    LEFT JOIN public.ducklake_file_partition_value v
           ON v.catalog_id = f.catalog_id AND v.table_id = f.table_id AND v.data_file_id = f.data_file_id
               AND v.partition_key_index = 0
$$;

-- The hot tables that catalogs have rows in, with the snapshots that began their definitions.
CREATE VIEW lakefork.retained_hot_table AS
    SELECT i.catalog_id, i.table_id, v.begin_snapshot AS hot_snapshot, i.table_name AS hot_table
    FROM public.ducklake_inlined_data_tables i JOIN public.ducklake_schema_versions v
        USING (catalog_id, table_id, schema_version);

CREATE FUNCTION lakefork.visible_hot_table(p_catalog_id bigint) RETURNS SETOF lakefork.retained_hot_table
LANGUAGE sql STABLE AS $$
    SELECT h.* FROM lakefork.retained_hot_table h
    WHERE h.catalog_id = p_catalog_id AND EXISTS (SELECT FROM lakefork.visible_table(p_catalog_id) t
        WHERE t.table_id = h.table_id)
$$;

-- Every data and delete file that a catalog refers to, ended versions included, with the full path.
CREATE VIEW lakefork.file_reference AS
    SELECT f.catalog_id, f.table_id, f.file_id, f.kind, f.begin_snapshot, f.end_snapshot, f.file_size_bytes,
        f.footer_size, f.record_count,
           lakefork.normal_path(lakefork.join_path(
               lakefork.join_path(lakefork.join_path(d.value, s.path, s.path_is_relative), t.path, t.path_is_relative),
               f.path, f.path_is_relative)) AS path
    FROM (
        SELECT catalog_id, table_id, data_file_id AS file_id, 'data' AS kind, begin_snapshot, end_snapshot,
            file_size_bytes, footer_size,
               record_count, path, path_is_relative FROM public.ducklake_data_file
        UNION ALL
        SELECT catalog_id, table_id, delete_file_id, 'delete', begin_snapshot, end_snapshot, file_size_bytes,
            footer_size,
               delete_count, path, path_is_relative FROM public.ducklake_delete_file
    ) f
    LEFT JOIN LATERAL (SELECT * FROM public.ducklake_table t WHERE t.catalog_id = f.catalog_id
        AND t.table_id = f.table_id
                       ORDER BY t.begin_snapshot DESC LIMIT 1) t ON true
    LEFT JOIN LATERAL (SELECT * FROM public.ducklake_schema s WHERE s.catalog_id = f.catalog_id
        AND s.schema_id = t.schema_id
                       ORDER BY s.begin_snapshot DESC LIMIT 1) s ON true
    LEFT JOIN lakefork.catalog_setting d ON d.key = 'data_path' AND d.catalog_id = f.catalog_id;

-- Bounds of columns ------------------------------------------------------------------------------

-- Numbers compare as numbers, everything else by UTF-8 bytes.
CREATE FUNCTION lakefork.is_number(p_column_type text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT p_column_type ~ '^(u?int(8|16|32|64|128)|float(32|64)|decimal)'
    $$;

-- Bounds of a table's columns, from its files: exact at any snapshot, and nothing for commits to keep up. NULL: not
-- known, as when a file has no statistics of a column.
CREATE FUNCTION lakefork.visible_table_column_stats(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL)
RETURNS SETOF public.ducklake_table_column_stats
LANGUAGE sql STABLE AS $$
    SELECT p_catalog_id, s.table_id, s.column_id, bool_or(s.null_count > 0), bool_or(s.contains_nan),
           CASE WHEN NOT bool_and(k.known) OR count(*) < f.files THEN NULL WHEN n.is_number
               THEN min(CASE WHEN n.is_number THEN s.min_value::numeric END)::text
                ELSE min(s.min_value COLLATE "C") END,
           CASE WHEN NOT bool_and(k.known) OR count(*) < f.files THEN NULL WHEN n.is_number
               THEN max(CASE WHEN n.is_number THEN s.max_value::numeric END)::text
                ELSE max(s.max_value COLLATE "C") END,
           NULL::varchar
    FROM lakefork.visible_file_column_stats(p_catalog_id, p_snapshot) s
    JOIN lakefork.visible_column(p_catalog_id, p_snapshot) c USING (table_id, column_id)
    JOIN (SELECT table_id, count(*) AS files FROM lakefork.visible_data_file(p_catalog_id, p_snapshot) GROUP BY 1) f
        USING (table_id)
    CROSS JOIN LATERAL (SELECT lakefork.is_number(c.column_type) AS is_number) n
    CROSS JOIN LATERAL (SELECT s.min_value IS NOT NULL AND s.max_value IS NOT NULL
        OR s.null_count = s.value_count AS known) k
    GROUP BY s.table_id, s.column_id, n.is_number, f.files
$$;
