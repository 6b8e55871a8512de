-- manifest_tables: live tables whose manifests are to be looked at
SELECT t.catalog_id, t.table_id
FROM lakefork.live_table t
WHERE (%(catalog)s::text IS NULL OR t.catalog_name = %(catalog)s)
  AND (%(namespace)s::text IS NULL OR lower(t.namespace COLLATE "C") = lower(%(namespace)s COLLATE "C"))
  AND (%(table)s::text IS NULL OR lower(t.table_name COLLATE "C") = lower(%(table)s COLLATE "C"))
ORDER BY t.catalog_id, t.table_id;

-- manifest_owners: whose batches tables have or had, and whose manifests are known; user_id is '' for shared tables
WITH wanted AS (
    SELECT * FROM unnest(%(catalogs)s::bigint[], %(tables)s::bigint[], %(per_user)s::boolean[]) AS t (catalog_id,
        table_id, per_user)
)
SELECT o.catalog_id, o.table_id, o.user_id, sum(o.files)::bigint AS files FROM (
    SELECT w.catalog_id, w.table_id, f.user_id, 1 AS files FROM wanted w JOIN lakefork.retained_owned_file f
        USING (catalog_id, table_id)
    WHERE w.per_user AND f.user_id IS NOT NULL AND f.is_own
    UNION ALL
    SELECT w.catalog_id, w.table_id, '', 1 FROM wanted w JOIN lakefork.retained_owned_file f
        USING (catalog_id, table_id)
    WHERE NOT w.per_user AND f.is_own
    UNION ALL
    SELECT w.catalog_id, w.table_id, c.user_id, 0 FROM wanted w JOIN lakefork.manifest_cache c
        USING (catalog_id, table_id)
    UNION ALL
    SELECT w.catalog_id, w.table_id, p.user_id, 0 FROM wanted w JOIN lakefork.manifest_pending p
        USING (catalog_id, table_id)
) o
WHERE %(user)s::text IS NULL OR o.user_id = %(user)s
GROUP BY o.catalog_id, o.table_id, o.user_id ORDER BY o.catalog_id, o.table_id, o.user_id COLLATE "C";

-- part_of_batches: what the manifests of some users of a table have to say, of one part of the batches
SELECT user_id, snapshot_id, batches FROM lakefork.manifest_batches(%(catalog_id)s, %(table_id)s, %(users)b::text[],
    %(per_user)s, %(part)s, %(parts)s);

-- cached_manifests: what the cache holds of some users of a table
SELECT user_id, etag, sync_state FROM lakefork.manifest_cache
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND user_id = ANY (%(users)s);

-- known_files: those of some paths that somebody needs, see lakefork.claims
SELECT DISTINCT p.path FROM unnest(%(paths)s::text[]) AS p (path)
JOIN lakefork.claims(ARRAY(SELECT lakefork.place(n) FROM unnest(%(paths)s::text[]) n), '{}') c ON c.path =
    lakefork.place(p.path);
