-- Applies a commit to the other entity tables.

-- Returns the SQL for one column of a new row: resolved ids, the catalog and snapshot of the commit, defaults.
CREATE FUNCTION lakefork.new_value(p_entity lakefork.entity, p_column text, p_default text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_column = 'catalog_id' THEN 'p_catalog_id'
        WHEN p_column = 'begin_snapshot' THEN 'p_snapshot'
        WHEN p_column = 'end_snapshot' THEN 'NULL::bigint'
        WHEN p_column = ANY (p_entity.catalog_refs) THEN format('lakefork.resolve_id(r.%I, p_first_catalog_id)',
            p_column)
        WHEN p_column = ANY (p_entity.file_refs) THEN format('lakefork.resolve_id(r.%I, p_first_file_id)', p_column)
        WHEN p_default IS NOT NULL THEN format('coalesce(r.%I, %s)', p_column, p_default)
        ELSE format('r.%I', p_column) END
$$;

-- apply_<entity>: ends and adds rows of one entity table with plans that Postgres can keep.
DO $generate$
DECLARE
    e lakefork.entity;
    columns text;
    new_values text;
    key_types text;
    same_key text;
    conditions text;
    ending text;
BEGIN
    FOR e IN SELECT * FROM lakefork.entity WHERE entity NOT IN ('ducklake_data_file', 'ducklake_file_column_stats') LOOP
        SELECT string_agg(format('%I', c.name), ', '),
               string_agg(format('%s AS %I', lakefork.new_value(e, c.name, c.default_expression), c.name), ', '),
               string_agg(format('%I %s', c.name, c.type), ', ') FILTER (WHERE c.name = ANY (e.key_columns)),
               string_agg(format('t.%1$I = r.%1$I', c.name), ' AND ') FILTER (WHERE c.name = ANY (e.key_columns))
        INTO columns, new_values, key_types, same_key
        FROM lakefork.entity_columns(e.entity) c;

        -- LIMIT forces a look-up per row: a plan cached when tables were small must not scan large ones.
        conditions := 'WHERE true';
        IF e.parent IS NOT NULL THEN
            SELECT format(CASE WHEN bool_or(p.versioned) THEN
                'CROSS JOIN LATERAL (SELECT p.end_snapshot FROM public.%I p WHERE p.catalog_id = p_catalog_id AND %s
                                     ORDER BY p.begin_snapshot DESC LIMIT 1) newest WHERE newest.end_snapshot IS NULL'
                ELSE 'CROSS JOIN LATERAL (SELECT FROM public.%I p WHERE p.catalog_id = p_catalog_id AND %s LIMIT 1) '
                    'found WHERE true' END,
                e.parent, string_agg(format('p.%1$I = n.%1$I', c), ' AND '))
            INTO conditions
            FROM unnest(e.parent_columns) c, lakefork.entity p WHERE p.entity = e.parent;
        END IF;
        IF e.id_column IS NOT NULL THEN
            conditions := conditions || format(' AND n.%1$I < p_first_%2$s_id + p_%2$s_ids', e.id_column, e.id_counter);
        END IF;

        ending := CASE WHEN e.versioned THEN format($sql$
                UPDATE public.%1$I t SET end_snapshot = p_snapshot FROM jsonb_to_recordset(p_ended) AS r (%2$s)
                WHERE t.catalog_id = p_catalog_id AND %3$s AND t.end_snapshot IS NULL AND t.begin_snapshot <= p_base;
                GET DIAGNOSTICS done = ROW_COUNT;
                PERFORM lakefork.expect_ended(%1$L, done, p_ended, p_base);$sql$, e.entity, key_types, same_key)
            ELSE format($sql$RAISE EXCEPTION 'rows of %I have no versions: they cannot be ended'
                USING ERRCODE = 'LFV01';$sql$, e.entity) END;

        EXECUTE format($sql$
            CREATE FUNCTION lakefork.apply_%1$s(
                p_catalog_id bigint, p_base bigint, p_snapshot bigint,
                p_first_catalog_id bigint, p_catalog_ids bigint, p_first_file_id bigint, p_file_ids bigint,
                p_new jsonb, p_ended jsonb
            ) RETURNS void LANGUAGE plpgsql AS $body$
            DECLARE
                done bigint;
            BEGIN
                IF p_ended IS NOT NULL THEN %2$s END IF;
                IF p_new IS NOT NULL THEN
                    INSERT INTO public.%1$I (%3$s)
                    SELECT n.* FROM (SELECT %4$s FROM jsonb_populate_recordset(NULL::public.%1$I, p_new) r) n
                    %5$s;
                    GET DIAGNOSTICS done = ROW_COUNT;
                    IF done <> jsonb_array_length(p_new) THEN
                        PERFORM lakefork.refuse_rows(%1$L, done, p_new);
                    END IF;
                END IF;
            END $body$ $sql$, e.entity, ending, columns, new_values, conditions);
    END LOOP;
END $generate$;
