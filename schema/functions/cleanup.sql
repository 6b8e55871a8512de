-- Cleanup: files that no catalog needs. Nothing is removed because one catalog or a plan says so: each file is searched
-- for in all catalogs once more, while no fork and no commit is in progress, and its removal is recorded before it
-- happens.

CREATE FUNCTION lakefork.cleanup_lease() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'file_cleanup' $$;

-- Blocks forks and commits until the transaction ends. Raises after waiting too long.
CREATE FUNCTION lakefork.take_fence() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '10s', true);
    LOCK TABLE ONLY lakefork_locks.fence IN EXCLUSIVE MODE;
END $$;

-- Scheduled files that may be looked at: those that were given up before a time. That is for readers: who planned a
-- query before a file was given up may still open it.
CREATE FUNCTION lakefork.files_to_clean(p_catalog text, p_scheduled_until timestamptz)
RETURNS TABLE (catalog_id bigint, data_file_id bigint, path varchar, schedule_start timestamptz, file_size_bytes bigint,
    last_catalog varchar,
               last_table_id bigint, last_snapshot bigint, reason varchar, plan_id varchar)
LANGUAGE sql STABLE AS $$
    SELECT s.catalog_id, s.data_file_id, s.path, s.schedule_start, e.file_size_bytes, e.last_catalog, e.last_table_id,
        e.last_snapshot,
           coalesce(e.reason, 'it was scheduled'), e.plan_id
    FROM public.ducklake_files_scheduled_for_deletion s
    LEFT JOIN lakefork.scheduled_file e ON e.catalog_id = s.catalog_id AND e.data_file_id = s.data_file_id
    WHERE s.schedule_start <= p_scheduled_until
      -- it may have been renamed since
      AND (p_catalog IS NULL OR coalesce(lakefork.last_name(s.catalog_id), e.last_catalog) = p_catalog)
$$;

-- A digest of the files that a run of cleanup would check.
CREATE FUNCTION lakefork.cleanup_digest(p_catalog text, p_scheduled_until timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT md5(coalesce(string_agg(f.catalog_id || ' ' || f.data_file_id || ' ' || f.path, ';' ORDER BY f.catalog_id,
        f.data_file_id), ''))
    FROM lakefork.files_to_clean(p_catalog, p_scheduled_until) f
$$;

-- Decides over up to p_limit scheduled files, the oldest first. Those that any catalog has in any version, by id or by
-- path, or that a job is about to publish, are taken off the list; the others go into the ledger and are returned, to
-- be removed once this is committed.
CREATE FUNCTION lakefork.take_for_deletion(
    p_job_id text, p_run_id text, p_plan_id text, p_catalog text, p_scheduled_until timestamptz, p_limit bigint,
    OUT looked_at bigint, OUT still_needed bigint, OUT deletions bigint[], OUT paths text[]
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.begin_cleanup(p_job_id);
    WITH listed AS MATERIALIZED (
        SELECT f.* FROM lakefork.files_to_clean(p_catalog, p_scheduled_until) f
        ORDER BY f.schedule_start, f.catalog_id, f.data_file_id LIMIT p_limit
    ), claimed AS MATERIALIZED (
        SELECT c.path FROM lakefork.claims(ARRAY(SELECT lakefork.place(l.path) FROM listed l), '{}') c
            WHERE c.claim IN ('file', 'staged')
    ), judged AS MATERIALIZED (
        SELECT l.*, EXISTS (SELECT FROM public.ducklake_data_file f WHERE f.data_file_id = l.data_file_id)
                 OR EXISTS (SELECT FROM public.ducklake_delete_file f WHERE f.delete_file_id = l.data_file_id)
                 OR lakefork.place(l.path) IN (SELECT c.path FROM claimed c) AS is_needed
        FROM listed l
    ), unscheduled AS (
        DELETE FROM public.ducklake_files_scheduled_for_deletion s USING judged j WHERE s.catalog_id = j.catalog_id
            AND s.data_file_id = j.data_file_id
    ), forgotten AS (
        DELETE FROM lakefork.scheduled_file s USING judged j WHERE s.catalog_id = j.catalog_id
            AND s.data_file_id = j.data_file_id
    ), recorded AS (
        INSERT INTO lakefork.deletion (run_id, job_id, plan_id, file_id, path, size_bytes, last_catalog, last_table_id,
            last_snapshot, reason, decided_at)
        SELECT p_run_id, p_job_id, coalesce(p_plan_id, j.plan_id), j.data_file_id, j.path, j.file_size_bytes,
            j.last_catalog, j.last_table_id,
               j.last_snapshot, j.reason, clock_timestamp()
        FROM judged j WHERE NOT j.is_needed
        RETURNING deletion_id, path
    )
    SELECT (SELECT count(*) FROM judged), (SELECT count(*) FROM judged j WHERE j.is_needed), array_agg(r.deletion_id
        ORDER BY r.deletion_id),
           array_agg(r.path ORDER BY r.deletion_id)
    INTO looked_at, still_needed, deletions, paths FROM recorded r;
END $$;

-- For files that were found in storage: whoever looks for them by path does so after this and before record_orphans, in
-- one transaction.
CREATE FUNCTION lakefork.begin_cleanup(p_job_id text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.require_lease(lakefork.cleanup_lease(), p_job_id);
    PERFORM lakefork.take_fence();
END $$;

CREATE FUNCTION lakefork.record_orphans(p_job_id text, p_run_id text, p_plan_id text, p_paths text[], p_sizes bigint[])
RETURNS TABLE (deletion_id bigint, path varchar)
LANGUAGE sql AS $$
    INSERT INTO lakefork.deletion (run_id, job_id, plan_id, path, size_bytes, reason, decided_at)
    SELECT p_run_id, p_job_id, p_plan_id, o.path, o.size, 'no catalog knows it', clock_timestamp()
    FROM unnest(p_paths, p_sizes) AS o (path, size)
    RETURNING deletion_id, path
$$;

-- Data paths of expired catalogs, which may still contain files. was_written: something was written there.
CREATE FUNCTION lakefork.forgotten_data_paths() RETURNS TABLE (catalog_id bigint, data_path varchar,
    was_written boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT m.scope_id, m.value, EXISTS (SELECT FROM lakefork.written_directories(m.value))
        FROM public.ducklake_metadata m
    WHERE m.key = 'data_path' AND m.scope = 'catalog' AND NOT EXISTS (SELECT FROM public.ducklake_catalog c
        WHERE c.catalog_id = m.scope_id);
END $$;

-- Those whose schema files nobody has looked at since; where another catalog has the same data path now, they may be
-- that one's.
CREATE FUNCTION lakefork.forgotten_configs() RETURNS TABLE (catalog_id bigint, data_path varchar)
LANGUAGE sql STABLE AS $$
    SELECT m.scope_id, m.value FROM public.ducklake_metadata m
    WHERE m.key = 'data_path' AND m.scope = 'catalog' AND NOT EXISTS (SELECT FROM public.ducklake_catalog c
        WHERE c.catalog_id = m.scope_id)
      AND NOT EXISTS (SELECT FROM public.ducklake_metadata r WHERE r.key = 'configs_removed' AND r.scope = 'catalog'
          AND r.scope_id = m.scope_id)
      AND NOT EXISTS (SELECT FROM public.ducklake_metadata o JOIN public.ducklake_catalog c ON c.catalog_id = o.scope_id
                      WHERE o.key = 'data_path' AND o.scope = 'catalog'
                          AND lakefork.place(o.value) = lakefork.place(m.value))
$$;

CREATE FUNCTION lakefork.mark_configs_removed(p_catalog_id bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO public.ducklake_metadata (key, value, scope, scope_id) VALUES ('configs_removed', 'true', 'catalog',
        p_catalog_id)
    ON CONFLICT DO NOTHING
$$;

CREATE FUNCTION lakefork.forget_data_paths(p_catalog_ids bigint[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM public.ducklake_metadata m USING lakefork.forgotten_data_paths() f
    WHERE m.key IN ('data_path', 'configs_removed') AND m.scope = 'catalog' AND m.scope_id = f.catalog_id
        AND f.catalog_id = ANY (p_catalog_ids)
$$;

-- Records the outcome for files that were taken for deletion.
CREATE FUNCTION lakefork.finish_deletions(p_deletions bigint[], p_outcomes text[], p_trash_paths text[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.deletion d
    SET outcome = o.outcome, trash_path = o.trash_path,
        removed_at = CASE WHEN o.outcome IN ('removed', 'missing', 'trashed', 'needed') THEN clock_timestamp() END
    FROM unnest(p_deletions, p_outcomes, p_trash_paths) AS o (deletion_id, outcome, trash_path)
    WHERE d.deletion_id = o.deletion_id
$$;

-- The trash. A file there is in one state at a time, so that nobody brings back what is being removed, nor the other
-- way round: 'trashed'  it can be brought back    'emptying'  a run is about to remove it    'restoring'  somebody is
-- about to bring it back Who is cut off leaves the state as it is, and the same step is done again by whoever comes
-- next.

-- Takes up to p_limit files that have been in the trash for long enough, with numbers above p_after, to be removed once
-- this is committed.
CREATE FUNCTION lakefork.take_old_trash(p_job_id text, p_older_than interval, p_after bigint, p_limit bigint)
RETURNS TABLE (deletion_id bigint, trash_path varchar)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.require_lease(lakefork.cleanup_lease(), p_job_id);
    RETURN QUERY
    UPDATE lakefork.deletion d SET outcome = 'emptying'
    WHERE d.deletion_id IN (
        SELECT o.deletion_id FROM lakefork.deletion o
        WHERE o.restored_at IS NULL AND o.deletion_id > p_after
          AND (o.outcome = 'emptying' OR o.outcome = 'trashed' AND o.removed_at <= now() - p_older_than)
        ORDER BY o.deletion_id LIMIT p_limit)
    RETURNING d.deletion_id, d.trash_path;
END $$;

-- Records the outcome. A file that could not be removed stays in the trash.
CREATE FUNCTION lakefork.finish_trash(p_deletions bigint[], p_outcomes text[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.deletion d
    SET outcome = CASE WHEN o.is_gone THEN o.outcome ELSE 'trashed' END, trash_path = CASE WHEN NOT o.is_gone
        THEN d.trash_path END,
        removed_at = CASE WHEN o.is_gone THEN clock_timestamp() ELSE d.removed_at END
    FROM (SELECT u.*, u.outcome IN ('removed', 'missing') AS is_gone
        FROM unnest(p_deletions, p_outcomes) AS u (deletion_id, outcome)) o
    WHERE d.deletion_id = o.deletion_id AND d.outcome = 'emptying'
$$;

-- Takes up to p_limit files that a run put into the trash, with numbers above p_after, to be brought back once this is
-- committed.
CREATE FUNCTION lakefork.take_for_restore(p_holder text, p_run_id text, p_after bigint, p_limit bigint)
RETURNS TABLE (deletion_id bigint, path varchar, trash_path varchar)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.require_lease(lakefork.cleanup_lease(), p_holder);
    RETURN QUERY
    UPDATE lakefork.deletion d SET outcome = 'restoring'
    WHERE d.deletion_id IN (
        SELECT o.deletion_id FROM lakefork.deletion o
        WHERE o.run_id = p_run_id AND o.outcome IN ('trashed', 'restoring') AND o.restored_at IS NULL
            AND o.deletion_id > p_after
        ORDER BY o.deletion_id LIMIT p_limit)
    RETURNING d.deletion_id, d.path, d.trash_path;
END $$;

CREATE FUNCTION lakefork.finish_restore(p_restored bigint[], p_failed bigint[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.deletion d SET outcome = 'trashed', restored_at = CASE WHEN d.deletion_id = ANY (p_restored)
        THEN clock_timestamp() END
    WHERE d.deletion_id = ANY (p_restored || p_failed) AND d.outcome = 'restoring'
$$;
