-- Catalogs: created, renamed and dropped as versions, each by one commit.

-- Ids for new catalogs that no other transaction under way takes. Quietly they are the next ones of the counter; whoever commits
-- raises the counter above its own.
CREATE FUNCTION lakefork.reserve_catalog_ids(p_count bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := '{}';
    next_id bigint;
    candidate bigint := 0;
BEGIN
    LOOP
        -- Read after the ids were locked: whoever had one of them before has committed by now, and raised the counter.
        SELECT s.next_catalog_id INTO next_id FROM public.ducklake_snapshot s ORDER BY s.snapshot_id DESC LIMIT 1;
        ids := ARRAY(SELECT i FROM unnest(ids) i WHERE i >= next_id);
        EXIT WHEN cardinality(ids) = p_count;
        candidate := greatest(candidate, next_id);
        WHILE cardinality(ids) < p_count LOOP
            IF pg_try_advisory_xact_lock(hashint8extended(candidate, 5063717816)) THEN
                ids := ids || candidate;
            END IF;
            candidate := candidate + 1;
        END LOOP;
    END LOOP;
    RETURN ids;
END $$;

CREATE FUNCTION lakefork.create_catalog(p_name text, p_data_path text, p_author text DEFAULT NULL)
RETURNS TABLE (catalog_id bigint, snapshot_id bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    newest public.ducklake_snapshot := lakefork.begin_commit();
    new_id bigint := (lakefork.reserve_catalog_ids(1))[1];
BEGIN
    PERFORM lakefork.check_new_catalogs(ARRAY[p_name], ARRAY[p_data_path]);
    INSERT INTO public.ducklake_catalog (catalog_id, catalog_name, begin_snapshot) VALUES (new_id, p_name, newest.snapshot_id + 1);
    INSERT INTO public.ducklake_metadata (key, value, scope, scope_id) VALUES ('data_path', lakefork.normal_path(p_data_path), 'catalog', new_id);
    PERFORM lakefork.add_catalog_snapshot(newest, new_id, new_id + 1, 'created_catalog:' || lakefork.quoted(p_name), p_author);
    RETURN QUERY SELECT new_id, newest.snapshot_id + 1;
END $$;

CREATE FUNCTION lakefork.rename_catalog(p_catalog_id bigint, p_name text, p_author text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    newest public.ducklake_snapshot := lakefork.begin_commit();
    uuid uuid;
BEGIN
    PERFORM lakefork.check_catalog_name(p_name);
    uuid := lakefork.end_catalog(p_catalog_id, newest.snapshot_id + 1);
    INSERT INTO public.ducklake_catalog (catalog_id, catalog_uuid, catalog_name, begin_snapshot)
    VALUES (p_catalog_id, uuid, p_name, newest.snapshot_id + 1);
    PERFORM lakefork.add_catalog_snapshot(newest, p_catalog_id, 0, 'altered_catalog:' || p_catalog_id, p_author);
    RETURN newest.snapshot_id + 1;
END $$;

-- Ends the catalog. Its rows stay, readable at earlier snapshots, until they expire.
CREATE FUNCTION lakefork.drop_catalog(p_catalog_id bigint, p_author text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    dropped_at bigint;
BEGIN
    SELECT d.snapshot_id INTO dropped_at FROM lakefork.drop_catalogs(ARRAY[p_catalog_id], p_author) d;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'catalog % does not exist (any more)', p_catalog_id USING ERRCODE = 'LFN01';
    END IF;
    RETURN dropped_at;
END $$;

-- Ends many catalogs in one transaction, with a snapshot each; says which of them were there.
CREATE FUNCTION lakefork.drop_catalogs(p_catalog_ids bigint[], p_author text DEFAULT NULL) RETURNS TABLE (catalog_id bigint, snapshot_id bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    newest public.ducklake_snapshot := lakefork.begin_commit();
BEGIN
    RETURN QUERY
    WITH listed AS MATERIALIZED (
        SELECT c.catalog_id, newest.snapshot_id + row_number() OVER (ORDER BY c.catalog_id) AS snapshot_id
        FROM public.ducklake_catalog c WHERE c.catalog_id = ANY (p_catalog_ids) AND c.end_snapshot IS NULL
    ), ended AS (
        UPDATE public.ducklake_catalog c SET end_snapshot = l.snapshot_id FROM listed l WHERE c.catalog_id = l.catalog_id AND c.end_snapshot IS NULL
    ), totals AS (   -- only what lives has totals, see add_file
        DELETE FROM public.ducklake_table_stats s USING listed l WHERE s.catalog_id = l.catalog_id
    ), snapshots AS (
        INSERT INTO public.ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
        SELECT l.snapshot_id, clock_timestamp(), newest.schema_version, newest.next_catalog_id, newest.next_file_id FROM listed l
    ), changes AS (
        INSERT INTO public.ducklake_snapshot_changes (snapshot_id, catalog_id, changes_made, author)
        SELECT l.snapshot_id, l.catalog_id, 'dropped_catalog:' || l.catalog_id, p_author FROM listed l
    )
    SELECT l.catalog_id, l.snapshot_id FROM listed l;
END $$;

CREATE FUNCTION lakefork.end_catalog(p_catalog_id bigint, p_snapshot bigint) RETURNS uuid
LANGUAGE plpgsql AS $$
DECLARE
    uuid uuid;
BEGIN
    UPDATE public.ducklake_catalog SET end_snapshot = p_snapshot
    WHERE catalog_id = p_catalog_id AND end_snapshot IS NULL RETURNING catalog_uuid INTO uuid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'catalog % does not exist (any more)', p_catalog_id USING ERRCODE = 'LFN01';
    END IF;
    RETURN uuid;
END $$;

-- Names and data paths are well formed, nobody else's and not each other's. STABLE, as all that it calls: name and path are looked for at one moment.
CREATE FUNCTION lakefork.check_new_catalogs(p_names text[], p_data_paths text[]) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    taken text;
BEGIN
    PERFORM lakefork.check_catalog_name(n) FROM unnest(p_names) n;
    SELECT c.catalog_name INTO taken FROM public.ducklake_catalog c WHERE c.catalog_name = ANY (p_names) AND c.end_snapshot IS NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is a catalog % already', quote_literal(taken) USING ERRCODE = 'LFX01';
    END IF;
    PERFORM lakefork.check_data_path(p) FROM unnest(p_data_paths) p;
    IF cardinality(p_names) > 1 THEN
        SELECT n INTO taken FROM unnest(p_names) n GROUP BY n HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'the name % is given twice', quote_literal(taken) USING ERRCODE = 'LFV01';
        END IF;
        WITH places AS (SELECT lakefork.place(p) AS path FROM unnest(p_data_paths) p)
        SELECT p.path INTO taken FROM places p, LATERAL lakefork.path_and_parents(p.path) above JOIN places o ON o.path = above
        GROUP BY p.path HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'data path % overlaps that of another new catalog', quote_literal(taken) USING ERRCODE = 'LFV01';
        END IF;
    END IF;
END $$;

CREATE FUNCTION lakefork.check_catalog_name(p_name text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$' OR p_name IS NULL THEN
        RAISE EXCEPTION 'catalog name % is not well formed: up to 100 letters, digits, _ . and -, not starting with . or -',
            coalesce(quote_literal(left(p_name, 120)), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
END $$;

CREATE FUNCTION lakefork.live_catalog_id(p_name text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT c.catalog_id INTO found_id FROM public.ducklake_catalog c WHERE c.catalog_name = p_name AND c.end_snapshot IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no catalog %; `lakefork status` lists them', coalesce(quote_literal(p_name), 'NULL') USING ERRCODE = 'LFN01';
    END IF;
    RETURN found_id;
END $$;

CREATE FUNCTION lakefork.is_live(p_catalog_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$ SELECT EXISTS (SELECT FROM public.ducklake_catalog c WHERE c.catalog_id = p_catalog_id AND c.end_snapshot IS NULL) $$;

-- The first snapshot of a catalog.
CREATE FUNCTION lakefork.catalog_birth(p_catalog_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT min(begin_snapshot) FROM public.ducklake_catalog WHERE catalog_id = p_catalog_id $$;

-- What a catalog is called, or was called last.
CREATE FUNCTION lakefork.last_name(p_catalog_id bigint) RETURNS varchar
LANGUAGE sql STABLE AS $$
    SELECT c.catalog_name FROM public.ducklake_catalog c WHERE c.catalog_id = p_catalog_id ORDER BY c.begin_snapshot DESC LIMIT 1
$$;

-- The catalog that readers of a snapshot, or of a time, mean by a name: the one that has it now if it was there, otherwise the one that had it then. Dropped
-- ones are read so until they expire.
CREATE FUNCTION lakefork.catalog_at(p_name text, p_snapshot numeric, p_time timestamptz) RETURNS TABLE (catalog_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT c.catalog_id
    FROM (SELECT coalesce(p_snapshot, (SELECT max(s.snapshot_id) FROM public.ducklake_snapshot s WHERE s.snapshot_time <= p_time)) AS snapshot_id) a
    JOIN public.ducklake_catalog c ON c.catalog_name = p_name
     AND (c.end_snapshot IS NULL OR c.begin_snapshot <= a.snapshot_id AND c.end_snapshot > a.snapshot_id)
    ORDER BY lakefork.catalog_birth(c.catalog_id) <= a.snapshot_id DESC NULLS LAST, c.end_snapshot NULLS FIRST LIMIT 1
$$;

-- Refuses a snapshot that a catalog does not have: not made yet, from before its time, or given up and not tagged. Snapshots that only other catalogs
-- gave up are as good as ever. p_all_tables: also those that keep less than the catalog does.
CREATE FUNCTION lakefork.require_retained(p_catalog_id bigint, p_snapshot bigint, p_all_tables boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    birth bigint := lakefork.catalog_birth(p_catalog_id);
    first_kept bigint;
BEGIN
    IF p_snapshot < birth THEN
        RAISE EXCEPTION 'there is no snapshot % of this catalog: its first one is %', p_snapshot, birth USING ERRCODE = 'LFN01';
    ELSIF p_snapshot > lakefork.newest_snapshot() THEN
        RAISE EXCEPTION 'there is no snapshot %', p_snapshot USING ERRCODE = 'LFN01';
    END IF;
    SELECT CASE WHEN p_all_tables THEN max(r.snapshot_id) ELSE min(r.snapshot_id) END INTO first_kept
    FROM lakefork.retained_from r WHERE r.catalog_id = p_catalog_id;
    PERFORM lakefork.require_kept(p_catalog_id, p_snapshot, first_kept, 'this catalog');
END $$;

CREATE FUNCTION lakefork.require_kept(p_catalog_id bigint, p_snapshot bigint, p_first_kept bigint, p_what text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_snapshot < p_first_kept
       AND NOT EXISTS (SELECT FROM lakefork.snapshot_tag t WHERE t.catalog_id = p_catalog_id AND t.snapshot_id = p_snapshot) THEN
        RAISE EXCEPTION 'snapshot % is not retained any more: % keeps those from % on, and tagged ones', p_snapshot, p_what, p_first_kept
            USING ERRCODE = 'LFN01';
    END IF;
END $$;

-- The snapshot of this id, or the last one at a time; one that the catalog retains. Between a tagged snapshot and those that are kept anyway there
-- may have been others, of which nobody knows the time any more.
CREATE FUNCTION lakefork.snapshot_at(p_catalog_id bigint, p_id numeric, p_time timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    IF p_id IS NULL THEN
        SELECT max(s.snapshot_id) INTO found_id FROM public.ducklake_snapshot s WHERE s.snapshot_time <= p_time;
        IF found_id IS NULL THEN
            RAISE EXCEPTION 'there is no snapshot at or before %, or it is not retained any more', p_time USING ERRCODE = 'LFN01';
        END IF;
    ELSIF p_id BETWEEN 0 AND lakefork.newest_snapshot() THEN
        found_id := p_id;
    ELSE
        RAISE EXCEPTION 'there is no snapshot %', p_id USING ERRCODE = 'LFN01';
    END IF;
    PERFORM lakefork.require_retained(p_catalog_id, found_id);
    IF p_id IS NULL AND found_id < (SELECT max(r.snapshot_id) FROM lakefork.retained_from r WHERE r.catalog_id = p_catalog_id)
       AND NOT EXISTS (SELECT FROM public.ducklake_snapshot s
                       WHERE s.snapshot_id = found_id + 1 OR s.snapshot_id = found_id AND s.snapshot_time = p_time) THEN
        RAISE EXCEPTION 'the snapshot at % is not retained any more; the one before it is kept: AT (VERSION => %)', p_time, found_id USING ERRCODE = 'LFN01';
    END IF;
    RETURN found_id;
END $$;

-- Only absolute paths without dots as parts, and never inside or around another catalog's. That of a dropped one can be used again: numbers of
-- batches are not, so that what it still has there stays.
CREATE FUNCTION lakefork.check_data_path(p_path text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    other record;
BEGIN
    IF p_path IS NULL OR lakefork.normal_path(p_path) !~ '^(/[^/]|[a-z][a-z0-9+.-]*://[^/])' OR p_path ~ '(^|/)\.\.?(/|$)' THEN
        RAISE EXCEPTION 'data path % must be absolute (/… or s3://…), without . or .. as a part',
            coalesce(quote_literal(p_path), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
    IF p_path ~ '^s3[an]?://[^/]*@' THEN
        RAISE EXCEPTION 'data path % names credentials, which only storage locations do', quote_literal(p_path) USING ERRCODE = 'LFV01';
    END IF;
    SELECT * INTO other FROM lakefork.overlapping_catalogs(p_path) o
    WHERE o.data_path <> lakefork.place(p_path) OR lakefork.is_live(o.catalog_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'data path % overlaps that of catalog %: %', quote_literal(p_path), other.catalog_id, other.data_path
            USING ERRCODE = 'LFV01';
    END IF;
    SELECT * INTO other FROM lakefork.overlapping_locations(p_path) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'data path % overlaps the LOCATION of table %.% of catalog %: give another one',
            quote_literal(p_path), other.namespace, other.table_name, lakefork.last_name(other.catalog_id) USING ERRCODE = 'LFV01';
    END IF;
END $$;
