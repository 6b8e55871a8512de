-- What people read.

CREATE VIEW system.catalogs AS
    SELECT c.catalog_id, c.catalog_name, c.catalog_uuid, lakefork.data_path(c.catalog_id) AS data_path,
           c.begin_snapshot, s.snapshot_time AS created_at
    FROM lakefork.visible_catalog() c
    LEFT JOIN public.ducklake_snapshot s ON s.snapshot_id = c.begin_snapshot;

CREATE VIEW system.tables AS
    SELECT c.catalog_id, c.catalog_name, n.schema_name AS namespace, t.table_name, t.table_id,
           coalesce(f.files, 0) AS files, coalesce(s.record_count, 0) AS rows, coalesce(s.file_size_bytes, 0) AS bytes
    FROM public.ducklake_table t
    JOIN public.ducklake_catalog c ON c.catalog_id = t.catalog_id AND c.end_snapshot IS NULL
    JOIN public.ducklake_schema n ON n.catalog_id = t.catalog_id AND n.schema_id = t.schema_id AND n.end_snapshot IS NULL
    LEFT JOIN public.ducklake_table_stats s ON s.catalog_id = t.catalog_id AND s.table_id = t.table_id
    LEFT JOIN LATERAL (SELECT count(*) AS files FROM public.ducklake_data_file f
                       WHERE f.catalog_id = t.catalog_id AND f.table_id = t.table_id AND f.end_snapshot IS NULL) f ON true
    WHERE t.end_snapshot IS NULL;

-- A run whose process stopped reporting has failed, whatever its row says.
CREATE VIEW system.jobs AS
    SELECT r.job_id, r.job AS job_type, r.run_id, r.trace,
           CASE WHEN r.status = 'running' AND r.heartbeat_at < now() - interval '2 minutes' THEN 'failed' ELSE r.status END AS status,
           r.started_at AS start_time, r.finished_at AS end_time, r.params AS parameters, r.result,
           r.peak_memory_mb AS memory_used_mb,
           round((100 * r.cpu_seconds / nullif(extract(epoch FROM coalesce(r.finished_at, r.heartbeat_at) - r.started_at), 0))::numeric, 1)
               AS cpu_used_percent,
           r.node_id,
           CASE WHEN r.status = 'running' AND r.heartbeat_at < now() - interval '2 minutes'
                THEN 'the process stopped reporting' ELSE r.error END AS error_message
    FROM lakefork.job_run r;
