-- Who may write rows of a table at the same time. All locks are held until the transaction ends.
--   definition lock: writers share it, changes of the definition take it alone
--   rows lock, per table and user: writers of single keys share it, bulk writers take it alone
--   key lock: one writer of a key at a time

CREATE FUNCTION lakefork.definition_lock(p_catalog_id bigint, p_table_id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashint8extended(p_table_id, hashint8extended(p_catalog_id, 5063717813)) $$;

CREATE FUNCTION lakefork.rows_lock(p_catalog_id bigint, p_table_id bigint, p_user_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(coalesce('u' || p_user_id, ''), lakefork.definition_lock(p_catalog_id, p_table_id)) $$;

-- One at a time makes a hot table, whichever catalog it is for.
CREATE FUNCTION lakefork.lock_hot_table(p_table_id bigint) RETURNS void
LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock(hashint8extended(p_table_id, 5063717814)) $$;

-- The write that follows meets the definition that it was planned for, in the catalog that is called so, and an owner
-- who may have rows, under the rules that it was planned for (NULL: whatever they are).
CREATE FUNCTION lakefork.guard_write(
    p_catalog_id bigint, p_catalog_name text, p_table_id bigint, p_definition_snapshot bigint, p_user_id text, p_rules text[] DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ignored text;   -- an assignment costs less than PERFORM
    current_definition bigint;
    is_deleted boolean;
    rules text[];
BEGIN
    ignored := pg_advisory_xact_lock_shared(hashint8extended(p_table_id, hashint8extended(p_catalog_id, 5063717813)));
    SELECT v.begin_snapshot INTO current_definition FROM public.ducklake_schema_versions v
    WHERE v.catalog_id = p_catalog_id AND v.table_id = p_table_id ORDER BY v.begin_snapshot DESC LIMIT 1;
    IF current_definition <> p_definition_snapshot
       OR NOT EXISTS (SELECT FROM public.ducklake_table_stats s WHERE s.catalog_id = p_catalog_id AND s.table_id = p_table_id)
       OR NOT EXISTS (SELECT FROM public.ducklake_catalog c
                      WHERE c.catalog_name = p_catalog_name AND c.end_snapshot IS NULL AND c.catalog_id = p_catalog_id) THEN
        RAISE EXCEPTION 'the definition of table % was changed since snapshot %', p_table_id, p_definition_snapshot USING ERRCODE = 'LFC02';
    ELSIF p_user_id IS NULL THEN
        RETURN true;
    END IF;
    SELECT u.deleted_at IS NOT NULL, u.permissions INTO is_deleted, rules FROM lakefork.app_user u
    WHERE u.catalog_id = p_catalog_id AND u.user_id = p_user_id;
    IF is_deleted THEN
        RAISE EXCEPTION 'user % was deleted', quote_literal(p_user_id) USING ERRCODE = 'LFP01';
    ELSIF p_rules <> coalesce(rules, '{}') THEN
        RAISE EXCEPTION 'the rules of user % were changed', quote_literal(p_user_id) USING ERRCODE = 'LFC02';
    END IF;
    RETURN true;
END $$;

-- Guards the write and keeps other writers of these keys out; without keys, all who look at keys of this user.
-- Whoever reads the rows afterwards, in a statement of its own, reads what the others left.
CREATE FUNCTION lakefork.lock_rows(
    p_catalog_id bigint, p_catalog_name text, p_table_id bigint, p_definition_snapshot bigint, p_user_id text, p_keys bigint[],
    p_rules text[] DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    rows_lock bigint := lakefork.rows_lock(p_catalog_id, p_table_id, p_user_id);
    ignored text;
    key bigint;
BEGIN
    ignored := lakefork.guard_write(p_catalog_id, p_catalog_name, p_table_id, p_definition_snapshot, p_user_id, p_rules);
    IF p_keys IS NULL THEN
        ignored := pg_advisory_xact_lock(rows_lock);
        RETURN;
    END IF;
    ignored := pg_advisory_xact_lock_shared(rows_lock);
    FOR key IN SELECT DISTINCT hashint8extended(k, rows_lock) FROM unnest(p_keys) k ORDER BY 1 LOOP
        ignored := pg_advisory_xact_lock(key);
    END LOOP;
END $$;

-- Waits until nobody writes rows of the table; writers that come later see the new definition.
CREATE FUNCTION lakefork.lock_definition(p_catalog_id bigint, p_table_id bigint) RETURNS void
LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock(lakefork.definition_lock(p_catalog_id, p_table_id)) $$;
