-- Backups: what there is to back up, at the moment of the caller's transaction.

-- Rows of an entity without what the catalog itself gives them.
CREATE FUNCTION lakefork.portable_row(p_row jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_row - '{catalog_id,begin_snapshot,end_snapshot,table_id,object_id,table_uuid,schema_uuid}'::text[]
$$;

-- What holds of a definition wherever the table is.
CREATE FUNCTION lakefork.portable_definition(p_definition jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_definition - '{table_id,schema_id,path,path_is_relative,table_path,schema_version}'::text[])
           || jsonb_build_object('tags', (p_definition -> 'tags') - '{location,location_reference}'::text[])
$$;

-- When, and by whom, each definition of an object was made.
CREATE FUNCTION lakefork.definition_dates(p_catalog_id bigint, p_object_id bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('snapshot', d.begin_snapshot, 'defined_at', d.defined_at, 'author',
        d.author)
                              ORDER BY d.begin_snapshot), '[]')
    FROM lakefork.definition_date d WHERE d.catalog_id = p_catalog_id AND d.object_id = p_object_id
$$;

-- The namespaces of a catalog, or one of them, with their options.
CREATE FUNCTION lakefork.backup_namespaces(p_catalog_id bigint, p_namespace text)
RETURNS TABLE (schema_id bigint, name varchar, tags jsonb, dates jsonb)
LANGUAGE sql STABLE AS $$
    SELECT s.schema_id, s.schema_name,
           (SELECT coalesce(jsonb_object_agg(g.key, g.value), '{}') FROM lakefork.visible_tag(p_catalog_id) g
               WHERE g.object_id = s.schema_id),
           lakefork.definition_dates(p_catalog_id, s.schema_id)
    FROM lakefork.visible_schema(p_catalog_id) s
    WHERE p_namespace IS NULL OR lower(s.schema_name COLLATE "C") = lower(p_namespace COLLATE "C")
    ORDER BY s.schema_id
$$;

-- Their tables: how they are defined now, and all definitions that they had. Places are left out: a restored table gets
-- a new one.
--   is_clean  the files of now are those of the table's last clean state (functions/clean.sql)
CREATE FUNCTION lakefork.backup_tables(p_catalog_id bigint, p_schema_ids bigint[])
RETURNS TABLE (table_id bigint, schema_id bigint, name varchar, kind varchar, columns jsonb, column_tags jsonb,
    tags jsonb, partitions jsonb, history jsonb,
               dates jsonb, is_clean boolean)
LANGUAGE sql STABLE AS $$
    SELECT t.table_id, t.schema_id, t.table_name,
           (SELECT g.value FROM lakefork.visible_tag(p_catalog_id) g WHERE g.object_id = t.table_id AND g.key = 'kind'),
           (SELECT coalesce(jsonb_agg(lakefork.portable_row(to_jsonb(c)) ORDER BY c.column_order, c.column_id), '[]')
            FROM lakefork.visible_column(p_catalog_id) c WHERE c.table_id = t.table_id),
           (SELECT coalesce(jsonb_agg(lakefork.portable_row(to_jsonb(c)) ORDER BY c.column_id, c.key), '[]')
            FROM lakefork.visible_column_tag(p_catalog_id) c WHERE c.table_id = t.table_id),
           (SELECT coalesce(jsonb_object_agg(g.key, g.value), '{}') FROM lakefork.visible_tag(p_catalog_id) g
            WHERE g.object_id = t.table_id AND g.key NOT IN ('location', 'location_reference')),
           (SELECT coalesce(jsonb_agg(to_jsonb(i) - '{catalog_id,table_id,partition_id}'::text[]
               ORDER BY i.partition_key_index), '[]')
            FROM lakefork.visible_partition_column(p_catalog_id) i WHERE i.table_id = t.table_id),
           (SELECT jsonb_agg(jsonb_build_object('snapshot', v.begin_snapshot, 'schema_version', v.schema_version,
                       'definition', CASE WHEN v.is_old THEN lakefork.portable_definition(
                           lakefork.table_definition(p_catalog_id, t.table_id, v.begin_snapshot)) END)
                               ORDER BY v.begin_snapshot)
            FROM (SELECT v.*, v.begin_snapshot < max(v.begin_snapshot) OVER () AS is_old
                  FROM lakefork.visible_schema_versions(p_catalog_id) v WHERE v.table_id = t.table_id) v),
           lakefork.definition_dates(p_catalog_id, t.table_id),
           EXISTS (SELECT FROM lakefork.inheritable_clean(p_catalog_id, NULL) c WHERE c.table_id = t.table_id)
    FROM lakefork.visible_table(p_catalog_id) t
    WHERE t.schema_id = ANY (p_schema_ids)
    ORDER BY t.table_id
$$;

-- The batches of these tables, with statistics as lakefork.add_files takes them, and their digests where they are
-- known.
CREATE FUNCTION lakefork.backup_files(p_catalog_id bigint, p_table_ids bigint[])
RETURNS TABLE (table_id bigint, data_file_id bigint, path text, user_id varchar, record_count bigint,
    file_size_bytes bigint, footer_size bigint,
               file_order bigint, statistics text, digest varchar)
LANGUAGE sql STABLE AS $$
    WITH places AS MATERIALIZED (
        SELECT t.table_id, lakefork.join_path(lakefork.join_path(lakefork.data_path(p_catalog_id), s.path,
            s.path_is_relative),
                                              t.path, t.path_is_relative) AS path
        FROM lakefork.visible_table(p_catalog_id) t JOIN lakefork.visible_schema(p_catalog_id) s USING (schema_id)
        WHERE t.table_id = ANY (p_table_ids)
    ), statistics AS MATERIALIZED (
        SELECT c.data_file_id, jsonb_agg(jsonb_build_array(c.column_id, c.value_count, c.null_count, c.min_value,
            c.max_value, c.contains_nan)
                                         ORDER BY c.column_id)::text AS statistics
        FROM lakefork.visible_file_column_stats(p_catalog_id) c
            WHERE c.table_id = ANY (p_table_ids) GROUP BY c.data_file_id
    ), owners AS MATERIALIZED (
        SELECT v.data_file_id, v.partition_value FROM lakefork.visible_file_partition_value(p_catalog_id) v
        WHERE v.table_id = ANY (p_table_ids) AND v.partition_key_index = 0
    )
    SELECT f.table_id, f.data_file_id, lakefork.join_path(p.path, f.path, f.path_is_relative), v.partition_value,
        f.record_count, f.file_size_bytes,
           f.footer_size, coalesce(f.file_order, f.begin_snapshot), coalesce(c.statistics, '[]'), d.digest
    FROM lakefork.visible_data_file(p_catalog_id) f
    JOIN places p ON p.table_id = f.table_id
    LEFT JOIN owners v ON v.data_file_id = f.data_file_id
    LEFT JOIN statistics c ON c.data_file_id = f.data_file_id
    LEFT JOIN lakefork.file_digest d ON d.data_file_id = f.data_file_id AND d.size_bytes = f.file_size_bytes
    WHERE f.table_id = ANY (p_table_ids)
    ORDER BY f.table_id, f.data_file_id
$$;

-- Keeps digests, and forgets those of files that no catalog has.
CREATE FUNCTION lakefork.remember_digests(p_files bigint[], p_digests text[], p_sizes bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.file_digest (data_file_id, digest, size_bytes) SELECT * FROM unnest(p_files, p_digests,
        p_sizes)
    ON CONFLICT (data_file_id) DO UPDATE SET digest = excluded.digest, size_bytes = excluded.size_bytes;
    DELETE FROM lakefork.file_digest d WHERE NOT EXISTS (SELECT FROM lakefork.retained_data_file f
        WHERE f.data_file_id = d.data_file_id);
$$;

-- Ends the records of backups at a place whose runs died, and lets go of the snapshots that they held; says which.
CREATE FUNCTION lakefork.end_dead_backups(p_place text, p_job_id text) RETURNS TABLE (backup_id varchar)
LANGUAGE sql AS $$
    WITH ended AS (
        UPDATE lakefork.backup b SET status = 'failed', finished_at = clock_timestamp(), error = 'the run was cut off'
        WHERE b.place = p_place AND b.status = 'running' AND b.job_id <> p_job_id
        RETURNING b.backup_id, b.catalog_id
    ), released AS (
        DELETE FROM lakefork.snapshot_tag g USING ended e WHERE g.catalog_id = e.catalog_id AND g.name = e.backup_id
    )
    SELECT e.backup_id FROM ended e
$$;

-- Writes down what a run is about to remove from a place of backups, before it does.
CREATE FUNCTION lakefork.record_backup_removals(p_run_id text, p_job_id text, p_plan_id text, p_catalog text,
    p_paths text[], p_sizes bigint[], p_reason text)
RETURNS TABLE (deletion_id bigint, path varchar)
LANGUAGE sql AS $$
    INSERT INTO lakefork.deletion (run_id, job_id, plan_id, path, size_bytes, last_catalog, reason, decided_at)
    SELECT p_run_id, p_job_id, p_plan_id, f.path, f.size_bytes, p_catalog, p_reason, clock_timestamp()
    FROM unnest(p_paths, p_sizes) AS f (path, size_bytes)
    RETURNING deletion_id, path
$$;

-- Somebody asks for a job; the DAG of that name starts it within seconds.
CREATE FUNCTION lakefork.request_job(p_request_id text, p_job text, p_catalog text, p_params jsonb,
    p_user text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.job_request (request_id, job, catalog_name, params, requested_at, requested_by)
    VALUES (p_request_id, p_job, p_catalog, p_params, clock_timestamp(), p_user);
    SELECT pg_notify('lakefork_' || p_job, p_request_id);
$$;

-- What distinguishes the files of these tables from others, as far as it is the same wherever the tables are.
CREATE FUNCTION lakefork.file_contents(p_catalog_id bigint, p_table_ids bigint[])
RETURNS TABLE (table_id bigint, user_id varchar, snapshot bigint, digest varchar, record_count bigint)
LANGUAGE sql STABLE AS $$
    SELECT f.table_id, f.user_id, coalesce(f.file_order, f.begin_snapshot), d.digest, f.record_count
    FROM lakefork.visible_owned_file(p_catalog_id) f
    LEFT JOIN lakefork.file_digest d ON d.data_file_id = f.data_file_id
    WHERE f.table_id = ANY (p_table_ids)
$$;
