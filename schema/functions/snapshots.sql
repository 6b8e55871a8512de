-- Errors of Lakefork have SQLSTATEs of their own, so that nobody needs to read their text:
--   LFC01  somebody else changed it first: read again and retry
--   LFN01  it does not exist (any more)
--   LFV01  the request makes no sense

-- Waits for the one lock under which snapshots are made; it is held until the transaction ends.
-- Readers never take it. File cleanup excludes commits by the fence, taken here in shared mode.
CREATE FUNCTION lakefork.lock_commits() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ignored text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a commit needs isolation level READ COMMITTED, this transaction has %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'LFV01';
    END IF;
    -- Assignments, because PERFORM costs more.
    ignored := pg_advisory_xact_lock_shared(lakefork.fence_lock());
    ignored := pg_advisory_xact_lock(lakefork.commit_lock());
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

CREATE FUNCTION lakefork.fence_lock() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 5063717811::bigint';
CREATE FUNCTION lakefork.commit_lock() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 5063717812::bigint';

-- Writes a snapshot. Only under lock_commits.
CREATE FUNCTION lakefork.add_snapshot(
    p_snapshot bigint, p_catalog_id bigint, p_schema_version bigint, p_first_catalog_id bigint, p_catalog_ids bigint,
    p_first_file_id bigint, p_file_ids bigint, p_changes text, p_author text, p_message text, p_extra text, p_commit_key text
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH snapshot AS (
        INSERT INTO public.ducklake_snapshot
        VALUES (p_snapshot, clock_timestamp(), p_schema_version, p_first_catalog_id + p_catalog_ids, p_first_file_id + p_file_ids)
    ), commit_key AS (
        INSERT INTO lakefork.commit_key
        SELECT p_commit_key, p_catalog_id, p_snapshot, p_schema_version, p_first_catalog_id, p_first_file_id, clock_timestamp()
        WHERE p_commit_key IS NOT NULL
    )
    INSERT INTO public.ducklake_snapshot_changes VALUES (p_snapshot, p_catalog_id, p_changes, p_author, p_message, p_extra);
END $$;

-- The same for changes of the list of catalogs.
CREATE FUNCTION lakefork.add_catalog_snapshot(
    p_newest public.ducklake_snapshot, p_catalog_id bigint, p_catalog_ids bigint, p_changes text, p_author text
) RETURNS void
LANGUAGE sql AS $$
    SELECT lakefork.add_snapshot(p_newest.snapshot_id + 1, p_catalog_id, p_newest.schema_version, p_newest.next_catalog_id, p_catalog_ids,
                                 p_newest.next_file_id, 0, p_changes, p_author, NULL, NULL, NULL)
$$;
