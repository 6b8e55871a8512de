-- catalog_tables: the tables that schema/postgresql.sql made, with their columns in order
SELECT n.nspname AS schema, c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relpersistence = 'p'
    AND (n.nspname = 'lakefork' OR n.nspname = 'public' AND c.relname LIKE 'ducklake\_%%')
GROUP BY 1, 2 ORDER BY 1, 2;

-- client_tables: the views for stock DuckDB, with columns and types as DuckDB understands them
SELECT n.nspname AS schema, c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns,
       array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum) AS types
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE n.nspname = 'ducklake_client' AND c.relkind = 'v'
GROUP BY 1, 2 ORDER BY 1, 2;
