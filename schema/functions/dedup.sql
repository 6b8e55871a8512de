-- What snapshot_dedup asks and does: which batches there are to merge, and replacing some by others in one transaction.

CREATE FUNCTION lakefork.dedup_lease(p_catalog_id bigint, p_table_id bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'dedup/' || p_catalog_id || '/' || p_table_id $$;

-- The batches of all owners that have more than one, or one with tombstones, of live tables; bounds as the catalog records them, the key's by its first column.
-- What a fork only inherited is left to whom it belongs, unless the fork is named: else each of a thousand forks would write a copy.
CREATE FUNCTION lakefork.dedup_candidates(p_catalog text, p_namespace text, p_table text)
RETURNS TABLE (catalog_id bigint, table_id bigint, user_id varchar, data_file_id bigint, file_order bigint, path text, record_count bigint,
               file_size_bytes bigint, min_seq varchar, max_seq varchar, key_low varchar, key_high varchar, min_deleted varchar, max_deleted varchar)
LANGUAGE sql STABLE AS $$
    WITH tables AS MATERIALIZED (
        SELECT t.catalog_id, t.table_id, (g.value::jsonb ->> 0)::bigint AS key_id,
               lakefork.join_path(lakefork.join_path(lakefork.data_path(t.catalog_id), s.path, s.path_is_relative), t.path, t.path_is_relative) AS path
        FROM public.ducklake_table t
        JOIN public.ducklake_catalog c ON c.catalog_id = t.catalog_id AND c.end_snapshot IS NULL
        JOIN public.ducklake_schema s ON s.catalog_id = t.catalog_id AND s.schema_id = t.schema_id AND s.end_snapshot IS NULL
        JOIN public.ducklake_tag g ON g.catalog_id = t.catalog_id AND g.object_id = t.table_id AND g.key = 'primary_key' AND g.end_snapshot IS NULL
        WHERE t.end_snapshot IS NULL AND (p_catalog IS NULL OR c.catalog_name = p_catalog)
          AND (p_namespace IS NULL OR lower(s.schema_name COLLATE "C") = lower(p_namespace COLLATE "C"))
          AND (p_table IS NULL OR lower(t.table_name COLLATE "C") = lower(p_table COLLATE "C"))
    ), files AS MATERIALIZED (
        SELECT t.key_id, f.catalog_id, f.table_id, coalesce(v.partition_value, '') AS user_id, f.data_file_id, f.file_order, f.record_count,
               f.file_size_bytes, lakefork.join_path(t.path, f.path, f.path_is_relative) AS path,
               count(*) OVER owner AS files, bool_or(f.path_is_relative) OVER owner AS has_own
        FROM tables t
        JOIN public.ducklake_data_file f ON f.catalog_id = t.catalog_id AND f.table_id = t.table_id AND f.end_snapshot IS NULL
        LEFT JOIN public.ducklake_file_partition_value v
               ON v.catalog_id = f.catalog_id AND v.data_file_id = f.data_file_id AND v.partition_key_index = 0
        WINDOW owner AS (PARTITION BY f.catalog_id, f.table_id, v.partition_value)
    )
    SELECT f.catalog_id, f.table_id, f.user_id, f.data_file_id, f.file_order, f.path, f.record_count, f.file_size_bytes,
           q.min_value, q.max_value, k.min_value, k.max_value, d.min_value, d.max_value
    FROM files f
    LEFT JOIN public.ducklake_file_column_stats q ON q.catalog_id = f.catalog_id AND q.data_file_id = f.data_file_id AND q.column_id = 1
    LEFT JOIN public.ducklake_file_column_stats d ON d.catalog_id = f.catalog_id AND d.data_file_id = f.data_file_id AND d.column_id = 2
    LEFT JOIN public.ducklake_file_column_stats k ON k.catalog_id = f.catalog_id AND k.data_file_id = f.data_file_id AND k.column_id = f.key_id
    WHERE (f.files > 1 OR d.max_value = '1') AND (f.has_own OR p_catalog IS NOT NULL)
    ORDER BY f.catalog_id, f.table_id, f.user_id, f.data_file_id
$$;

-- Replaces batches by what they were merged into. Only this catalog's rows change: forks that share the files keep theirs.
-- The same key again gets the first answer; if an input was replaced or dropped meanwhile, nothing happens.
CREATE FUNCTION lakefork.publish_dedup(
    p_job_id text, p_run_id text, p_catalog_id bigint, p_table_id bigint, p_user_id text, p_directory text, p_base bigint, p_changes jsonb,
    p_paths text[], p_commit_key text, OUT snapshot_id bigint, OUT replayed boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM lakefork.require_lease(lakefork.dedup_lease(p_catalog_id, p_table_id), p_job_id);
    SELECT k.snapshot_id, true INTO snapshot_id, replayed FROM lakefork.commit_key k WHERE k.commit_key = p_commit_key;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM lakefork.take_staged(p_job_id, p_paths);
    INSERT INTO lakefork.manifest_pending (catalog_id, table_id, user_id, directory, run_id)
    VALUES (p_catalog_id, p_table_id, p_user_id, p_directory, p_commit_key)   -- a run publishes several times
    ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET directory = excluded.directory, run_id = excluded.run_id;
    SELECT c.snapshot_id, false INTO snapshot_id, replayed
    FROM lakefork.commit(p_catalog_id, p_base, p_changes, 'snapshot_dedup', NULL, p_commit_key, p_run_id) c;
END $$;
