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
VALUES (%(job_id)s, %(job)s, %(run_id)s, %(trace)s, %(params)s, 'running', clock_timestamp(), clock_timestamp(), %(node_id)s)
ON CONFLICT (trace) DO UPDATE SET   -- a cluster that starts a lost driver anew: the attempt is what the last one makes of it
    job_id = excluded.job_id, status = excluded.status, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
    finished_at = NULL, result = NULL, error = NULL, retryable = NULL, peak_memory_mb = NULL, cpu_seconds = NULL, node_id = excluded.node_id;

-- beat_job: a run reports that it is still there
UPDATE lakefork.job_run
SET heartbeat_at = clock_timestamp(), peak_memory_mb = %(peak_memory_mb)s, cpu_seconds = %(cpu_seconds)s
WHERE job_id = %(job_id)s;

-- finish_job: a run reports how it ended
UPDATE lakefork.job_run
SET status = %(status)s, finished_at = clock_timestamp(), heartbeat_at = clock_timestamp(), result = %(result)s, error = %(error)s, retryable = %(retryable)s,
    peak_memory_mb = %(peak_memory_mb)s, cpu_seconds = %(cpu_seconds)s
WHERE job_id = %(job_id)s;

-- catalog_tables: the tables that schema/postgresql.sql made, with their columns in order
SELECT n.nspname AS schema, c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND (n.nspname = 'lakefork' OR n.nspname = 'public' AND c.relname LIKE 'ducklake\_%%')
GROUP BY 1, 2 ORDER BY 1, 2;

-- client_tables: the views for stock DuckDB, with columns and types as DuckDB understands them
SELECT n.nspname AS schema, c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns,
       array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum) AS types
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE n.nspname = 'ducklake_client' AND c.relkind = 'v'
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

-- require_leases: they are this job's until the transaction ends
SELECT lakefork.require_lease(n, %(job_id)s) FROM unnest(%(names)s::text[]) n;

-- due_flushes: whose rows of which tables are to be flushed now
SELECT * FROM lakefork.due_flushes(%(catalog)s, %(namespace)s, %(table)s, %(user)s, %(force)s, %(default_rows)s, %(default_seconds)s);

-- paused_flushes: tables that are left alone for a while because their audits fail
SELECT p.catalog_id, p.table_id, k.catalog_name, s.schema_name AS namespace, t.table_name, p.failures, p.paused_until
FROM lakefork.paused_flushes() p
JOIN public.ducklake_catalog k ON k.catalog_id = p.catalog_id AND k.end_snapshot IS NULL
JOIN public.ducklake_table t ON t.catalog_id = p.catalog_id AND t.table_id = p.table_id AND t.end_snapshot IS NULL
JOIN public.ducklake_schema s ON s.catalog_id = p.catalog_id AND s.schema_id = t.schema_id AND s.end_snapshot IS NULL
ORDER BY p.catalog_id, p.table_id;

-- staged_tables: those of which runs of a job staged files that are not published; dropped ones too
SELECT DISTINCT f.catalog_id, f.table_id FROM lakefork.staged_file f WHERE f.job_id LIKE %(job)s || '/%%';

-- held_leases: those of the leases that somebody has, since when and for how long at least
SELECT l.name, l.holder, to_char(l.acquired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS since,
       extract(epoch FROM l.expires_at - clock_timestamp())::float8 AS seconds_left
FROM lakefork.lease l WHERE l.name = ANY (%(names)s) AND l.expires_at >= clock_timestamp();

-- flushed_before: what a run has published already
SELECT l.catalog_id, l.table_id, l.counts, k.snapshot_id
FROM lakefork.flush_log l LEFT JOIN lakefork.commit_key k USING (commit_key)
WHERE l.run_id = %(run_id)s;

-- export_snapshot: makes the transaction's snapshot known, to those who join it and to the watermarks
SELECT pg_export_snapshot() AS name, pg_current_snapshot()::text AS seen, clock_timestamp() AS read_at;

-- definitions: the current definition of each live table, and those that its hot tables are for
SELECT c.catalog_id, c.catalog_name, w.table_id, v.begin_snapshot AS definition_snapshot, v.begin_snapshot = newest.begin_snapshot AS is_current,
       i.table_id IS NOT NULL AS is_hot, lakefork.table_definition(c.catalog_id, w.table_id, v.begin_snapshot) AS definition
FROM unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS w (catalog_id, table_id)
JOIN public.ducklake_catalog c ON c.catalog_id = w.catalog_id AND c.end_snapshot IS NULL
JOIN public.ducklake_table t ON t.catalog_id = w.catalog_id AND t.table_id = w.table_id AND t.end_snapshot IS NULL
CROSS JOIN LATERAL (SELECT v.begin_snapshot FROM public.ducklake_schema_versions v
                    WHERE v.catalog_id = w.catalog_id AND v.table_id = w.table_id ORDER BY v.begin_snapshot DESC LIMIT 1) newest
JOIN public.ducklake_schema_versions v ON v.catalog_id = w.catalog_id AND v.table_id = w.table_id
LEFT JOIN public.ducklake_inlined_data_tables i
       ON i.catalog_id = v.catalog_id AND i.table_id = v.table_id AND i.schema_version = v.schema_version
WHERE i.table_id IS NOT NULL OR v.begin_snapshot = newest.begin_snapshot
ORDER BY c.catalog_id, w.table_id, v.begin_snapshot;

-- staged_files: what runs of a job staged of these tables and did not publish
SELECT f.path, f.catalog_id, f.table_id, f.job_id FROM lakefork.staged_file f
JOIN unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS w (catalog_id, table_id) USING (catalog_id, table_id)
WHERE f.job_id LIKE %(job)s || '/%%';

-- owners_to_merge: owners with so many small batches, of tables that were flushed in the last hour
SELECT count(*) AS owners FROM (
    SELECT f.catalog_id, f.table_id, v.partition_value
    FROM (SELECT DISTINCT catalog_id, table_id FROM lakefork.flush_log WHERE published_at > now() - interval '1 hour') l
    JOIN public.ducklake_data_file f ON f.catalog_id = l.catalog_id AND f.table_id = l.table_id AND f.end_snapshot IS NULL
         AND 2 * f.file_size_bytes < %(file_bytes)s
    LEFT JOIN public.ducklake_file_partition_value v
           ON v.catalog_id = f.catalog_id AND v.data_file_id = f.data_file_id AND v.partition_key_index = 0
    GROUP BY 1, 2, 3 HAVING count(DISTINCT f.begin_snapshot) >= %(min_batches)s
) o;

-- dedup_candidates: the batches of all owners that have more than one
SELECT * FROM lakefork.dedup_candidates(%(catalog)s, %(namespace)s, %(table)s);

-- publish_dedup: batches replaced by what they were merged into, in one transaction
SELECT snapshot_id, replayed
FROM lakefork.publish_dedup(%(job_id)s, %(run_id)s, %(catalog_id)s, %(table_id)s, %(user_id)s, %(directory)s, %(base)s, %(changes)s,
                            %(paths)s::text[], %(commit_key)s);

-- publish_flush: files, statistics, watermarks, counters and the log of one table, in one transaction
SELECT snapshot_id, replayed
FROM lakefork.publish_flush(%(job_id)s, %(run_id)s, %(catalog_id)s, %(table_id)s, %(changes)s, %(hot_snapshots)s,
                            %(users)b::text[], %(versions)s, %(directories)b::text[], %(seen)s::pg_snapshot, %(read_at)s, %(requested_before)s,
                            %(paths)b::text[], %(counts)s);

-- trim_hot: removes published hot rows, some at a time
SELECT deleted, last_user, last_seq
FROM lakefork.trim_hot(%(job_id)s, %(hot)s::regclass, %(catalog_id)s, %(table_id)s, %(hot_snapshot)s, %(per_user)s, %(after_user)s, %(after_seq)s, %(limit)s);

-- untrimmed: hot tables that may hold published rows
SELECT DISTINCT w.catalog_id, w.table_id, w.hot_snapshot
FROM lakefork.watermark w JOIN unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS t (catalog_id, table_id) USING (catalog_id, table_id)
WHERE NOT w.trimmed;

-- idle_untrimmed: tables with rows that were published a while ago and not trimmed since; rows of another Postgres need adopt_hot_rows first
SELECT DISTINCT o.catalog_id, o.table_id FROM (
    SELECT w.catalog_id, w.table_id FROM lakefork.watermark w
    JOIN public.ducklake_catalog c ON c.catalog_id = w.catalog_id AND c.end_snapshot IS NULL
    JOIN public.ducklake_table t ON t.catalog_id = w.catalog_id AND t.table_id = w.table_id AND t.end_snapshot IS NULL
    WHERE NOT w.trimmed AND w.published_at < now() - interval '1 hour' AND w.cluster_id = (SELECT lakefork.cluster_id())
    ORDER BY w.published_at LIMIT 10000) o;

-- pending_manifests: directories whose manifest does not show the last publish
SELECT p.catalog_id, p.table_id, p.user_id, p.directory, p.run_id FROM lakefork.manifest_pending p
JOIN unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS t (catalog_id, table_id) USING (catalog_id, table_id)
ORDER BY p.catalog_id, p.table_id, p.user_id;

-- manifest_batches: what the manifests of some users of a table have to say
SELECT user_id, snapshot_id, batches FROM lakefork.manifest_batches(%(catalog_id)s, %(table_id)s, %(users)b::text[], %(per_user)s);

-- cache_manifests: manifests that were just written, unless a newer publish wants newer ones
WITH written AS (
    SELECT w.* FROM unnest(%(users)b::text[], %(directories)b::text[], %(run_ids)b::text[], %(contents)b::text[], %(etags)b::text[])
        AS w (user_id, directory, run_id, content, etag)
    JOIN lakefork.manifest_pending p
      ON p.catalog_id = %(catalog_id)s AND p.table_id = %(table_id)s AND p.user_id = w.user_id AND p.run_id = w.run_id
), cached AS (
    INSERT INTO lakefork.manifest_cache (catalog_id, table_id, user_id, directory, content, etag, last_refreshed, sync_state)
    SELECT %(catalog_id)s, %(table_id)s, user_id, directory, content, etag, clock_timestamp(), 'in_sync' FROM written
    ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET
        directory = excluded.directory, content = excluded.content, etag = excluded.etag,
        last_refreshed = excluded.last_refreshed, sync_state = excluded.sync_state
)
DELETE FROM lakefork.manifest_pending p USING written w
WHERE p.catalog_id = %(catalog_id)s AND p.table_id = %(table_id)s AND p.user_id = w.user_id AND p.run_id = w.run_id;

-- part_of_batches: the same, of one part of the batches
SELECT user_id, snapshot_id, batches FROM lakefork.manifest_batches(%(catalog_id)s, %(table_id)s, %(users)b::text[], %(per_user)s, %(part)s, %(parts)s);

-- manifest_tables: live tables whose manifests are to be looked at
SELECT k.catalog_id, t.table_id
FROM public.ducklake_catalog k
JOIN public.ducklake_schema s ON s.catalog_id = k.catalog_id AND s.end_snapshot IS NULL
     AND (%(namespace)s::text IS NULL OR lower(s.schema_name COLLATE "C") = lower(%(namespace)s COLLATE "C"))
JOIN public.ducklake_table t ON t.catalog_id = k.catalog_id AND t.schema_id = s.schema_id AND t.end_snapshot IS NULL
     AND (%(table)s::text IS NULL OR lower(t.table_name COLLATE "C") = lower(%(table)s COLLATE "C"))
WHERE k.end_snapshot IS NULL AND (%(catalog)s::text IS NULL OR k.catalog_name = %(catalog)s)
ORDER BY k.catalog_id, t.table_id;

-- manifest_owners: whose batches tables have or had, and whose manifests are known; user_id is '' for shared tables
WITH wanted AS (
    SELECT * FROM unnest(%(catalogs)s::bigint[], %(tables)s::bigint[], %(per_user)s::boolean[]) AS t (catalog_id, table_id, per_user)
)
SELECT o.catalog_id, o.table_id, o.user_id, sum(o.files)::bigint AS files FROM (
    SELECT w.catalog_id, w.table_id, v.partition_value AS user_id, 1 AS files
    FROM wanted w JOIN public.ducklake_file_partition_value v USING (catalog_id, table_id)
    JOIN public.ducklake_data_file f USING (catalog_id, data_file_id) WHERE w.per_user AND v.partition_key_index = 0 AND f.path_is_relative
    UNION ALL
    SELECT w.catalog_id, w.table_id, '', 1 FROM wanted w JOIN public.ducklake_data_file f USING (catalog_id, table_id)
    WHERE NOT w.per_user AND f.path_is_relative
    UNION ALL
    SELECT w.catalog_id, w.table_id, c.user_id, 0 FROM wanted w JOIN lakefork.manifest_cache c USING (catalog_id, table_id)
    UNION ALL
    SELECT w.catalog_id, w.table_id, p.user_id, 0 FROM wanted w JOIN lakefork.manifest_pending p USING (catalog_id, table_id)
) o
WHERE %(user)s::text IS NULL OR o.user_id = %(user)s
GROUP BY o.catalog_id, o.table_id, o.user_id ORDER BY o.catalog_id, o.table_id, o.user_id COLLATE "C";

-- cached_manifests: what the cache holds of some users of a table
SELECT user_id, etag, sync_state FROM lakefork.manifest_cache
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND user_id = ANY (%(users)s);

-- known_files: those of some paths that somebody needs, see lakefork.claims
SELECT DISTINCT p.path FROM unnest(%(paths)s::text[]) AS p (path)
JOIN lakefork.claims(ARRAY(SELECT lakefork.place(n) FROM unnest(%(paths)s::text[]) n), '{}') c ON c.path = lakefork.place(p.path);

-- request_manifests: has manifests written anew by whoever works on the table next
INSERT INTO lakefork.manifest_pending (catalog_id, table_id, user_id, directory, run_id)
SELECT %(catalog_id)s, %(table_id)s, u, d, %(run_id)s FROM unnest(%(users)s::text[], %(directories)s::text[]) AS r (u, d)
ON CONFLICT (catalog_id, table_id, user_id) DO NOTHING;

-- cached_manifest: one entry of the cache, and how long ago it was known to be the same as in storage
SELECT content, etag, sync_state, extract(epoch FROM clock_timestamp() - last_refreshed)::float8 AS age_seconds FROM lakefork.manifest_cache
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND user_id = %(user_id)s;

-- refresh_cached_manifest: what storage has, unless another one was put in since it was seen
INSERT INTO lakefork.manifest_cache AS m (catalog_id, table_id, user_id, directory, content, etag, last_refreshed, sync_state)
VALUES (%(catalog_id)s, %(table_id)s, %(user_id)s, %(directory)s, %(content)s, %(etag)s, clock_timestamp(), 'in_sync')
ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET
    directory = excluded.directory, content = excluded.content, etag = excluded.etag, last_refreshed = excluded.last_refreshed,
    sync_state = excluded.sync_state
WHERE m.etag = %(seen)s;

-- mark_cached_manifest: it cannot be trusted, unless another one was put in since it was seen
UPDATE lakefork.manifest_cache SET sync_state = %(state)s
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND user_id = %(user_id)s AND etag = %(seen)s;

-- evictable_manifests: how many entries of the cache are not needed any more
SELECT count(*) AS entries FROM lakefork.evictable_manifests(%(unused_seconds)s, %(max_entries)s);

-- evict_manifests: removes them; how many for which reason
WITH evicted AS (
    DELETE FROM lakefork.manifest_cache m USING lakefork.evictable_manifests(%(unused_seconds)s, %(max_entries)s) e
    WHERE m.catalog_id = e.catalog_id AND m.table_id = e.table_id AND m.user_id = e.user_id
    RETURNING e.reason
)
SELECT reason, count(*) AS entries FROM evicted GROUP BY reason ORDER BY reason;

-- record_audit: what the audit of a table's staged files found; to say it again changes nothing
INSERT INTO lakefork.flush_audit (job_id, run_id, catalog_id, table_id, audited_at, success, files, results, quarantine)
VALUES (%(job_id)s, %(run_id)s, %(catalog_id)s, %(table_id)s, clock_timestamp(), %(success)s, %(files)s, %(results)s, %(quarantine)s)
ON CONFLICT (job_id, catalog_id, table_id) DO NOTHING;

-- older_quarantines: what earlier audits of a table refused and is still kept
SELECT quarantine, job_id FROM lakefork.flush_audit
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND job_id <> %(job_id)s AND quarantine IS NOT NULL ORDER BY quarantine;

-- forget_quarantine: it is kept no longer
UPDATE lakefork.flush_audit SET quarantine = NULL
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND quarantine = %(quarantine)s;

-- catalog_at: the catalog that is, or was then, called so
SELECT catalog_id FROM lakefork.catalog_at(%(name)s, %(id)s::numeric, %(time)s::timestamptz);

-- snapshot_at: the snapshot with an id, or the newest at a time, if the catalog retains it
SELECT lakefork.snapshot_at(%(catalog_id)s, %(id)s::numeric, %(time)s::timestamptz) AS snapshot_id;

-- find_table: a table by name, now or at a snapshot, with the definitions under which it may have hot rows
SELECT table_id, definition_snapshot, hot_snapshots
FROM lakefork.find_tables(%(catalog_id)s, ARRAY[%(namespace)s], ARRAY[%(table)s], %(snapshot)s);

-- definition_history: the definitions that a table had up to one of them, the oldest first
SELECT v.begin_snapshot, d.definition
FROM lakefork.visible_schema_versions(%(catalog_id)s, %(definition_snapshot)s) v
CROSS JOIN LATERAL (SELECT lakefork.table_definition(%(catalog_id)s, %(table_id)s, v.begin_snapshot) AS definition) d
WHERE v.table_id = %(table_id)s AND d.definition IS NOT NULL ORDER BY v.begin_snapshot;

-- batches_to_read: the batches of a table with their owners, the bounds of some columns, and of which columns there are statistics
SELECT f.path, f.user_id AS owner, d.file_order AS published, f.bounds,
       ARRAY(SELECT c.column_id FROM lakefork.visible_file_column_stats(%(catalog_id)s, %(snapshot)s) c
             WHERE c.table_id = d.table_id AND c.data_file_id = f.data_file_id) AS column_ids
FROM lakefork.table_files(%(catalog_id)s, %(table_id)s, %(user)s, %(columns)s::bigint[], %(snapshot)s) f
JOIN lakefork.visible_data_file(%(catalog_id)s, %(snapshot)s) d ON d.table_id = %(table_id)s AND d.data_file_id = f.data_file_id
ORDER BY f.data_file_id;

-- fork_catalogs: many forks of one catalog, in one transaction
SELECT catalog_name AS name, catalog_id, snapshot_id
FROM lakefork.fork_catalogs(%(parent)s, %(names)s, %(data_paths)s::text[], %(as_of)s, %(expires_after)s, %(author)s, %(run_id)s);

-- check_forks: whether forks can have these names and data paths
SELECT lakefork.check_new_catalogs(%(names)s, ARRAY(
    SELECT coalesce(path, lakefork.default_data_path(lakefork.live_catalog_id(%(parent)s), name))
    FROM unnest(%(names)s::text[], %(data_paths)s::text[]) AS f (name, path)));

-- existing_catalogs: which of some names are taken, and by what
SELECT c.catalog_name AS name, c.catalog_id, f.parent_id, f.run_id
FROM public.ducklake_catalog c LEFT JOIN lakefork.fork f USING (catalog_id)
WHERE c.end_snapshot IS NULL AND c.catalog_name = ANY (%(names)s);

-- rows_per_fork: about how many rows are copied for a fork
SELECT (SELECT count(*) FROM public.ducklake_data_file f WHERE f.catalog_id = %(parent_id)s AND f.end_snapshot IS NULL)
     + (SELECT count(*) FROM public.ducklake_file_column_stats s WHERE s.catalog_id = %(parent_id)s)
     + (SELECT count(*) FROM public.ducklake_column c WHERE c.catalog_id = %(parent_id)s)
     + (SELECT coalesce(sum(h.versions), 0) FROM (SELECT versions FROM lakefork.hot_count WHERE catalog_id = %(parent_id)s
                                                  UNION ALL SELECT versions FROM lakefork.hot_delta WHERE catalog_id = %(parent_id)s) h) AS rows;

-- forks_to_drop: forks by the begin of their name and by age
SELECT c.catalog_id, c.catalog_name AS name, c.catalog_uuid, lakefork.data_path(c.catalog_id) AS data_path, c.begin_snapshot
FROM lakefork.fork f JOIN public.ducklake_catalog c ON c.catalog_id = f.catalog_id AND c.end_snapshot IS NULL
WHERE starts_with(c.catalog_name, %(prefix)s) AND f.created_at <= now() - %(older_than)s::interval
ORDER BY f.created_at, c.catalog_id;

-- gc_items: what a plan takes from each catalog
SELECT i.catalog_id, lakefork.last_name(i.catalog_id) AS catalog_name, lakefork.last_name(f.parent_id) AS parent_name, i.floor, i.is_whole,
       coalesce(n.snapshots, 0) AS snapshots, coalesce(n.files, 0) AS files, coalesce(n.bytes, 0) AS bytes,
       coalesce(n.freed_files, 0) AS freed_files, coalesce(n.freed_bytes, 0) AS freed_bytes
FROM lakefork.gc_item i
LEFT JOIN (SELECT c.catalog_id, sum(c.snapshots)::bigint AS snapshots, sum(c.files)::bigint AS files, sum(c.bytes)::bigint AS bytes,
                  sum(c.freed_files)::bigint AS freed_files, sum(c.freed_bytes)::bigint AS freed_bytes
           FROM lakefork.gc_count c WHERE c.plan_id = %(plan_id)s GROUP BY c.catalog_id) n USING (catalog_id)
LEFT JOIN lakefork.fork f USING (catalog_id)
WHERE i.plan_id = %(plan_id)s AND i.table_id = 0 ORDER BY i.catalog_id;

-- gc_floors: what a plan decided, of catalogs and tables
SELECT catalog_id, table_id, floor, is_whole FROM lakefork.gc_item WHERE plan_id = %(plan_id)s ORDER BY catalog_id, table_id;

-- gc_drops: the forks past their time that a plan drops
SELECT d.catalog_id, lakefork.last_name(d.catalog_id) AS catalog_name, d.expires_at
FROM lakefork.gc_drop d WHERE d.plan_id = %(plan_id)s ORDER BY d.expires_at, d.catalog_id;

-- gc_plan: a plan of retention_gc
SELECT plan_id, created_at, params, begun_at FROM lakefork.plan WHERE plan_id = %(plan_id)s AND job = 'retention_gc';

-- gc_tables: the tables from which a plan takes most
SELECT c.catalog_id, coalesce(lakefork.last_table_name(c.catalog_id, c.table_id), 'table ' || c.table_id) AS table_name, c.files, c.bytes
FROM (SELECT * FROM lakefork.gc_count c WHERE c.plan_id = %(plan_id)s AND c.table_id > 0
      ORDER BY c.bytes DESC, c.catalog_id, c.table_id LIMIT %(limit)s) c
ORDER BY c.bytes DESC, c.catalog_id, c.table_id;

-- complete_plan: it was counted, and can be carried out as long as nothing changes
UPDATE lakefork.plan SET digest = lakefork.gc_digest(plan_id, plan_id) WHERE plan_id = %(plan_id)s;

-- unfinished_plans: plans of retention_gc that were begun and not carried out to their end
SELECT plan_id FROM lakefork.plan WHERE job = 'retention_gc' AND begun_at IS NOT NULL AND done_at IS NULL ORDER BY created_at;

-- untag_snapshot: a snapshot is not kept for ever any more
DELETE FROM lakefork.snapshot_tag t
WHERE t.name = %(name)s AND t.catalog_id IN (SELECT c.catalog_id FROM public.ducklake_catalog c WHERE c.catalog_name = %(catalog)s)
RETURNING t.snapshot_id;

-- open_deletions: entries of the ledger whose files may still be there
SELECT deletion_id, path, file_id IS NULL AS is_orphan FROM lakefork.deletion WHERE removed_at IS NULL ORDER BY deletion_id LIMIT %(limit)s;

-- count_to_clean: scheduled files by the catalog and table that had them last
SELECT c.catalog_name, lakefork.last_name(k.parent_id) AS parent_name,
       coalesce(lakefork.last_table_name(c.catalog_id, c.table_id), 'table ' || c.table_id, 'files') AS table_name, c.reason, c.files, c.bytes
FROM (SELECT coalesce(lakefork.last_name(f.catalog_id), f.last_catalog, '?') AS catalog_name, f.catalog_id, f.table_id, f.reason, f.files, f.bytes
      FROM (SELECT catalog_id, max(last_catalog) AS last_catalog, last_table_id AS table_id, reason, count(*) AS files,
                   coalesce(sum(file_size_bytes), 0)::bigint AS bytes
            FROM lakefork.files_to_clean(%(catalog)s, %(scheduled_until)s) GROUP BY catalog_id, last_table_id, reason) f) c
LEFT JOIN lakefork.fork k USING (catalog_id)
ORDER BY 1, 3, 4;

-- has_files_to_clean: whether cleanup has anything to do
SELECT EXISTS (SELECT FROM lakefork.files_to_clean(NULL, now() - make_interval(secs => %(seconds)s)))
    OR EXISTS (SELECT FROM lakefork.deletion WHERE removed_at IS NULL) AS found;

-- save_cleanup_plan: what a run of file_cleanup decided to do
INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params, digest)
VALUES (%(plan_id)s, 'file_cleanup', %(run_id)s, clock_timestamp(), %(params)s, %(digest)s);

-- cleanup_plan: the same, looked up
SELECT plan_id, created_at, params, digest, begun_at, done_at FROM lakefork.plan WHERE plan_id = %(plan_id)s AND job = 'file_cleanup';

-- begin_cleanup_plan: a run carries it out
UPDATE lakefork.plan SET begun_at = coalesce(begun_at, clock_timestamp()) WHERE plan_id = %(plan_id)s;

-- finish_plan: it was carried out
UPDATE lakefork.plan SET done_at = clock_timestamp() WHERE plan_id = %(plan_id)s;

-- storage_roots: where files of all catalogs lie, with some files that must be there
SELECT catalog_id, path, lakefork.place(path) AS place, lakefork.place(location) AS location, known, samples
FROM lakefork.storage_roots(%(samples)s) ORDER BY path, catalog_id, table_id;

-- unplaced: what cannot be compared with what storage lists
SELECT problem FROM lakefork.unplaced() problem LIMIT 1;

-- catalogs_named: all catalogs that have or had a name, as long as they are not forgotten
SELECT DISTINCT catalog_id FROM public.ducklake_catalog WHERE catalog_name = %(name)s;

-- claims: who needs some files, and what some directories belong to
SELECT path, claim FROM lakefork.claims(%(paths)s::text[], %(directories)s::text[]);
