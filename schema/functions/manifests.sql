-- Manifests: their content, and eviction from the cache.

-- One row per owner who has or had batches of a table: whose they are, the snapshot of their last publish, and those
-- that are left as JSON, with what is known of their columns: {name: [column_id, type, value_count, null_count, min,
-- max]}. Of very many, only every p_parts-th if asked for.
CREATE FUNCTION lakefork.manifest_batches(p_catalog_id bigint, p_table_id bigint, p_users text[], p_per_user boolean,
                                          p_part bigint DEFAULT 0, p_parts bigint DEFAULT 1)
RETURNS TABLE (user_id varchar, snapshot_id bigint, batches json)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    table_path text;
BEGIN
    SELECT t.path INTO table_path FROM lakefork.visible_named_table(p_catalog_id) t WHERE t.table_id = p_table_id;
    RETURN QUERY
    WITH names AS (
        SELECT c.column_id, c.column_name, c.column_type FROM lakefork.visible_column(p_catalog_id) c
        WHERE c.table_id = p_table_id AND c.parent_column IS NULL
    -- also what was removed or replaced: that was a publish, too; not what a fork inherited, which lies elsewhere
    ), owned AS MATERIALIZED (
        SELECT u.user_id, f.data_file_id, f.begin_snapshot, f.end_snapshot, f.file_order, f.record_count,
            f.file_size_bytes, f.path
        FROM unnest(p_users) AS u (user_id)
        JOIN lakefork.retained_owned_file f
          ON p_per_user AND f.catalog_id = p_catalog_id AND f.table_id = p_table_id AND f.user_id = u.user_id
              AND f.is_own
        UNION ALL
        SELECT '', f.data_file_id, f.begin_snapshot, f.end_snapshot, f.file_order, f.record_count, f.file_size_bytes,
            f.path
        FROM lakefork.retained_owned_file f
        WHERE NOT p_per_user AND f.is_own AND f.catalog_id = p_catalog_id AND f.table_id = p_table_id
    ), files AS MATERIALIZED (
        SELECT o.user_id, o.data_file_id, o.file_order, o.record_count, o.file_size_bytes,
            lakefork.join_path(table_path, o.path, true) AS path
        FROM owned o WHERE o.end_snapshot IS NULL AND o.data_file_id % p_parts = p_part
    ), statistics AS (
        SELECT f.data_file_id,
               json_object_agg(n.column_name, json_build_array(
                   n.column_id, n.column_type, c.value_count, c.null_count, c.min_value, c.max_value)) AS columns,
               max(c.min_value) FILTER (WHERE c.column_id = lakefork.seq_column_id()) AS min_seq,
               max(c.max_value) FILTER (WHERE c.column_id = lakefork.seq_column_id()) AS max_seq
        FROM files f
        JOIN lakefork.retained_file_column_stats c ON c.catalog_id = p_catalog_id AND c.data_file_id = f.data_file_id
        JOIN names n ON n.column_id = c.column_id
        GROUP BY f.data_file_id
    )
    SELECT p.user_id::varchar, p.snapshot_id, coalesce(b.batches, '[]'::json)
    FROM (SELECT o.user_id, max(greatest(o.begin_snapshot, o.end_snapshot)) AS snapshot_id FROM owned o
        GROUP BY o.user_id) p
    LEFT JOIN (
        SELECT f.user_id, json_agg(json_build_object(
                   'path', f.path, 'data_file_id', f.data_file_id,
                   -- of the table's own definitions: snapshots expire
                   'schema_version', (SELECT v.schema_version FROM lakefork.visible_schema_versions(p_catalog_id) v
                                      WHERE v.table_id = p_table_id AND v.begin_snapshot <= f.file_order
                                      ORDER BY v.begin_snapshot DESC LIMIT 1),
                   'row_count', f.record_count, 'size_bytes', f.file_size_bytes, 'min_seq', s.min_seq::bigint,
                   'max_seq', s.max_seq::bigint,
                   'columns', coalesce(s.columns, '{}'::json)) ORDER BY f.data_file_id) AS batches
        FROM files f LEFT JOIN statistics s USING (data_file_id)
        GROUP BY f.user_id
    ) b USING (user_id);
END $$;

-- Cached manifests to evict, and why. Each use of an entry older than the TTL refreshes it, so an entry that was not
-- refreshed for TTL + window (p_unused_seconds) was not used for at least the window; when exactly, only the processes
-- that read know.
CREATE FUNCTION lakefork.evictable_manifests(p_unused_seconds bigint, p_max_entries bigint)
RETURNS TABLE (catalog_id bigint, table_id bigint, user_id varchar, reason text)
LANGUAGE sql STABLE AS $$
    WITH entries AS (
        SELECT m.catalog_id, m.table_id, m.user_id, m.last_refreshed,
               CASE WHEN NOT EXISTS (SELECT FROM lakefork.live_table t WHERE t.catalog_id = m.catalog_id
                   AND t.table_id = m.table_id) THEN 'dropped'
                    WHEN m.last_refreshed < statement_timestamp() - make_interval(secs => p_unused_seconds)
                        THEN 'unused' END AS reason
        FROM lakefork.manifest_cache m
    ), ranked AS (
        SELECT e.*, row_number() OVER (PARTITION BY e.reason IS NULL ORDER BY e.last_refreshed DESC) AS place
            FROM entries e
    )
    SELECT r.catalog_id, r.table_id, r.user_id, coalesce(r.reason, 'beyond_limit')
    FROM ranked r WHERE r.reason IS NOT NULL OR r.place > p_max_entries
$$;
