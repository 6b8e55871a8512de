-- namespaces: a page of namespaces with their table counts and options
SELECT s.schema_name AS namespace,
       (SELECT min(d.defined_at) FROM lakefork.definition_date d WHERE d.catalog_id = {catalog_id}
           AND d.object_id = s.schema_id) AS created_at,
       (SELECT count(*) FROM lakefork.visible_table({catalog_id}) t WHERE t.schema_id = s.schema_id) AS tables,
       (SELECT coalesce(jsonb_object_agg(substr(g.key, 8), g.value::jsonb), '{{}}')
           FROM lakefork.visible_tag({catalog_id}) g
        WHERE g.object_id = s.schema_id AND g.key LIKE 'option.%')::text AS options
FROM lakefork.visible_schema({catalog_id}) s
ORDER BY s.schema_name COLLATE "C" LIMIT {limit} OFFSET {offset};

-- tables: a page of tables with details for SHOW TABLES
SELECT p.namespace, p.table_name, g.tags ->> 'kind' AS table_type,
       coalesce(g.tags ->> 'location',
                lakefork.join_path(lakefork.join_path(lakefork.data_path({catalog_id}), p.schema_path,
                    p.schema_relative), p.path, p.path_is_relative))
           AS storage_location, g.tags ->> 'flush_rows' AS flush_rows, g.tags ->> 'flush_interval' AS flush_interval,
       p.table_id, x.record_count AS rows, x.file_size_bytes AS bytes, d.created_at, d.last_modified,
       CASE WHEN {with_columns} THEN ARRAY(SELECT lower(c.column_name COLLATE "C")
           FROM lakefork.visible_column({catalog_id}) c WHERE c.table_id = p.table_id) END AS columns
FROM (
    SELECT s.schema_name AS namespace, t.table_name, t.table_id, s.path AS schema_path,
        s.path_is_relative AS schema_relative,
           t.path, t.path_is_relative
    FROM lakefork.visible_schema({catalog_id}) s
    CROSS JOIN LATERAL (   -- in the order of its index, and no more than the page can need
        SELECT * FROM lakefork.visible_table({catalog_id}) t WHERE t.schema_id = s.schema_id
        ORDER BY lower(t.table_name COLLATE "C") LIMIT {inner_limit} OFFSET {inner_offset}
    ) t
    WHERE {namespace}::text IS NULL OR lower(s.schema_name COLLATE "C") = lower({namespace}::text COLLATE "C")
    ORDER BY s.schema_name COLLATE "C", lower(t.table_name COLLATE "C") LIMIT {limit} OFFSET {offset}
) p
CROSS JOIN LATERAL (SELECT coalesce(jsonb_object_agg(g.key, g.value), '{{}}') AS tags
                    FROM lakefork.visible_tag({catalog_id}) g WHERE g.object_id = p.table_id) g
LEFT JOIN lakefork.visible_table_stats({catalog_id}) x ON x.table_id = p.table_id
CROSS JOIN LATERAL (SELECT min(d.defined_at) AS created_at, max(d.defined_at) AS last_modified
                    FROM lakefork.definition_date d WHERE d.catalog_id = {catalog_id} AND d.object_id = p.table_id) d
ORDER BY p.namespace COLLATE "C", lower(p.table_name COLLATE "C");

-- columns: the columns of all tables
SELECT s.schema_name AS table_schema, t.table_name, c.column_name,
       row_number() OVER (PARTITION BY t.table_id ORDER BY c.column_order) AS ordinal_position,
       c.default_value AS column_default,
       CASE WHEN c.nulls_allowed THEN 'YES' ELSE 'NO' END AS is_nullable,
       coalesce(e.column_type || '[]', c.column_type) AS data_type
FROM lakefork.visible_schema({catalog_id}) s
JOIN lakefork.visible_table({catalog_id}) t USING (schema_id)
-- OFFSET 0 makes it a look-up per table, also while Postgres knows nothing of the tables' sizes
CROSS JOIN LATERAL (SELECT * FROM lakefork.visible_column({catalog_id}) c WHERE c.table_id = t.table_id OFFSET 0) c
LEFT JOIN LATERAL (SELECT e.column_type FROM lakefork.visible_column({catalog_id}) e
                   WHERE c.column_type = 'list' AND e.table_id = c.table_id AND e.column_id = c.column_id + 1
                       LIMIT 1) e ON true
WHERE c.parent_column IS NULL ORDER BY 1, 2, c.column_order;

-- versions: definitions of a table, with their times
SELECT row_number() OVER (ORDER BY v.begin_snapshot) AS version, v.begin_snapshot, d.defined_at, d.author
FROM lakefork.visible_schema_versions({catalog_id}) v
JOIN lakefork.definition_date d ON d.catalog_id = v.catalog_id AND d.object_id = v.table_id
    AND d.begin_snapshot = v.begin_snapshot
WHERE v.table_id = {table_id} ORDER BY 1;

-- waiting_versions: hot rows that no flush has published, per user
SELECT {owner} AS user_id, count(*) AS versions
FROM {hot} h
LEFT JOIN lakefork.current_watermark w ON w.catalog_id = {catalog_id} AND w.table_id = {table_id}
    AND w.hot_snapshot = {hot_snapshot}
                                      AND w.user_id = coalesce({owner}, '')
WHERE h.{mine} AND (w.seen IS NULL OR NOT pg_visible_in_snapshot(h._xid, w.seen)) GROUP BY 1;

-- file_totals: rows and bytes in files, per user
SELECT f.user_id, count(*) AS batches, sum(f.record_count)::bigint AS rows, sum(f.file_size_bytes)::bigint AS bytes
FROM lakefork.visible_owned_file({catalog_id}) f
WHERE f.table_id = {table_id} AND ({user_id}::text IS NULL OR f.user_id IS NULL OR f.user_id = {user_id}) GROUP BY 1
    ORDER BY 1;

-- manifest_cache: cached manifests of a catalog; last accesses are in memory only
SELECT m.table_id, m.user_id AS owner, t.namespace, t.table_name AS "table", nullif(m.user_id, '') AS user_id,
    m.etag, m.last_refreshed,
       m.directory || '/manifest.json' AS source, m.sync_state
FROM lakefork.manifest_cache m JOIN lakefork.visible_named_table({catalog_id}) t USING (table_id)
WHERE m.catalog_id = {catalog_id} ORDER BY t.namespace COLLATE "C", t.table_name COLLATE "C", m.user_id COLLATE "C";

-- jobs: system.jobs as a session sees it; of runs for all catalogs what they did in this one (a user: with own rows),
-- that they were there, and how they ended
WITH published AS (
    SELECT j.job_id, array_agg(j.namespace || '.' || j.table_name ORDER BY j.namespace, j.table_name) AS tables,
           CASE WHEN min(j.namespace) = max(j.namespace) THEN min(j.namespace) END AS namespace,
           CASE WHEN count(*) = 1 THEN min(j.table_name) END AS table_name, array_agg(j.counts) AS counts
    FROM lakefork.job_table j
    WHERE j.catalog_id = {catalog_id}
      AND ({user}::text IS NULL OR (j.job_id, j.table_id) IN (SELECT u.job_id, u.table_id FROM lakefork.job_user u
                                                              WHERE u.catalog_id = {catalog_id}
                                                                  AND u.user_id = {user}::text))
    GROUP BY 1
), owners AS (
    SELECT u.job_id, array_agg(DISTINCT u.user_id::text) AS users FROM lakefork.job_user u
    WHERE u.catalog_id = {catalog_id} AND ({user}::text IS NULL OR u.user_id = {user}::text) GROUP BY 1
), runs AS (
    SELECT s.*, p.job_id IS NOT NULL AS is_known, p.tables AS own_tables, p.namespace AS own_namespace,
        p.table_name AS own_table, p.counts, o.users AS own_users,
           coalesce(s.catalog_name = {catalog_name}
               AND ({user}::text IS NULL OR 'user_id=' || {user}::text = ANY (s.parameters)), false) AS is_own
    FROM system.jobs s LEFT JOIN published p ON p.job_id = s.job_id LEFT JOIN owners o ON o.job_id = s.job_id
)
SELECT job_id, job_type, CASE WHEN is_own THEN table_name ELSE own_table END AS table_name,
       CASE WHEN is_own THEN namespace ELSE own_namespace END AS namespace,
       CASE WHEN is_own THEN user_id WHEN cardinality(own_users) = 1 THEN own_users[1] END AS user_id,
       status, start_time, end_time, CASE WHEN is_own OR is_known THEN parameters END AS parameters,
       CASE WHEN is_own THEN result::text WHEN {user}::text IS NULL AND is_known
           THEN lakefork.added_counts(counts)::text END AS result,
       trace, memory_used_mb, cpu_used_percent::float8 AS cpu_used_percent, node_id,
       CASE WHEN is_own THEN error_message
            WHEN error_message IS NOT NULL THEN 'it failed; ask the operator' END AS error_message,
       retries, run_id, own_tables AS tables, own_users AS users
FROM runs WHERE is_own OR is_known OR (catalog_name IS NULL AND {user}::text IS NULL) ORDER BY start_time DESC;
