-- Invariants of the catalog. Each check returns violations; none changes anything.
-- p_catalog_id NULL: all catalogs.

CREATE TYPE lakefork.finding AS (check_name text, catalog_id bigint, object text, problem text);

-- No id is at or above its counter.
CREATE FUNCTION lakefork.fsck_counters(p_catalog_id bigint) RETURNS SETOF lakefork.finding
LANGUAGE plpgsql STABLE AS $$
DECLARE
    e lakefork.entity;
BEGIN
    FOR e IN SELECT * FROM lakefork.entity WHERE id_column IS NOT NULL
             UNION ALL SELECT 'ducklake_catalog', 0, '{catalog_id}', 'catalog_id', 'catalog', '{}', '{}', true, NULL,
                 NULL, NULL LOOP
        RETURN QUERY EXECUTE format($sql$
            SELECT 'counter', t.catalog_id, format('%%s %%s', %1$L, t.%2$I),
                   format('its id is not below %4$s = %%s of the newest snapshot', n.%4$I)
            FROM public.%1$I t, (SELECT * FROM public.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1) n
            WHERE t.%2$I >= n.%4$I AND (%3$L::bigint IS NULL OR t.catalog_id = %3$L::bigint)
            $sql$, e.entity, e.id_column, p_catalog_id, 'next_' || e.id_counter || '_id');
    END LOOP;
END $$;

-- Versions of one object follow each other and lie within the snapshots that exist.
CREATE FUNCTION lakefork.fsck_versions(p_catalog_id bigint) RETURNS SETOF lakefork.finding
LANGUAGE plpgsql STABLE AS $$
DECLARE
    e lakefork.entity;
BEGIN
    FOR e IN SELECT * FROM lakefork.entity WHERE versioned
             UNION ALL SELECT 'ducklake_catalog', 0, '{catalog_id}', NULL, NULL, '{}', '{}', true, NULL, NULL, NULL LOOP
        RETURN QUERY EXECUTE format($sql$
            SELECT 'version', v.catalog_id, concat_ws(' ', %1$L, %2$s, 'from snapshot', v.begin_snapshot),
                   CASE WHEN v.end_snapshot <= v.begin_snapshot THEN 'it ends at or before its begin'
                        WHEN v.begin_snapshot > n OR v.end_snapshot > n
                            THEN 'it names a snapshot after the newest, ' || n
                        ELSE 'it overlaps the version from snapshot ' || v.follower END
            FROM (SELECT t.*, lead(t.begin_snapshot) OVER (PARTITION BY t.catalog_id, %2$s
                ORDER BY t.begin_snapshot) AS follower
                  FROM public.%1$I t WHERE %3$L::bigint IS NULL OR t.catalog_id = %3$L::bigint) v,
                 lakefork.newest_snapshot() n
            WHERE v.end_snapshot <= v.begin_snapshot OR v.begin_snapshot > n OR v.end_snapshot > n
               OR (v.follower IS NOT NULL AND (v.end_snapshot IS NULL OR v.end_snapshot > v.follower))
            $sql$, e.entity, array_to_string(e.key_columns, ', '), p_catalog_id);
    END LOOP;
END $$;

-- Everything belongs to something that lives at least as long, and to a catalog with a data path.
CREATE FUNCTION lakefork.fsck_parents(p_catalog_id bigint) RETURNS SETOF lakefork.finding
LANGUAGE plpgsql STABLE AS $$
DECLARE
    e record;
    same text;
    lifetime text;
BEGIN
    FOR e IN SELECT c.*, p.versioned AS parent_versioned FROM lakefork.entity c
        JOIN lakefork.entity p ON p.entity = c.parent LOOP
        SELECT string_agg(format('p.%1$I = c.%1$I', k), ' AND ') INTO same FROM unnest(e.parent_columns) k;
        lifetime := CASE WHEN e.versioned AND e.parent_versioned THEN
            'HAVING min(p.begin_snapshot) <= c.begin_snapshot
                AND (bool_or(p.end_snapshot IS NULL) OR max(p.end_snapshot) >= c.end_snapshot)'
            ELSE 'HAVING count(*) > 0' END;
        RETURN QUERY EXECUTE format($sql$
            SELECT 'parent', c.catalog_id, concat_ws(' ', %1$L, %2$s),
                   concat_ws(' ', 'no %3$s for all of its life:', %4$s)
            FROM public.%1$I c
            WHERE (%5$L::bigint IS NULL OR c.catalog_id = %5$L::bigint)
              AND NOT EXISTS (SELECT FROM public.%3$I p WHERE p.catalog_id = c.catalog_id AND %6$s %7$s)
            $sql$, e.entity, 'c.' || array_to_string(e.key_columns, ', c.'), e.parent,
                'c.' || array_to_string(e.parent_columns, ', c.'),
            p_catalog_id, same, lifetime);
    END LOOP;
    FOR e IN SELECT * FROM lakefork.entity LOOP
        RETURN QUERY EXECUTE format($sql$
            SELECT 'parent', c.catalog_id, concat(count(*), ' row(s) of ', %1$L), 'the catalog does not exist'
            FROM public.%1$I c
            WHERE (%2$L::bigint IS NULL OR c.catalog_id = %2$L::bigint)
              AND NOT EXISTS (SELECT FROM public.ducklake_catalog p WHERE p.catalog_id = c.catalog_id)
            GROUP BY c.catalog_id $sql$, e.entity, p_catalog_id);
    END LOOP;
    RETURN QUERY
        SELECT 'parent', t.catalog_id, format('ducklake_tag %s %s', t.object_id, t.key),
            'no namespace, table or view has this id'
        FROM public.ducklake_tag t
        WHERE (p_catalog_id IS NULL OR t.catalog_id = p_catalog_id)
          AND NOT EXISTS (SELECT FROM public.ducklake_schema o WHERE o.catalog_id = t.catalog_id
              AND o.schema_id = t.object_id)
          AND NOT EXISTS (SELECT FROM public.ducklake_table o WHERE o.catalog_id = t.catalog_id
              AND o.table_id = t.object_id)
          AND NOT EXISTS (SELECT FROM public.ducklake_view o WHERE o.catalog_id = t.catalog_id
              AND o.view_id = t.object_id);
END $$;

-- One path per file id and one file id per path, over all catalogs.
CREATE FUNCTION lakefork.fsck_paths(p_catalog_id bigint) RETURNS SETOF lakefork.finding
LANGUAGE sql STABLE AS $$
    WITH files AS (
        SELECT r.file_id, r.path, min(r.catalog_id) AS catalog_id, bool_or(p_catalog_id IS NULL
            OR r.catalog_id = p_catalog_id) AS asked
        FROM lakefork.file_reference r GROUP BY r.file_id, r.path
    )
    SELECT 'path', min(catalog_id), 'file ' || file_id, 'it has several paths: ' || string_agg(coalesce(path, 'none'),
        ', ' ORDER BY path)
    FROM files GROUP BY file_id HAVING count(*) > 1 AND bool_or(asked)
    UNION ALL
    SELECT 'path', min(catalog_id), 'path ' || path, 'several files have it: ' || string_agg(file_id::text, ', '
        ORDER BY file_id)
    FROM files WHERE path IS NOT NULL GROUP BY path HAVING count(DISTINCT file_id) > 1 AND bool_or(asked)
    UNION ALL
    SELECT 'path', catalog_id, 'file ' || file_id, 'its path cannot be resolved: no table, namespace or data path'
    FROM files WHERE path IS NULL AND asked
    UNION ALL
    SELECT 'path', c.catalog_id, 'catalog ' || c.catalog_name, 'it has no data path'
    FROM public.ducklake_catalog c WHERE (p_catalog_id IS NULL OR c.catalog_id = p_catalog_id)
        AND lakefork.data_path(c.catalog_id) IS NULL
    UNION ALL
    SELECT 'path', m.scope_id, 'data path ' || m.value, 'it overlaps that of catalog ' || o.scope_id || ': ' || o.value
    FROM public.ducklake_metadata m
    CROSS JOIN LATERAL lakefork.path_and_parents(m.value) above
    JOIN public.ducklake_metadata o ON o.key = 'data_path' AND o.scope = 'catalog' AND o.scope_id <> m.scope_id
        AND o.value COLLATE "C" = above
    WHERE m.key = 'data_path' AND m.scope = 'catalog' AND (p_catalog_id IS NULL OR m.scope_id = p_catalog_id)
      AND (m.value <> o.value OR lakefork.is_live(m.scope_id) AND lakefork.is_live(o.scope_id))   -- see check_data_path
$$;

-- Snapshots are missing only where that was recorded; each says what it changed; counters and time do not go back.
CREATE FUNCTION lakefork.fsck_snapshots() RETURNS SETOF lakefork.finding
LANGUAGE sql STABLE AS $$
    WITH expired AS (
        SELECT coalesce(range_agg(int8range(first_snapshot, last_snapshot, '[]')), '{}'::int8multirange) AS ranges
            FROM lakefork.expired_snapshots
    ), ordered AS (
        SELECT s.*, lag(s.snapshot_id, 1, -1::bigint) OVER w AS previous,
            lag(s.next_catalog_id) OVER w AS previous_catalog_id,
               lag(s.next_file_id) OVER w AS previous_file_id, lag(s.schema_version) OVER w AS previous_schema_version
        FROM public.ducklake_snapshot s WINDOW w AS (ORDER BY s.snapshot_id)
    )
    SELECT 'snapshot', NULL::bigint, format('snapshots %s to %s', previous + 1, snapshot_id - 1),
        'they are missing and no expiry recorded it'
    FROM ordered, expired
    WHERE snapshot_id > previous + 1 AND NOT int8range(previous + 1, snapshot_id) <@ ranges
    UNION ALL
    SELECT 'snapshot', NULL, 'snapshot ' || snapshot_id, 'a counter goes back'
    FROM ordered
    WHERE next_catalog_id < previous_catalog_id OR next_file_id < previous_file_id
        OR schema_version < previous_schema_version
    UNION ALL
    SELECT 'snapshot', NULL, 'snapshot ' || s.snapshot_id, 'nothing records what it changed'
    FROM public.ducklake_snapshot s
    WHERE NOT EXISTS (SELECT FROM public.ducklake_snapshot_changes c WHERE c.snapshot_id = s.snapshot_id)
    UNION ALL
    SELECT 'snapshot', c.catalog_id, 'snapshot ' || c.snapshot_id, 'changes are recorded for it, but it does not exist'
    FROM public.ducklake_snapshot_changes c
    WHERE NOT EXISTS (SELECT FROM public.ducklake_snapshot s WHERE s.snapshot_id = c.snapshot_id)
$$;

-- Totals exist for the live tables of live catalogs, and are those of their live files.
CREATE FUNCTION lakefork.fsck_totals(p_catalog_id bigint) RETURNS SETOF lakefork.finding
LANGUAGE sql STABLE AS $$
    SELECT 'totals', coalesce(s.catalog_id, f.catalog_id), 'table ' || coalesce(s.table_id, f.table_id),
           format('recorded: %s rows, %s bytes; in live files: %s rows, %s bytes', coalesce(s.record_count, 0),
               coalesce(s.file_size_bytes, 0),
                  coalesce(f.records, 0), coalesce(f.bytes, 0))
    FROM public.ducklake_table_stats s
    FULL JOIN (SELECT catalog_id, table_id, sum(record_count) AS records, sum(file_size_bytes) AS bytes
               FROM public.ducklake_data_file WHERE end_snapshot IS NULL AND catalog_id IN (SELECT catalog_id
                   FROM lakefork.visible_catalog())
               GROUP BY 1, 2) f
      ON f.catalog_id = s.catalog_id AND f.table_id = s.table_id
    WHERE (p_catalog_id IS NULL OR coalesce(s.catalog_id, f.catalog_id) = p_catalog_id)
      AND (coalesce(s.record_count, 0) <> coalesce(f.records, 0) OR coalesce(s.file_size_bytes, 0) <> coalesce(f.bytes,
          0))
    UNION ALL
    SELECT 'totals', coalesce(s.catalog_id, t.catalog_id), 'table ' || coalesce(s.table_id, t.table_id),
           CASE WHEN s.table_id IS NULL THEN 'it has no totals' ELSE 'it has totals, but is not live' END
    FROM public.ducklake_table_stats s
    FULL JOIN (SELECT catalog_id, table_id FROM public.ducklake_table
               WHERE end_snapshot IS NULL AND catalog_id IN (SELECT catalog_id FROM lakefork.visible_catalog())) t
      ON t.catalog_id = s.catalog_id AND t.table_id = s.table_id
    WHERE (s.table_id IS NULL OR t.table_id IS NULL)
        AND (p_catalog_id IS NULL OR coalesce(s.catalog_id, t.catalog_id) = p_catalog_id)
$$;

CREATE FUNCTION lakefork.fsck(p_catalog_id bigint DEFAULT NULL) RETURNS SETOF lakefork.finding
LANGUAGE sql STABLE AS $$
    SELECT * FROM lakefork.fsck_snapshots()
    UNION ALL SELECT * FROM lakefork.fsck_counters(p_catalog_id)
    UNION ALL SELECT * FROM lakefork.fsck_versions(p_catalog_id)
    UNION ALL SELECT * FROM lakefork.fsck_parents(p_catalog_id)
    UNION ALL SELECT * FROM lakefork.fsck_paths(p_catalog_id)
    UNION ALL SELECT * FROM lakefork.fsck_totals(p_catalog_id)
$$;
