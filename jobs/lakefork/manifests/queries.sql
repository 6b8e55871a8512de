-- manifest_batches: the content of manifests of some users of a table
SELECT user_id, snapshot_id, batches FROM lakefork.manifest_batches(%(catalog_id)s, %(table_id)s, %(users)b::text[],
    %(per_user)s);

-- cache_manifests: manifests that were just written, unless a newer publish wants newer ones
WITH written AS (
    SELECT w.* FROM unnest(%(users)b::text[], %(directories)b::text[], %(run_ids)b::text[], %(contents)b::text[],
        %(etags)b::text[])
        AS w (user_id, directory, run_id, content, etag)
    JOIN lakefork.manifest_pending p
      ON p.catalog_id = %(catalog_id)s AND p.table_id = %(table_id)s AND p.user_id = w.user_id AND p.run_id = w.run_id
), cached AS (
    INSERT INTO lakefork.manifest_cache (catalog_id, table_id, user_id, directory, content, etag, last_refreshed,
        sync_state)
    SELECT %(catalog_id)s, %(table_id)s, user_id, directory, content, etag, clock_timestamp(), 'in_sync' FROM written
    ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET
        directory = excluded.directory, content = excluded.content, etag = excluded.etag,
        last_refreshed = excluded.last_refreshed, sync_state = excluded.sync_state
)
DELETE FROM lakefork.manifest_pending p USING written w
WHERE p.catalog_id = %(catalog_id)s AND p.table_id = %(table_id)s AND p.user_id = w.user_id AND p.run_id = w.run_id;

-- request_manifests: requests manifests, which the next job on the table writes
INSERT INTO lakefork.manifest_pending (catalog_id, table_id, user_id, directory, run_id)
SELECT %(catalog_id)s, %(table_id)s, u, d, %(run_id)s FROM unnest(%(users)s::text[], %(directories)s::text[]) AS r (u,
    d)
ON CONFLICT (catalog_id, table_id, user_id) DO NOTHING;

-- cached_manifest: an entry of the cache, and the time since it was last equal to storage
SELECT content, etag, sync_state, extract(epoch FROM clock_timestamp() - last_refreshed)::float8 AS age_seconds
    FROM lakefork.manifest_cache
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND user_id = %(user_id)s;

-- refresh_cached_manifest: what storage has, unless another one was put in since it was seen
INSERT INTO lakefork.manifest_cache AS m (catalog_id, table_id, user_id, directory, content, etag, last_refreshed,
    sync_state)
VALUES (%(catalog_id)s, %(table_id)s, %(user_id)s, %(directory)s, %(content)s, %(etag)s, clock_timestamp(), 'in_sync')
ON CONFLICT (catalog_id, table_id, user_id) DO UPDATE SET
    directory = excluded.directory, content = excluded.content, etag = excluded.etag,
        last_refreshed = excluded.last_refreshed,
    sync_state = excluded.sync_state
WHERE m.etag = %(seen)s;

-- mark_cached_manifest: it cannot be trusted, unless another one was put in since it was seen
UPDATE lakefork.manifest_cache SET sync_state = %(state)s
WHERE catalog_id = %(catalog_id)s AND table_id = %(table_id)s AND user_id = %(user_id)s AND etag = %(seen)s;

-- evictable_manifests: number of entries of the cache to evict
SELECT count(*) AS entries FROM lakefork.evictable_manifests(%(unused_seconds)s, %(max_entries)s);

-- evict_manifests: removes them; how many for which reason
WITH evicted AS (
    DELETE FROM lakefork.manifest_cache m USING lakefork.evictable_manifests(%(unused_seconds)s, %(max_entries)s) e
    WHERE m.catalog_id = e.catalog_id AND m.table_id = e.table_id AND m.user_id = e.user_id
    RETURNING e.reason
)
SELECT reason, count(*) AS entries FROM evicted GROUP BY reason ORDER BY reason;
