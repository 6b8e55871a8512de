-- Normalizes a path for comparison: no doubled or trailing slashes, s3a and s3n become s3, no file:.
CREATE FUNCTION lakefork.normal_path(p_path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN parts[1] IS NULL THEN tidy ELSE parts[1] || '://' || ltrim(tidy, '/') END
    FROM (
        SELECT regexp_match(cleaned, '^([a-z][a-z0-9+.-]*)://') AS parts,
               regexp_replace(regexp_replace(regexp_replace(cleaned, '^[a-z][a-z0-9+.-]*://', ''), '/+', '/', 'g'),
                   '(.)/$', '\1') AS tidy
        FROM (SELECT regexp_replace(regexp_replace(p_path, '^file:/+', '/'), '^s3[an]://', 's3://') AS cleaned) c
    ) p
$$;

-- The normal path without the name of credentials (s3://NAME@bucket).
-- The body is resolved here and now: roles that cannot look into this schema use it, too (views/client.sql).
CREATE FUNCTION lakefork.place(p_path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN regexp_replace(lakefork.normal_path(p_path), '^s3://[^/@]*@', 's3://');

-- The place followed by those of all directories above it.
CREATE FUNCTION lakefork.path_and_parents(p_path text) RETURNS SETOF text
LANGUAGE sql IMMUTABLE STRICT AS $$
    WITH RECURSIVE up (path) AS (
        SELECT lakefork.place(p_path)
        UNION ALL
        SELECT regexp_replace(path, '/[^/]*$', '') FROM up WHERE path ~ '[^/:]/[^/]'
    )
    SELECT path FROM up UNION SELECT '/' WHERE p_path LIKE '/%'
$$;

-- The full path of a file: relative paths are resolved by table, schema and the catalog's data path.
CREATE FUNCTION lakefork.join_path(p_base text, p_path text, p_relative boolean) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_relative THEN rtrim(p_base, '/') || '/' || p_path ELSE p_path END
$$;
