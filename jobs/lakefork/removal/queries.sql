-- open_deletions: entries of the ledger whose files may still be there; backups finish theirs by themselves
SELECT deletion_id, path, file_id IS NULL AS is_orphan FROM lakefork.deletion
WHERE removed_at IS NULL AND NOT starts_with(job_id, 'namespace_backup/') ORDER BY deletion_id LIMIT %(limit)s;

-- count_to_clean: scheduled files by the catalog and table that had them last
SELECT c.catalog_name, lakefork.last_name(k.parent_id) AS parent_name,
       coalesce(lakefork.last_table_name(c.catalog_id, c.table_id), 'table ' || c.table_id, 'files') AS table_name,
       c.reason, c.files, c.bytes
FROM (SELECT coalesce(lakefork.last_name(f.catalog_id), f.last_catalog, '?') AS catalog_name, f.catalog_id, f.table_id,
    f.reason, f.files, f.bytes
      FROM (SELECT catalog_id, max(last_catalog) AS last_catalog, last_table_id AS table_id, reason, count(*) AS files,
                   coalesce(sum(file_size_bytes), 0)::bigint AS bytes
            FROM lakefork.files_to_clean(%(catalog)s, %(scheduled_until)s) GROUP BY catalog_id, last_table_id,
                reason) f) c
LEFT JOIN lakefork.fork k USING (catalog_id)
ORDER BY 1, 3, 4;

-- has_files_to_clean: whether cleanup has anything to do
SELECT EXISTS (SELECT FROM lakefork.files_to_clean(NULL, now() - make_interval(secs => %(seconds)s)))
    OR EXISTS (SELECT FROM lakefork.deletion
               WHERE removed_at IS NULL AND NOT starts_with(job_id, 'namespace_backup/')) AS found;

-- save_cleanup_plan: saves a plan of file_cleanup
INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params, digest)
VALUES (%(plan_id)s, 'file_cleanup', %(run_id)s, clock_timestamp(), %(params)s, %(digest)s);

-- cleanup_plan: a saved plan
SELECT plan_id, created_at, params, digest, begun_at, done_at FROM lakefork.plan WHERE plan_id = %(plan_id)s
    AND job = 'file_cleanup';

-- begin_cleanup_plan: marks a plan as started
UPDATE lakefork.plan SET begun_at = coalesce(begun_at, clock_timestamp()) WHERE plan_id = %(plan_id)s;

-- finish_cleanup_plan: it was carried out
UPDATE lakefork.plan SET done_at = clock_timestamp() WHERE plan_id = %(plan_id)s;

-- bytes_freed: bytes that a run removed, from the ledger
SELECT coalesce(sum(size_bytes), 0)::bigint AS bytes FROM lakefork.deletion WHERE run_id = %(run_id)s
    AND outcome IN ('removed', 'trashed');
