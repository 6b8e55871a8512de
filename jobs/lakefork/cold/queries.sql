-- namespace_tables: the tables of a namespace with the snapshots and times of their definitions; without tables one
-- row, without the namespace none
SELECT s.schema_name AS namespace, t.table_name, t.table_id, coalesce(k.value, 'SHARED') AS kind, v.snapshots, v.times
FROM lakefork.visible_schema(%(catalog_id)s) s
LEFT JOIN lakefork.visible_table(%(catalog_id)s) t USING (schema_id)
LEFT JOIN lakefork.visible_tag(%(catalog_id)s) k ON k.object_id = t.table_id AND k.key = 'kind'
CROSS JOIN LATERAL (
    SELECT array_agg(v.begin_snapshot ORDER BY v.begin_snapshot) AS snapshots,
           array_agg(d.defined_at ORDER BY v.begin_snapshot) AS times
    FROM lakefork.visible_schema_versions(%(catalog_id)s) v
    JOIN lakefork.definition_date d ON d.catalog_id = v.catalog_id AND d.object_id = v.table_id
        AND d.begin_snapshot = v.begin_snapshot
    WHERE v.table_id = t.table_id
) v
WHERE lower(s.schema_name COLLATE "C") = lower(%(namespace)s::text COLLATE "C") ORDER BY t.table_name;

-- namespaces_with_tables: all of a catalog
SELECT s.schema_name AS namespace, coalesce(array_agg(t.table_name) FILTER (WHERE t.table_id IS NOT NULL),
    '{}') AS tables
FROM lakefork.visible_schema(%(catalog_id)s) s LEFT JOIN lakefork.visible_table(%(catalog_id)s) t USING (schema_id)
    GROUP BY 1 ORDER BY 1;

-- definitions_at: of a table at some snapshots, in their order
SELECT s.snapshot, lakefork.table_definition(%(catalog_id)s, %(table_id)s, s.snapshot) AS definition
FROM unnest(%(snapshots)s::bigint[]) WITH ORDINALITY AS s (snapshot, place) ORDER BY s.place;

-- note_schema: records that schema files must be written or removed
INSERT INTO lakefork.schema_pending AS p (catalog_id, namespace, table_name, noted_at)
VALUES (%(catalog_id)s, %(namespace)s, %(table)s, clock_timestamp())
ON CONFLICT (catalog_id, namespace, table_name) DO UPDATE SET noted_at = greatest(excluded.noted_at,
    p.noted_at + interval '1 microsecond'), problem = NULL
RETURNING noted_at;

-- keep_schema_note: records an error; the next writer retries
UPDATE lakefork.schema_pending SET problem = %(problem)s
WHERE catalog_id = %(catalog_id)s AND namespace = %(namespace)s AND table_name = %(table)s AND noted_at = %(noted_at)s;

-- forget_schema_note: the files are written; keeps notes of later changes
DELETE FROM lakefork.schema_pending
WHERE catalog_id = %(catalog_id)s AND namespace = %(namespace)s AND table_name = %(table)s AND noted_at = %(noted_at)s;

-- forget_schema_notes: all files of a catalog are written
DELETE FROM lakefork.schema_pending WHERE catalog_id = %(catalog_id)s AND noted_at < now();

-- pending_schemas: notes of failed or interrupted writes
SELECT p.catalog_id, p.namespace, p.table_name, p.noted_at
FROM lakefork.schema_pending p JOIN lakefork.visible_catalog() c ON c.catalog_id = p.catalog_id
WHERE (p.problem IS NOT NULL OR p.table_name = '' OR p.noted_at < now() - interval '1 minute')
    AND (%(catalog)s::text IS NULL OR c.catalog_name = %(catalog)s)
  AND (%(namespace)s::text IS NULL OR p.namespace = %(namespace)s)
      AND (%(table)s::text IS NULL OR p.table_name = %(table)s)
ORDER BY p.catalog_id, p.namespace, p.table_name;
