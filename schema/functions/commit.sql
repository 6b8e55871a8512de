-- One commit = what it relies on + what it changes, checked and written in one round trip.

-- New objects are named -1, -2, … by the caller; they become the next ids of their counter.
CREATE FUNCTION lakefork.resolve_id(p_id bigint, p_first bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN p_id < 0 THEN p_first - 1 - p_id ELSE p_id END $$;

-- Ends files and takes them off their tables' totals.
CREATE FUNCTION lakefork.end_files(p_catalog_id bigint, p_base bigint, p_snapshot bigint, p_ended jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    done bigint;
BEGIN
    WITH ended AS (
        UPDATE public.ducklake_data_file f SET end_snapshot = p_snapshot
        FROM jsonb_to_recordset(p_ended) AS r (data_file_id bigint)
        WHERE f.catalog_id = p_catalog_id AND f.data_file_id = r.data_file_id AND f.end_snapshot IS NULL AND f.begin_snapshot <= p_base
        RETURNING f.table_id, f.record_count, f.file_size_bytes
    ), totals AS (
        SELECT table_id, count(*) AS files, sum(record_count) AS records, sum(file_size_bytes) AS bytes FROM ended GROUP BY table_id
    ), shrunk AS (
        UPDATE public.ducklake_table_stats s
        SET record_count = s.record_count - t.records, file_size_bytes = s.file_size_bytes - t.bytes
        FROM totals t WHERE s.catalog_id = p_catalog_id AND s.table_id = t.table_id
    )
    SELECT coalesce(sum(files), 0) INTO done FROM totals;
    PERFORM lakefork.expect_ended('ducklake_data_file', done, p_ended, p_base);
END $$;

-- One file and its statistics, as add_files does for many. Most commits add one, and the plain statements take two thirds of
-- the time of the large one, while all other commits wait.
CREATE FUNCTION lakefork.add_file(
    p_catalog_id bigint, p_snapshot bigint, p_first_catalog_id bigint, p_first_file_id bigint, p_file jsonb, p_stats jsonb
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    file_table_id bigint := lakefork.resolve_id((p_file ->> 'table_id')::bigint, p_first_catalog_id);
    records bigint := (p_file ->> 'record_count')::bigint;
    bytes bigint := (p_file ->> 'file_size_bytes')::bigint;
    new_row_id bigint;
    done bigint;
BEGIN
    UPDATE public.ducklake_table_stats s
    SET record_count = s.record_count + records, next_row_id = s.next_row_id + records, file_size_bytes = s.file_size_bytes + bytes
    WHERE s.catalog_id = p_catalog_id AND s.table_id = file_table_id
    RETURNING s.next_row_id INTO new_row_id;
    IF new_row_id IS NULL OR p_file ->> 'data_file_id' <> '-1' THEN
        PERFORM lakefork.refuse_rows('ducklake_data_file', 0, jsonb_build_array(p_file));
    END IF;
    INSERT INTO public.ducklake_data_file
        (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format, record_count,
         file_size_bytes, footer_size, row_id_start, partition_id, encryption_key, partial_file_info, mapping_id)
    VALUES (p_catalog_id, p_first_file_id, file_table_id, p_snapshot, (p_file ->> 'file_order')::bigint, p_file ->> 'path',
            (p_file ->> 'path_is_relative')::boolean, coalesce(p_file ->> 'file_format', 'parquet'), records, bytes,
            (p_file ->> 'footer_size')::bigint, new_row_id - records,
            lakefork.resolve_id((p_file ->> 'partition_id')::bigint, p_first_catalog_id), p_file ->> 'encryption_key',
            p_file ->> 'partial_file_info', (p_file ->> 'mapping_id')::bigint);
    IF p_stats IS NOT NULL THEN
        INSERT INTO public.ducklake_file_column_stats
            (catalog_id, data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan,
             extra_stats)
        SELECT p_catalog_id, p_first_file_id, file_table_id, r.column_id, r.column_size_bytes, r.value_count, r.null_count, r.min_value,
               r.max_value, r.contains_nan, r.extra_stats
        FROM jsonb_to_recordset(p_stats) AS r
            (data_file_id bigint, column_id bigint, column_size_bytes bigint, value_count bigint, null_count bigint, min_value text,
             max_value text, contains_nan boolean, extra_stats text)
        WHERE r.data_file_id = -1;
        GET DIAGNOSTICS done = ROW_COUNT;
        IF done <> jsonb_array_length(p_stats) THEN
            PERFORM lakefork.refuse_rows('ducklake_file_column_stats', done, p_stats);
        END IF;
    END IF;
    RETURN 'inserted_into_table:' || file_table_id;
END $$;

-- Adds files with their statistics, gives out their row ids, and adds them to their tables' totals, which exist for live tables
-- only. Returns the words for it. One statement, because every commit waits while another does this.
CREATE FUNCTION lakefork.add_files(
    p_catalog_id bigint, p_snapshot bigint, p_first_catalog_id bigint, p_first_file_id bigint, p_file_ids bigint, p_files jsonb, p_stats jsonb
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    added_files bigint;
    added_stats bigint;
    words text;
BEGIN
    WITH incoming AS MATERIALIZED (
        SELECT r.*, lakefork.resolve_id(r.table_id, p_first_catalog_id) AS real_table_id,
               sum(r.record_count) OVER (PARTITION BY r.table_id ORDER BY r.position DESC) AS rows_from_here
        FROM ROWS FROM (jsonb_to_recordset(p_files) AS (
            data_file_id bigint, table_id bigint, file_order bigint, path text, path_is_relative boolean, file_format text,
            record_count bigint, file_size_bytes bigint, footer_size bigint, partition_id bigint, encryption_key text,
            partial_file_info text, mapping_id bigint)) WITH ORDINALITY AS r
            (data_file_id, table_id, file_order, path, path_is_relative, file_format, record_count, file_size_bytes, footer_size,
             partition_id, encryption_key, partial_file_info, mapping_id, position)
    ), totals AS (
        UPDATE public.ducklake_table_stats s SET
            record_count = s.record_count + t.records, next_row_id = s.next_row_id + t.records, file_size_bytes = s.file_size_bytes + t.bytes
        FROM (SELECT i.real_table_id, sum(i.record_count) AS records, sum(i.file_size_bytes) AS bytes FROM incoming i GROUP BY 1) t
        WHERE s.catalog_id = p_catalog_id AND s.table_id = t.real_table_id
        RETURNING s.table_id, s.next_row_id
    ), files AS (
        INSERT INTO public.ducklake_data_file
            (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format, record_count,
             file_size_bytes, footer_size, row_id_start, partition_id, encryption_key, partial_file_info, mapping_id)
        SELECT p_catalog_id, p_first_file_id - 1 - i.data_file_id, i.real_table_id, p_snapshot, i.file_order, i.path, i.path_is_relative,
               coalesce(i.file_format, 'parquet'), i.record_count, i.file_size_bytes, i.footer_size, t.next_row_id - i.rows_from_here,
               lakefork.resolve_id(i.partition_id, p_first_catalog_id), i.encryption_key, i.partial_file_info,
               lakefork.resolve_id(i.mapping_id, p_first_file_id)
        FROM incoming i JOIN totals t ON t.table_id = i.real_table_id
        WHERE i.data_file_id BETWEEN -p_file_ids AND -1
        RETURNING 1
    ), stats AS (
        INSERT INTO public.ducklake_file_column_stats
            (catalog_id, data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan,
             extra_stats)
        SELECT p_catalog_id, p_first_file_id - 1 - i.data_file_id, i.real_table_id, r.column_id, r.column_size_bytes, r.value_count,
               r.null_count, r.min_value, r.max_value, r.contains_nan, r.extra_stats
        FROM jsonb_to_recordset(p_stats) AS r
            (data_file_id bigint, column_id bigint, column_size_bytes bigint, value_count bigint, null_count bigint, min_value text,
             max_value text, contains_nan boolean, extra_stats text)
        JOIN incoming i ON i.data_file_id = r.data_file_id
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM files), (SELECT count(*) FROM stats),
           (SELECT string_agg('inserted_into_table:' || table_id, ',' ORDER BY table_id) FROM totals)
    INTO added_files, added_stats, words;
    IF added_files <> jsonb_array_length(p_files) THEN
        PERFORM lakefork.refuse_rows('ducklake_data_file', added_files, p_files);
    ELSIF added_stats <> coalesce(jsonb_array_length(p_stats), 0) THEN
        PERFORM lakefork.refuse_rows('ducklake_file_column_stats', added_stats, p_stats);
    END IF;
    RETURN words;
END $$;

CREATE FUNCTION lakefork.expect_ended(p_entity text, p_done bigint, p_ended jsonb, p_base bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_done <> jsonb_array_length(p_ended) THEN
        RAISE EXCEPTION '% of % rows of % that this commit ends were changed since snapshot %',
            jsonb_array_length(p_ended) - p_done, jsonb_array_length(p_ended), p_entity, p_base USING ERRCODE = 'LFC01';
    END IF;
END $$;

CREATE FUNCTION lakefork.refuse_rows(p_entity text, p_done bigint, p_new jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % new rows of % have an id that was not given out, or belong to something that does not exist (any more)',
        jsonb_array_length(p_new) - p_done, jsonb_array_length(p_new), p_entity USING ERRCODE = 'LFN01';
END $$;

-- The SQL that writes one column of a new row: resolved ids, the catalog and snapshot of the commit, defaults.
CREATE FUNCTION lakefork.new_value(p_entity lakefork.entity, p_column text, p_default text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_column = 'catalog_id' THEN 'p_catalog_id'
        WHEN p_column = 'begin_snapshot' THEN 'p_snapshot'
        WHEN p_column = 'end_snapshot' THEN 'NULL::bigint'
        WHEN p_column = ANY (p_entity.catalog_refs) THEN format('lakefork.resolve_id(r.%I, p_first_catalog_id)', p_column)
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

        -- LIMIT makes it a look-up per row: a plan that was kept from when tables were small must not scan large ones.
        conditions := 'WHERE true';
        IF e.parent IS NOT NULL THEN
            SELECT format(CASE WHEN bool_or(p.versioned) THEN
                'CROSS JOIN LATERAL (SELECT p.end_snapshot FROM public.%I p WHERE p.catalog_id = p_catalog_id AND %s
                                     ORDER BY p.begin_snapshot DESC LIMIT 1) newest WHERE newest.end_snapshot IS NULL'
                ELSE 'CROSS JOIN LATERAL (SELECT FROM public.%I p WHERE p.catalog_id = p_catalog_id AND %s LIMIT 1) found WHERE true' END,
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
            ELSE format($sql$RAISE EXCEPTION 'rows of %I have no versions: they cannot be ended' USING ERRCODE = 'LFV01';$sql$, e.entity) END;

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

-- What the commit relies on must still be as it was at its base snapshot, and the catalog must be there.
--   {"tables": [ids]}  the definition of these tables      {"files": [ids]}  the set of files of these tables
CREATE FUNCTION lakefork.check_requirements(p_catalog_id bigint, p_base bigint, p_requires jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    e lakefork.entity;
    ids bigint[];
    changed bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM public.ducklake_catalog c WHERE c.catalog_id = p_catalog_id AND c.end_snapshot IS NULL) THEN
        RAISE EXCEPTION 'catalog % does not exist (any more)', p_catalog_id USING ERRCODE = 'LFN01';
    ELSIF NOT EXISTS (SELECT FROM public.ducklake_snapshot s WHERE s.snapshot_id = p_base) THEN
        RAISE EXCEPTION 'base snapshot % is not a retained snapshot', p_base USING ERRCODE = 'LFN01';
    END IF;
    SELECT array_agg(v::bigint) INTO ids FROM jsonb_array_elements_text(p_requires -> 'tables') v;
    IF ids IS NOT NULL THEN
        SELECT i INTO changed FROM unnest(ids) i
        WHERE NOT EXISTS (SELECT FROM public.ducklake_table t
                          WHERE t.catalog_id = p_catalog_id AND t.table_id = i AND t.end_snapshot IS NULL);
        IF FOUND THEN
            RAISE EXCEPTION 'table % does not exist (any more)', changed USING ERRCODE = 'LFN01';
        END IF;
        FOR e IN SELECT * FROM lakefork.entity WHERE defines_table IS NOT NULL LOOP
            EXECUTE format('SELECT %1$I FROM public.%2$I WHERE catalog_id = $1 AND %1$I = ANY ($2) AND (begin_snapshot > $3 OR end_snapshot > $3) LIMIT 1',
                           e.defines_table, e.entity)
            INTO changed USING p_catalog_id, ids, p_base;
            IF changed IS NOT NULL THEN
                RAISE EXCEPTION 'the definition of table % was changed since snapshot %', changed, p_base USING ERRCODE = 'LFC01';
            END IF;
        END LOOP;
    END IF;
    SELECT f.table_id INTO changed
    FROM jsonb_array_elements_text(p_requires -> 'files') v
    JOIN public.ducklake_data_file f ON f.catalog_id = p_catalog_id AND f.table_id = v::bigint
    WHERE f.begin_snapshot > p_base OR f.end_snapshot > p_base LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'files of table % were changed since snapshot %', changed, p_base USING ERRCODE = 'LFC01';
    END IF;
END $$;

-- What belongs to something that ended without a successor ends with it.
CREATE FUNCTION lakefork.end_children(p_catalog_id bigint, p_snapshot bigint, p_ended_entities text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    touched text[] := p_ended_entities;
    child lakefork.entity;
    parent_key text;
    done bigint;
BEGIN
    FOR child IN SELECT * FROM lakefork.entity WHERE versioned AND parent IS NOT NULL ORDER BY rank LOOP
        CONTINUE WHEN child.parent <> ALL (touched);
        SELECT string_agg(format('p.%1$I = c.%1$I', k), ' AND ') INTO parent_key FROM unnest(child.parent_columns) k;
        EXECUTE format($sql$
            UPDATE public.%1$I c SET end_snapshot = $2
            FROM public.%2$I p
            WHERE p.catalog_id = $1 AND p.end_snapshot = $2 AND c.catalog_id = $1 AND c.end_snapshot IS NULL AND %3$s
              AND NOT EXISTS (SELECT FROM public.%2$I p WHERE p.catalog_id = $1 AND p.end_snapshot IS NULL AND %3$s)
            $sql$, child.entity, child.parent, parent_key) USING p_catalog_id, p_snapshot;
        GET DIAGNOSTICS done = ROW_COUNT;
        IF done > 0 AND child.parent = 'ducklake_schema' THEN
            RAISE EXCEPTION 'a namespace with % object(s) in it cannot be dropped', done USING ERRCODE = 'LFV01';
        ELSIF done > 0 THEN
            touched := touched || child.entity::text;
        END IF;
    END LOOP;
    DELETE FROM public.ducklake_table_stats s USING public.ducklake_table t
    WHERE t.catalog_id = p_catalog_id AND t.end_snapshot = p_snapshot AND s.catalog_id = p_catalog_id AND s.table_id = t.table_id
      AND NOT EXISTS (SELECT FROM public.ducklake_table l WHERE l.catalog_id = p_catalog_id AND l.table_id = s.table_id AND l.end_snapshot IS NULL);
    UPDATE public.ducklake_tag t SET end_snapshot = p_snapshot
    FROM (SELECT catalog_id, schema_id AS object_id, end_snapshot FROM public.ducklake_schema
          UNION ALL SELECT catalog_id, table_id, end_snapshot FROM public.ducklake_table
          UNION ALL SELECT catalog_id, view_id, end_snapshot FROM public.ducklake_view) o
    WHERE o.catalog_id = p_catalog_id AND o.end_snapshot = p_snapshot
      AND t.catalog_id = p_catalog_id AND t.object_id = o.object_id AND t.end_snapshot IS NULL
      AND NOT EXISTS (SELECT FROM public.ducklake_schema l WHERE l.catalog_id = p_catalog_id AND l.schema_id = o.object_id AND l.end_snapshot IS NULL)
      AND NOT EXISTS (SELECT FROM public.ducklake_table l WHERE l.catalog_id = p_catalog_id AND l.table_id = o.object_id AND l.end_snapshot IS NULL)
      AND NOT EXISTS (SELECT FROM public.ducklake_view l WHERE l.catalog_id = p_catalog_id AND l.view_id = o.object_id AND l.end_snapshot IS NULL);
END $$;

-- A table has totals from its begin; that they exist tells add_files that it is live.
CREATE FUNCTION lakefork.add_totals(p_catalog_id bigint, p_first_catalog_id bigint, p_tables jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO public.ducklake_table_stats (catalog_id, table_id, record_count, next_row_id, file_size_bytes)
    SELECT p_catalog_id, lakefork.resolve_id((v ->> 'table_id')::bigint, p_first_catalog_id), 0, 0, 0 FROM jsonb_array_elements(p_tables) v
    ON CONFLICT DO NOTHING
$$;

-- The entity tables that a commit names, parents first.
CREATE FUNCTION lakefork.entities_of(p_new jsonb, p_ended jsonb) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    entities text[];
    unknown text;
BEGIN
    SELECT array_agg(k ORDER BY e.rank, k), string_agg(k, ', ') FILTER (WHERE e.entity IS NULL) INTO entities, unknown
    FROM (SELECT jsonb_object_keys(p_new) UNION SELECT jsonb_object_keys(p_ended)) keys (k)
    LEFT JOIN lakefork.entity e ON e.entity = k;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'a commit cannot change %', unknown USING ERRCODE = 'LFV01';
    ELSIF p_ended ? 'ducklake_file_column_stats' OR (p_new ? 'ducklake_file_column_stats' AND NOT p_new ? 'ducklake_data_file') THEN
        RAISE EXCEPTION 'file statistics come and go with their file' USING ERRCODE = 'LFV01';
    END IF;
    RETURN array_remove(coalesce(entities, '{}'), 'ducklake_file_column_stats');
END $$;

-- Whether a change of these is a change of definitions, and so makes a new schema version.
CREATE FUNCTION lakefork.redefines(p_entities text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT p_entities <@ '{ducklake_data_file,ducklake_delete_file,ducklake_file_column_stats,ducklake_file_partition_value,ducklake_column_mapping,ducklake_name_mapping,ducklake_inlined_data_tables}'::text[]
$$;

-- The tables whose definition a commit changes.
CREATE FUNCTION lakefork.defined_tables(p_catalog_id bigint, p_first_catalog_id bigint, p_new jsonb, p_ended jsonb) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(DISTINCT t.table_id), '{}')
    FROM lakefork.entity e
    CROSS JOIN LATERAL (SELECT jsonb_array_elements(p_new -> e.entity) UNION ALL SELECT jsonb_array_elements(p_ended -> e.entity)) r (v)
    JOIN public.ducklake_table t ON t.catalog_id = p_catalog_id AND t.table_id = lakefork.resolve_id((v ->> e.defines_table)::bigint, p_first_catalog_id)
    WHERE e.defines_table IS NOT NULL
$$;

-- changes_made, in the words that DuckLake uses.
CREATE FUNCTION lakefork.describe_changes(
    p_catalog_id bigint, p_first_catalog_id bigint, p_new jsonb, p_ended jsonb, p_defined_tables bigint[]
) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    words text[] := '{}';
    file_words text[];
BEGIN
    IF p_new ?| '{ducklake_schema,ducklake_table,ducklake_view,ducklake_macro}'
       OR p_ended ?| '{ducklake_schema,ducklake_table,ducklake_view,ducklake_macro}' OR p_defined_tables <> '{}' THEN
        words := lakefork.describe_definitions(p_catalog_id, p_first_catalog_id, p_new, p_ended, p_defined_tables);
    END IF;
    IF p_new ?| '{ducklake_data_file,ducklake_delete_file}' OR p_ended ?| '{ducklake_data_file,ducklake_delete_file}' THEN
        SELECT array_agg(CASE WHEN added AND removed THEN 'compacted_table:' WHEN added THEN 'inserted_into_table:'
                              ELSE 'deleted_from_table:' END || table_id ORDER BY table_id)
        INTO file_words
        FROM (
            SELECT table_id, bool_or(added) AS added, bool_or(NOT added) AS removed
            FROM (
                SELECT lakefork.resolve_id((v ->> 'table_id')::bigint, p_first_catalog_id) AS table_id, true AS added
                FROM jsonb_array_elements(p_new -> 'ducklake_data_file') v
                UNION ALL
                SELECT lakefork.resolve_id((v ->> 'table_id')::bigint, p_first_catalog_id), false
                FROM jsonb_array_elements(p_new -> 'ducklake_delete_file') v
                UNION ALL
                SELECT f.table_id, false FROM jsonb_to_recordset(p_ended -> 'ducklake_data_file') AS r (data_file_id bigint)
                JOIN public.ducklake_data_file f ON f.catalog_id = p_catalog_id AND f.data_file_id = r.data_file_id
                UNION ALL
                SELECT f.table_id, true FROM jsonb_to_recordset(p_ended -> 'ducklake_delete_file') AS r (delete_file_id bigint)
                JOIN public.ducklake_delete_file f ON f.catalog_id = p_catalog_id AND f.delete_file_id = r.delete_file_id
            ) each_row
            GROUP BY table_id
        ) each_table;
    END IF;
    RETURN nullif(array_to_string(words || file_words, ','), '');
END $$;

CREATE FUNCTION lakefork.quoted(p_name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT '"' || replace(p_name, '"', '""') || '"' $$;

CREATE FUNCTION lakefork.describe_definitions(
    p_catalog_id bigint, p_first_catalog_id bigint, p_new jsonb, p_ended jsonb, p_defined_tables bigint[]
) RETURNS text[]
LANGUAGE sql STABLE AS $$
    WITH objects (kind, entity, id_column, name_column) AS (
        VALUES ('schema', 'ducklake_schema', 'schema_id', 'schema_name'), ('table', 'ducklake_table', 'table_id', 'table_name'),
               ('view', 'ducklake_view', 'view_id', 'view_name'), ('macro', 'ducklake_macro', 'macro_id', 'macro_name')
    ), added AS (
        SELECT o.kind, lakefork.resolve_id((v ->> o.id_column)::bigint, p_first_catalog_id) AS id, v ->> o.name_column AS name,
               lakefork.resolve_id((v ->> 'schema_id')::bigint, p_first_catalog_id) AS schema_id
        FROM objects o, jsonb_array_elements(p_new -> o.entity) v
    ), removed AS (
        SELECT o.kind, (v ->> o.id_column)::bigint AS id FROM objects o, jsonb_array_elements(p_ended -> o.entity) v
    ), words AS (
        SELECT format('created_%s:%s%s', a.kind, CASE WHEN a.kind <> 'schema' THEN lakefork.quoted(s.schema_name) || '.' END, lakefork.quoted(a.name)) AS word
        FROM added a
        LEFT JOIN public.ducklake_schema s ON s.catalog_id = p_catalog_id AND s.schema_id = a.schema_id AND s.end_snapshot IS NULL
        WHERE a.id >= p_first_catalog_id
        UNION
        SELECT format('dropped_%s:%s', kind, id) FROM removed WHERE (kind, id) NOT IN (SELECT kind, id FROM added)
        UNION
        SELECT format('altered_%s:%s', kind, id) FROM added WHERE id < p_first_catalog_id
        UNION
        SELECT 'altered_table:' || t FROM unnest(p_defined_tables) t
        WHERE t < p_first_catalog_id AND ('table', t) NOT IN (SELECT kind, id FROM removed WHERE (kind, id) NOT IN (SELECT kind, id FROM added))
    )
    SELECT coalesce(array_agg(word ORDER BY word), '{}') FROM words
$$;

-- The commit. p_changes, all parts optional:
--   new       {"ducklake_table": [{row}, …], …}   rows to add; new objects have the ids -1, -2, … (per counter)
--   end       {"ducklake_table": [{key}, …], …}   rows to end; they must be as they were at the base snapshot
--   requires  see check_requirements
--   catalog_ids, file_ids                         how many new ids of each counter the rows use
CREATE FUNCTION lakefork.commit(
    p_catalog_id bigint, p_base_snapshot bigint, p_changes jsonb,
    p_author text DEFAULT NULL, p_message text DEFAULT NULL, p_commit_key text DEFAULT NULL, p_extra text DEFAULT NULL,
    OUT snapshot_id bigint, OUT schema_version bigint, OUT first_catalog_id bigint, OUT first_file_id bigint, OUT replayed boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    added jsonb := coalesce(p_changes -> 'new', '{}');
    ended jsonb := coalesce(p_changes -> 'end', '{}');
    new_catalog_ids bigint := coalesce((p_changes ->> 'catalog_ids')::bigint, 0);
    new_file_ids bigint := coalesce((p_changes ->> 'file_ids')::bigint, 0);
    -- Nearly all commits add files and nothing else.
    only_files boolean := ended = '{}' AND added ? 'ducklake_data_file'
                          AND added - '{ducklake_data_file,ducklake_file_column_stats}'::text[] = '{}';
    entities text[] := CASE WHEN only_files THEN '{ducklake_data_file}' ELSE lakefork.entities_of(added, ended) END;
    redefines boolean := NOT only_files AND lakefork.redefines(entities);
    newest public.ducklake_snapshot;
    new_schema_version bigint;
    defined_tables bigint[] := '{}';
    entity text;
    words text;
    ignored text;   -- an assignment costs less than PERFORM
BEGIN
    ignored := lakefork.lock_commits();
    SELECT * INTO newest FROM public.ducklake_snapshot s ORDER BY s.snapshot_id DESC LIMIT 1;
    IF p_commit_key IS NOT NULL THEN
        SELECT k.snapshot_id, k.schema_version, k.first_catalog_id, k.first_file_id, true
        INTO snapshot_id, schema_version, first_catalog_id, first_file_id, replayed
        FROM lakefork.commit_key k WHERE k.commit_key = p_commit_key;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- New files rely on nothing but their table, and add_file sees to that.
    IF NOT only_files OR p_changes ? 'requires' THEN
        PERFORM lakefork.check_requirements(p_catalog_id, p_base_snapshot, p_changes -> 'requires');
    END IF;

    snapshot_id := newest.snapshot_id + 1;
    first_catalog_id := newest.next_catalog_id;
    first_file_id := newest.next_file_id;
    FOREACH entity IN ARRAY entities LOOP
        IF entity <> 'ducklake_data_file' THEN
            EXECUTE format('SELECT lakefork.apply_%s($1, $2, $3, $4, $5, $6, $7, $8, $9)', entity)
            USING p_catalog_id, p_base_snapshot, snapshot_id, first_catalog_id, new_catalog_ids, first_file_id, new_file_ids,
                  added -> entity, ended -> entity;
            IF entity = 'ducklake_table' THEN
                PERFORM lakefork.add_totals(p_catalog_id, first_catalog_id, added -> entity);
            END IF;
            CONTINUE;
        END IF;
        IF ended ? entity THEN
            PERFORM lakefork.end_files(p_catalog_id, p_base_snapshot, snapshot_id, ended -> entity);
        END IF;
        IF new_file_ids = 1 AND jsonb_array_length(added -> entity) = 1 THEN
            words := lakefork.add_file(p_catalog_id, snapshot_id, first_catalog_id, first_file_id, added -> entity -> 0,
                                       added -> 'ducklake_file_column_stats');
        ELSIF added ? entity THEN
            words := lakefork.add_files(p_catalog_id, snapshot_id, first_catalog_id, first_file_id, new_file_ids,
                                        added -> entity, added -> 'ducklake_file_column_stats');
        END IF;
    END LOOP;
    IF ended <> '{}' THEN
        PERFORM lakefork.end_children(p_catalog_id, snapshot_id, ARRAY(SELECT jsonb_object_keys(ended)));
    END IF;
    new_schema_version := newest.schema_version + redefines::integer;
    IF redefines THEN
        defined_tables := lakefork.defined_tables(p_catalog_id, first_catalog_id, added, ended);
        INSERT INTO public.ducklake_schema_versions (catalog_id, begin_snapshot, schema_version, table_id)
        SELECT p_catalog_id, newest.snapshot_id + 1, new_schema_version, t FROM unnest(defined_tables) t;
    END IF;
    IF NOT only_files THEN
        words := lakefork.describe_changes(p_catalog_id, first_catalog_id, added, ended, defined_tables);
    END IF;
    INSERT INTO public.ducklake_snapshot
    VALUES (newest.snapshot_id + 1, clock_timestamp(), new_schema_version, newest.next_catalog_id + new_catalog_ids,
            newest.next_file_id + new_file_ids);
    INSERT INTO public.ducklake_snapshot_changes VALUES (newest.snapshot_id + 1, p_catalog_id, words, p_author, p_message, p_extra);
    IF p_commit_key IS NOT NULL THEN
        INSERT INTO lakefork.commit_key
        VALUES (p_commit_key, p_catalog_id, newest.snapshot_id + 1, new_schema_version, newest.next_catalog_id, newest.next_file_id,
                clock_timestamp());
    END IF;
    schema_version := new_schema_version;
    replayed := false;
END $$;
