-- Catalogs: created, renamed and dropped as versions, each by one commit.

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
    newest public.ducklake_snapshot := lakefork.begin_commit();
BEGIN
    PERFORM lakefork.end_catalog(p_catalog_id, newest.snapshot_id + 1);
    DELETE FROM public.ducklake_table_stats WHERE catalog_id = p_catalog_id;   -- only what lives has totals, see add_file
    PERFORM lakefork.add_catalog_snapshot(newest, p_catalog_id, 0, 'dropped_catalog:' || p_catalog_id, p_author);
    RETURN newest.snapshot_id + 1;
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

CREATE FUNCTION lakefork.check_catalog_name(p_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$' OR p_name IS NULL THEN
        RAISE EXCEPTION 'catalog name % is not well formed: up to 100 letters, digits, _ . and -, not starting with . or -',
            coalesce(quote_literal(left(p_name, 120)), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
END $$;

-- The first snapshot of a catalog.
CREATE FUNCTION lakefork.catalog_birth(p_catalog_id bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT min(begin_snapshot) FROM public.ducklake_catalog WHERE catalog_id = p_catalog_id $$;

-- Refuses a snapshot that a catalog does not have: not made yet, from before its time, or expired.
CREATE FUNCTION lakefork.require_retained(p_catalog_id bigint, p_snapshot bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    birth bigint := lakefork.catalog_birth(p_catalog_id);
BEGIN
    IF p_snapshot < birth THEN
        RAISE EXCEPTION 'there is no snapshot % of this catalog: its first one is %', p_snapshot, birth USING ERRCODE = 'LFN01';
    ELSIF p_snapshot IS NOT NULL AND NOT EXISTS (SELECT FROM public.ducklake_snapshot s WHERE s.snapshot_id = p_snapshot) THEN
        RAISE EXCEPTION 'there is no snapshot %, or it is not retained any more', p_snapshot USING ERRCODE = 'LFN01';
    END IF;
END $$;

-- Only absolute paths without dots as parts, and never inside or around another catalog's.
CREATE FUNCTION lakefork.check_data_path(p_path text) RETURNS void
LANGUAGE plpgsql AS $$
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
    SELECT * INTO other FROM lakefork.overlapping_catalog(p_path);
    IF FOUND THEN
        RAISE EXCEPTION 'data path % overlaps that of catalog %: %', quote_literal(p_path), other.catalog_id, other.data_path
            USING ERRCODE = 'LFV01';
    END IF;
END $$;
