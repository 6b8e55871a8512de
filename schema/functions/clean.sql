-- Which states of tables are clean: one version per key, and nothing in them is hidden by a tombstone. Readers who know
-- neither versions nor tombstones (views/client.sql) see these states only, so that what they see was exactly so.

-- Whose files of a table are others than in its last clean state before a snapshot; of_nobody: those of a shared table.
CREATE FUNCTION lakefork.changed_owners(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint, OUT owners text[],
    OUT of_nobody boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    last bigint;
BEGIN
    SELECT coalesce(max(c.snapshot_id), -1) INTO last FROM lakefork.clean_snapshot c
    WHERE c.catalog_id = p_catalog_id AND c.table_id = p_table_id AND c.snapshot_id < p_snapshot;
    SELECT coalesce(array_agg(DISTINCT c.user_id) FILTER (WHERE c.user_id IS NOT NULL), '{}'),
        coalesce(bool_or(c.user_id IS NULL), false)
    INTO owners, of_nobody
    FROM (
        SELECT f.user_id FROM lakefork.retained_owned_file f
        WHERE f.catalog_id = p_catalog_id AND f.table_id = p_table_id AND f.begin_snapshot > last
            AND f.begin_snapshot <= p_snapshot
          AND f.file_order > last
        UNION ALL
        SELECT f.user_id FROM lakefork.retained_owned_file f
        WHERE f.catalog_id = p_catalog_id AND f.table_id = p_table_id AND f.end_snapshot > last
            AND f.end_snapshot <= p_snapshot
    ) c;
END $$;

-- Whether the files of a table at a snapshot are proven to be clean, by what is recorded of them: no file has both rows
-- and tombstones, of one owner no two files of different commits may have a key in common (those of one commit never
-- do), and no file of tombstones may hide a row. Whose files are the same as in the last clean state need no proof.
CREATE FUNCTION lakefork.is_clean(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    changed record := lakefork.changed_owners(p_catalog_id, p_table_id, p_snapshot);
BEGIN
    IF NOT EXISTS (SELECT FROM lakefork.retained_snapshot s WHERE s.snapshot_id = p_snapshot) THEN
        RETURN false;   -- of one that is not retained, files may be gone
    END IF;
    RETURN (WITH owned AS MATERIALIZED (
        SELECT f.data_file_id, f.file_order, f.user_id AS owner FROM lakefork.visible_owned_file(p_catalog_id,
            p_snapshot) f
        WHERE f.table_id = p_table_id AND f.user_id = ANY (changed.owners)
        UNION ALL
        SELECT f.data_file_id, f.file_order, '' FROM lakefork.visible_owned_file(p_catalog_id, p_snapshot) f
        WHERE changed.of_nobody AND f.table_id = p_table_id AND f.user_id IS NULL
    ), key AS MATERIALIZED (
        SELECT c.column_id, lakefork.is_number(c.column_type) AS is_number
        FROM lakefork.visible_tag(p_catalog_id, p_snapshot) g
        JOIN lakefork.visible_column(p_catalog_id, p_snapshot) c ON c.table_id = p_table_id
            AND c.column_id = (g.value::jsonb ->> 0)::bigint
        WHERE g.object_id = p_table_id AND g.key = 'primary_key'
    ), files AS MATERIALIZED (
        SELECT o.owner, o.file_order, d.max_value = '0' AS is_live, d.min_value = '1' AS is_tombstone,
               q.min_value::bigint AS min_seq, q.max_value::bigint AS max_seq,
               CASE WHEN key.is_number THEN k.min_value::numeric END AS low_number, CASE WHEN key.is_number
                   THEN k.max_value::numeric END AS high_number,
               CASE WHEN NOT key.is_number THEN k.min_value COLLATE "C" END AS low_text,
               CASE WHEN NOT key.is_number THEN k.max_value COLLATE "C" END AS high_text,
               k.min_value IS NOT NULL AND k.max_value IS NOT NULL AS is_known
        FROM owned o
        LEFT JOIN key ON true
        LEFT JOIN lakefork.retained_file_column_stats q ON q.catalog_id = p_catalog_id
            AND q.data_file_id = o.data_file_id AND q.column_id = lakefork.seq_column_id()
        LEFT JOIN lakefork.retained_file_column_stats d ON d.catalog_id = p_catalog_id
            AND d.data_file_id = o.data_file_id AND d.column_id = lakefork.deleted_column_id()
        LEFT JOIN lakefork.retained_file_column_stats k
               ON k.catalog_id = p_catalog_id AND k.data_file_id = o.data_file_id AND k.column_id = key.column_id
    ), gaps AS (   -- after which no file so far reaches
        SELECT f.owner, f.file_order, f.is_known, f.low_number, f.low_text,
               coalesce(f.low_number > max(f.high_number) OVER before, f.low_text > max(f.high_text) OVER before,
                   false) AS is_gap
        FROM files f WHERE f.is_live
        WINDOW before AS (PARTITION BY f.owner ORDER BY f.low_number, f.low_text ROWS BETWEEN UNBOUNDED PRECEDING
            AND 1 PRECEDING)
    ), islands AS (   -- of files that may have keys in common
        SELECT g.owner, g.file_order,
               count(*) FILTER (WHERE g.is_gap) OVER (PARTITION BY g.owner ORDER BY g.low_number,
                   g.low_text ROWS UNBOUNDED PRECEDING) AS island
        FROM gaps g
    )
    SELECT NOT EXISTS (SELECT FROM lakefork.visible_delete_file(p_catalog_id, p_snapshot) d
        WHERE d.table_id = p_table_id)
       AND NOT EXISTS (SELECT FROM files f WHERE NOT coalesce(f.is_live OR f.is_tombstone, false))
       AND NOT EXISTS (SELECT FROM gaps g GROUP BY g.owner HAVING min(g.file_order) < max(g.file_order)
           AND NOT bool_and(g.is_known))
       AND NOT EXISTS (SELECT FROM islands i GROUP BY i.owner, i.island HAVING min(i.file_order) < max(i.file_order))
       AND NOT EXISTS (
           SELECT FROM files g JOIN files f ON f.owner = g.owner AND f.file_order <> g.file_order
           -- what is newer than all of them is not hidden
           WHERE g.is_tombstone AND f.is_live AND NOT coalesce(f.min_seq > g.max_seq, false)
             AND coalesce(f.low_number <= g.high_number AND g.low_number <= f.high_number,
                          f.low_text <= g.high_text AND g.low_text <= f.high_text, true)));
END $$;

-- Records whether a publish left its table clean.
CREATE FUNCTION lakefork.note_clean(p_catalog_id bigint, p_table_id bigint, p_snapshot bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    found_clean boolean := lakefork.is_clean(p_catalog_id, p_table_id, p_snapshot);
BEGIN
    IF found_clean THEN
        INSERT INTO lakefork.clean_snapshot (catalog_id, table_id, snapshot_id)
            VALUES (p_catalog_id, p_table_id, p_snapshot) ON CONFLICT DO NOTHING;
        DELETE FROM lakefork.clean_snapshot c   -- all but the last of those that nobody can ask for
        WHERE c.catalog_id = p_catalog_id AND c.table_id = p_table_id AND c.snapshot_id < (
            SELECT max(o.snapshot_id) FROM lakefork.clean_snapshot o
            WHERE o.catalog_id = p_catalog_id AND o.table_id = p_table_id
              AND o.snapshot_id <= lakefork.oldest_snapshot());
    END IF;
    RETURN found_clean;
END $$;

-- The same of a table's last publish. For after the commit, so that no other one waits for it, and before what the
-- publish left to do is crossed off (lakefork.manifest_pending): if whoever published dies in between, the next one to
-- work on the table or to fork it does it.
CREATE FUNCTION lakefork.note_last_publish(p_catalog_id bigint, p_table_id bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    published bigint := (SELECT greatest(max(f.begin_snapshot), max(f.end_snapshot)) FROM lakefork.retained_data_file f
                         WHERE f.catalog_id = p_catalog_id AND f.table_id = p_table_id);
    since bigint;   -- if that one expired, the catalog's next one says the same of the table
BEGIN
    SELECT s.snapshot_id INTO since FROM lakefork.retained_snapshot s
    WHERE s.catalog_id = p_catalog_id AND s.snapshot_id >= published ORDER BY s.snapshot_id LIMIT 1;
    IF since IS NOT NULL AND NOT EXISTS (SELECT FROM lakefork.clean_snapshot c
                                         WHERE c.catalog_id = p_catalog_id AND c.table_id = p_table_id
                                             AND c.snapshot_id >= published) THEN
        PERFORM lakefork.note_clean(p_catalog_id, p_table_id, since);
    END IF;
END $$;

-- The last clean state of each table that the files of a snapshot (NULL: now) still make up: a fork, which gets those
-- files, has it too.
CREATE FUNCTION lakefork.inheritable_clean(p_catalog_id bigint, p_snapshot bigint)
    RETURNS TABLE (table_id bigint, snapshot_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT c.table_id, max(c.snapshot_id) FROM lakefork.clean_snapshot c
    WHERE c.catalog_id = p_catalog_id AND (p_snapshot IS NULL OR c.snapshot_id <= p_snapshot)
    GROUP BY c.table_id
    HAVING NOT EXISTS (SELECT FROM lakefork.retained_data_file f
                       WHERE f.catalog_id = p_catalog_id AND f.table_id = c.table_id
                           AND f.end_snapshot > max(c.snapshot_id)
                         AND (p_snapshot IS NULL OR f.end_snapshot <= p_snapshot))
$$;

-- A state is forgotten when one of its files is gone.
CREATE FUNCTION lakefork.forget_clean() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lakefork.clean_snapshot c USING gone g
    WHERE c.catalog_id = g.catalog_id AND c.table_id = g.table_id AND c.snapshot_id >= g.file_order
      AND (g.end_snapshot IS NULL OR c.snapshot_id < g.end_snapshot);
    RETURN NULL;
END $$;
CREATE TRIGGER forget_clean AFTER DELETE ON public.ducklake_data_file REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION lakefork.forget_clean();
