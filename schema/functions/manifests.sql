-- What a manifest says: the batches that a catalog has of one table, and for user tables of one user, below one directory.

-- One row per pending manifest of a table, from the catalog: whose it is, where it lies, and its batches as JSON.
CREATE FUNCTION lakefork.manifest_batches(p_catalog_id bigint, p_table_id bigint, p_users text[], p_per_user boolean)
RETURNS TABLE (user_id varchar, snapshot_id bigint, batches jsonb)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    table_path text;
BEGIN
    SELECT lakefork.join_path(lakefork.join_path(lakefork.data_path(p_catalog_id), s.path, s.path_is_relative), t.path, t.path_is_relative)
    INTO table_path
    FROM public.ducklake_table t
    JOIN public.ducklake_schema s ON s.catalog_id = t.catalog_id AND s.schema_id = t.schema_id AND s.end_snapshot IS NULL
    WHERE t.catalog_id = p_catalog_id AND t.table_id = p_table_id AND t.end_snapshot IS NULL;
    RETURN QUERY
    WITH names AS (
        SELECT c.column_id, c.column_name, c.column_type FROM public.ducklake_column c
        WHERE c.catalog_id = p_catalog_id AND c.table_id = p_table_id AND c.end_snapshot IS NULL AND c.parent_column IS NULL
    ), files AS MATERIALIZED (
        SELECT u.user_id, f.data_file_id, f.begin_snapshot, f.record_count, f.file_size_bytes,
               lakefork.join_path(table_path, f.path, f.path_is_relative) AS path
        FROM unnest(p_users) AS u (user_id)
        JOIN public.ducklake_file_partition_value v
          ON p_per_user AND v.catalog_id = p_catalog_id AND v.table_id = p_table_id AND v.partition_key_index = 0 AND v.partition_value = u.user_id
        JOIN public.ducklake_data_file f ON f.catalog_id = p_catalog_id AND f.data_file_id = v.data_file_id AND f.end_snapshot IS NULL
        UNION ALL
        SELECT '', f.data_file_id, f.begin_snapshot, f.record_count, f.file_size_bytes, lakefork.join_path(table_path, f.path, f.path_is_relative)
        FROM public.ducklake_data_file f
        WHERE NOT p_per_user AND f.catalog_id = p_catalog_id AND f.table_id = p_table_id AND f.end_snapshot IS NULL
    ), statistics AS (
        SELECT f.data_file_id,
               jsonb_object_agg(n.column_name, jsonb_build_object(
                   'column_id', n.column_id, 'type', n.column_type, 'min', c.min_value, 'max', c.max_value, 'null_count', c.null_count)) AS columns,
               max(c.min_value) FILTER (WHERE c.column_id = 1) AS min_seq, max(c.max_value) FILTER (WHERE c.column_id = 1) AS max_seq
        FROM files f
        JOIN public.ducklake_file_column_stats c ON c.catalog_id = p_catalog_id AND c.data_file_id = f.data_file_id
        JOIN names n ON n.column_id = c.column_id
        GROUP BY f.data_file_id
    )
    SELECT f.user_id::varchar, max(f.begin_snapshot), jsonb_agg(jsonb_build_object(
               'path', f.path, 'data_file_id', f.data_file_id,
               'schema_version', (SELECT n.schema_version FROM public.ducklake_snapshot n WHERE n.snapshot_id = f.begin_snapshot),
               'row_count', f.record_count, 'size_bytes', f.file_size_bytes, 'min_seq', s.min_seq::bigint, 'max_seq', s.max_seq::bigint,
               'columns', coalesce(s.columns, '{}')) ORDER BY f.data_file_id)
    FROM files f LEFT JOIN statistics s USING (data_file_id)
    GROUP BY f.user_id;
END $$;
