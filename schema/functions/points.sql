-- What statements by key rely on: they are planned once, and ask with each execution whether the plan still holds.

-- is_current: the table has this definition (NULL: guard_write has looked), in the live catalog of this name, and these
-- hot tables, and the user was not deleted. rules: the user's (NULL: not listed). files: changes whenever a file of the
-- table is added or ended, because additions take row ids, and the total size shrinks otherwise; its second number is
-- how many rows they have.
CREATE FUNCTION lakefork.check_plan(
    p_catalog_id bigint, p_catalog_name text, p_table_id bigint, p_definition_snapshot bigint,
    p_hot_snapshots bigint[], p_user_id text, OUT is_current boolean, OUT rules text[], OUT files bigint[]
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    is_deleted boolean;
BEGIN
    SELECT ARRAY[s.next_row_id, s.record_count, s.file_size_bytes] INTO files
    FROM lakefork.visible_table_stats(p_catalog_id) s WHERE s.table_id = p_table_id;
    is_current := files IS NOT NULL
        AND p_hot_snapshots = ARRAY(SELECT h.hot_snapshot FROM lakefork.visible_hot_table(p_catalog_id) h
            WHERE h.table_id = p_table_id ORDER BY 1);
    IF p_definition_snapshot IS NOT NULL THEN
        is_current := is_current
            AND p_definition_snapshot = (SELECT v.begin_snapshot FROM lakefork.visible_schema_versions(p_catalog_id) v
                WHERE v.table_id = p_table_id ORDER BY v.begin_snapshot DESC LIMIT 1)
            AND EXISTS (SELECT FROM lakefork.visible_catalog() c
                WHERE c.catalog_name = p_catalog_name AND c.catalog_id = p_catalog_id);
    END IF;
    IF p_user_id IS NOT NULL THEN
        SELECT u.deleted_at IS NOT NULL, u.permissions INTO is_deleted, rules FROM lakefork.app_user u
        WHERE u.catalog_id = p_catalog_id AND u.user_id = p_user_id;
        is_current := is_current AND is_deleted IS NOT TRUE;
    END IF;
END $$;
