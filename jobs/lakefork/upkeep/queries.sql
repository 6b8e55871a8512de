-- pending_manifests: directories whose manifest does not show the last publish
SELECT p.catalog_id, p.table_id, p.user_id, p.directory, p.run_id FROM lakefork.manifest_pending p
JOIN unnest(%(catalogs)s::bigint[], %(tables)s::bigint[]) AS t (catalog_id, table_id) USING (catalog_id, table_id)
ORDER BY p.catalog_id, p.table_id, p.user_id;
