-- Roots: where files may be placed, and the owners of directories.

-- The id of this installation. It is stored in the database, and moves with it.
CREATE FUNCTION lakefork.installation_id() RETURNS text
LANGUAGE sql STABLE AS $$ SELECT lakefork.global_setting('installation') $$;

-- The allowed root that holds a path (NULL: none does); what an operator gave a catalog as its data path is allowed by
-- that.
CREATE FUNCTION lakefork.allowed_root_above(p_path text) RETURNS text
LANGUAGE sql STABLE STRICT AS $$
    WITH above AS MATERIALIZED (SELECT lakefork.path_and_parents(p_path) AS path)
    SELECT path FROM (
        SELECT r.path::text FROM lakefork.allowed_root r JOIN above USING (path)
        UNION ALL
        SELECT m.value FROM above a JOIN lakefork.catalog_setting m ON m.value COLLATE "C" = a.path
            AND m.key = 'data_path'
    ) r ORDER BY length(path) DESC LIMIT 1
$$;

-- Allows tables below a directory or S3 prefix. False: it was already allowed.
CREATE FUNCTION lakefork.add_root(p_path text, p_author text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_path IS NULL OR lakefork.normal_path(p_path) !~ '^(/|s3://[^/])'
        OR p_path ~ '(^|/)\.\.?(/|$)|\$|^s3[an]?://[^/]*@' THEN
        RAISE EXCEPTION 'root % must be absolute (/… or s3://bucket/…), without variables, credentials, '
            'and . or .. as a part',
            coalesce(quote_literal(p_path), 'NULL') USING ERRCODE = 'LFV01';
    END IF;
    INSERT INTO lakefork.allowed_root (path, added_at, added_by) VALUES (lakefork.place(p_path), clock_timestamp(),
        p_author) ON CONFLICT (path) DO NOTHING;
    RETURN FOUND;
END $$;

-- Existing tables stay; no new table can be placed there.
CREATE FUNCTION lakefork.remove_root(p_path text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lakefork.allowed_root r WHERE r.path = lakefork.place(p_path);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'allowed root % does not exist; `lakefork roots` lists them', coalesce(quote_literal(p_path),
            'NULL')
            USING ERRCODE = 'LFN01';
    END IF;
END $$;

-- The allowed roots, with how many tables of any catalog have a LOCATION there.
CREATE FUNCTION lakefork.allowed_roots() RETURNS TABLE (path varchar, added_at timestamptz, added_by varchar,
    tables bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.path, r.added_at, r.added_by,
           (SELECT count(*) FROM lakefork.table_locations() l WHERE starts_with(lakefork.place(l.location) || '/',
               rtrim(r.path, '/') || '/'))
    FROM lakefork.allowed_root r ORDER BY r.path COLLATE "C"
$$;

-- Some files that catalogs have, or had, in the directory of a table: by them a root without a marker is known as ours.
CREATE FUNCTION lakefork.known_files_in(p_root text, p_limit bigint)
RETURNS TABLE (catalog_id bigint, table_id bigint, path text)
LANGUAGE sql STABLE SET enable_seqscan = off AS $$
    SELECT t.catalog_id, t.table_id, f.path FROM (SELECT DISTINCT h.catalog_id, h.table_id
        FROM lakefork.homes_above(ARRAY[lakefork.place(p_root)]) h
                        WHERE h.table_id <> 0 AND h.home = lakefork.place(p_root)) t
    CROSS JOIN LATERAL (
        SELECT lakefork.join_path(p_root, f.path, true) AS path FROM lakefork.retained_owned_file f
        WHERE f.catalog_id = t.catalog_id AND f.table_id = t.table_id AND f.is_own ORDER BY f.begin_snapshot DESC
            LIMIT p_limit) f
    LIMIT p_limit
$$;

-- Those of some batches, also unfinished or quarantined ones, whose numbers were never given out in their directory:
-- this installation did not write them. Paths with the name of credentials, if any, as they were when numbers were
-- given out.
CREATE FUNCTION lakefork.never_given_out(p_paths text[]) RETURNS TABLE (path text)
LANGUAGE sql STABLE AS $$
    SELECT p.path FROM unnest(p_paths) AS p (path)
    CROSS JOIN LATERAL regexp_match(regexp_replace(p.path, '/\.quarantine/[^/]+/', '/'),
        '^(.*)/\.?batch-(\d+)\.parquet(?:\.[0-9a-f]{32})?$') AS m (parts)
    WHERE m.parts IS NOT NULL
      AND m.parts[2]::numeric >= coalesce((SELECT b.next_number FROM lakefork.batch_number b
          WHERE b.directory = m.parts[1]), 0)
$$;
