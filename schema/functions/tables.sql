-- Definitions of tables for readers and writers of rows.

-- Tables may keep more or less than their catalog.
CREATE FUNCTION lakefork.require_table_kept(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint, p_name text)
    RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    PERFORM lakefork.require_kept(p_catalog_id, p_snapshot, lakefork.first_kept(p_catalog_id, p_table_id),
        'table ' || p_name);
    RETURN true;
END $$;

-- The tables of these names, now or at a snapshot. definition_snapshot names the version of a table's definition,
-- hot_snapshots those under which there may be hot rows: they belong to the present.
-- plpgsql, so that a connection plans it once.
CREATE FUNCTION lakefork.find_tables(p_catalog_id bigint, p_namespaces text[], p_tables text[],
    p_snapshot bigint DEFAULT NULL)
RETURNS TABLE (place bigint, namespace varchar, table_name varchar, schema_id bigint, table_id bigint,
    definition_snapshot bigint,
               hot_snapshots bigint[], has_files boolean)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF p_snapshot IS NULL THEN
        RETURN QUERY
        SELECT n.place, s.schema_name, t.table_name, s.schema_id, t.table_id, v.begin_snapshot,
               ARRAY(SELECT h.hot_snapshot FROM lakefork.visible_hot_table(p_catalog_id) h WHERE h.table_id = t.table_id
                   ORDER BY 1),
               EXISTS (SELECT FROM lakefork.visible_data_file(p_catalog_id) f WHERE f.table_id = t.table_id)
        FROM unnest(p_namespaces, p_tables) WITH ORDINALITY AS n (namespace, table_name, place)
        JOIN lakefork.visible_schema(p_catalog_id) s ON lower(s.schema_name COLLATE "C") =
            lower(n.namespace COLLATE "C")
        JOIN lakefork.visible_table(p_catalog_id) t
             ON t.schema_id = s.schema_id AND lower(t.table_name COLLATE "C") = lower(n.table_name COLLATE "C")
        CROSS JOIN LATERAL (SELECT v.begin_snapshot FROM lakefork.visible_schema_versions(p_catalog_id) v
                            WHERE v.table_id = t.table_id ORDER BY v.begin_snapshot DESC LIMIT 1) v
        ORDER BY n.place;
    ELSE
        RETURN QUERY
        SELECT n.place, s.schema_name, t.table_name, s.schema_id, t.table_id, v.begin_snapshot, '{}'::bigint[],
               EXISTS (SELECT FROM lakefork.visible_data_file(p_catalog_id, p_snapshot) f WHERE f.table_id = t.table_id)
        FROM unnest(p_namespaces, p_tables) WITH ORDINALITY AS n (namespace, table_name, place)
        JOIN lakefork.visible_schema(p_catalog_id, p_snapshot) s ON lower(s.schema_name COLLATE "C") =
            lower(n.namespace COLLATE "C")
        JOIN lakefork.visible_table(p_catalog_id, p_snapshot) t
             ON t.schema_id = s.schema_id AND lower(t.table_name COLLATE "C") = lower(n.table_name COLLATE "C")
        CROSS JOIN LATERAL (SELECT v.begin_snapshot FROM lakefork.visible_schema_versions(p_catalog_id, p_snapshot) v
                            WHERE v.table_id = t.table_id ORDER BY v.begin_snapshot DESC LIMIT 1) v
        CROSS JOIN LATERAL lakefork.require_table_kept(p_catalog_id, t.table_id, p_snapshot,
            s.schema_name || '.' || t.table_name)
        ORDER BY n.place;
    END IF;
END $$;

-- A definition of a table as one object. p_at: a snapshot of the catalog at which it was valid.
CREATE FUNCTION lakefork.own_definition(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint, p_at bigint)
    RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'table_id', t.table_id, 'schema_id', t.schema_id, 'namespace', n.namespace, 'table_name', t.table_name,
        'path', t.path, 'path_is_relative', t.path_is_relative,
        'table_path', n.path,
        'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                        'column_id', c.column_id, 'name', c.column_name, 'type', c.column_type, 'nullable',
                            c.nulls_allowed,
                        'parent', c.parent_column, 'order', c.column_order, 'initial_default', c.initial_default,
                        'default', c.default_value,
                        'default_type', c.default_value_type) ORDER BY c.column_order, c.column_id), '[]')
                    FROM lakefork.visible_column(p_catalog_id, p_at) c WHERE c.table_id = p_table_id),
        'tags', (SELECT coalesce(jsonb_object_agg(g.key, g.value), '{}')
                 FROM lakefork.visible_tag(p_catalog_id, p_at) g WHERE g.object_id = p_table_id),
        'versions', (SELECT count(*) FROM lakefork.visible_schema_versions(p_catalog_id, p_snapshot) v
            WHERE v.table_id = p_table_id),
        'schema_version', (SELECT v.schema_version FROM lakefork.visible_schema_versions(p_catalog_id, p_snapshot) v
                           WHERE v.table_id = p_table_id ORDER BY v.begin_snapshot DESC LIMIT 1),
        -- ids of dropped columns are not reused, because files contain them
        'next_column_id', greatest(
            (SELECT max(c.column_id) + 1 FROM lakefork.retained_column c WHERE c.catalog_id = p_catalog_id
                AND c.table_id = p_table_id),
            (SELECT max((d.definition ->> 'next_column_id')::bigint) FROM lakefork.kept_definition d
             WHERE d.catalog_id = p_catalog_id AND d.table_id = p_table_id)))
    FROM lakefork.visible_table(p_catalog_id, p_at) t
    JOIN lakefork.visible_named_table(p_catalog_id, p_at) n USING (table_id)
    WHERE t.table_id = p_table_id
$$;

-- The definition of a table that began at a snapshot. That of a fork may have begun before it: if it held when the fork
-- was made, the fork's rows say it, otherwise it was kept as it was, but for the place. A table that was restored also
-- has definitions from before its first row.
CREATE FUNCTION lakefork.table_definition(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN d.definition IS NULL THEN lakefork.own_definition(p_catalog_id, p_table_id, p_snapshot,
        greatest(p_snapshot, b.birth))
           ELSE d.definition || (
               SELECT jsonb_build_object('path', o.now -> 'path', 'path_is_relative', o.now -> 'path_is_relative',
                   'table_path', o.now -> 'table_path')
               FROM (SELECT lakefork.own_definition(p_catalog_id, p_table_id, b.first_row, b.first_row) AS now) o) END
    FROM (SELECT c.birth, greatest(c.birth, (SELECT min(t.begin_snapshot) FROM lakefork.retained_table t
                                             WHERE t.catalog_id = p_catalog_id
                                                 AND t.table_id = p_table_id)) AS first_row
          FROM (SELECT lakefork.catalog_birth(p_catalog_id) AS birth) c) b
    LEFT JOIN lakefork.kept_definition d ON d.catalog_id = p_catalog_id AND d.table_id = p_table_id
        AND d.begin_snapshot = p_snapshot
$$;

-- The batches of a table at a snapshot, or now: full path, owner (NULL: a shared table), and of some columns the bounds
-- and how many NULLs among how many values. published: the snapshot that added it first, which a fork keeps.
CREATE FUNCTION lakefork.table_files(p_catalog_id bigint, p_table_id bigint, p_user_id text, p_columns bigint[],
    p_snapshot bigint DEFAULT NULL)
RETURNS TABLE (data_file_id bigint, path text, user_id varchar, record_count bigint, file_size_bytes bigint,
    bounds jsonb, published bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT f.data_file_id, lakefork.join_path(t.path, f.path, f.path_is_relative), f.user_id, f.record_count,
        f.file_size_bytes, b.bounds,
           coalesce(f.file_order, f.begin_snapshot)
    FROM lakefork.visible_owned_file(p_catalog_id, p_snapshot) f
    JOIN lakefork.visible_named_table(p_catalog_id, p_snapshot) t ON t.table_id = p_table_id
    LEFT JOIN LATERAL (
        SELECT jsonb_object_agg(c.column_id, jsonb_build_array(c.min_value, c.max_value, c.null_count, c.value_count))
            AS bounds
        FROM lakefork.retained_file_column_stats c
        WHERE c.catalog_id = p_catalog_id AND c.data_file_id = f.data_file_id AND c.column_id = ANY (p_columns)
    ) b ON true
    WHERE f.table_id = p_table_id AND (p_user_id IS NULL OR f.user_id = p_user_id)
    ORDER BY f.data_file_id;
END $$;

-- All locations that tables of any catalog were given.
CREATE FUNCTION lakefork.table_locations() RETURNS TABLE (catalog_id bigint, namespace varchar, table_name varchar,
    location varchar)
LANGUAGE sql STABLE AS $$
    SELECT t.catalog_id, t.namespace, t.table_name, g.value
    FROM lakefork.live_table t JOIN LATERAL lakefork.visible_tag(t.catalog_id) g ON g.object_id = t.table_id
    WHERE g.key = 'location'
$$;

-- The tables with a LOCATION that holds, or lies within, p_path; up to what depends on the user.
CREATE FUNCTION lakefork.overlapping_locations(p_path text) RETURNS TABLE (catalog_id bigint, namespace varchar,
    table_name varchar)
LANGUAGE sql STABLE STRICT AS $$
    SELECT l.catalog_id, l.namespace, l.table_name
    FROM lakefork.table_locations() l
    CROSS JOIN LATERAL (SELECT lakefork.place(regexp_replace(l.location, '/[^/]*\$\{user_id\}.*$', '')) AS path) p
    WHERE p.path IN (SELECT lakefork.path_and_parents(p_path))
        OR lakefork.place(p_path) IN (SELECT lakefork.path_and_parents(p.path))
    ORDER BY l.catalog_id, l.namespace, l.table_name
$$;
