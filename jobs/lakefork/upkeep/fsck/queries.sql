-- fsck: what breaks the catalog's invariants
SELECT f.check_name, f.catalog_id, (SELECT max(catalog_name) FROM lakefork.retained_catalog c
    WHERE c.catalog_id = f.catalog_id) AS catalog_name,
       f.object, f.problem
FROM lakefork.fsck(%(catalog_id)s) f ORDER BY f.catalog_id NULLS FIRST, f.check_name, f.object;

-- file_ranges: ranges of file ids with about as many files in each
SELECT min(file_id) AS first_id, max(file_id) AS last_id, count(*) AS files
FROM (SELECT file_id, ntile(%(ranges)s) OVER (ORDER BY file_id) AS bucket
      FROM (SELECT DISTINCT file_id FROM lakefork.file_reference WHERE %(catalog_id)s::bigint IS NULL
          OR catalog_id = %(catalog_id)s) f) b
GROUP BY bucket ORDER BY 1;

-- count_files: how many files the catalog refers to
SELECT count(*) AS files, coalesce(sum(bytes), 0) AS bytes
FROM (SELECT file_id, max(file_size_bytes) AS bytes FROM lakefork.file_reference
      WHERE %(catalog_id)s::bigint IS NULL OR catalog_id = %(catalog_id)s GROUP BY file_id) f;

-- referenced_files: what the catalogs say of the files in a range of ids
SELECT r.file_id, r.kind, r.path, r.file_size_bytes, r.footer_size, r.record_count, min(r.catalog_id) AS catalog_id,
    count(*) AS catalogs,
       (SELECT max(catalog_name) FROM lakefork.retained_catalog c WHERE c.catalog_id = min(r.catalog_id))
           AS catalog_name,
       CASE WHEN %(deep)s THEN (
           SELECT jsonb_object_agg(s.column_id, jsonb_build_array(s.value_count, s.null_count, s.min_value,
               s.max_value))
           FROM lakefork.retained_file_column_stats s WHERE s.catalog_id = min(r.catalog_id)
               AND s.data_file_id = r.file_id) END AS statistics
FROM lakefork.file_reference r
WHERE r.file_id BETWEEN %(first_id)s AND %(last_id)s AND (%(catalog_id)s::bigint IS NULL
    OR r.catalog_id = %(catalog_id)s)
GROUP BY r.file_id, r.kind, r.path, r.file_size_bytes, r.footer_size, r.record_count
ORDER BY r.file_id;
