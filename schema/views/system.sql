-- Views for people.

-- The tree of forks, with parents and times; a dropped parent keeps its name. Own rows and bytes
-- are in files that the catalog wrote itself, shared ones in files that it inherited. Subqueries, because Postgres
-- leaves out those that nobody asks for.
CREATE VIEW system.catalogs AS
    SELECT c.catalog_id, c.catalog_name, c.catalog_uuid, lakefork.data_path(c.catalog_id) AS data_path,
           c.begin_snapshot, coalesce(f.created_at, s.snapshot_time) AS created_at,
           f.parent_id AS parent_catalog_id,
           (SELECT p.catalog_name FROM lakefork.retained_catalog p WHERE p.catalog_id = f.parent_id
               ORDER BY p.begin_snapshot DESC LIMIT 1) AS parent_name,
           f.parent_snapshot AS forked_at_snapshot, f.expires_at,
           (SELECT u.own_rows FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS own_rows,
           (SELECT u.own_bytes FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS own_bytes,
           (SELECT u.shared_rows FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS shared_rows,
           (SELECT u.shared_bytes FROM lakefork.catalog_usage(ARRAY[c.catalog_id]) u) AS shared_bytes
    FROM lakefork.visible_catalog() c
    LEFT JOIN lakefork.fork f USING (catalog_id)
    LEFT JOIN lakefork.retained_snapshot s ON s.snapshot_id = c.begin_snapshot;

CREATE VIEW system.tables AS
    SELECT t.catalog_id, t.catalog_name, t.namespace, t.table_name, t.table_id,
           coalesce(f.files, 0) AS files, coalesce(s.record_count, 0) AS rows, coalesce(s.file_size_bytes, 0) AS bytes,
           (SELECT min(d.defined_at) FROM lakefork.definition_date d WHERE d.catalog_id = t.catalog_id
               AND d.object_id = t.table_id) AS created_at,
           (SELECT max(d.defined_at) FROM lakefork.definition_date d WHERE d.catalog_id = t.catalog_id
               AND d.object_id = t.table_id) AS last_modified
    FROM lakefork.live_table t
    LEFT JOIN LATERAL lakefork.visible_table_stats(t.catalog_id) s ON s.table_id = t.table_id
    LEFT JOIN LATERAL (SELECT count(*) AS files FROM lakefork.visible_data_file(t.catalog_id) f
        WHERE f.table_id = t.table_id) f ON true;

-- Every attempt of a job: its own report, or Airflow's record of attempts that did not report. How
-- one ended that stopped reporting is for Airflow to say. What it published of which tables and users is known by
-- table, also of one that failed or was killed. No joins and equal types in both parts, so that the newest rows are
-- read by index.
CREATE VIEW system.jobs AS
    SELECT coalesce(r.params ->> 'request', r.job_id) AS job_id, r.job AS job_type,
           coalesce(r.params ->> 'table', (SELECT min(j.table_name) FROM lakefork.job_table j WHERE j.job_id = r.job_id
               HAVING count(*) = 1)) AS table_name,
           coalesce(r.params ->> 'namespace', (SELECT min(j.namespace) FROM lakefork.job_table j
               WHERE j.job_id = r.job_id
                                               HAVING min(j.namespace) = max(j.namespace))) AS namespace,
           coalesce(r.params ->> 'user_id', (SELECT min(u.user_id) FROM lakefork.job_user u WHERE u.job_id = r.job_id
                                             HAVING min(u.user_id) = max(u.user_id))) AS user_id,
           CASE WHEN r.status <> 'running' THEN r.status::text
               ELSE lakefork.status_of_silent(r.trace, r.heartbeat_at) END AS status,
           r.started_at AS start_time,
           CASE WHEN r.status <> 'running' THEN r.finished_at WHEN lakefork.status_of_silent(r.trace, r.heartbeat_at) <>
               'running' THEN r.heartbeat_at END
               AS end_time,
           lakefork.parameter_list(r.params) AS parameters,
           coalesce(r.result, (SELECT lakefork.added_counts(array_agg(j.counts)) FROM lakefork.job_table j
               WHERE j.job_id = r.job_id HAVING count(*) > 0))
               AS result,
           lakefork.trace_with_link(r.trace) AS trace, r.peak_memory_mb AS memory_used_mb,
           round((100 * r.cpu_seconds / nullif(extract(epoch
               FROM coalesce(r.finished_at, r.heartbeat_at) - r.started_at), 0))::numeric, 1)
               AS cpu_used_percent,
           r.node_id,
           CASE WHEN r.status <> 'running' THEN r.error::text
                WHEN lakefork.status_of_silent(r.trace, r.heartbeat_at) = 'failed'
                    THEN 'the process stopped reporting' END AS error_message,
           greatest(lakefork.attempt_of(r.trace) - 1, 0) AS retries, r.run_id,
           coalesce(r.params ->> 'catalog', r.params ->> 'parent') AS catalog_name,
           ARRAY(SELECT j.namespace || '.' || j.table_name FROM lakefork.job_table j WHERE j.job_id = r.job_id
               ORDER BY 1) AS tables,
           ARRAY(SELECT DISTINCT u.user_id::text FROM lakefork.job_user u WHERE u.job_id = r.job_id ORDER BY 1) AS users
    FROM lakefork.job_run r
    UNION ALL
    SELECT a.trace, a.job_type, a.params ->> 'table', a.params ->> 'namespace', a.params ->> 'user_id', a.status,
        a.start_time, a.end_time,
           lakefork.parameter_list(a.params), NULL::jsonb, lakefork.trace_with_link(a.trace), NULL::bigint,
           NULL::numeric, a.node_id, a.problem,
           greatest(lakefork.attempt_of(a.trace) - 1, 0), a.run_id,
           coalesce(a.params ->> 'catalog', a.params ->> 'parent'),
           '{}'::text[], '{}'::text[]
    FROM lakefork.unreported_attempts() a
    WHERE a.start_time >= coalesce(to_timestamp(lakefork.global_setting('jobs_since')::float8), '-infinity')
    UNION ALL   -- asked for by a statement, and not begun; of the same types, so that Postgres sorts each part by index
    SELECT q.request_id::text, q.job, q.params ->> 'table', q.params ->> 'namespace', NULL::text, 'requested'::text,
           q.requested_at, NULL::timestamptz, lakefork.parameter_list(q.params), NULL::jsonb, NULL::text, NULL::bigint,
           NULL::numeric, NULL::varchar, NULL::text, 0, NULL::varchar, q.catalog_name::text, '{}'::text[],
           '{}'::text[]
    FROM lakefork.job_request q;

CREATE VIEW system.users AS
    SELECT c.catalog_name, u.user_id, u.username, u.role, u.permissions, u.created_at, u.deleted_at, l.last_login
    FROM lakefork.app_user u
    JOIN lakefork.visible_catalog() c USING (catalog_id)
    LEFT JOIN lakefork.user_login l USING (catalog_id, user_id);

-- Tables keep the name of the location that they were created with.
CREATE VIEW system.storage_locations AS
    SELECT c.catalog_name, l.location_name, l.location_type, l.path, l.credentials_ref, l.created_at,
           coalesce(cardinality(l.tables), 0) AS usage_count, coalesce(l.tables, '{}') AS used_by
    FROM lakefork.visible_catalog() c
    JOIN LATERAL (   -- the tables of a catalog are looked through once, not once per location
        SELECT s.*, u.tables
        FROM lakefork.storage_location s
        LEFT JOIN (
            SELECT g.value, array_agg(t.namespace || '.' || t.table_name ORDER BY t.namespace, t.table_name) AS tables
            FROM lakefork.visible_tag(c.catalog_id) g
            JOIN lakefork.visible_named_table(c.catalog_id) t ON t.table_id = g.object_id
            WHERE g.key = 'location_reference'
            GROUP BY g.value
        ) u ON u.value = s.location_name
        WHERE s.catalog_id = c.catalog_id
    ) l ON true;

CREATE VIEW system.audit AS
    SELECT c.catalog_name, a.occurred_at, a.actor, a.role, a.subject, a.action, a.table_name, a.affected_rows
    FROM lakefork.audit a JOIN lakefork.visible_catalog() c USING (catalog_id);

-- Waiting versions in the hot store, by table and user; folded or not.
CREATE VIEW system.waiting AS
    SELECT t.catalog_name, t.namespace, t.table_name, nullif(w.user_id, '') AS user_id,
        sum(w.versions)::bigint AS versions,
           min(w.oldest_at) AS oldest_at
    FROM (SELECT catalog_id, table_id, user_id, versions, oldest_at FROM lakefork.hot_count
          UNION ALL SELECT catalog_id, table_id, user_id, versions, counted_at FROM lakefork.hot_delta) w
    JOIN lakefork.live_table t USING (catalog_id, table_id)
    GROUP BY 1, 2, 3, 4 HAVING sum(w.versions) > 0;

-- Results of audits.
CREATE VIEW system.flush_audits AS
    SELECT a.run_id, a.job_id, c.catalog_name, t.namespace, t.table_name, a.audited_at, a.success, a.files, a.results,
        a.quarantine
    FROM lakefork.flush_audit a
    JOIN lakefork.visible_catalog() c ON c.catalog_id = a.catalog_id
    LEFT JOIN LATERAL lakefork.visible_named_table(a.catalog_id) t ON t.table_id = a.table_id;

CREATE VIEW system.manifest_cache AS
    SELECT t.catalog_name, t.namespace, t.table_name, nullif(m.user_id, '') AS user_id,
        m.directory || '/manifest.json' AS source,
           m.etag, m.last_refreshed, m.sync_state
    FROM lakefork.manifest_cache m JOIN lakefork.live_table t USING (catalog_id, table_id);

-- The ledger of cleanup: the deleted files, when and why, and which catalog had them last.
CREATE VIEW system.deletions AS
    SELECT d.deletion_id, d.run_id, d.plan_id, d.file_id, d.path, d.size_bytes, d.last_catalog, d.last_table_id,
        d.last_snapshot, d.reason, d.decided_at,
           d.removed_at, d.outcome, d.trash_path, d.restored_at
    FROM lakefork.deletion d;

CREATE VIEW system.snapshot_tags AS
    SELECT c.catalog_name, t.name, t.snapshot_id, t.tagged_at, t.tagged_by
    FROM lakefork.snapshot_tag t JOIN lakefork.visible_catalog() c USING (catalog_id);

-- What was backed up where; the newest first.
CREATE VIEW system.backups AS
    SELECT b.backup_id, b.catalog_name, b.namespace, b.taken_at AS creation_timestamp, b.place AS file_location,
        b.size_bytes AS size, b.table_count,
           b.file_count, b.row_count, b.copied_files, b.copied_bytes, b.snapshot_id, b.base_id AS base, b.job_id,
               b.run_id, b.started_at, b.finished_at,
           b.removed_at, b.status, b.error AS error_message, b.verified_at, b.verified_percent, b.problem_count
    FROM lakefork.backup b;

-- Live queries: who is subscribed to what, over which server, and what was sent so far.
CREATE VIEW system.live_queries AS
    SELECT c.catalog_name, q.*
    FROM lakefork.visible_catalog() c CROSS JOIN LATERAL lakefork.live_queries(c.catalog_id) q;
