-- Who may write rows of a table at the same time (functions/locks.sql). All locks are held until the transaction ends.

-- The write that follows meets the definition that it was planned for, in the catalog that is called so, and an owner
-- who may have rows, under the rules that it was planned for (NULL: whatever they are).
CREATE FUNCTION lakefork.guard_write(
    p_catalog_id bigint, p_catalog_name text, p_table_id bigint, p_definition_snapshot bigint, p_user_id text,
        p_rules text[] DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ignored text;   -- an assignment costs less than PERFORM
    current_definition bigint;
    is_deleted boolean;
    rules text[];
BEGIN
    ignored := pg_advisory_xact_lock_shared(lakefork.definition_lock(p_catalog_id, p_table_id));
    SELECT v.begin_snapshot INTO current_definition FROM lakefork.visible_schema_versions(p_catalog_id) v
    WHERE v.table_id = p_table_id ORDER BY v.begin_snapshot DESC LIMIT 1;
    IF current_definition <> p_definition_snapshot
       OR NOT EXISTS (SELECT FROM lakefork.visible_table_stats(p_catalog_id) s WHERE s.table_id = p_table_id)
       OR NOT EXISTS (SELECT FROM lakefork.visible_catalog() c WHERE c.catalog_name = p_catalog_name
           AND c.catalog_id = p_catalog_id) THEN
        RAISE EXCEPTION 'the definition of table % has changed since snapshot %', p_table_id, p_definition_snapshot
            USING ERRCODE = 'LFC02';
    ELSIF p_user_id IS NULL THEN
        RETURN true;
    END IF;
    SELECT u.deleted_at IS NOT NULL, u.permissions INTO is_deleted, rules FROM lakefork.app_user u
    WHERE u.catalog_id = p_catalog_id AND u.user_id = p_user_id;
    IF is_deleted THEN
        RAISE EXCEPTION 'user % was deleted', quote_literal(p_user_id) USING ERRCODE = 'LFP01';
    ELSIF p_rules <> coalesce(rules, '{}') THEN
        RAISE EXCEPTION 'the rules of user % have changed', quote_literal(p_user_id) USING ERRCODE = 'LFC02';
    END IF;
    RETURN true;
END $$;

-- Guards the write and locks these keys; without keys, all keys of this user.
-- Rows must be read afterwards, in a separate statement, to see what previous writers committed.
CREATE FUNCTION lakefork.lock_rows(
    p_catalog_id bigint, p_catalog_name text, p_table_id bigint, p_definition_snapshot bigint, p_user_id text,
        p_keys bigint[],
    p_rules text[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    rows_lock bigint := lakefork.rows_lock(p_catalog_id, p_table_id, p_user_id);
    ignored text;
    key bigint;
BEGIN
    ignored := lakefork.guard_write(p_catalog_id, p_catalog_name, p_table_id, p_definition_snapshot, p_user_id,
        p_rules);
    IF p_keys IS NULL THEN
        ignored := pg_advisory_xact_lock(rows_lock);
        RETURN;
    END IF;
    ignored := pg_advisory_xact_lock_shared(rows_lock);
    FOR key IN SELECT DISTINCT lakefork.key_lock(k, rows_lock) FROM unnest(p_keys) k ORDER BY 1 LOOP
        ignored := pg_advisory_xact_lock(key);
    END LOOP;
END $$;

-- Waits for current writers of the table; later writers see the new definition.
CREATE FUNCTION lakefork.lock_definition(p_catalog_id bigint, p_table_id bigint) RETURNS void
LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock(lakefork.definition_lock(p_catalog_id, p_table_id)) $$;
