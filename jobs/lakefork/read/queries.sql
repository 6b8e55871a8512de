-- find_tables: tables by name, now or at a snapshot, with the definitions under which they may have hot rows
SELECT place, table_id, definition_snapshot, hot_snapshots, has_files
FROM lakefork.find_tables({catalog_id}, {namespaces}, {tables}, {snapshot});

-- catalog_at: the catalog that is, or was then, called so
SELECT catalog_id FROM lakefork.catalog_at({name}, {moment});

-- snapshot_at: the snapshot with an id, or the newest at a time, if the catalog retains it
SELECT lakefork.snapshot_at({catalog_id}, {moment}) AS snapshot_id;

-- definition_history: the definitions that a table had up to one of them, the oldest first
SELECT v.begin_snapshot, d.definition::text AS definition
FROM lakefork.visible_schema_versions({catalog_id}, {snapshot}) v
CROSS JOIN LATERAL (SELECT lakefork.table_definition({catalog_id}, {table_id}, v.begin_snapshot) AS definition) d
WHERE v.table_id = {table_id} AND d.definition IS NOT NULL ORDER BY v.begin_snapshot;

-- batches: the batches of a table with their owners, and the bounds of some columns
SELECT path, user_id AS owner, published, bounds::text AS bounds
FROM lakefork.table_files({catalog_id}, {table_id}, {owner}, '{{{columns}}}', {snapshot});

-- batches_with_statistics: the same, and which columns have statistics
SELECT f.path, f.user_id AS owner, f.published, f.bounds::text AS bounds,
       ARRAY(SELECT c.column_id FROM lakefork.retained_file_column_stats c
             WHERE c.catalog_id = {catalog_id} AND c.data_file_id = f.data_file_id) AS column_ids
FROM lakefork.table_files({catalog_id}, {table_id}, {owner}, '{{{columns}}}', {snapshot}) f
ORDER BY f.data_file_id;
