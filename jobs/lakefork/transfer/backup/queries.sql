-- pending_manifests: directories of some tables whose manifest does not show the last publish
SELECT p.catalog_id, p.table_id, p.user_id, p.directory, p.run_id FROM lakefork.manifest_pending p
WHERE p.catalog_id = %(catalog_id)s AND p.table_id = ANY (%(tables)s) ORDER BY p.table_id, p.user_id;

-- manifests_of_tables: the cached manifests of some tables
SELECT directory, content FROM lakefork.manifest_cache
WHERE catalog_id = %(catalog_id)s AND table_id = ANY (%(tables)s) AND sync_state = 'in_sync' ORDER BY directory;
