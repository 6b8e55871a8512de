-- Carries out plans of retention_gc (functions/retention.sql), in transactions of bounded size; every one needs the
-- lease.

CREATE FUNCTION lakefork.begin_gc_batch(p_job_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.require_lease(lakefork.gc_lease(), p_job_id);
    -- the last of two that give up a file must notice
    LOCK TABLE ONLY lakefork_locks.gc IN SHARE UPDATE EXCLUSIVE MODE;
END $$;

-- Takes up to p_limit files from these catalogs. Those that no catalog has any longer are scheduled for deletion.
CREATE FUNCTION lakefork.remove_files(p_plan_id text, p_job_id text, p_catalog_ids bigint[], p_limit bigint)
RETURNS TABLE (files bigint, rows bigint, scheduled bigint, bytes bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM lakefork.begin_gc_batch(p_job_id);
    RETURN QUERY
    WITH doomed AS MATERIALIZED (
        SELECT d.*, count(*) OVER (PARTITION BY d.data_file_id) AS taken
        FROM (SELECT * FROM lakefork.doomed_files(p_plan_id, p_catalog_ids) LIMIT p_limit) d
    ), removed AS (
        DELETE FROM public.ducklake_data_file f USING doomed d WHERE f.catalog_id = d.catalog_id
            AND f.data_file_id = d.data_file_id RETURNING 1
    ), removed_statistics AS (
        DELETE FROM public.ducklake_file_column_stats s USING doomed d WHERE s.catalog_id = d.catalog_id
            AND s.data_file_id = d.data_file_id RETURNING 1
    ), removed_owners AS (
        DELETE FROM public.ducklake_file_partition_value v USING doomed d
        WHERE v.catalog_id = d.catalog_id AND v.data_file_id = d.data_file_id RETURNING 1
    ), last_ones AS MATERIALIZED (
        SELECT DISTINCT ON (d.data_file_id) d.* FROM doomed d
        WHERE d.taken = (SELECT count(*) FROM public.ducklake_data_file o WHERE o.data_file_id = d.data_file_id)
        ORDER BY d.data_file_id, d.end_snapshot DESC NULLS FIRST
    ), scheduled AS (
        INSERT INTO public.ducklake_files_scheduled_for_deletion (catalog_id, data_file_id, path, path_is_relative,
            schedule_start)
        SELECT l.catalog_id, l.data_file_id, r.path, false, clock_timestamp()
        FROM last_ones l JOIN lakefork.file_reference r ON r.catalog_id = l.catalog_id AND r.file_id = l.data_file_id
            AND r.kind = 'data'
        RETURNING catalog_id, data_file_id
    ), reasons AS (
        INSERT INTO lakefork.scheduled_file (catalog_id, data_file_id, file_size_bytes, last_catalog, last_table_id,
            last_snapshot, reason, plan_id)
        SELECT l.catalog_id, l.data_file_id, l.file_size_bytes,
               (SELECT c.catalog_name FROM public.ducklake_catalog c WHERE c.catalog_id = l.catalog_id
                   ORDER BY c.begin_snapshot DESC LIMIT 1), l.table_id, l.end_snapshot,
               CASE WHEN l.end_snapshot IS NULL THEN 'the catalog was dropped' ELSE 'its last snapshot expired' END,
               p_plan_id
        FROM last_ones l
    )
    SELECT (SELECT count(*) FROM removed), (SELECT count(*) FROM removed) + (SELECT count(*) FROM removed_statistics) +
        (SELECT count(*) FROM removed_owners),
           (SELECT count(*) FROM scheduled), (SELECT coalesce(sum(l.file_size_bytes), 0)::bigint FROM last_ones l);
END $$;

-- Takes up to p_limit snapshots of these catalogs, and records them as expired.
CREATE FUNCTION lakefork.remove_snapshots(p_plan_id text, p_job_id text, p_catalog_ids bigint[], p_limit bigint)
    RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    gone bigint[];
    ranges int8multirange;
BEGIN
    PERFORM lakefork.begin_gc_batch(p_job_id);
    gone := ARRAY(SELECT d.snapshot_id FROM lakefork.doomed_snapshots(p_plan_id, p_catalog_ids) d LIMIT p_limit);
    IF gone = '{}' THEN
        RETURN 0;
    END IF;
    DELETE FROM public.ducklake_snapshot s USING unnest(gone) g WHERE s.snapshot_id = g;
    DELETE FROM public.ducklake_snapshot_changes s USING unnest(gone) g WHERE s.snapshot_id = g;
    SELECT range_agg(int8range(g, g, '[]')) INTO ranges FROM unnest(gone) g;
    WITH neighbours AS (
        DELETE FROM lakefork.expired_snapshots e WHERE e.last_snapshot >= lower(ranges) - 1
            AND e.first_snapshot <= upper(ranges)
        RETURNING int8range(e.first_snapshot, e.last_snapshot, '[]') AS range
    )
    SELECT ranges + coalesce(range_agg(n.range), '{}') INTO ranges FROM neighbours n;
    INSERT INTO lakefork.expired_snapshots (first_snapshot, last_snapshot) SELECT lower(r), upper(r) - 1
        FROM unnest(ranges) r;
    RETURN cardinality(gone);
END $$;

-- Takes everything else of these catalogs that ended before what is kept: definitions, and with a table or catalog all
-- that belonged to it.
CREATE FUNCTION lakefork.remove_definitions(p_plan_id text, p_job_id text, p_catalog_ids bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    e lakefork.entity;
    table_column text;
    whole bigint[] := ARRAY(SELECT i.catalog_id FROM lakefork.gc_item i
                            WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND i.is_whole
                                AND i.catalog_id = ANY (p_catalog_ids));
    deletes lakefork.file_reference[];   -- their paths are known only as long as their tables are
    removed bigint := 0;
    done bigint;
    parent_key text;
BEGIN
    PERFORM lakefork.begin_gc_batch(p_job_id);
    PERFORM lakefork.keep_definitions(p_plan_id, p_catalog_ids);
    deletes := ARRAY(SELECT r FROM lakefork.file_reference r WHERE r.catalog_id = ANY (p_catalog_ids)
        AND r.kind = 'delete');
    FOR e IN SELECT * FROM lakefork.entity n WHERE n.entity NOT IN ('ducklake_data_file', 'ducklake_file_column_stats',
        'ducklake_file_partition_value')
             ORDER BY n.versioned DESC, n.rank, n.entity LOOP
        IF e.versioned THEN
            SELECT c.name INTO table_column FROM lakefork.entity_columns(e.entity) c
                WHERE c.name IN ('table_id', 'object_id');
            EXECUTE format($sql$
                DELETE FROM public.%1$I t USING lakefork.gc_item i
                WHERE i.plan_id = $1 AND i.table_id = 0 AND NOT i.is_whole AND i.catalog_id = ANY ($2)
                    AND t.catalog_id = i.catalog_id
                  AND t.end_snapshot <= i.highest_floor AND NOT lakefork.is_tagged(t.catalog_id, t.begin_snapshot,
                      t.end_snapshot)
                  AND t.end_snapshot <= %2$s
                $sql$, e.entity,
                CASE WHEN table_column IS NULL THEN 'i.lowest_floor'
                     ELSE format('coalesce((SELECT o.floor FROM lakefork.gc_item o WHERE o.plan_id = $1 AND '
                         'o.catalog_id = i.catalog_id
                                            AND o.table_id = t.%I AND o.table_id > 0), i.floor)', table_column) END)
            USING p_plan_id, p_catalog_ids;
        ELSE
            SELECT string_agg(format('p.%1$I = t.%1$I', k), ' AND ') INTO parent_key FROM unnest(e.parent_columns) k;
            EXECUTE format('DELETE FROM public.%1$I t WHERE t.catalog_id = ANY ($1)
                            AND NOT EXISTS (SELECT FROM public.%2$I p WHERE p.catalog_id = t.catalog_id AND %3$s)',
                                e.entity, e.parent, parent_key)
            USING p_catalog_ids;
        END IF;
        GET DIAGNOSTICS done = ROW_COUNT;
        removed := removed + done;
        EXECUTE format('DELETE FROM public.%I t WHERE t.catalog_id = ANY ($1)', e.entity) USING whole;
        GET DIAGNOSTICS done = ROW_COUNT;
        removed := removed + done;
    END LOOP;
    PERFORM lakefork.schedule_deletes(p_plan_id, deletes);
    PERFORM lakefork.remove_leftovers(p_catalog_ids);
    PERFORM lakefork.forget_catalogs(whole);
    RETURN removed + cardinality(whole);
END $$;

-- Those of these delete files that no catalog has any longer.
CREATE FUNCTION lakefork.schedule_deletes(p_plan_id text, p_deletes lakefork.file_reference[]) RETURNS void
LANGUAGE sql AS $$
    WITH gone AS (
        SELECT DISTINCT ON (d.file_id) d.* FROM unnest(p_deletes) d
        WHERE NOT EXISTS (SELECT FROM public.ducklake_delete_file f WHERE f.delete_file_id = d.file_id)
        ORDER BY d.file_id, d.end_snapshot DESC NULLS FIRST
    ), scheduled AS (
        INSERT INTO public.ducklake_files_scheduled_for_deletion (catalog_id, data_file_id, path, path_is_relative,
            schedule_start)
        SELECT g.catalog_id, g.file_id, g.path, false, clock_timestamp() FROM gone g
    )
    INSERT INTO lakefork.scheduled_file (catalog_id, data_file_id, file_size_bytes, last_catalog, last_table_id,
        last_snapshot, reason, plan_id)
    SELECT g.catalog_id, g.file_id, g.file_size_bytes,
           lakefork.last_name(g.catalog_id), g.table_id, g.end_snapshot,
           'its last snapshot expired', p_plan_id
    FROM gone g
$$;

-- Definitions of tables that stay are kept as they are: hot rows and old files are read by them, and ids of dropped
-- columns are not used again.
CREATE FUNCTION lakefork.keep_definitions(p_plan_id text, p_catalog_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.kept_definition (catalog_id, table_id, begin_snapshot, definition)
    SELECT v.catalog_id, v.table_id, v.begin_snapshot, d.definition
    FROM lakefork.gc_item i
    JOIN public.ducklake_schema_versions v ON v.catalog_id = i.catalog_id AND v.begin_snapshot < i.highest_floor
    JOIN public.ducklake_table t ON t.catalog_id = v.catalog_id AND t.table_id = v.table_id AND t.end_snapshot IS NULL
    CROSS JOIN LATERAL (SELECT lakefork.table_definition(v.catalog_id, v.table_id, v.begin_snapshot) AS definition) d
    WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND NOT i.is_whole AND i.catalog_id = ANY (p_catalog_ids)
        AND d.definition IS NOT NULL
      AND EXISTS (SELECT FROM public.ducklake_schema_versions n
                  WHERE n.catalog_id = v.catalog_id AND n.table_id = v.table_id AND n.begin_snapshot > v.begin_snapshot)
    ON CONFLICT (catalog_id, table_id, begin_snapshot) DO NOTHING
$$;

-- Removes what was kept for tables that are gone.
CREATE FUNCTION lakefork.remove_leftovers(p_catalog_ids bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    leftover text;
BEGIN
    FOREACH leftover IN ARRAY
        '{public.ducklake_schema_versions,public.ducklake_table_stats,lakefork.kept_definition,lakefork.clean_snapshot,
                                lakefork.hot_count,lakefork.hot_delta,lakefork.flush_request,lakefork.watermark,'
                                    'lakefork.manifest_pending,lakefork.manifest_cache}'::text[] LOOP
        EXECUTE format('DELETE FROM %s l WHERE l.catalog_id = ANY ($1)
                        AND NOT EXISTS (SELECT FROM public.ducklake_table t WHERE t.catalog_id = l.catalog_id AND '
                            't.table_id = l.table_id)', leftover)
        USING p_catalog_ids;
    END LOOP;
    DELETE FROM lakefork.definition_date d WHERE d.catalog_id = ANY (p_catalog_ids)
      AND NOT EXISTS (SELECT FROM public.ducklake_table t WHERE t.catalog_id = d.catalog_id
          AND t.table_id = d.object_id)
      AND NOT EXISTS (SELECT FROM public.ducklake_schema s WHERE s.catalog_id = d.catalog_id
          AND s.schema_id = d.object_id);
    DELETE FROM lakefork.retained_from r WHERE r.catalog_id = ANY (p_catalog_ids) AND r.table_id > 0
      AND NOT EXISTS (SELECT FROM public.ducklake_table t WHERE t.catalog_id = r.catalog_id
          AND t.table_id = r.table_id);
END $$;

-- The data path stays until cleanup finds nothing there (lakefork.forget_data_paths).
CREATE FUNCTION lakefork.forget_catalogs(p_catalog_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM public.ducklake_catalog WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM public.ducklake_metadata WHERE scope = 'catalog' AND scope_id = ANY (p_catalog_ids)
        AND key <> 'data_path';
    DELETE FROM lakefork.fork WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.app_user WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.storage_location WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.retained_from WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.client_role WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.api_token WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.user_login WHERE catalog_id = ANY (p_catalog_ids);
    DELETE FROM lakefork.api_receipt WHERE catalog_id = ANY (p_catalog_ids);
$$;

-- Removes up to p_limit hot rows of tables that the plan takes entirely; 0: none are left.
CREATE FUNCTION lakefork.remove_hot_rows(p_plan_id text, p_job_id text, p_catalog_ids bigint[], p_limit bigint)
    RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    hot record;
    removed bigint := 0;
    done bigint;
BEGIN
    PERFORM lakefork.begin_gc_batch(p_job_id);
    FOR hot IN
        SELECT n.catalog_id, format('hot.%I', n.table_name)::regclass AS name
        FROM lakefork.gc_item i
        JOIN public.ducklake_inlined_data_tables n ON n.catalog_id = i.catalog_id
        WHERE i.plan_id = p_plan_id AND i.table_id = 0 AND i.catalog_id = ANY (p_catalog_ids)
            AND to_regclass(format('hot.%I', n.table_name)) IS NOT NULL
          AND (i.is_whole OR NOT EXISTS (   -- no version of the table is left when the plan has been carried out
              SELECT FROM public.ducklake_table t WHERE t.catalog_id = n.catalog_id AND t.table_id = n.table_id
                AND (t.end_snapshot IS NULL OR t.end_snapshot > i.lowest_floor
                    OR lakefork.is_tagged(t.catalog_id, t.begin_snapshot, t.end_snapshot))))
    LOOP
        EXECUTE format('DELETE FROM %1$s WHERE ctid IN (SELECT ctid FROM %1$s WHERE catalog_id = $1 LIMIT $2)',
            hot.name)
        USING hot.catalog_id, p_limit - removed;
        GET DIAGNOSTICS done = ROW_COUNT;
        removed := removed + done;
        EXIT WHEN removed >= p_limit;
    END LOOP;
    RETURN removed;
END $$;

-- Hot tables without rows of any catalog.
CREATE FUNCTION lakefork.unused_hot_tables() RETURNS TABLE (hot_table name)
LANGUAGE sql STABLE AS $$
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = 'hot'::regnamespace AND c.relkind = 'r' AND c.relpersistence = 'p'
      AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = '_xid')
      AND NOT EXISTS (SELECT FROM public.ducklake_inlined_data_tables i WHERE i.table_name = c.relname)
$$;

-- Drops some of them. Forks and commits are blocked, so that none starts to need one.
CREATE FUNCTION lakefork.drop_unused_hot_tables(p_job_id text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    unused text;
    dropped bigint := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM lakefork.unused_hot_tables()) THEN
        RETURN 0;
    END IF;
    PERFORM lakefork.begin_gc_batch(p_job_id);
    -- before the fence, in the same order as creators of hot tables
    FOR unused IN SELECT h.hot_table FROM lakefork.unused_hot_tables() h ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(lakefork.hot_table_lock(unused));
    END LOOP;
    PERFORM lakefork.take_fence();
    FOR unused IN SELECT h.hot_table FROM lakefork.unused_hot_tables() h LIMIT 100 LOOP
        EXECUTE format('DROP TABLE hot.%I', unused);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

-- Drops up to p_limit of a plan's forks that still exist and have not been prolonged; 0: none are left.
CREATE FUNCTION lakefork.drop_planned(p_plan_id text, p_job_id text, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    dropped bigint;
BEGIN
    PERFORM lakefork.require_lease(lakefork.gc_lease(), p_job_id);
    SELECT count(*) INTO dropped FROM lakefork.drop_catalogs(
        ARRAY(SELECT d.catalog_id FROM lakefork.gc_drop d JOIN lakefork.fork f ON f.catalog_id = d.catalog_id
            AND f.expires_at <= d.expires_at
              WHERE d.plan_id = p_plan_id AND lakefork.is_live(d.catalog_id) ORDER BY d.catalog_id LIMIT p_limit),
                  'retention_gc');
    RETURN dropped;
END $$;

-- Removes old records, up to p_limit of each kind; 0: none are left. A plan that was started and not completed is kept.
CREATE FUNCTION lakefork.remove_records(p_job_id text, p_jobs_for interval, p_audits_for interval, p_keys_for interval,
    p_limit bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    kind record;
    removed bigint;
    done bigint;
    is_over CONSTANT text := 'p.created_at < $1 AND (p.begun_at IS NULL OR p.done_at IS NOT NULL)';
BEGIN
    PERFORM lakefork.require_lease(lakefork.gc_lease(), p_job_id);
    removed := lakefork.forget_jobs(p_jobs_for, p_limit);
    FOR kind IN SELECT * FROM (VALUES
        ('lakefork.flush_log', 'r.published_at < $1', greatest(p_jobs_for, p_keys_for)),
        ('lakefork.flush_audit', 'r.audited_at < $1', p_audits_for),
        ('lakefork.audit', 'r.occurred_at < $1', p_audits_for),
        ('lakefork.commit_key', 'r.committed_at < $1', p_keys_for),
        ('lakefork.gc_drop', 'EXISTS (SELECT FROM lakefork.plan p WHERE p.plan_id = r.plan_id AND ' || is_over || ')',
            p_jobs_for),
        ('lakefork.gc_count', 'EXISTS (SELECT FROM lakefork.plan p WHERE p.plan_id = r.plan_id AND ' || is_over || ')
                               OR NOT EXISTS (SELECT FROM lakefork.plan p WHERE p.plan_id = r.plan_id)', p_jobs_for),
        ('lakefork.gc_item', 'EXISTS (SELECT FROM lakefork.plan p WHERE p.plan_id = r.plan_id AND ' || is_over || ')',
            p_jobs_for),
        ('lakefork.plan', replace(is_over, 'p.', 'r.') ||
            ' AND NOT EXISTS (SELECT FROM lakefork.gc_item i WHERE i.plan_id = r.plan_id)
                                                          AND NOT EXISTS (SELECT FROM lakefork.gc_drop d WHERE '
                                                              'd.plan_id = r.plan_id)', p_jobs_for)
        ) k (name, condition, kept_for)
    LOOP
        EXECUTE format('DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT r.ctid FROM %1$s r WHERE %2$s LIMIT $2))',
            kind.name, kind.condition)
        USING now() - kind.kept_for, p_limit;
        GET DIAGNOSTICS done = ROW_COUNT;
        removed := removed + done;
    END LOOP;
    RETURN removed;
END $$;
