-- What people read.

-- The tree of forks: who came from whom and when; a parent's name stays known after it was dropped. Own rows and bytes are in files that the catalog
-- wrote itself, shared ones in files that it inherited. Subqueries, because Postgres leaves out those that nobody asks for.
CREATE VIEW system.catalogs AS
    SELECT c.catalog_id, c.catalog_name, c.catalog_uuid, lakefork.data_path(c.catalog_id) AS data_path,
           c.begin_snapshot, coalesce(f.created_at, s.snapshot_time) AS created_at,
           f.parent_id AS parent_catalog_id,
           (SELECT p.catalog_name FROM public.ducklake_catalog p WHERE p.catalog_id = f.parent_id ORDER BY p.begin_snapshot DESC LIMIT 1) AS parent_name,
           f.parent_snapshot AS forked_at_snapshot, f.expires_at,
           (SELECT u.own_rows FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS own_rows,
           (SELECT u.own_bytes FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS own_bytes,
           (SELECT u.shared_rows FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS shared_rows,
           (SELECT u.shared_bytes FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS shared_bytes
    FROM lakefork.visible_catalog() c
    LEFT JOIN lakefork.fork f USING (catalog_id)
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

-- Every attempt of a job: what it reported of itself, and what Airflow says of those that did not come to report. How one ended that stopped
-- reporting is for Airflow to say. No joins and equal types in both parts, so that the newest rows are read by index.
CREATE VIEW system.jobs AS
    SELECT r.job_id::text, r.job AS job_type, r.params ->> 'table' AS table_name, r.params ->> 'namespace' AS namespace, r.params ->> 'user_id' AS user_id,
           CASE WHEN r.status <> 'running' THEN r.status::text ELSE lakefork.status_of_silent(r.trace, r.heartbeat_at) END AS status,
           r.started_at AS start_time,
           CASE WHEN r.status <> 'running' THEN r.finished_at WHEN lakefork.status_of_silent(r.trace, r.heartbeat_at) <> 'running' THEN r.heartbeat_at END
               AS end_time,
           lakefork.parameter_list(r.params) AS parameters, r.result, lakefork.trace_with_link(r.trace) AS trace, r.peak_memory_mb AS memory_used_mb,
           round((100 * r.cpu_seconds / nullif(extract(epoch FROM coalesce(r.finished_at, r.heartbeat_at) - r.started_at), 0))::numeric, 1)
               AS cpu_used_percent,
           r.node_id,
           CASE WHEN r.status <> 'running' THEN r.error::text
                WHEN lakefork.status_of_silent(r.trace, r.heartbeat_at) = 'failed' THEN 'the process stopped reporting' END AS error_message,
           greatest(lakefork.attempt_of(r.trace) - 1, 0) AS retries, r.run_id,
           coalesce(r.params ->> 'catalog', r.params ->> 'parent') AS catalog_name
    FROM lakefork.job_run r
    UNION ALL
    SELECT a.trace, a.job_type, a.params ->> 'table', a.params ->> 'namespace', a.params ->> 'user_id', a.status, a.start_time, a.end_time,
           lakefork.parameter_list(a.params), NULL::jsonb, lakefork.trace_with_link(a.trace), NULL::bigint, NULL::numeric, a.node_id, a.problem,
           greatest(lakefork.attempt_of(a.trace) - 1, 0), a.run_id, coalesce(a.params ->> 'catalog', a.params ->> 'parent')
    FROM lakefork.unreported_attempts() a
    WHERE a.start_time >= coalesce((SELECT to_timestamp(value::float8) FROM public.ducklake_metadata WHERE key = 'jobs_since' AND scope IS NULL), '-infinity');

CREATE VIEW system.users AS
    SELECT c.catalog_name, u.user_id, u.username, u.role, u.permissions, u.created_at, u.deleted_at
    FROM lakefork.app_user u JOIN lakefork.visible_catalog() c USING (catalog_id);

-- Tables keep the name of the location that they were created with.
CREATE VIEW system.storage_locations AS
    SELECT c.catalog_name, l.location_name, l.location_type, l.path, l.credentials_ref, l.created_at,
           coalesce(cardinality(u.tables), 0) AS usage_count, coalesce(u.tables, '{}') AS used_by
    FROM lakefork.storage_location l
    JOIN lakefork.visible_catalog() c USING (catalog_id)
    LEFT JOIN LATERAL (
        SELECT array_agg(s.schema_name || '.' || t.table_name ORDER BY s.schema_name, t.table_name) AS tables
        FROM lakefork.visible_tag(l.catalog_id) g
        JOIN lakefork.visible_table(l.catalog_id) t ON t.table_id = g.object_id
        JOIN lakefork.visible_schema(l.catalog_id) s ON s.schema_id = t.schema_id
        WHERE g.key = 'location_reference' AND g.value = l.location_name
    ) u ON true;

CREATE VIEW system.audit AS
    SELECT c.catalog_name, a.occurred_at, a.actor, a.role, a.subject, a.action, a.table_name, a.affected_rows
    FROM lakefork.audit a JOIN lakefork.visible_catalog() c USING (catalog_id);

-- What waits in the hot store, by table and user; folded or not.
CREATE VIEW system.waiting AS
    SELECT c.catalog_name, n.schema_name AS namespace, t.table_name, nullif(w.user_id, '') AS user_id, sum(w.versions)::bigint AS versions,
           min(w.oldest_at) AS oldest_at
    FROM (SELECT catalog_id, table_id, user_id, versions, oldest_at FROM lakefork.hot_count
          UNION ALL SELECT catalog_id, table_id, user_id, versions, counted_at FROM lakefork.hot_delta) w
    JOIN public.ducklake_catalog c ON c.catalog_id = w.catalog_id AND c.end_snapshot IS NULL
    JOIN public.ducklake_table t ON t.catalog_id = w.catalog_id AND t.table_id = w.table_id AND t.end_snapshot IS NULL
    JOIN public.ducklake_schema n ON n.catalog_id = w.catalog_id AND n.schema_id = t.schema_id AND n.end_snapshot IS NULL
    GROUP BY 1, 2, 3, 4 HAVING sum(w.versions) > 0;

-- What audits of flushes found, good or bad.
CREATE VIEW system.flush_audits AS
    SELECT a.run_id, a.job_id, c.catalog_name, n.schema_name AS namespace, t.table_name, a.audited_at, a.success, a.files, a.results, a.quarantine
    FROM lakefork.flush_audit a
    JOIN public.ducklake_catalog c ON c.catalog_id = a.catalog_id AND c.end_snapshot IS NULL
    LEFT JOIN public.ducklake_table t ON t.catalog_id = a.catalog_id AND t.table_id = a.table_id AND t.end_snapshot IS NULL
    LEFT JOIN public.ducklake_schema n ON n.catalog_id = a.catalog_id AND n.schema_id = t.schema_id AND n.end_snapshot IS NULL;

CREATE VIEW system.manifest_cache AS
    SELECT c.catalog_name, n.schema_name AS namespace, t.table_name, nullif(m.user_id, '') AS user_id, m.directory || '/manifest.json' AS source,
           m.etag, m.last_refreshed, m.sync_state
    FROM lakefork.manifest_cache m
    JOIN public.ducklake_catalog c ON c.catalog_id = m.catalog_id AND c.end_snapshot IS NULL
    JOIN public.ducklake_table t ON t.catalog_id = m.catalog_id AND t.table_id = m.table_id AND t.end_snapshot IS NULL
    JOIN public.ducklake_schema n ON n.catalog_id = m.catalog_id AND n.schema_id = t.schema_id AND n.end_snapshot IS NULL;

-- The ledger of cleanup: which files went, when, why, and who had them last.
CREATE VIEW system.deletions AS
    SELECT d.deletion_id, d.run_id, d.plan_id, d.file_id, d.path, d.size_bytes, d.last_catalog, d.last_table_id, d.last_snapshot, d.reason, d.decided_at,
           d.removed_at, d.outcome, d.trash_path, d.restored_at
    FROM lakefork.deletion d;

CREATE VIEW system.snapshot_tags AS
    SELECT c.catalog_name, t.name, t.snapshot_id, t.tagged_at, t.tagged_by
    FROM lakefork.snapshot_tag t JOIN lakefork.visible_catalog() c USING (catalog_id);
