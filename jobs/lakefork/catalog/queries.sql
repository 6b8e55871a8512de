-- commit: one commit; see lakefork.commit
SELECT snapshot_id, schema_version, first_catalog_id, first_file_id, replayed
FROM lakefork.commit(%(catalog_id)s, %(base_snapshot)s, %(changes)s, %(author)s, %(message)s, %(commit_key)s,
    %(extra)s);

-- find_catalog: a catalog by name, as of a snapshot or now
SELECT catalog_id, catalog_name AS name, catalog_uuid, lakefork.data_path(catalog_id) AS data_path, begin_snapshot
FROM lakefork.visible_catalog(%(snapshot)s) WHERE catalog_name = %(name)s;

-- list_catalogs: all catalogs, as of a snapshot or now
SELECT catalog_id, catalog_name AS name, catalog_uuid, lakefork.data_path(catalog_id) AS data_path, begin_snapshot
FROM lakefork.visible_catalog(%(snapshot)s) ORDER BY catalog_name;

-- start_job: a run reports its start
INSERT INTO lakefork.job_run (job_id, job, run_id, trace, params, status, started_at, heartbeat_at, node_id)
VALUES (%(job_id)s, %(job)s, %(run_id)s, %(trace)s, %(params)s, 'running', clock_timestamp(), clock_timestamp(),
    %(node_id)s)
-- a cluster may restart a lost driver: the last start counts
ON CONFLICT (trace) DO UPDATE SET
    job_id = excluded.job_id, status = excluded.status, started_at = excluded.started_at,
        heartbeat_at = excluded.heartbeat_at,
    finished_at = NULL, result = NULL, error = NULL, retryable = NULL, peak_memory_mb = NULL, cpu_seconds = NULL,
    node_id = excluded.node_id;

-- beat_job: a run reports that it is still there
UPDATE lakefork.job_run
SET heartbeat_at = clock_timestamp(), peak_memory_mb = %(peak_memory_mb)s, cpu_seconds = %(cpu_seconds)s
WHERE job_id = %(job_id)s;

-- finish_job: a run reports how it ended
UPDATE lakefork.job_run
SET status = %(status)s, finished_at = clock_timestamp(), heartbeat_at = clock_timestamp(), result = %(result)s,
    error = %(error)s, retryable = %(retryable)s,
    peak_memory_mb = %(peak_memory_mb)s, cpu_seconds = %(cpu_seconds)s
WHERE job_id = %(job_id)s;

-- require_leases: they are this job's until the transaction ends
SELECT lakefork.require_lease(n, %(job_id)s) FROM unnest(%(names)s::text[]) n;

-- due_flushes: users and tables to flush now
SELECT * FROM lakefork.due_flushes(%(catalog)s, %(namespace)s, %(table)s, %(user)s, %(force)s, %(default_rows)s,
    %(default_seconds)s);

-- paused_flushes: tables that are left alone for a while because their audits fail
SELECT p.catalog_id, p.table_id, t.catalog_name, t.namespace, t.table_name, p.failures, p.paused_until
FROM lakefork.paused_flushes() p JOIN lakefork.live_table t USING (catalog_id, table_id)
ORDER BY p.catalog_id, p.table_id;

-- staged_tables: tables with staged, unpublished files of a job, including dropped tables
SELECT DISTINCT f.catalog_id, f.table_id FROM lakefork.staged_file f WHERE f.job_id LIKE %(job)s || '/%%';

-- held_leases: which leases (NULL: all) are held, since when and for how long
SELECT l.name, l.holder, to_char(l.acquired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS since,
       extract(epoch FROM l.expires_at - clock_timestamp())::float8 AS seconds_left
FROM lakefork.lease l WHERE (%(names)s::text[] IS NULL OR l.name = ANY (%(names)s))
    AND l.expires_at >= clock_timestamp();

-- flushed_before: what a run has already published
SELECT l.catalog_id, l.table_id, l.counts, k.snapshot_id
FROM lakefork.flush_log l LEFT JOIN lakefork.commit_key k USING (commit_key)
WHERE l.run_id = %(run_id)s;

-- export_snapshot: makes the transaction's snapshot known, to those who join it and to the watermarks
SELECT pg_export_snapshot() AS name, pg_current_snapshot()::text AS seen, clock_timestamp() AS read_at;

-- definitions: the current definition of each live table, and those that its hot tables are for
SELECT c.catalog_id, c.catalog_name, w.table_id, v.begin_snapshot AS definition_snapshot,
    v.begin_snapshot = newest.begin_snapshot AS is_current,
       h.table_id IS NOT NULL AS is_hot, lakefork.table_definition(c.catalog_id, w.table_id, v.begin_snapshot)
           AS definition
FROM unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS w (catalog_id, table_id)
JOIN lakefork.visible_catalog() c ON c.catalog_id = w.catalog_id
JOIN LATERAL lakefork.visible_table(w.catalog_id) t ON t.table_id = w.table_id
CROSS JOIN LATERAL (SELECT v.begin_snapshot FROM lakefork.visible_schema_versions(w.catalog_id) v
                    WHERE v.table_id = w.table_id ORDER BY v.begin_snapshot DESC LIMIT 1) newest
JOIN LATERAL lakefork.visible_schema_versions(w.catalog_id) v ON v.table_id = w.table_id
LEFT JOIN LATERAL lakefork.visible_hot_table(w.catalog_id) h ON h.table_id = v.table_id
    AND h.hot_snapshot = v.begin_snapshot
WHERE h.table_id IS NOT NULL OR v.begin_snapshot = newest.begin_snapshot
ORDER BY c.catalog_id, w.table_id, v.begin_snapshot;

-- staged_files: what runs of a job staged of these tables and did not publish
SELECT f.path, f.catalog_id, f.table_id, f.job_id FROM lakefork.staged_file f
JOIN unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS w (catalog_id, table_id) USING (catalog_id, table_id)
WHERE f.job_id LIKE %(job)s || '/%%';

-- owners_to_merge: owners with many small batches in tables that were flushed in the last hour
SELECT count(*) AS owners FROM (
    SELECT f.catalog_id, f.table_id, f.user_id
    FROM (SELECT DISTINCT catalog_id, table_id FROM lakefork.flush_log WHERE published_at > now() - interval '1 hour') l
    JOIN lakefork.live_owned_file f ON f.catalog_id = l.catalog_id AND f.table_id = l.table_id
        AND 2 * f.file_size_bytes < %(file_bytes)s
    GROUP BY 1, 2, 3 HAVING count(DISTINCT f.begin_snapshot) >= %(min_batches)s
) o;

-- publish_flush: files, statistics, watermarks, counters and the log of one table, in one transaction
SELECT snapshot_id, replayed
FROM lakefork.publish_flush(%(job_id)s, %(run_id)s, %(catalog_id)s, %(table_id)s, %(changes)s, %(hot_snapshots)s,
                            %(users)b::text[], %(versions)s, %(directories)b::text[], %(seen)s::pg_snapshot,
                            %(read_at)s, %(requested_before)s,
                            %(paths)b::text[], %(counts)s);

-- fork_catalogs: many forks of one catalog, in one transaction
SELECT catalog_name AS name, catalog_id, snapshot_id
FROM lakefork.fork_catalogs(%(parent)s, %(names)s, %(data_paths)s::text[], %(as_of)s, %(expires_after)s, %(author)s,
    %(run_id)s);

-- check_forks: whether forks can have these names and data paths
SELECT lakefork.check_new_catalogs(%(names)s, ARRAY(
    SELECT coalesce(path, lakefork.default_data_path(lakefork.live_catalog_id(%(parent)s), name))
    FROM unnest(%(names)s::text[], %(data_paths)s::text[]) AS f (name, path)));

-- existing_catalogs: which of some names are taken, and by what
SELECT c.catalog_name AS name, c.catalog_id, f.parent_id, f.run_id
FROM lakefork.visible_catalog() c LEFT JOIN lakefork.fork f USING (catalog_id)
WHERE c.catalog_name = ANY (%(names)s);

-- rows_per_fork: about how many rows are copied for a fork
SELECT (SELECT count(*) FROM lakefork.visible_data_file(%(parent_id)s) f)
     + (SELECT count(*) FROM lakefork.retained_file_column_stats s WHERE s.catalog_id = %(parent_id)s)
     + (SELECT count(*) FROM lakefork.retained_column c WHERE c.catalog_id = %(parent_id)s)
     + (SELECT coalesce(sum(h.versions), 0) FROM (SELECT versions FROM lakefork.hot_count
         WHERE catalog_id = %(parent_id)s
                                                  UNION ALL SELECT versions FROM lakefork.hot_delta
                                                      WHERE catalog_id = %(parent_id)s) h) AS rows;

-- forks_to_drop: forks by name prefix and age
SELECT c.catalog_id, c.catalog_name AS name, c.catalog_uuid, lakefork.data_path(c.catalog_id) AS data_path,
    c.begin_snapshot
FROM lakefork.fork f JOIN lakefork.visible_catalog() c ON c.catalog_id = f.catalog_id
WHERE starts_with(c.catalog_name, %(prefix)s) AND f.created_at <= now() - %(older_than)s::interval
ORDER BY f.created_at, c.catalog_id;

-- gc_items: what a plan takes from each catalog
SELECT i.catalog_id, lakefork.last_name(i.catalog_id) AS catalog_name, lakefork.last_name(f.parent_id) AS parent_name,
    i.floor, i.is_whole,
       coalesce(n.snapshots, 0) AS snapshots, coalesce(n.files, 0) AS files, coalesce(n.bytes, 0) AS bytes,
       coalesce(n.freed_files, 0) AS freed_files, coalesce(n.freed_bytes, 0) AS freed_bytes
FROM lakefork.gc_item i
LEFT JOIN (SELECT c.catalog_id, sum(c.snapshots)::bigint AS snapshots, sum(c.files)::bigint AS files,
    sum(c.bytes)::bigint AS bytes,
                  sum(c.freed_files)::bigint AS freed_files, sum(c.freed_bytes)::bigint AS freed_bytes
           FROM lakefork.gc_count c WHERE c.plan_id = %(plan_id)s GROUP BY c.catalog_id) n USING (catalog_id)
LEFT JOIN lakefork.fork f USING (catalog_id)
WHERE i.plan_id = %(plan_id)s AND i.table_id = 0 ORDER BY i.catalog_id;

-- gc_floors: the floors of a plan, by catalog and table
SELECT catalog_id, table_id, floor, is_whole FROM lakefork.gc_item WHERE plan_id = %(plan_id)s ORDER BY catalog_id,
    table_id;

-- gc_drops: the forks past their time that a plan drops
SELECT d.catalog_id, lakefork.last_name(d.catalog_id) AS catalog_name, d.expires_at
FROM lakefork.gc_drop d WHERE d.plan_id = %(plan_id)s ORDER BY d.expires_at, d.catalog_id;

-- gc_plan: a plan of retention_gc
SELECT plan_id, created_at, params, begun_at FROM lakefork.plan WHERE plan_id = %(plan_id)s AND job = 'retention_gc';

-- gc_tables: the tables from which a plan takes most
SELECT c.catalog_id, coalesce(lakefork.last_table_name(c.catalog_id, c.table_id), 'table ' || c.table_id) AS table_name,
    c.files, c.bytes
FROM (SELECT * FROM lakefork.gc_count c WHERE c.plan_id = %(plan_id)s AND c.table_id > 0
      ORDER BY c.bytes DESC, c.catalog_id, c.table_id LIMIT %(limit)s) c
ORDER BY c.bytes DESC, c.catalog_id, c.table_id;

-- complete_plan: it was counted, and can be carried out as long as nothing changes
UPDATE lakefork.plan SET digest = lakefork.gc_digest(plan_id, plan_id) WHERE plan_id = %(plan_id)s;

-- unfinished_plans: plans of retention_gc that were started but not completed
SELECT plan_id FROM lakefork.plan WHERE job = 'retention_gc' AND begun_at IS NOT NULL AND done_at IS NULL
    ORDER BY created_at;

-- untag_snapshot: removes a tag
DELETE FROM lakefork.snapshot_tag t
WHERE t.name = %(name)s AND t.catalog_id IN (SELECT c.catalog_id FROM lakefork.retained_catalog c
    WHERE c.catalog_name = %(catalog)s)
RETURNING t.snapshot_id;

-- finish_plan: it was carried out
UPDATE lakefork.plan SET done_at = clock_timestamp() WHERE plan_id = %(plan_id)s;

-- backup_users: the users of a catalog, as a restore takes them
SELECT user_id, username, role, permissions, created_at, deleted_at FROM lakefork.app_user
    WHERE catalog_id = %(catalog_id)s ORDER BY user_id;

-- backup_locations: the storage locations of a catalog; credentials are names
SELECT location_name, location_type, path, credentials_ref, created_at FROM lakefork.storage_location
WHERE catalog_id = %(catalog_id)s ORDER BY location_name;

-- location_credentials: those of the storage location that holds a path, the nearest one
SELECT l.credentials_ref FROM lakefork.storage_location l
WHERE l.catalog_id = %(catalog_id)s AND lakefork.place(l.path) IN (SELECT lakefork.path_and_parents(%(path)s))
ORDER BY length(l.path) DESC LIMIT 1;

-- overlapping_data: a catalog or a table whose files lie above or below a path
SELECT format('the data path %%s of catalog %%s', o.data_path, lakefork.last_name(o.catalog_id)) AS what
    FROM lakefork.overlapping_catalogs(%(path)s) o
UNION ALL
SELECT format('the LOCATION of table %%s.%%s of catalog %%s', l.namespace, l.table_name,
    lakefork.last_name(l.catalog_id))
FROM lakefork.overlapping_locations(%(path)s) l LIMIT 1;

-- begin_backup: a backup is being made
INSERT INTO lakefork.backup (backup_id, catalog_id, catalog_name, namespace, place, job_id, run_id, started_at,
    status, taken_at, snapshot_id)
VALUES (%(backup_id)s, %(catalog_id)s, %(catalog_name)s, %(namespace)s, %(place)s, %(job_id)s, %(run_id)s,
    clock_timestamp(), 'running', %(taken_at)s,
        %(snapshot_id)s);

-- finish_backup: how it ended
UPDATE lakefork.backup SET status = %(status)s, error = %(error)s, finished_at = clock_timestamp(),
    base_id = %(base_id)s, table_count = %(table_count)s,
    file_count = %(file_count)s, row_count = %(row_count)s, size_bytes = %(size_bytes)s,
        copied_files = %(copied_files)s, copied_bytes = %(copied_bytes)s
WHERE backup_id = %(backup_id)s;

-- complete_backups: those of one thing at a place that were made here and not removed
SELECT backup_id FROM lakefork.backup
WHERE place = %(place)s AND status = 'complete' AND catalog_name = %(catalog)s
  AND lower(namespace COLLATE "C") IS NOT DISTINCT FROM lower(%(namespace)s COLLATE "C")
ORDER BY taken_at, backup_id;

-- open_backup_removals: entries of the ledger below a place whose files may still be there
SELECT deletion_id, path FROM lakefork.deletion
WHERE removed_at IS NULL AND starts_with(job_id, 'namespace_backup/') AND starts_with(path, %(place)s
    || '/') ORDER BY deletion_id;

-- save_backup_plan: what a run removes from a place of backups
INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params, begun_at)
VALUES (%(plan_id)s, 'namespace_backup', %(run_id)s, clock_timestamp(), %(params)s, clock_timestamp());

-- note_removed_backups: backups that are not there any more
UPDATE lakefork.backup SET status = 'removed', removed_at = clock_timestamp()
    WHERE backup_id = ANY (%(backup_ids)s) AND status <> 'removed';

-- note_verified_backup: what a look at a backup found
UPDATE lakefork.backup SET verified_at = clock_timestamp(), verified_percent = %(percent)s,
    problem_count = %(problems)s WHERE backup_id = %(backup_id)s;

-- backups_being_restored: leases of restores that read from a place
SELECT name FROM lakefork.lease WHERE starts_with(name, %(prefix)s) AND expires_at >= clock_timestamp();

-- tables_in_namespaces: the tables of some namespaces
SELECT s.schema_name AS namespace, t.table_id, t.table_name FROM lakefork.visible_table(%(catalog_id)s) t
JOIN lakefork.visible_schema(%(catalog_id)s) s USING (schema_id) WHERE t.schema_id = ANY (%(schema_ids)s)
    ORDER BY t.table_id;

-- namespaces_of_tables: in which namespaces some tables are
SELECT DISTINCT schema_id FROM lakefork.visible_table(%(catalog_id)s) WHERE table_id = ANY (%(tables)s);

-- dead_restores: restores with staged files, none of whose leases hold any more
SELECT DISTINCT f.job_id FROM (
    SELECT job_id FROM lakefork.restore_file UNION SELECT job_id FROM lakefork.staged_file
        WHERE starts_with(job_id, 'namespace_restore/')) f
WHERE f.job_id <> %(job_id)s AND NOT EXISTS (SELECT FROM lakefork.lease l WHERE l.holder = f.job_id
    AND l.expires_at >= clock_timestamp())
ORDER BY f.job_id;

-- lock_staged_restore: files that a restore staged and did not publish
SELECT s.path, r.digest, r.file_size_bytes FROM lakefork.staged_file s
JOIN lakefork.restore_file r ON r.job_id = s.job_id AND r.full_path = s.path AND r.path IS NOT NULL
WHERE s.job_id = %(job_id)s ORDER BY s.path LIMIT %(limit)s FOR UPDATE OF s;

-- forget_staged_restore: they are not staged any more
DELETE FROM lakefork.staged_file WHERE job_id = %(job_id)s AND (%(paths)s::text[] IS NULL OR path = ANY (%(paths)s));
