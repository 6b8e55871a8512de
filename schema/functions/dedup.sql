-- snapshot_dedup: lists batches to merge, and replaces batches in one transaction.

CREATE FUNCTION lakefork.dedup_lease(p_catalog_id bigint, p_table_id bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT 'dedup/' || p_catalog_id || '/' || p_table_id $$;

-- The batches of all owners that have more than one, or one with tombstones, of live tables; bounds as the catalog
-- records them, the key's by its first column. What a fork only inherited is left to whom it belongs, unless the fork
-- is named (else each of a thousand forks would write a copy), or tombstones are in it: when they expire, what they
-- delete has to go from the fork's files, too.
CREATE FUNCTION lakefork.dedup_candidates(p_catalog text, p_namespace text, p_table text)
RETURNS TABLE (catalog_id bigint, table_id bigint, user_id varchar, data_file_id bigint, file_order bigint, path text,
    record_count bigint,
               file_size_bytes bigint, only_inherited boolean, min_seq varchar, key_low varchar, key_high varchar,
               min_deleted varchar, max_deleted varchar)
LANGUAGE sql STABLE AS $$
    WITH tables AS MATERIALIZED (
        SELECT t.catalog_id, t.table_id, (g.value::jsonb ->> 0)::bigint AS key_id, t.path
        FROM lakefork.live_table t
        JOIN LATERAL lakefork.visible_tag(t.catalog_id) g ON g.object_id = t.table_id AND g.key = 'primary_key'
        WHERE (p_catalog IS NULL OR t.catalog_name = p_catalog)
          AND (p_namespace IS NULL OR lower(t.namespace COLLATE "C") = lower(p_namespace COLLATE "C"))
          AND (p_table IS NULL OR lower(t.table_name COLLATE "C") = lower(p_table COLLATE "C"))
    ), files AS MATERIALIZED (
        SELECT t.key_id, f.catalog_id, f.table_id, coalesce(f.user_id, '') AS user_id, f.data_file_id, f.file_order,
            f.record_count,
               f.file_size_bytes, lakefork.join_path(t.path, f.path, f.path_is_relative) AS path,
               d.min_value AS min_deleted, d.max_value AS max_deleted, count(*) OVER owner AS files,
               bool_or(f.is_own) OVER owner AS has_own,
               bool_or(d.max_value = '1') OVER owner AS has_tombstones
        FROM tables t
        JOIN lakefork.live_owned_file f ON f.catalog_id = t.catalog_id AND f.table_id = t.table_id
        LEFT JOIN lakefork.retained_file_column_stats d ON d.catalog_id = f.catalog_id
            AND d.data_file_id = f.data_file_id AND d.column_id = lakefork.deleted_column_id()
        WINDOW owner AS (PARTITION BY f.catalog_id, f.table_id, f.user_id)
    )
    SELECT f.catalog_id, f.table_id, f.user_id, f.data_file_id, f.file_order, f.path, f.record_count, f.file_size_bytes,
           NOT f.has_own, q.min_value, k.min_value, k.max_value, f.min_deleted, f.max_deleted
    FROM files f
    LEFT JOIN lakefork.retained_file_column_stats q ON q.catalog_id = f.catalog_id AND q.data_file_id = f.data_file_id
        AND q.column_id = lakefork.seq_column_id()
    LEFT JOIN lakefork.retained_file_column_stats k ON k.catalog_id = f.catalog_id AND k.data_file_id = f.data_file_id
        AND k.column_id = f.key_id
    WHERE (f.files > 1 OR f.has_tombstones) AND (f.has_own OR f.has_tombstones OR p_catalog IS NOT NULL)
    ORDER BY f.catalog_id, f.table_id, f.user_id, f.data_file_id
$$;

-- Replaces batches by what they were merged into. Only this catalog's rows change: forks that share the files keep
-- theirs. The same key again returns the first result; if an input was replaced or dropped concurrently, nothing
-- happens.
CREATE FUNCTION lakefork.publish_dedup(
    p_job_id text, p_run_id text, p_catalog_id bigint, p_table_id bigint, p_user_id text, p_directory text,
        p_base bigint, p_changes jsonb,
    p_paths text[], p_commit_key text, p_counts jsonb, OUT snapshot_id bigint, OUT replayed boolean
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
    PERFORM lakefork.note_published(p_job_id, p_catalog_id, p_table_id, ARRAY[p_user_id], p_counts);
    SELECT c.snapshot_id, false INTO snapshot_id, replayed
    FROM lakefork.commit(p_catalog_id, p_base, p_changes, 'snapshot_dedup', NULL, p_commit_key, p_run_id) c;
END $$;
