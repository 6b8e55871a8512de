-- trim_hot: removes published hot rows, some at a time
SELECT deleted, last_user, last_seq
FROM lakefork.trim_hot(%(job_id)s, %(hot)s::regclass, %(catalog_id)s, %(table_id)s, %(hot_snapshot)s, %(per_user)s,
    %(after_user)s, %(after_seq)s, %(limit)s);

-- untrimmed: hot tables that may hold published rows
SELECT DISTINCT w.catalog_id, w.table_id, w.hot_snapshot
FROM lakefork.watermark w JOIN unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS t (catalog_id, table_id)
    USING (catalog_id, table_id)
WHERE NOT w.trimmed;

-- idle_untrimmed: tables with rows that were published a while ago and not trimmed since; rows of another Postgres need
-- adopt_hot_rows first
SELECT DISTINCT o.catalog_id, o.table_id FROM (
    SELECT w.catalog_id, w.table_id FROM lakefork.watermark w
    JOIN lakefork.visible_catalog() c ON c.catalog_id = w.catalog_id
    JOIN LATERAL lakefork.visible_table(w.catalog_id) t ON t.table_id = w.table_id
    WHERE NOT w.trimmed AND w.published_at < now() - interval '1 hour' AND w.cluster_id = (SELECT lakefork.cluster_id())
    ORDER BY w.published_at LIMIT 10000) o;

-- record_audit: what the audit of a table's staged files found; to say it again changes nothing
INSERT INTO lakefork.flush_audit (job_id, run_id, catalog_id, table_id, audited_at, success, files, results, quarantine)
VALUES (%(job_id)s, %(run_id)s, %(catalog_id)s, %(table_id)s, clock_timestamp(), %(success)s, %(files)s, %(results)s,
    %(quarantine)s)
ON CONFLICT (job_id, catalog_id, table_id) DO NOTHING;

-- older_quarantines: what earlier audits of a table refused and is still kept
SELECT quarantine, job_id FROM lakefork.flush_audit
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND job_id <> %(job_id)s AND quarantine IS NOT NULL
    ORDER BY quarantine;

-- forget_quarantine: it is kept no longer
UPDATE lakefork.flush_audit SET quarantine = NULL
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND quarantine = %(quarantine)s;
