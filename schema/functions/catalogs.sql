-- Catalogs: created, renamed and dropped as versions, each by one commit.

-- Reserves ids for new catalogs that no concurrent transaction takes. Without concurrency they are the next ones of the
-- counter; the commit raises the counter above them.
CREATE FUNCTION lakefork.reserve_catalog_ids(p_count bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[] := '{}';
    next_id bigint;
    candidate bigint := 0;
BEGIN
    LOOP
        -- Read after the ids were locked: a previous holder has committed by now and raised the counter.
        SELECT s.next_catalog_id INTO next_id FROM public.ducklake_snapshot s ORDER BY s.snapshot_id DESC LIMIT 1;
        ids := ARRAY(SELECT i FROM unnest(ids) i WHERE i >= next_id);
        EXIT WHEN cardinality(ids) = p_count;
        candidate := greatest(candidate, next_id);
        WHILE cardinality(ids) < p_count LOOP
            IF pg_try_advisory_xact_lock(lakefork.catalog_id_lock(candidate)) THEN
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
    INSERT INTO public.ducklake_catalog (catalog_id, catalog_name, begin_snapshot)
        VALUES (new_id, p_name, newest.snapshot_id + 1);
    INSERT INTO public.ducklake_metadata (key, value, scope, scope_id)
        VALUES ('data_path', lakefork.normal_path(p_data_path), 'catalog', new_id);
    PERFORM lakefork.add_catalog_snapshot(newest, new_id, new_id + 1, 'created_catalog:' || lakefork.quoted(p_name),
        p_author);
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

CREATE FUNCTION lakefork.set_global_setting(p_key text, p_value text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO public.ducklake_metadata (key, value) VALUES (p_key, p_value)
    ON CONFLICT (key, coalesce(scope, ''), coalesce(scope_id, -1)) DO UPDATE SET value = excluded.value;
$$;

-- Sets what decides over a catalog; NULL: the default again.
CREATE FUNCTION lakefork.set_catalog_setting(p_catalog_id bigint, p_key text, p_value text) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM public.ducklake_metadata WHERE key = p_key AND scope = 'catalog' AND scope_id = p_catalog_id;
    INSERT INTO public.ducklake_metadata (key, value, scope, scope_id) SELECT p_key, p_value, 'catalog', p_catalog_id
        WHERE p_value IS NOT NULL;
$$;

-- Ends the catalog. Its rows can be read at earlier snapshots until they expire.
CREATE FUNCTION lakefork.drop_catalog(p_catalog_id bigint, p_author text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    dropped_at bigint;
BEGIN
    SELECT d.snapshot_id INTO dropped_at FROM lakefork.drop_catalogs(ARRAY[p_catalog_id], p_author) d;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'catalog % does not exist', p_catalog_id USING ERRCODE = 'LFN01';
    END IF;
    RETURN dropped_at;
END $$;

-- Ends many catalogs in one transaction, with a snapshot each; returns those that existed.
CREATE FUNCTION lakefork.drop_catalogs(p_catalog_ids bigint[], p_author text DEFAULT NULL)
    RETURNS TABLE (catalog_id bigint, snapshot_id bigint)
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
        UPDATE public.ducklake_catalog c SET end_snapshot = l.snapshot_id FROM listed l
            WHERE c.catalog_id = l.catalog_id AND c.end_snapshot IS NULL
    ), totals AS (   -- only live tables have totals, see add_file
        DELETE FROM public.ducklake_table_stats s USING listed l WHERE s.catalog_id = l.catalog_id
    ), snapshots AS (
        INSERT INTO public.ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
        SELECT l.snapshot_id, clock_timestamp(), newest.schema_version, newest.next_catalog_id, newest.next_file_id
            FROM listed l
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
        RAISE EXCEPTION 'catalog % does not exist', p_catalog_id USING ERRCODE = 'LFN01';
    END IF;
    RETURN uuid;
END $$;

-- Raises unless names and data paths are valid, unused and distinct. STABLE, like all that it calls, so that both are
-- checked at one moment.
CREATE FUNCTION lakefork.check_new_catalogs(p_names text[], p_data_paths text[]) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    taken text;
BEGIN
    PERFORM lakefork.check_catalog_name(n) FROM unnest(p_names) n;
    SELECT c.catalog_name INTO taken FROM lakefork.visible_catalog() c WHERE c.catalog_name = ANY (p_names) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'catalog % already exists', quote_literal(taken) USING ERRCODE = 'LFX01';
    END IF;
    PERFORM lakefork.check_data_path(p) FROM unnest(p_data_paths) p;
    IF cardinality(p_names) > 1 THEN
        SELECT n INTO taken FROM unnest(p_names) n GROUP BY n HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'the name % is given twice', quote_literal(taken) USING ERRCODE = 'LFV01';
        END IF;
        WITH places AS (SELECT lakefork.place(p) AS path FROM unnest(p_data_paths) p)
        SELECT p.path INTO taken FROM places p, LATERAL lakefork.path_and_parents(p.path) above
            JOIN places o ON o.path = above
        GROUP BY p.path HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'data path % overlaps that of another new catalog', quote_literal(taken)
                USING ERRCODE = 'LFV01';
        END IF;
    END IF;
END $$;

CREATE FUNCTION lakefork.check_catalog_name(p_name text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$' OR p_name IS NULL THEN
        RAISE EXCEPTION 'catalog name % is invalid: use up to 100 letters, digits, _ . and -, not starting with . '
            'or -',
            coalesce(quote_literal(left(p_name, 120)), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
END $$;

CREATE FUNCTION lakefork.live_catalog_id(p_name text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT c.catalog_id INTO found_id FROM lakefork.visible_catalog() c WHERE c.catalog_name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'catalog % does not exist; `lakefork status` lists catalogs', coalesce(quote_literal(p_name),
            'NULL')
            USING ERRCODE = 'LFN01';
    END IF;
    RETURN found_id;
END $$;

CREATE FUNCTION lakefork.is_live(p_catalog_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$ SELECT EXISTS (SELECT FROM lakefork.visible_catalog() c WHERE c.catalog_id = p_catalog_id) $$;

-- The first snapshot of a catalog.
CREATE FUNCTION lakefork.catalog_birth(p_catalog_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT min(begin_snapshot) FROM lakefork.retained_catalog WHERE catalog_id = p_catalog_id $$;

-- The name of a catalog, or its last one.
CREATE FUNCTION lakefork.last_name(p_catalog_id bigint) RETURNS varchar
LANGUAGE sql STABLE AS $$
    SELECT c.catalog_name FROM lakefork.retained_catalog c WHERE c.catalog_id = p_catalog_id
        ORDER BY c.begin_snapshot DESC LIMIT 1
$$;

-- The catalog that readers of a snapshot, or of a time, mean by a name: the one that has it now if it was there,
-- otherwise the one that had it then. Dropped ones are read so until they expire.
CREATE FUNCTION lakefork.catalog_at(p_name text, p_snapshot numeric, p_time timestamptz)
    RETURNS TABLE (catalog_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT c.catalog_id
    FROM (SELECT coalesce(p_snapshot, lakefork.newest_snapshot_before(p_time)) AS snapshot_id) a
    JOIN lakefork.retained_catalog c ON c.catalog_name = p_name
     AND (c.end_snapshot IS NULL OR c.begin_snapshot <= a.snapshot_id AND c.end_snapshot > a.snapshot_id)
    ORDER BY lakefork.catalog_birth(c.catalog_id) <= a.snapshot_id DESC NULLS LAST, c.end_snapshot NULLS FIRST LIMIT 1
$$;

-- Raises for a snapshot that a catalog does not have: in the future, before its creation, or expired and not tagged.
-- Snapshots that only other catalogs gave up are still valid. p_all_tables: also check tables that keep less than the
-- catalog.
CREATE FUNCTION lakefork.require_retained(p_catalog_id bigint, p_snapshot bigint, p_all_tables boolean DEFAULT false)
    RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    birth bigint := lakefork.catalog_birth(p_catalog_id);
    first_kept bigint;
BEGIN
    IF p_snapshot < birth THEN
        RAISE EXCEPTION 'snapshot % of this catalog does not exist: its first one is %', p_snapshot, birth
            USING ERRCODE = 'LFN01';
    ELSIF p_snapshot > lakefork.newest_snapshot() THEN
        RAISE EXCEPTION 'snapshot % does not exist', p_snapshot USING ERRCODE = 'LFN01';
    END IF;
    SELECT CASE WHEN p_all_tables THEN max(r.snapshot_id) ELSE min(r.snapshot_id) END INTO first_kept
    FROM lakefork.retained_from r WHERE r.catalog_id = p_catalog_id;
    PERFORM lakefork.require_kept(p_catalog_id, p_snapshot, first_kept, 'this catalog');
END $$;

CREATE FUNCTION lakefork.require_kept(p_catalog_id bigint, p_snapshot bigint, p_first_kept bigint, p_what text)
    RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_snapshot < p_first_kept
       AND NOT EXISTS (SELECT FROM lakefork.snapshot_tag t WHERE t.catalog_id = p_catalog_id
           AND t.snapshot_id = p_snapshot) THEN
        RAISE EXCEPTION 'snapshot % is no longer retained: % keeps those from % on, and tagged ones', p_snapshot,
            p_what, p_first_kept
            USING ERRCODE = 'LFN01';
    END IF;
END $$;

-- The snapshot of this id, or the last one at a time; one that the catalog retains. Between a tagged snapshot and those
-- that are kept anyway there may have been others, whose times are no longer known.
CREATE FUNCTION lakefork.snapshot_at(p_catalog_id bigint, p_id numeric, p_time timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    IF p_id IS NULL THEN
        found_id := lakefork.newest_snapshot_before(p_time);
        IF found_id IS NULL THEN
            RAISE EXCEPTION 'no snapshot at or before % exists, or it is no longer retained', p_time
                USING ERRCODE = 'LFN01';
        END IF;
    ELSIF p_id BETWEEN 0 AND lakefork.newest_snapshot() THEN
        found_id := p_id;
    ELSE
        RAISE EXCEPTION 'snapshot % does not exist', p_id USING ERRCODE = 'LFN01';
    END IF;
    PERFORM lakefork.require_retained(p_catalog_id, found_id);
    IF p_id IS NULL AND found_id < (SELECT max(r.snapshot_id) FROM lakefork.retained_from r
        WHERE r.catalog_id = p_catalog_id)
       AND NOT EXISTS (SELECT FROM lakefork.retained_snapshot s
                       WHERE s.snapshot_id = found_id + 1 OR s.snapshot_id = found_id AND s.snapshot_time = p_time) THEN
        RAISE EXCEPTION 'the snapshot at % is no longer retained; the one before it is: AT (VERSION => %)',
            p_time, found_id USING ERRCODE = 'LFN01';
    END IF;
    RETURN found_id;
END $$;

-- The catalogs whose data path holds, or lies within, p_path.
CREATE FUNCTION lakefork.overlapping_catalogs(p_path text)
RETURNS TABLE (catalog_id bigint, data_path text)
LANGUAGE sql STABLE STRICT AS $$
    SELECT m.catalog_id, m.value
    FROM lakefork.catalog_setting m
    WHERE m.key = 'data_path'
      AND (m.value COLLATE "C" = ANY (ARRAY(SELECT lakefork.path_and_parents(p_path)))
           OR (m.value COLLATE "C" > rtrim(lakefork.place(p_path), '/') || '/'
               AND m.value COLLATE "C" < rtrim(lakefork.place(p_path), '/') || '0'))   -- '0' follows '/'
    ORDER BY m.catalog_id
$$;

-- Only absolute paths without dots as parts, and never inside or around another catalog's. That of a dropped one can be
-- used again: numbers of batches are not, so that what it still has there stays.
CREATE FUNCTION lakefork.check_data_path(p_path text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    other record;
BEGIN
    IF p_path IS NULL OR lakefork.normal_path(p_path) !~ '^(/[^/]|[a-z][a-z0-9+.-]*://[^/])'
        OR p_path ~ '(^|/)\.\.?(/|$)' THEN
        RAISE EXCEPTION 'data path % must be absolute (/… or s3://…), without . or .. as a part',
            coalesce(quote_literal(p_path), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
    IF p_path ~ '^s3[an]?://[^/]*@' THEN
        RAISE EXCEPTION 'data path % names credentials, which only storage locations may', quote_literal(p_path)
            USING ERRCODE = 'LFV01';
    END IF;
    SELECT * INTO other FROM lakefork.overlapping_catalogs(p_path) o
    WHERE o.data_path <> lakefork.place(p_path) OR lakefork.is_live(o.catalog_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'data path % overlaps that of catalog %: %', quote_literal(p_path), other.catalog_id,
            other.data_path
            USING ERRCODE = 'LFV01';
    END IF;
    SELECT * INTO other FROM lakefork.overlapping_locations(p_path) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'data path % overlaps the LOCATION of table %.% of catalog %: use another one',
            quote_literal(p_path), other.namespace, other.table_name, lakefork.last_name(other.catalog_id)
                USING ERRCODE = 'LFV01';
    END IF;
END $$;
