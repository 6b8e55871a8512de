-- visible_<entity>(catalog, snapshot): what a catalog held at a snapshot; without one: what it holds now.
-- Readers use these and never the tables below them. Postgres inlines them, so filters reach the indexes.

CREATE FUNCTION lakefork.newest_snapshot() RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT max(snapshot_id) FROM public.ducklake_snapshot $$;

-- All catalogs of the database, as of a snapshot.
CREATE FUNCTION lakefork.visible_catalog(p_snapshot bigint DEFAULT NULL) RETURNS SETOF public.ducklake_catalog
LANGUAGE sql STABLE AS $$
    SELECT * FROM public.ducklake_catalog
    WHERE (p_snapshot IS NULL AND end_snapshot IS NULL)
       OR (begin_snapshot <= p_snapshot AND (end_snapshot IS NULL OR end_snapshot > p_snapshot))
$$;

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
                  SELECT 'table_id' FROM lakefork.entity_columns(e.entity) a JOIN lakefork.entity_columns(e.parent) b USING (name)
                  WHERE name = 'table_id') columns (c);
        END IF;
        EXECUTE format($sql$
            CREATE FUNCTION lakefork.%1$s(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL) RETURNS SETOF public.%2$I
            LANGUAGE sql STABLE AS $body$ SELECT t.* FROM public.%2$I t WHERE t.catalog_id = p_catalog_id AND %3$s $body$
            $sql$, replace(e.entity, 'ducklake_', 'visible_'), e.entity, at_snapshot);
    END LOOP;
END $generate$;

-- Numbers compare as numbers, all else by its UTF-8 bytes.
CREATE FUNCTION lakefork.is_number(p_column_type text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT p_column_type ~ '^(u?int(8|16|32|64|128)|float(32|64)|decimal)' $$;

-- Totals are kept for the present only.
CREATE FUNCTION lakefork.visible_table_stats(p_catalog_id bigint) RETURNS SETOF public.ducklake_table_stats
LANGUAGE sql STABLE AS $$
    SELECT s.* FROM public.ducklake_table_stats s JOIN lakefork.visible_table(p_catalog_id) t USING (table_id) WHERE s.catalog_id = p_catalog_id
$$;

-- Bounds of a table's columns, from its files: exact at any snapshot, and nothing for commits to keep up. NULL: not known,
-- as when a file has no statistics of a column.
CREATE FUNCTION lakefork.visible_table_column_stats(p_catalog_id bigint, p_snapshot bigint DEFAULT NULL)
RETURNS SETOF public.ducklake_table_column_stats
LANGUAGE sql STABLE AS $$
    SELECT p_catalog_id, s.table_id, s.column_id, bool_or(s.null_count > 0), bool_or(s.contains_nan),
           CASE WHEN NOT bool_and(k.known) OR count(*) < f.files THEN NULL WHEN n.is_number THEN min(CASE WHEN n.is_number THEN s.min_value::numeric END)::text
                ELSE min(s.min_value COLLATE "C") END,
           CASE WHEN NOT bool_and(k.known) OR count(*) < f.files THEN NULL WHEN n.is_number THEN max(CASE WHEN n.is_number THEN s.max_value::numeric END)::text
                ELSE max(s.max_value COLLATE "C") END,
           NULL::varchar
    FROM lakefork.visible_file_column_stats(p_catalog_id, p_snapshot) s
    JOIN lakefork.visible_column(p_catalog_id, p_snapshot) c USING (table_id, column_id)
    JOIN (SELECT table_id, count(*) AS files FROM lakefork.visible_data_file(p_catalog_id, p_snapshot) GROUP BY 1) f USING (table_id)
    CROSS JOIN LATERAL (SELECT lakefork.is_number(c.column_type) AS is_number) n
    CROSS JOIN LATERAL (SELECT s.min_value IS NOT NULL AND s.max_value IS NOT NULL OR s.null_count = s.value_count AS known) k
    GROUP BY s.table_id, s.column_id, n.is_number, f.files
$$;

-- Every file that a catalog refers to, ended versions included, with the full path.
CREATE VIEW lakefork.file_reference AS
    SELECT f.catalog_id, f.table_id, f.file_id, f.kind, f.begin_snapshot, f.end_snapshot, f.file_size_bytes, f.footer_size, f.record_count,
           lakefork.normal_path(lakefork.join_path(
               lakefork.join_path(lakefork.join_path(d.value, s.path, s.path_is_relative), t.path, t.path_is_relative),
               f.path, f.path_is_relative)) AS path
    FROM (
        SELECT catalog_id, table_id, data_file_id AS file_id, 'data' AS kind, begin_snapshot, end_snapshot, file_size_bytes, footer_size,
               record_count, path, path_is_relative FROM public.ducklake_data_file
        UNION ALL
        SELECT catalog_id, table_id, delete_file_id, 'delete', begin_snapshot, end_snapshot, file_size_bytes, footer_size,
               delete_count, path, path_is_relative FROM public.ducklake_delete_file
    ) f
    LEFT JOIN LATERAL (SELECT * FROM public.ducklake_table t WHERE t.catalog_id = f.catalog_id AND t.table_id = f.table_id
                       ORDER BY t.begin_snapshot DESC LIMIT 1) t ON true
    LEFT JOIN LATERAL (SELECT * FROM public.ducklake_schema s WHERE s.catalog_id = f.catalog_id AND s.schema_id = t.schema_id
                       ORDER BY s.begin_snapshot DESC LIMIT 1) s ON true
    LEFT JOIN public.ducklake_metadata d ON d.key = 'data_path' AND coalesce(d.scope, '') = 'catalog' AND coalesce(d.scope_id, -1) = f.catalog_id;
