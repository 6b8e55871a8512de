-- totals: counts for all catalogs; forks count what they share
SELECT (SELECT count(*) FROM lakefork.visible_catalog()) AS catalogs,
       (SELECT count(*) FROM lakefork.fork JOIN lakefork.visible_catalog() c USING (catalog_id)) AS forks,
       t.tables, t.rows, t.bytes,
       (SELECT count(*) FROM lakefork.visible_catalog() c CROSS JOIN LATERAL lakefork.visible_data_file(c.catalog_id))
           AS files,
       w.hot, w.oldest_at,
       lakefork.newest_snapshot() AS newest_snapshot,
       (SELECT count(*) FROM lakefork.manifest_pending) AS manifests_pending,
       (SELECT count(*) FROM system.jobs WHERE status = 'running') AS running,
       (SELECT count(*) FROM system.jobs WHERE status = 'failed' AND start_time > now() - interval '1 day')
           AS failed_today,
       l.live_queries, l.live_rate, l.live_resyncs, l.live_look_seconds
FROM (SELECT count(*) AS servers, coalesce(sum(s.messages_per_second), 0) AS live_rate,
          coalesce(sum(s.resyncs), 0)::bigint AS live_resyncs, coalesce(max(s.look_seconds), 0) AS live_look_seconds,
          (SELECT count(*) FROM lakefork.live_subscription) AS live_queries
      FROM lakefork.live_server s WHERE s.expires_at > statement_timestamp()) l,
     (SELECT count(*) AS tables, coalesce(sum(s.record_count), 0)::bigint AS rows,
    coalesce(sum(s.file_size_bytes), 0)::bigint AS bytes
      FROM lakefork.visible_catalog() c CROSS JOIN LATERAL lakefork.visible_table_stats(c.catalog_id) s) t,
     (SELECT coalesce(sum(versions), 0)::bigint AS hot, min(oldest_at) FILTER (WHERE versions > 0) AS oldest_at
      FROM (SELECT versions, oldest_at FROM lakefork.hot_count UNION ALL SELECT versions, counted_at
          FROM lakefork.hot_delta) c) w;

-- catalogs: a page of catalogs by name, with totals
WITH page AS MATERIALIZED (
    SELECT catalog_id, catalog_name, begin_snapshot FROM lakefork.visible_catalog()
    WHERE (%(search)s::text IS NULL OR strpos(lower(catalog_name), lower(%(search)s)) > 0)
      AND (%(after)s::text IS NULL OR catalog_name > %(after)s)
    ORDER BY catalog_name LIMIT %(limit)s
), waiting AS (
    SELECT catalog_id, sum(versions)::bigint AS hot, min(oldest_at) FILTER (WHERE versions > 0) AS oldest_at
    FROM (SELECT catalog_id, versions, oldest_at FROM page JOIN lakefork.hot_count USING (catalog_id)
          UNION ALL SELECT catalog_id, versions, counted_at FROM page JOIN lakefork.hot_delta USING (catalog_id)) c
    GROUP BY catalog_id
)
SELECT p.catalog_name AS name, t.tables, t.rows, t.bytes, f.files, coalesce(w.hot, 0) AS hot, w.oldest_at,
    s.snapshot_time AS created_at
FROM page p
LEFT JOIN waiting w USING (catalog_id)
LEFT JOIN lakefork.retained_snapshot s ON s.snapshot_id = p.begin_snapshot
CROSS JOIN LATERAL (SELECT count(*) AS tables, coalesce(sum(s.record_count), 0)::bigint AS rows,
    coalesce(sum(s.file_size_bytes), 0)::bigint AS bytes
                    FROM lakefork.visible_table_stats(p.catalog_id) s) t
CROSS JOIN LATERAL (SELECT count(*) AS files FROM lakefork.visible_data_file(p.catalog_id)) f
ORDER BY p.catalog_name;

-- waiting: tables with rows that wait for a flush, longest waiting first, with their policy
WITH tables AS (
    SELECT catalog_id, table_id, sum(users)::bigint AS users, sum(versions)::bigint AS versions,
        max(most_versions)::bigint AS most_versions,
           min(oldest_at) AS oldest_at
    FROM ((SELECT catalog_id, table_id, count(*) AS users, sum(versions) AS versions, max(versions) AS most_versions,
        min(oldest_at) AS oldest_at
           FROM lakefork.hot_count GROUP BY 1, 2 ORDER BY min(oldest_at) LIMIT %(limit)s)
          UNION ALL   -- not folded yet; a user may be in both
          (SELECT catalog_id, table_id, count(DISTINCT user_id), sum(versions), sum(versions),
              min(counted_at) FILTER (WHERE versions > 0)
           FROM lakefork.hot_delta GROUP BY 1, 2 ORDER BY min(counted_at) LIMIT %(limit)s)) c
    GROUP BY 1, 2 HAVING sum(versions) > 0 ORDER BY min(oldest_at) LIMIT %(limit)s
)
SELECT w.catalog_id, w.table_id, t.catalog_name AS catalog, t.namespace, t.table_name AS table, w.users, w.versions,
    w.most_versions, w.oldest_at,
       extract(epoch FROM now() - w.oldest_at)::float8 AS oldest_seconds, p.max_versions, p.max_seconds,
       coalesce(w.most_versions >= p.max_versions, false)
           OR coalesce(w.oldest_at <= now() - make_interval(secs => p.max_seconds), false) AS is_due
FROM tables w
JOIN lakefork.live_table t USING (catalog_id, table_id)
CROSS JOIN LATERAL lakefork.flush_policy(w.catalog_id, w.table_id, %(default_rows)s, %(default_seconds)s) p
ORDER BY w.oldest_at;

-- last_runs: the last run of each job, and the next by schedule
SELECT j.job, r.status, r.start_time, r.end_time, r.error_message, r.trace, s.next_run,
    coalesce(s.is_paused, false) AS is_paused
FROM unnest(%(jobs)s::text[]) AS j (job)
LEFT JOIN lakefork.airflow_schedule() s ON s.job_type = j.job
LEFT JOIN LATERAL (SELECT * FROM system.jobs r WHERE r.job_type = j.job ORDER BY r.start_time DESC LIMIT 1) r ON true
ORDER BY r.start_time DESC NULLS LAST, j.job;

-- runs: attempts of jobs, the newest first
SELECT job_id, job_type, run_id, status, start_time, end_time, parameters, result, trace, memory_used_mb,
    cpu_used_percent::float8 AS cpu_used_percent,
       node_id, error_message, retries
FROM system.jobs
WHERE (%(job)s::text IS NULL OR job_type = %(job)s) AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(before)s::timestamptz IS NULL OR start_time < %(before)s)
ORDER BY start_time DESC LIMIT %(limit)s;

-- flushed: what flushes published over time, and how long the oldest row had waited
SELECT date_bin(make_interval(secs => %(step)s), l.published_at, '2025-01-01 UTC') AS at,
       sum((l.counts ->> 'rows_in')::bigint)::bigint AS rows, sum((l.counts ->> 'bytes_written')::bigint)::bigint
           AS bytes,
       sum((l.counts ->> 'files_written')::bigint)::bigint AS files,
       max((l.counts ->> 'waited_seconds')::float8) AS waited_seconds
FROM lakefork.flush_log l
WHERE l.published_at >= date_bin(make_interval(secs => %(step)s), now() - make_interval(secs => %(span)s),
    '2025-01-01 UTC')
  AND (%(catalog)s::text IS NULL OR l.catalog_id = (SELECT catalog_id FROM lakefork.visible_catalog()
      WHERE catalog_name = %(catalog)s))
  AND (%(table_id)s::bigint IS NULL OR l.table_id = %(table_id)s)
GROUP BY 1 ORDER BY 1;

-- tables: a page of the tables of a catalog, by namespace and name
WITH waiting AS (
    SELECT table_id, sum(versions)::bigint AS hot, min(oldest_at) FILTER (WHERE versions > 0) AS oldest_at
    FROM (SELECT table_id, versions, oldest_at FROM lakefork.hot_count WHERE catalog_id = %(catalog_id)s
          UNION ALL SELECT table_id, versions, counted_at FROM lakefork.hot_delta WHERE catalog_id = %(catalog_id)s) c
    GROUP BY table_id
), page AS MATERIALIZED (
    SELECT t.table_id, t.namespace, t.table_name
    FROM lakefork.visible_named_table(%(catalog_id)s) t
    WHERE (%(search)s::text IS NULL OR strpos(lower(t.namespace || '.' || t.table_name), lower(%(search)s)) > 0)
      AND (%(after)s::text IS NULL OR t.namespace || '.' || t.table_name > %(after)s)
    ORDER BY t.namespace || '.' || t.table_name LIMIT %(limit)s
)
SELECT p.namespace, p.table_name AS table, k.value AS kind, coalesce(s.record_count, 0) AS rows,
    coalesce(s.file_size_bytes, 0) AS bytes,
       f.files, coalesce(w.hot, 0) AS hot, w.oldest_at
FROM page p
LEFT JOIN waiting w USING (table_id)
LEFT JOIN lakefork.visible_table_stats(%(catalog_id)s) s ON s.table_id = p.table_id
LEFT JOIN lakefork.visible_tag(%(catalog_id)s) k ON k.object_id = p.table_id AND k.key = 'kind'
CROSS JOIN LATERAL (SELECT count(*) AS files FROM lakefork.visible_data_file(%(catalog_id)s) f
    WHERE f.table_id = p.table_id) f
ORDER BY p.namespace || '.' || p.table_name;

-- table: details of one table
SELECT t.table_id, d.definition, coalesce(s.record_count, 0) AS rows, coalesce(s.file_size_bytes, 0) AS bytes,
       (SELECT count(*) FROM lakefork.visible_data_file(%(catalog_id)s) f WHERE f.table_id = t.table_id) AS files,
       (SELECT count(*) FROM lakefork.retained_data_file f WHERE f.catalog_id = %(catalog_id)s
           AND f.table_id = t.table_id AND f.end_snapshot IS NOT NULL)
           AS retained_files,
       w.hot, w.users_waiting, w.oldest_at, p.max_versions, p.max_seconds,
       (SELECT count(*) FROM lakefork.manifest_pending m WHERE m.catalog_id = %(catalog_id)s
           AND m.table_id = t.table_id) AS manifests_pending,
       (SELECT coalesce(jsonb_object_agg(sync_state, entries), '{}') FROM (
            SELECT sync_state, count(*) AS entries FROM lakefork.manifest_cache m
            WHERE m.catalog_id = %(catalog_id)s AND m.table_id = t.table_id GROUP BY 1) m) AS manifests_cached
FROM lakefork.find_tables(%(catalog_id)s, ARRAY[%(namespace)s], ARRAY[%(table)s]) t
CROSS JOIN LATERAL (SELECT lakefork.table_definition(%(catalog_id)s, t.table_id, t.definition_snapshot) AS definition) d
LEFT JOIN lakefork.visible_table_stats(%(catalog_id)s) s ON s.table_id = t.table_id
CROSS JOIN LATERAL lakefork.flush_policy(%(catalog_id)s, t.table_id, %(default_rows)s, %(default_seconds)s) p
CROSS JOIN LATERAL (
    SELECT coalesce(sum(c.versions), 0)::bigint AS hot, count(DISTINCT c.user_id) FILTER (WHERE c.versions > 0)
        AS users_waiting,
           min(c.oldest_at) FILTER (WHERE c.versions > 0) AS oldest_at
    FROM (SELECT user_id, versions, oldest_at FROM lakefork.hot_count WHERE catalog_id = %(catalog_id)s
        AND table_id = t.table_id
          UNION ALL SELECT user_id, versions, counted_at FROM lakefork.hot_delta WHERE catalog_id = %(catalog_id)s
              AND table_id = t.table_id) c) w;

-- versions_of_table: definitions of a table, newest first
SELECT v.schema_version, v.begin_snapshot, s.snapshot_time, lakefork.table_definition(%(catalog_id)s, %(table_id)s,
    v.begin_snapshot) -> 'columns' AS columns
FROM lakefork.visible_schema_versions(%(catalog_id)s) v LEFT JOIN lakefork.retained_snapshot s ON s.snapshot_id =
    v.begin_snapshot
WHERE v.table_id = %(table_id)s ORDER BY v.begin_snapshot DESC LIMIT 50;

-- files_of_table: batches now or at a snapshot, with the bounds of one column
SELECT f.data_file_id, f.path, f.user_id, f.record_count AS rows, f.file_size_bytes AS bytes, f.published,
       f.bounds -> %(column_id)s::text ->> 0 AS low, f.bounds -> %(column_id)s::text ->> 1 AS high
FROM lakefork.table_files(%(catalog_id)s, %(table_id)s, %(user)s, ARRAY[%(column_id)s]::bigint[], %(snapshot)s) f
ORDER BY f.user_id, f.data_file_id LIMIT %(limit)s;

-- superseded_files: the first batches of tables without too many files, with the bounds of the first key column
WITH wanted AS MATERIALIZED (
    SELECT w.* FROM unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS w (catalog_id, table_id)
    WHERE (SELECT count(*) FROM (SELECT FROM lakefork.visible_data_file(w.catalog_id) f WHERE f.table_id = w.table_id
        LIMIT %(most)s + 1) f) <= %(most)s
)
SELECT w.catalog_id, w.table_id, k.column_type, f.user_id, f.data_file_id, f.record_count AS rows, f.published,
       f.bounds -> k.column_id::text ->> 0 AS low, f.bounds -> k.column_id::text ->> 1 AS high
FROM wanted w
CROSS JOIN LATERAL (
    SELECT c.column_id, c.column_type FROM lakefork.visible_tag(w.catalog_id) g
    JOIN lakefork.visible_column(w.catalog_id) c ON c.table_id = w.table_id
        AND c.column_id = (g.value::jsonb ->> 0)::bigint
    WHERE g.object_id = w.table_id AND g.key = 'primary_key') k
CROSS JOIN LATERAL (
    SELECT * FROM lakefork.table_files(w.catalog_id, w.table_id, NULL, ARRAY[k.column_id]) f
    ORDER BY f.user_id, f.data_file_id LIMIT %(limit)s) f
ORDER BY w.catalog_id, w.table_id, f.user_id, f.data_file_id;

-- snapshots_of_table: commits that changed a table's files, the newest first
SELECT e.snapshot_id, s.snapshot_time, s.author, s.changes_made, sum(e.added)::bigint AS files_added,
    sum(e.removed)::bigint AS files_removed,
       sum(e.rows)::bigint AS rows
FROM (SELECT begin_snapshot AS snapshot_id, 1 AS added, 0 AS removed, record_count AS rows
    FROM lakefork.retained_data_file
      WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s
      UNION ALL
      SELECT end_snapshot, 0, 1, -record_count FROM lakefork.retained_data_file
      WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND end_snapshot IS NOT NULL) e
JOIN lakefork.retained_snapshot s USING (snapshot_id)
GROUP BY 1, 2, 3, 4 ORDER BY 1 DESC LIMIT %(limit)s;

-- audits: results of audits, newest first
SELECT run_id, catalog_name, namespace, table_name, audited_at, success, files, results, quarantine
    FROM system.flush_audits
WHERE (%(run_id)s::text IS NULL OR run_id = %(run_id)s) AND NOT (%(failed_only)s AND success)
  AND (%(before)s::timestamptz IS NULL OR audited_at < %(before)s)
ORDER BY audited_at DESC LIMIT %(limit)s;

-- job_counts: recorded attempts of each job by status
SELECT job_type, status, count(*) AS attempts FROM system.jobs GROUP BY 1, 2 ORDER BY 1, 2;

-- followed: copies whose source is followed, and how far they are behind
SELECT f.copy_id, extract(epoch FROM clock_timestamp() - coalesce(f.drained_at, f.run_at))::double precision AS seconds,
       f.wal_kept, (f.error IS NOT NULL OR f.warning IS NOT NULL)::int AS in_trouble
FROM lakefork.follow f WHERE f.status IN ('following', 'copy_required') ORDER BY f.copy_id;

-- fork_children: a page of the forks of a catalog, of catalogs without a living parent, or of all whose names contain a
-- text
WITH page AS MATERIALIZED (
    SELECT c.catalog_id, c.catalog_name, f.parent_id, f.parent_snapshot, f.created_at, f.expires_at, c.begin_snapshot
    FROM lakefork.visible_catalog() c LEFT JOIN lakefork.fork f USING (catalog_id)
    WHERE (%(after)s::text IS NULL OR c.catalog_name > %(after)s)
      AND CASE WHEN %(search)s::text IS NOT NULL THEN strpos(lower(c.catalog_name), lower(%(search)s)) > 0
               WHEN %(parent_id)s::bigint IS NOT NULL THEN f.parent_id = %(parent_id)s
               ELSE NOT EXISTS (SELECT FROM lakefork.visible_catalog() p WHERE p.catalog_id = f.parent_id) END
    ORDER BY c.catalog_name LIMIT %(limit)s
), below AS (
    SELECT k.parent_id, count(*) AS forks
    FROM lakefork.fork k JOIN lakefork.visible_catalog() c ON c.catalog_id = k.catalog_id
    WHERE k.parent_id = ANY (ARRAY(SELECT catalog_id FROM page)) GROUP BY 1
)
SELECT p.catalog_name AS name, p.parent_snapshot AS forked_at_snapshot,
    coalesce(p.created_at, s.snapshot_time) AS created_at, p.expires_at,
       u.own_files, u.own_bytes::bigint AS own_bytes, u.shared_files, u.shared_bytes::bigint AS shared_bytes,
       coalesce(b.forks, 0) AS forks,
       CASE WHEN %(search)s::text IS NOT NULL   -- the tree itself shows the parent
            THEN (SELECT max(c.catalog_name) FROM lakefork.retained_catalog c WHERE c.catalog_id = p.parent_id) END
                AS parent
FROM page p
LEFT JOIN below b ON b.parent_id = p.catalog_id
JOIN lakefork.catalog_usage((SELECT array_agg(catalog_id) FROM page)) u USING (catalog_id)
LEFT JOIN lakefork.retained_snapshot s ON s.snapshot_id = p.begin_snapshot
ORDER BY p.catalog_name;

-- plans: plans of retention_gc and file_cleanup, newest first; the results of file_cleanup are in its reports
WITH page AS (
    SELECT * FROM lakefork.plan ORDER BY created_at DESC LIMIT %(limit)s
), reports AS (
    SELECT coalesce(r.result ->> 'plan_id', r.params ->> 'plan_id') AS plan_id,
           min(r.started_at) FILTER (WHERE r.params ->> 'plan_id' IS NOT NULL) AS begun_at,
           max(r.finished_at) FILTER (WHERE r.params ->> 'plan_id' IS NOT NULL AND r.status = 'completed') AS done_at,
           max((r.result ->> 'files_planned')::bigint + (r.result ->> 'orphans')::bigint) AS files,
           max((r.result ->> 'bytes_planned')::bigint) AS bytes,
           sum((r.result ->> 'files_deleted')::bigint)::bigint AS freed_files,
           sum((r.result ->> 'bytes_freed')::bigint)::bigint AS freed_bytes
    FROM lakefork.job_run r WHERE r.job = 'file_cleanup' GROUP BY 1
)
SELECT p.plan_id, p.job, p.run_id, p.created_at, coalesce(p.begun_at, r.begun_at) AS begun_at,
    coalesce(p.done_at, r.done_at) AS done_at,
       i.catalogs, i.snapshots, coalesce(r.files, i.files) AS files, coalesce(r.bytes, i.bytes) AS bytes,
       coalesce(r.freed_files, i.freed_files) AS freed_files, coalesce(r.freed_bytes, i.freed_bytes) AS freed_bytes
FROM page p
LEFT JOIN reports r USING (plan_id)
CROSS JOIN LATERAL (
    SELECT nullif(count(DISTINCT g.catalog_id), 0) AS catalogs, sum(g.snapshots)::bigint AS snapshots,
        sum(g.files)::bigint AS files,
           sum(g.bytes)::bigint AS bytes, sum(g.freed_files)::bigint AS freed_files,
           sum(g.freed_bytes)::bigint AS freed_bytes
    FROM lakefork.gc_count g WHERE g.plan_id = p.plan_id) i
ORDER BY p.created_at DESC;

-- cleanup_totals: files scheduled for deletion, and files deleted so far
SELECT s.files, s.bytes, s.oldest_at, d.removed_files, d.removed_bytes
FROM (SELECT count(*) AS files, coalesce(sum(s.file_size_bytes), 0)::bigint AS bytes, min(s.schedule_start) AS oldest_at
      FROM lakefork.files_to_clean(NULL, 'infinity') s) s,
     (SELECT count(*) AS removed_files, coalesce(sum(size_bytes), 0)::bigint AS removed_bytes FROM system.deletions
         WHERE outcome = 'removed') d;

-- deletions: the ledger, the newest first
SELECT deletion_id, run_id, path, size_bytes AS bytes, last_catalog, last_snapshot, reason, decided_at, removed_at,
    outcome, trash_path, restored_at
FROM system.deletions WHERE %(before)s::bigint IS NULL OR deletion_id < %(before)s ORDER BY deletion_id DESC
    LIMIT %(limit)s;

-- pinned: tagged snapshots
SELECT catalog_name AS catalog, name, snapshot_id, tagged_at, tagged_by FROM system.snapshot_tags
    ORDER BY tagged_at DESC LIMIT %(limit)s;

-- fork_tree: catalogs and their descendants, with sizes
WITH RECURSIVE tree AS (
    SELECT c.catalog_id, c.catalog_name, 0 AS depth, ARRAY[c.catalog_name::text] AS way FROM system.catalogs c
    WHERE CASE WHEN %(below)s::text IS NULL
          THEN c.parent_catalog_id IS NULL OR NOT EXISTS (SELECT FROM lakefork.visible_catalog() p
              WHERE p.catalog_id = c.parent_catalog_id)
          ELSE c.catalog_name = %(below)s END
    UNION ALL
    SELECT c.catalog_id, c.catalog_name, t.depth + 1, t.way || c.catalog_name::text
    FROM tree t JOIN lakefork.fork f ON f.parent_id = t.catalog_id JOIN lakefork.visible_catalog() c ON c.catalog_id =
        f.catalog_id
), shown AS (
    SELECT * FROM tree ORDER BY way LIMIT %(limit)s
)
SELECT s.depth, c.catalog_name AS name, c.parent_name AS parent, c.forked_at_snapshot, c.begin_snapshot, c.created_at,
    c.expires_at, c.data_path,
       u.own_files, u.own_rows, u.own_bytes, u.shared_files, u.shared_rows, u.shared_bytes, coalesce(h.hot, 0) AS hot
FROM shown s
JOIN system.catalogs c USING (catalog_id)
LEFT JOIN (SELECT w.catalog_id, sum(w.versions)::bigint AS hot
           FROM (SELECT catalog_id, versions FROM lakefork.hot_count UNION ALL SELECT catalog_id, versions
               FROM lakefork.hot_delta) w
           WHERE w.catalog_id = ANY (ARRAY(SELECT catalog_id FROM shown)) GROUP BY w.catalog_id) h USING (catalog_id)
JOIN lakefork.catalog_usage((SELECT array_agg(catalog_id) FROM shown)) u USING (catalog_id)
ORDER BY s.way;

-- copies: the last copies of Postgres databases, and how far they are
SELECT c.copy_id, c.source, coalesce(c.target, c.into_catalog) AS target, c.status, c.phase, c.started_at,
    c.finished_at,
       c.tables, c.parts, c.parts_done, c.bytes, c.bytes_done, c.rows_done, c.seconds_left, c.snapshot_held,
       coalesce(c.error, f.error, f.warning) AS error, f.status AS follow_status, f.drained_at, f.wal_kept
FROM system.copies c LEFT JOIN lakefork.follow f USING (copy_id) ORDER BY c.started_at DESC LIMIT %(limit)s;
