-- Errors of Lakefork have their own SQLSTATEs, so that callers need not parse messages:
--   LFC01  changed concurrently: read again and retry
--   LFC02  the definition that a write was planned for has changed
--   LFN01  it does not exist
--   LFV01  the request is invalid
--   LFP01  permission denied
--   LFL01  the lease was lost
--   LFX01  it already exists

-- Takes the commit lock, which is held until the transaction ends.
-- Readers never take it. File cleanup excludes commits by the fence, taken here in shared mode.
CREATE FUNCTION lakefork.lock_commits() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a commit needs isolation level READ COMMITTED, this transaction has %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'LFV01';
    END IF;
    LOCK TABLE ONLY lakefork_locks.fence IN ROW SHARE MODE;
    LOCK TABLE ONLY lakefork_locks.commits IN SHARE UPDATE EXCLUSIVE MODE;
END $$;

CREATE FUNCTION lakefork.begin_commit() RETURNS public.ducklake_snapshot
LANGUAGE plpgsql AS $$
DECLARE
    newest public.ducklake_snapshot;
BEGIN
    PERFORM lakefork.lock_commits();
    SELECT * INTO newest FROM public.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1;
    RETURN newest;
END $$;

-- The snapshot of a change to the list of catalogs. Only for callers of begin_commit.
CREATE FUNCTION lakefork.add_catalog_snapshot(
    p_newest public.ducklake_snapshot, p_catalog_id bigint, p_next_catalog_id bigint, p_changes text, p_author text
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO public.ducklake_snapshot
    VALUES (p_newest.snapshot_id + 1, clock_timestamp(), p_newest.schema_version, greatest(p_newest.next_catalog_id,
        p_next_catalog_id), p_newest.next_file_id);
    INSERT INTO public.ducklake_snapshot_changes (snapshot_id, catalog_id, changes_made, author)
    VALUES (p_newest.snapshot_id + 1, p_catalog_id, p_changes, p_author);
$$;
