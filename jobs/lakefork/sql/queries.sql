-- namespace_tables: the tables of a namespace with the snapshots and times of their definitions
SELECT s.schema_name AS namespace, t.table_name, t.table_id, coalesce(k.value, 'SHARED') AS kind, v.snapshots, v.times
FROM lakefork.visible_schema(%(catalog_id)s) s
JOIN lakefork.visible_table(%(catalog_id)s) t USING (schema_id)
LEFT JOIN lakefork.visible_tag(%(catalog_id)s) k ON k.object_id = t.table_id AND k.key = 'kind'
CROSS JOIN LATERAL (
    SELECT array_agg(v.begin_snapshot ORDER BY v.begin_snapshot) AS snapshots,
           array_agg(coalesce(n.snapshot_time, now()) ORDER BY v.begin_snapshot) AS times
    FROM lakefork.visible_schema_versions(%(catalog_id)s) v
    LEFT JOIN public.ducklake_snapshot n ON n.snapshot_id = v.begin_snapshot
    WHERE v.table_id = t.table_id
) v
WHERE lower(s.schema_name COLLATE "C") = lower(%(namespace)s::text COLLATE "C") ORDER BY t.table_name;

-- namespaces: namespaces with their table counts and options, a page of them
SELECT s.schema_name AS namespace, n.snapshot_time AS created_at,
       (SELECT count(*) FROM public.ducklake_table t WHERE t.catalog_id = {catalog_id} AND t.schema_id = s.schema_id AND t.end_snapshot IS NULL) AS tables,
       (SELECT coalesce(jsonb_object_agg(substr(g.key, 8), g.value::jsonb), '{{}}') FROM lakefork.visible_tag({catalog_id}) g
        WHERE g.object_id = s.schema_id AND g.key LIKE 'option.%')::text AS options
FROM lakefork.visible_schema({catalog_id}) s
LEFT JOIN LATERAL (SELECT min(o.begin_snapshot) AS first FROM public.ducklake_schema o
                   WHERE o.catalog_id = {catalog_id} AND o.schema_id = s.schema_id) f ON true
LEFT JOIN public.ducklake_snapshot n ON n.snapshot_id = f.first
ORDER BY s.schema_name COLLATE "C" LIMIT {limit} OFFSET {offset};

-- tables: tables with what people ask of them, a page of them
SELECT p.namespace, p.table_name, g.tags ->> 'kind' AS table_type,
       coalesce(g.tags ->> 'location',
                lakefork.join_path(lakefork.join_path(lakefork.data_path({catalog_id}), p.schema_path, p.schema_relative), p.path, p.path_is_relative))
           AS storage_location, g.tags ->> 'flush_rows' AS flush_rows, g.tags ->> 'flush_interval' AS flush_interval,
       p.table_id, x.record_count AS rows, x.file_size_bytes AS bytes,
       CASE WHEN {with_columns} THEN ARRAY(SELECT lower(c.column_name COLLATE "C") FROM lakefork.visible_column({catalog_id}) c WHERE c.table_id = p.table_id) END AS columns
FROM (
    SELECT s.schema_name AS namespace, t.table_name, t.table_id, s.path AS schema_path, s.path_is_relative AS schema_relative,
           t.path, t.path_is_relative
    FROM lakefork.visible_schema({catalog_id}) s
    CROSS JOIN LATERAL (   -- in the order of its index, and no more than the page can need
        SELECT * FROM public.ducklake_table t
        WHERE t.catalog_id = {catalog_id} AND t.schema_id = s.schema_id AND t.end_snapshot IS NULL
        ORDER BY lower(t.table_name COLLATE "C") LIMIT {inner_limit} OFFSET {inner_offset}
    ) t
    WHERE {namespace}::text IS NULL OR lower(s.schema_name COLLATE "C") = lower({namespace}::text COLLATE "C")
    ORDER BY s.schema_name COLLATE "C", lower(t.table_name COLLATE "C") LIMIT {limit} OFFSET {offset}
) p
CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(g.key, g.value), '{{}}') AS tags
                    FROM lakefork.visible_tag({catalog_id}) g WHERE g.object_id = p.table_id) g
LEFT JOIN public.ducklake_table_stats x ON x.catalog_id = {catalog_id} AND x.table_id = p.table_id
ORDER BY p.namespace COLLATE "C", lower(p.table_name COLLATE "C");

-- columns: the columns of all tables
SELECT s.schema_name AS table_schema, t.table_name, c.column_name,
       row_number() OVER (PARTITION BY t.table_id ORDER BY c.column_order) AS ordinal_position, c.default_value AS column_default,
       CASE WHEN c.nulls_allowed THEN 'YES' ELSE 'NO' END AS is_nullable, coalesce(e.column_type || '[]', c.column_type) AS data_type
FROM lakefork.visible_schema({catalog_id}) s
JOIN lakefork.visible_table({catalog_id}) t USING (schema_id)
-- OFFSET 0 makes it a look-up per table, also while Postgres knows nothing of the tables' sizes
CROSS JOIN LATERAL (SELECT * FROM lakefork.visible_column({catalog_id}) c WHERE c.table_id = t.table_id OFFSET 0) c
LEFT JOIN LATERAL (SELECT e.column_type FROM public.ducklake_column e
                   WHERE c.column_type = 'list' AND e.catalog_id = {catalog_id} AND e.table_id = c.table_id
                     AND e.column_id = c.column_id + 1 AND e.end_snapshot IS NULL LIMIT 1) e ON true
WHERE c.parent_column IS NULL ORDER BY 1, 2, c.column_order;

-- versions: the definitions that a table had, with their times
SELECT row_number() OVER (ORDER BY v.begin_snapshot) AS version, v.begin_snapshot, n.snapshot_time, c.author
FROM lakefork.visible_schema_versions({catalog_id}) v
LEFT JOIN public.ducklake_snapshot n ON n.snapshot_id = v.begin_snapshot
LEFT JOIN public.ducklake_snapshot_changes c ON c.snapshot_id = v.begin_snapshot
WHERE v.table_id = {table_id} ORDER BY 1;

-- file_totals: what is in files, per user
SELECT v.partition_value AS user_id, count(*) AS batches, sum(f.record_count)::bigint AS rows, sum(f.file_size_bytes)::bigint AS bytes
FROM lakefork.visible_data_file({catalog_id}) f
LEFT JOIN public.ducklake_file_partition_value v
       ON v.catalog_id = {catalog_id} AND v.data_file_id = f.data_file_id AND v.partition_key_index = 0
WHERE f.table_id = {table_id} AND ({user_id}::text IS NULL OR v.partition_value IS NULL OR v.partition_value = {user_id}) GROUP BY 1 ORDER BY 1;

-- manifest_cache: cached manifests of a catalog; who asked for them when is known in memory only
SELECT m.table_id, m.user_id AS owner, n.schema_name AS namespace, t.table_name AS "table", nullif(m.user_id, '') AS user_id, m.etag, m.last_refreshed,
       m.directory || '/manifest.json' AS source, m.sync_state
FROM lakefork.manifest_cache m
JOIN public.ducklake_table t ON t.catalog_id = m.catalog_id AND t.table_id = m.table_id AND t.end_snapshot IS NULL
JOIN public.ducklake_schema n ON n.catalog_id = m.catalog_id AND n.schema_id = t.schema_id AND n.end_snapshot IS NULL
WHERE m.catalog_id = {catalog_id} ORDER BY n.schema_name COLLATE "C", t.table_name COLLATE "C", m.user_id COLLATE "C";

-- jobs: system.jobs as a session sees it; of runs for all catalogs only that they were there, and how they ended
SELECT job_id, job_type, CASE WHEN {mine} THEN table_name END AS table_name, CASE WHEN {mine} THEN namespace END AS namespace,
       CASE WHEN {mine} THEN user_id END AS user_id, status, start_time, end_time, CASE WHEN {mine} THEN parameters END AS parameters,
       CASE WHEN {mine} THEN result::text END AS result, trace, memory_used_mb, cpu_used_percent::float8 AS cpu_used_percent, node_id,
       CASE WHEN {mine} THEN error_message WHEN error_message IS NOT NULL THEN 'it failed; ask who runs this Lakefork' END AS error_message,
       retries, run_id
FROM system.jobs WHERE {seen} ORDER BY start_time DESC;
