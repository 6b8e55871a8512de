-- Restores: what was staged (lakefork.restore_file) appears in a catalog by one commit.
--
-- A backup knows snapshots of another time, and perhaps of another installation. All that it names are ranked; the
-- commit takes as many snapshot ids as
-- there are ranks, and each rank gets one of them. So the order of files and definitions stays what it was, every id is
-- below those of later commits, and
-- files of different commits are files of different commits. Nobody can read in between: all rows begin with the first
-- of these ids, and the snapshot is
-- the last; the others count as expired.

-- Adds the staged files of a restore; p_base: the snapshot id before the first rank. Returns how many.
CREATE FUNCTION lakefork.add_restored_files(
    p_job_id text, p_catalog_id bigint, p_base bigint, p_first_catalog_id bigint, p_first_file_id bigint
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
BEGIN
    WITH incoming AS MATERIALIZED (
        SELECT r.*, lakefork.resolve_id(r.table_ref, p_first_catalog_id) AS table_id,
               CASE WHEN r.path IS NULL THEN r.source_file_id
                   ELSE p_first_file_id - 1 + row_number() OVER (ORDER BY r.file_number) END AS data_file_id,
               coalesce(sum(r.record_count) OVER (PARTITION BY r.table_ref
                   ORDER BY r.file_number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
                   AS row_id_start
        FROM lakefork.restore_file r WHERE r.job_id = p_job_id
    ), files AS (
        INSERT INTO public.ducklake_data_file
            (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format,
                record_count, file_size_bytes, footer_size,
             row_id_start)
        SELECT p_catalog_id, i.data_file_id, i.table_id, p_base + 1, p_base + i.order_rank, coalesce(i.path,
            i.full_path), i.path IS NOT NULL,
               'parquet', i.record_count, i.file_size_bytes, i.footer_size, i.row_id_start
        FROM incoming i
        RETURNING 1
    ), statistics AS (
        INSERT INTO public.ducklake_file_column_stats
            (catalog_id, data_file_id, table_id, column_id, value_count, null_count, min_value, max_value, contains_nan)
        SELECT p_catalog_id, i.data_file_id, i.table_id, (c ->> 0)::bigint, (c ->> 1)::bigint, (c ->> 2)::bigint,
            c ->> 3, c ->> 4, (c ->> 5)::boolean
        FROM incoming i CROSS JOIN LATERAL jsonb_array_elements(i.statistics::jsonb) c
    ), owners AS (
        INSERT INTO public.ducklake_file_partition_value (catalog_id, data_file_id, table_id, partition_key_index,
            partition_value)
        SELECT p_catalog_id, i.data_file_id, i.table_id, 0, i.user_id FROM incoming i WHERE i.user_id IS NOT NULL
    ), totals AS (
        UPDATE public.ducklake_table_stats s SET record_count = t.records, next_row_id = t.records,
            file_size_bytes = t.bytes
        FROM (SELECT i.table_id, sum(i.record_count) AS records, sum(i.file_size_bytes) AS bytes
            FROM incoming i GROUP BY i.table_id) t
        WHERE s.catalog_id = p_catalog_id AND s.table_id = t.table_id
    ), digests AS (
        INSERT INTO lakefork.file_digest (data_file_id, digest, size_bytes)
        SELECT i.data_file_id, i.digest, i.file_size_bytes FROM incoming i ON CONFLICT (data_file_id) DO NOTHING
    )
    SELECT count(*) INTO added FROM files;
    RETURN added;
END $$;

-- Gives restored objects their history: definitions with their numbers, dates and authors, and which tables are clean.
-- p_objects  [{"ref": -2, "is_table": true, "is_clean": true, "history": [{"rank": 3, "version_rank": 1, "definition":
-- {…} or null}, …],
--                "dates": [{"rank": 3, "defined_at": "…", "author": "…"}, …]}, …], of namespaces and tables
CREATE FUNCTION lakefork.add_restored_history(
    p_catalog_id bigint, p_base bigint, p_base_version bigint, p_snapshot bigint, p_first_catalog_id bigint,
        p_objects jsonb
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    objects bigint[] := ARRAY(SELECT lakefork.resolve_id((o ->> 'ref')::bigint, p_first_catalog_id)
        FROM jsonb_array_elements(p_objects) o);
BEGIN
    DELETE FROM public.ducklake_schema_versions v WHERE v.catalog_id = p_catalog_id AND v.table_id = ANY (objects);
    DELETE FROM lakefork.definition_date d WHERE d.catalog_id = p_catalog_id AND d.object_id = ANY (objects);
    WITH restored AS MATERIALIZED (
        SELECT lakefork.resolve_id((o ->> 'ref')::bigint, p_first_catalog_id) AS object_id,
            (o ->> 'is_table')::boolean AS is_table,
               (o ->> 'is_clean')::boolean AS is_clean, o -> 'history' AS history, o -> 'dates' AS dates
        FROM jsonb_array_elements(p_objects) o
    ), definitions AS MATERIALIZED (
        SELECT r.object_id, p_base + (h ->> 'rank')::bigint AS begin_snapshot,
            p_base_version + (h ->> 'version_rank')::bigint AS schema_version,
               h -> 'definition' AS definition, t.schema_id
        FROM restored r
        JOIN public.ducklake_table t ON t.catalog_id = p_catalog_id AND t.table_id = r.object_id
        CROSS JOIN LATERAL jsonb_array_elements(r.history) h
    ), versions AS (
        INSERT INTO public.ducklake_schema_versions (catalog_id, begin_snapshot, schema_version, table_id)
        SELECT p_catalog_id, d.begin_snapshot, d.schema_version, d.object_id FROM definitions d
    ), kept AS (
        INSERT INTO lakefork.kept_definition (catalog_id, table_id, begin_snapshot, definition)
        SELECT p_catalog_id, d.object_id, d.begin_snapshot,
               d.definition || jsonb_build_object('table_id', d.object_id, 'schema_id', d.schema_id,
                   'schema_version', d.schema_version)
        FROM definitions d WHERE jsonb_typeof(d.definition) = 'object'
    ), dates AS (
        INSERT INTO lakefork.definition_date (catalog_id, object_id, begin_snapshot, defined_at, author)
        SELECT p_catalog_id, r.object_id, p_base + (d ->> 'rank')::bigint, (d ->> 'defined_at')::timestamptz,
            d ->> 'author'
        FROM restored r CROSS JOIN LATERAL jsonb_array_elements(r.dates) d
    )
    INSERT INTO lakefork.clean_snapshot (catalog_id, table_id, snapshot_id)
    SELECT p_catalog_id, r.object_id, p_snapshot FROM restored r WHERE r.is_table AND r.is_clean;
END $$;

-- Users who are not there, with their rules, and rules that those who are there lack. Without a role, rules are all
-- that is known of a user.
CREATE FUNCTION lakefork.add_restored_users(p_catalog_id bigint, p_users jsonb) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.app_user u
    SET permissions = u.permissions || ARRAY(SELECT p FROM unnest(r.permissions) WITH ORDINALITY AS n (p,
        place) WHERE p <> ALL (u.permissions) ORDER BY place)
    FROM jsonb_to_recordset(p_users) AS r (user_id varchar, permissions varchar[])
    WHERE u.catalog_id = p_catalog_id AND u.user_id = r.user_id AND u.deleted_at IS NULL;
    INSERT INTO lakefork.app_user (catalog_id, user_id, username, role, permissions, created_at, deleted_at)
    SELECT p_catalog_id, r.user_id, r.username, r.role, r.permissions, r.created_at, r.deleted_at
    FROM jsonb_to_recordset(p_users) AS r (user_id varchar, username varchar, role varchar, permissions varchar[],
        created_at timestamptz, deleted_at timestamptz)
    WHERE r.role IS NOT NULL
    ON CONFLICT (catalog_id, user_id) DO NOTHING
$$;

-- Storage locations that are not there.
CREATE FUNCTION lakefork.add_restored_locations(p_catalog_id bigint, p_locations jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.storage_location (catalog_id, location_name, location_type, path, credentials_ref, created_at)
    SELECT p_catalog_id, r.location_name, r.location_type, r.path, r.credentials_ref, r.created_at
    FROM jsonb_to_recordset(p_locations) AS r (location_name varchar, location_type varchar, path varchar,
        credentials_ref varchar, created_at timestamptz)
    ON CONFLICT (catalog_id, location_name) DO NOTHING
$$;

-- Of files that a restore is to share, where they lie now; it fails if one of them is gone, or is about to go.
CREATE FUNCTION lakefork.find_shared_files(p_job_id text, p_catalog_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    missing bigint;
BEGIN
    -- LIMIT forces a look-up per file: nothing is known yet of the rows that were just written.
    UPDATE lakefork.restore_file r
    SET full_path = (SELECT x.path FROM lakefork.file_reference x
                     WHERE x.kind = 'data' AND x.file_id = r.source_file_id
                       AND x.file_size_bytes = r.file_size_bytes LIMIT 1)
    WHERE r.job_id = p_job_id AND r.path IS NULL;
    SELECT count(*) INTO missing FROM lakefork.restore_file r WHERE r.job_id = p_job_id AND r.path IS NULL
        AND r.full_path IS NULL;
    IF missing > 0 THEN
        RAISE EXCEPTION
            '% file(s) of the backup are no longer in this installation: restore it without BY REFERENCE', missing
            USING ERRCODE = 'LFN01';
    END IF;
    SELECT count(*) INTO missing FROM lakefork.restore_file r
    WHERE r.job_id = p_job_id AND r.path IS NULL
      AND (SELECT true FROM public.ducklake_data_file f
           WHERE f.catalog_id = p_catalog_id AND f.data_file_id = r.source_file_id LIMIT 1);
    IF missing > 0 THEN
        RAISE EXCEPTION '%', format('%s file(s) of the backup are already in this catalog: ', missing)
            || 'files are shared with another catalog only, restore it without BY REFERENCE'
            USING ERRCODE = 'LFV01';
    END IF;
END $$;

-- The one commit of a restore. The same key again gets the first answer.
-- p_changes     as for lakefork.commit: definitions as they are now, what they replace, and how many ids the history
-- takes
-- p_objects     see add_restored_history      p_users, p_locations  what comes with a whole catalog, or rules that name
-- the tables
--   p_manifests   [{"ref": -2, "user_id": "…", "directory": "…"}, …]: directories that have a manifest to get
CREATE FUNCTION lakefork.commit_restore(
    p_job_id text, p_run_id text, p_catalog_id bigint, p_base_snapshot bigint, p_changes jsonb, p_objects jsonb,
        p_users jsonb, p_locations jsonb,
    p_manifests jsonb, p_author text, p_message text, p_key text,
    OUT snapshot_id bigint, OUT first_catalog_id bigint, OUT replayed boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    done record;
    base bigint;
    added bigint;
BEGIN
    SELECT * INTO done FROM lakefork.commit(p_catalog_id, p_base_snapshot, p_changes, p_author, p_message, p_key);
    snapshot_id := done.snapshot_id;
    first_catalog_id := done.first_catalog_id;
    replayed := done.replayed;
    IF replayed THEN
        RETURN;
    END IF;
    base := done.snapshot_id - (p_changes #>> '{history,snapshots}')::bigint;
    PERFORM lakefork.find_shared_files(p_job_id, p_catalog_id);
    added := lakefork.add_restored_files(p_job_id, p_catalog_id, base, done.first_catalog_id, done.first_file_id);
    IF added <> (SELECT count(*) FROM lakefork.restore_file r WHERE r.job_id = p_job_id) THEN
        RAISE EXCEPTION 'the files that % staged changed meanwhile: it stops here', p_job_id USING ERRCODE = 'LFL01';
    END IF;
    PERFORM lakefork.add_restored_history(p_catalog_id, base,
        done.schema_version - (p_changes #>> '{history,schema_versions}')::bigint,
                                          done.snapshot_id, done.first_catalog_id, p_objects);
    PERFORM lakefork.add_restored_users(p_catalog_id, p_users);
    PERFORM lakefork.add_restored_locations(p_catalog_id, p_locations);
    PERFORM lakefork.take_staged(p_job_id, ARRAY(SELECT r.full_path::text FROM lakefork.restore_file r
        WHERE r.job_id = p_job_id AND r.path IS NOT NULL));
    INSERT INTO lakefork.manifest_pending (catalog_id, table_id, user_id, directory, run_id)
    SELECT p_catalog_id, lakefork.resolve_id(m.ref, done.first_catalog_id), m.user_id, m.directory, p_run_id
    FROM jsonb_to_recordset(p_manifests) AS m (ref bigint, user_id varchar, directory varchar);
    DELETE FROM lakefork.restore_file r WHERE r.job_id = p_job_id;
END $$;
