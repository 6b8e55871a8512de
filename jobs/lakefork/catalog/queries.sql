-- commit: one commit; see lakefork.commit
SELECT snapshot_id, schema_version, first_catalog_id, first_file_id, replayed
FROM lakefork.commit(%(catalog_id)s, %(base_snapshot)s, %(changes)s, %(author)s, %(message)s, %(commit_key)s, %(extra)s);

-- find_catalog: a catalog by name, as of a snapshot or now
SELECT catalog_id, catalog_name AS name, catalog_uuid, lakefork.data_path(catalog_id) AS data_path, begin_snapshot
FROM lakefork.visible_catalog(%(snapshot)s) WHERE catalog_name = %(name)s;

-- list_catalogs: all catalogs, as of a snapshot or now
SELECT catalog_id, catalog_name AS name, catalog_uuid, lakefork.data_path(catalog_id) AS data_path, begin_snapshot
FROM lakefork.visible_catalog(%(snapshot)s) ORDER BY catalog_name;

-- start_job: a run reports that it is there
INSERT INTO lakefork.job_run (job_id, job, run_id, trace, params, status, started_at, heartbeat_at, node_id)
VALUES (%(job_id)s, %(job)s, %(run_id)s, %(trace)s, %(params)s, 'running', clock_timestamp(), clock_timestamp(), %(node_id)s);

-- beat_job: a run reports that it is still there
UPDATE lakefork.job_run
SET heartbeat_at = clock_timestamp(), peak_memory_mb = %(peak_memory_mb)s, cpu_seconds = %(cpu_seconds)s
WHERE job_id = %(job_id)s;

-- finish_job: a run reports how it ended
UPDATE lakefork.job_run
SET status = %(status)s, finished_at = clock_timestamp(), heartbeat_at = clock_timestamp(), result = %(result)s, error = %(error)s, retryable = %(retryable)s,
    peak_memory_mb = %(peak_memory_mb)s, cpu_seconds = %(cpu_seconds)s
WHERE job_id = %(job_id)s;

-- recent_jobs: the last runs, newest first
SELECT job_type, run_id, status, start_time, end_time, error_message FROM system.jobs ORDER BY start_time DESC LIMIT %(limit)s;

-- status: one line per catalog
SELECT c.catalog_name AS name, count(t.table_id) AS tables, coalesce(sum(t.files), 0) AS files, coalesce(sum(t.rows), 0) AS rows,
       coalesce(sum(t.bytes), 0) AS bytes
FROM system.catalogs c LEFT JOIN system.tables t USING (catalog_id) GROUP BY c.catalog_id, c.catalog_name ORDER BY c.catalog_name LIMIT %(limit)s;

-- catalog_tables: the tables that schema/postgresql.sql made, with their columns in order
SELECT n.nspname AS schema, c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND (n.nspname = 'lakefork' OR n.nspname = 'public' AND c.relname LIKE 'ducklake\_%%')
GROUP BY 1, 2 ORDER BY 1, 2;

-- fsck: what breaks the catalog's invariants
SELECT f.check_name, f.catalog_id, (SELECT max(catalog_name) FROM public.ducklake_catalog c WHERE c.catalog_id = f.catalog_id) AS catalog_name,
       f.object, f.problem
FROM lakefork.fsck(%(catalog_id)s) f ORDER BY f.catalog_id NULLS FIRST, f.check_name, f.object;

-- file_ranges: ranges of file ids with about as many files in each
SELECT min(file_id) AS first_id, max(file_id) AS last_id, count(*) AS files
FROM (SELECT file_id, ntile(%(ranges)s) OVER (ORDER BY file_id) AS bucket
      FROM (SELECT DISTINCT file_id FROM lakefork.file_reference WHERE %(catalog_id)s::bigint IS NULL OR catalog_id = %(catalog_id)s) f) b
GROUP BY bucket ORDER BY 1;

-- count_files: how many files the catalog refers to
SELECT count(*) AS files, coalesce(sum(bytes), 0) AS bytes
FROM (SELECT file_id, max(file_size_bytes) AS bytes FROM lakefork.file_reference
      WHERE %(catalog_id)s::bigint IS NULL OR catalog_id = %(catalog_id)s GROUP BY file_id) f;

-- referenced_files: what the catalogs say of the files in a range of ids
SELECT r.file_id, r.kind, r.path, r.file_size_bytes, r.footer_size, r.record_count, min(r.catalog_id) AS catalog_id, count(*) AS catalogs,
       (SELECT max(catalog_name) FROM public.ducklake_catalog c WHERE c.catalog_id = min(r.catalog_id)) AS catalog_name,
       CASE WHEN %(deep)s THEN (
           SELECT jsonb_object_agg(s.column_id, jsonb_build_array(s.value_count, s.null_count, s.min_value, s.max_value))
           FROM public.ducklake_file_column_stats s WHERE s.catalog_id = min(r.catalog_id) AND s.data_file_id = r.file_id) END AS statistics
FROM lakefork.file_reference r
WHERE r.file_id BETWEEN %(first_id)s AND %(last_id)s AND (%(catalog_id)s::bigint IS NULL OR r.catalog_id = %(catalog_id)s)
GROUP BY r.file_id, r.kind, r.path, r.file_size_bytes, r.footer_size, r.record_count
ORDER BY r.file_id;
