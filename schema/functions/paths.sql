-- The one form in which two paths can be compared: no doubled or trailing slashes, s3a and s3n are s3, file: is dropped.
CREATE FUNCTION lakefork.normal_path(p_path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN parts[1] IS NULL THEN tidy ELSE parts[1] || '://' || ltrim(tidy, '/') END
    FROM (
        SELECT regexp_match(cleaned, '^([a-z][a-z0-9+.-]*)://') AS parts,
               regexp_replace(regexp_replace(regexp_replace(cleaned, '^[a-z][a-z0-9+.-]*://', ''), '/+', '/', 'g'), '(.)/$', '\1') AS tidy
        FROM (SELECT regexp_replace(regexp_replace(p_path, '^file:/+', '/'), '^s3[an]://', 's3://') AS cleaned) c
    ) p
$$;

-- The normal path without the name of credentials (s3://NAME@bucket): where something lies, whoever opens it.
CREATE FUNCTION lakefork.place(p_path text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT regexp_replace(lakefork.normal_path(p_path), '^s3://[^/@]*@', 's3://')
$$;

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

-- The catalogs whose data path holds, or lies within, p_path.
CREATE FUNCTION lakefork.overlapping_catalogs(p_path text)
RETURNS TABLE (catalog_id bigint, data_path text)
LANGUAGE sql STABLE STRICT AS $$
    SELECT m.scope_id, m.value
    FROM public.ducklake_metadata m
    WHERE m.key = 'data_path' AND m.scope = 'catalog'
      AND (m.value COLLATE "C" = ANY (ARRAY(SELECT lakefork.path_and_parents(p_path)))
           OR (m.value COLLATE "C" > rtrim(lakefork.place(p_path), '/') || '/'
               AND m.value COLLATE "C" < rtrim(lakefork.place(p_path), '/') || '0'))   -- '0' follows '/'
    ORDER BY m.scope_id
$$;

-- Where a file of a catalog lies: relative paths go through table, schema and the catalog's data path.
CREATE FUNCTION lakefork.join_path(p_base text, p_path text, p_relative boolean) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_relative THEN rtrim(p_base, '/') || '/' || p_path ELSE p_path END
$$;

CREATE FUNCTION lakefork.data_path(p_catalog_id bigint) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT value FROM public.ducklake_metadata WHERE key = 'data_path' AND scope = 'catalog' AND scope_id = p_catalog_id
$$;
