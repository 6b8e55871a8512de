-- Claims on files in storage, to distinguish orphans from needed files.

-- The form in which paths are compared: the place, or below a directory the same without doubled slashes. Most are in
-- it already.
CREATE FUNCTION lakefork.tidy_path(p_path text, p_relative boolean) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_relative THEN CASE WHEN p_path ~ '//|^/|/$' THEN btrim(regexp_replace(p_path, '/+', '/', 'g'), '/')
    ELSE p_path END
            WHEN p_path ~ '^(s3:/)?/[^/@]+(/[^/]+)*$' THEN p_path
            ELSE lakefork.place(p_path) END;

-- Bodies that are parsed once (RETURN): whoever uses an index over them needs no right to look into this schema. By
-- this number a file is found, whoever refers to it: relative paths count within a table of a catalog (0: within its
-- data path), absolute ones everywhere. Two paths with one number only spare a file.
CREATE FUNCTION lakefork.path_key(p_catalog_id bigint, p_table_id bigint, p_path text, p_relative boolean)
    RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(lakefork.tidy_path(p_path, p_relative), CASE WHEN p_relative
    THEN (p_catalog_id << 32) # p_table_id ELSE 0 END);

-- The tables in whose directory some directories lie, ended versions included, and the catalogs in whose data path they
-- do (table_id 0).
CREATE FUNCTION lakefork.homes_above(p_directories text[])
RETURNS TABLE (directory text, catalog_id bigint, table_id bigint, home text)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE climb (leaf, directory) AS (
        SELECT DISTINCT d, d FROM unnest(p_directories) d
        UNION ALL
        SELECT leaf, regexp_replace(directory, '/[^/]*$', '') FROM climb WHERE directory ~ '[^/:]/[^/]'
    ), above AS MATERIALIZED (
        SELECT DISTINCT directory FROM climb
    ), catalogs AS MATERIALIZED (
        SELECT m.scope_id AS catalog_id, m.value::text AS home
        FROM above a JOIN public.ducklake_metadata m ON m.value COLLATE "C" = a.directory AND m.key = 'data_path'
            AND m.scope = 'catalog'
    ), schemas AS MATERIALIZED (
        SELECT DISTINCT s.catalog_id, s.schema_id, lakefork.tidy_path(lakefork.join_path(c.home, s.path, true),
            false) AS home
        FROM catalogs c JOIN public.ducklake_schema s ON s.catalog_id = c.catalog_id AND s.path_is_relative
        UNION
        SELECT s.catalog_id, s.schema_id, lakefork.tidy_path(s.path, false) FROM public.ducklake_schema s
            WHERE NOT s.path_is_relative
    ), tables AS MATERIALIZED (
        SELECT t.catalog_id, t.table_id, lakefork.tidy_path(lakefork.join_path(s.home, t.path, true), false) AS home
        FROM schemas s JOIN public.ducklake_table t ON t.catalog_id = s.catalog_id AND t.schema_id = s.schema_id
            AND t.path_is_relative
        UNION
        SELECT t.catalog_id, t.table_id, a.directory
        FROM above a JOIN public.ducklake_table t ON lakefork.path_key(0, 0, t.path, false) = lakefork.path_key(0, 0,
            a.directory, false)
        WHERE NOT t.path_is_relative
        UNION ALL
        SELECT c.catalog_id, 0, c.home FROM catalogs c
    )
    SELECT c.leaf, t.catalog_id, t.table_id, t.home FROM climb c JOIN tables t ON t.home = c.directory
$$;

-- Who claims what, of any catalog, live or dropped:
--   'file'       a data or delete file, ended versions included    'scheduled'   a file that file_cleanup has to remove
--   'staged'     a file that is being written, or was and is not published
--   'foreign'    a batch in a directory of ours that somebody else wrote
--   'table'      a directory of a table that is not forgotten      'quarantine'  a directory with what an audit refused
-- Paths and directories are places. One statement, so that a file that is being published is seen as staged or as
-- published.
CREATE FUNCTION lakefork.claims(p_paths text[], p_directories text[]) RETURNS TABLE (path text, claim text)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT p AS path, regexp_replace(p, '/[^/]*$', '') AS directory FROM unnest(p_paths) p
    ), keys AS MATERIALIZED (
        SELECT p.path, NULL::bigint AS catalog_id, lakefork.path_key(0, 0, p.path, false) AS key FROM page p
        UNION ALL
        SELECT p.path, h.catalog_id, lakefork.path_key(h.catalog_id, h.table_id, substr(p.path, length(h.home) + 2),
            true)
        FROM page p JOIN lakefork.homes_above(ARRAY(SELECT DISTINCT d.directory FROM page d)) h ON h.directory =
            p.directory
    )
    SELECT k.path, 'file' FROM keys k
    WHERE k.catalog_id IS NULL
      AND EXISTS (SELECT FROM public.ducklake_data_file f WHERE NOT f.path_is_relative
          AND lakefork.path_key(0, 0, f.path, false) = k.key)
    UNION ALL
    SELECT k.path, 'file' FROM keys k
    WHERE EXISTS (SELECT FROM public.ducklake_data_file f WHERE f.path_is_relative AND f.catalog_id = k.catalog_id
                  AND lakefork.path_key(f.catalog_id, f.table_id, f.path, true) = k.key)
    UNION ALL
    SELECT k.path, 'file' FROM keys k
    WHERE EXISTS (SELECT FROM public.ducklake_delete_file f WHERE lakefork.path_key(f.catalog_id, f.table_id, f.path,
        f.path_is_relative) = k.key)
    UNION ALL
    SELECT k.path, 'scheduled' FROM keys k
    WHERE EXISTS (SELECT FROM public.ducklake_files_scheduled_for_deletion f
        WHERE lakefork.path_key(f.catalog_id, 0, f.path, f.path_is_relative) = k.key)
    UNION ALL
    -- somebody brought it back from the trash, or it is in the trash where it was (S3)
    SELECT k.path, 'file' FROM keys k
    WHERE EXISTS (SELECT FROM lakefork.deletion d
        WHERE (d.restored_at IS NOT NULL OR d.outcome IN ('trashed', 'emptying', 'restoring'))
                  AND lakefork.path_key(0, 0, d.path, false) = k.key)
    UNION ALL
    SELECT k.path, 'staged' FROM keys k WHERE EXISTS (SELECT FROM lakefork.staged_file s
        WHERE lakefork.path_key(0, 0, s.path, false) = k.key)
    UNION ALL
    SELECT k.path, 'foreign' FROM keys k WHERE EXISTS (SELECT FROM lakefork.foreign_file o
        WHERE lakefork.path_key(0, 0, o.path, false) = k.key)
    UNION ALL
    SELECT h.directory, 'table' FROM lakefork.homes_above(p_directories) h WHERE h.table_id <> 0
    UNION ALL
    SELECT d, 'quarantine' FROM unnest(p_directories) d
    WHERE EXISTS (SELECT FROM lakefork.flush_audit a
                  WHERE a.quarantine IS NOT NULL AND lakefork.path_key(0, 0, a.quarantine, false) = lakefork.path_key(0,
                      0, d, false));
END $$;

-- Directories below a path in which batches were written, by whomever. Numbers of batches survive all that was written.
CREATE FUNCTION lakefork.written_directories(p_path text) RETURNS TABLE (directory varchar, next_number bigint)
LANGUAGE sql STABLE AS $$
    SELECT b.directory, b.next_number FROM lakefork.batch_number b
    -- '0' follows '/'
    WHERE b.directory COLLATE "C" > rtrim(p_path, '/') || '/' AND b.directory COLLATE "C" < rtrim(p_path, '/') || '0'
$$;

-- Some files below a path that catalogs refer to by full paths: those of an expired parent are known only to its forks.
-- They are looked for by number, as there is no index by directory: it would cost every fork.
CREATE FUNCTION lakefork.shared_samples(p_path text, p_samples bigint) RETURNS text[]
LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT f.path::text FROM lakefork.written_directories(p_path) d
        CROSS JOIN LATERAL generate_series(d.next_number - 1, 0, -1) n
        CROSS JOIN LATERAL (
            SELECT f.path FROM public.ducklake_data_file f
            WHERE NOT f.path_is_relative
              AND lakefork.path_key(0, 0, f.path, false) = lakefork.path_key(0, 0,
                  d.directory || '/batch-' || n || '.parquet', false) LIMIT 1) f
        LIMIT p_samples)
$$;

-- The roots of files: the data path of each catalog, and LOCATIONs of tables. Dropped ones count until they expire.
--   known    there are still rows of the catalog: what belongs to it as a whole is needed
--   samples  some files that must be there: the newest ones of its own, or else those that any catalog refers to
CREATE FUNCTION lakefork.storage_roots(p_samples bigint)
RETURNS TABLE (catalog_id bigint, table_id bigint, path text, location text, known boolean, samples text[])
LANGUAGE sql STABLE AS $$
    SELECT r.catalog_id, r.table_id, r.path, r.location, EXISTS (SELECT FROM public.ducklake_catalog c
        WHERE c.catalog_id = r.catalog_id),
           CASE WHEN own.samples = '{}' THEN lakefork.shared_samples(r.path, p_samples) ELSE own.samples END
    FROM (
        SELECT m.scope_id AS catalog_id, 0::bigint AS table_id, m.value::text AS path, NULL::text AS location,
               lakefork.catalog_birth(m.scope_id) + (SELECT count(*) FROM lakefork.fork k
                   WHERE k.catalog_id = m.scope_id) AS birth
        FROM public.ducklake_metadata m WHERE m.key = 'data_path' AND m.scope = 'catalog'
        UNION ALL
        SELECT DISTINCT t.catalog_id, t.table_id, lakefork.normal_path(t.path), coalesce(g.value, t.path)::text, 0
        FROM public.ducklake_table t
        LEFT JOIN public.ducklake_tag g ON g.catalog_id = t.catalog_id AND g.object_id = t.table_id
            AND g.key = 'location'
        WHERE NOT t.path_is_relative
    ) r
    CROSS JOIN LATERAL (
        SELECT ARRAY(SELECT x.path FROM (
                         SELECT f.data_file_id FROM public.ducklake_data_file f
                         WHERE f.catalog_id = r.catalog_id AND f.path_is_relative
                           AND f.begin_snapshot >= r.birth   -- what a fork inherited begins with it, and lies elsewhere
                           AND CASE WHEN r.table_id = 0
                                    THEN NOT EXISTS (SELECT FROM public.ducklake_table t
                                        WHERE t.catalog_id = f.catalog_id
                                                     AND t.table_id = f.table_id AND NOT t.path_is_relative)
                                    ELSE f.table_id = r.table_id END
                         ORDER BY f.begin_snapshot DESC LIMIT p_samples) n
                     JOIN lakefork.file_reference x ON x.catalog_id = r.catalog_id AND x.file_id = n.data_file_id
                         AND x.kind = 'data')::text[] AS samples
    ) own
$$;

-- What keeps orphans from being told: a data path in another form than the normal one, or a table with files of which
-- nobody knows where they lie.
CREATE FUNCTION lakefork.unplaced() RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT 'the data path ' || quote_literal(m.value) || ' is not in its normal form' FROM public.ducklake_metadata m
    WHERE m.key = 'data_path' AND m.scope = 'catalog' AND m.value <> lakefork.place(m.value)
    UNION ALL
    (WITH RECURSIVE owner AS (   -- by index from table to table
        (SELECT f.catalog_id, f.table_id FROM public.ducklake_data_file f ORDER BY f.catalog_id, f.table_id LIMIT 1)
        UNION ALL
        SELECT n.catalog_id, n.table_id FROM owner o CROSS JOIN LATERAL (
            SELECT f.catalog_id, f.table_id FROM public.ducklake_data_file f
            WHERE (f.catalog_id, f.table_id) > (o.catalog_id, o.table_id) ORDER BY f.catalog_id, f.table_id LIMIT 1) n
    )
    SELECT format('catalog %s has files of table %s and does not know its path', o.catalog_id, o.table_id)
    FROM (SELECT * FROM owner UNION SELECT catalog_id, table_id FROM public.ducklake_delete_file) o
    WHERE NOT EXISTS (
        SELECT FROM public.ducklake_table t
        LEFT JOIN public.ducklake_schema s ON s.catalog_id = t.catalog_id AND s.schema_id = t.schema_id
        LEFT JOIN public.ducklake_metadata m ON m.key = 'data_path' AND coalesce(m.scope, '') = 'catalog'
            AND coalesce(m.scope_id, -1) = t.catalog_id
        WHERE t.catalog_id = o.catalog_id AND t.table_id = o.table_id
          AND lakefork.join_path(lakefork.join_path(m.value, s.path, s.path_is_relative), t.path, t.path_is_relative)
              IS NOT NULL)
      AND (EXISTS (SELECT FROM public.ducklake_data_file f WHERE f.catalog_id = o.catalog_id AND f.table_id = o.table_id
          AND f.path_is_relative)
           OR EXISTS (SELECT FROM public.ducklake_delete_file f WHERE f.catalog_id = o.catalog_id
               AND f.table_id = o.table_id AND f.path_is_relative)))
$$;
