-- A commit has requirements and changes, checked and written in one round trip.

-- Raises unless the requirements are as they were at the base snapshot, and the catalog exists. The base may be one
-- that only other catalogs gave up: this catalog's changes since are still in its rows.
--   {"tables": [ids]}  the definition of these tables      {"files": [ids]}  the set of files of these tables
CREATE FUNCTION lakefork.check_requirements(p_catalog_id bigint, p_base bigint, p_requires jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    e lakefork.entity;
    ids bigint[];
    changed bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM public.ducklake_catalog c WHERE c.catalog_id = p_catalog_id AND c.end_snapshot IS NULL)
        THEN
        RAISE EXCEPTION 'catalog % does not exist', p_catalog_id USING ERRCODE = 'LFN01';
    ELSIF NOT EXISTS (SELECT FROM public.ducklake_snapshot s WHERE s.snapshot_id = p_base)
          AND (p_base NOT BETWEEN 0 AND lakefork.newest_snapshot()
               OR p_base < (SELECT max(r.snapshot_id) FROM lakefork.retained_from r WHERE r.catalog_id = p_catalog_id))
                   THEN
        RAISE EXCEPTION 'base snapshot % is not a retained snapshot', p_base USING ERRCODE = 'LFN01';
    END IF;
    SELECT array_agg(v::bigint) INTO ids FROM jsonb_array_elements_text(p_requires -> 'tables') v;
    IF ids IS NOT NULL THEN
        SELECT i INTO changed FROM unnest(ids) i
        WHERE NOT EXISTS (SELECT FROM public.ducklake_table t
                          WHERE t.catalog_id = p_catalog_id AND t.table_id = i AND t.end_snapshot IS NULL);
        IF FOUND THEN
            RAISE EXCEPTION 'table % does not exist', changed USING ERRCODE = 'LFN01';
        END IF;
        FOR e IN SELECT * FROM lakefork.entity WHERE defines_table IS NOT NULL LOOP
            EXECUTE format('SELECT %1$I FROM public.%2$I WHERE catalog_id = $1 AND %1$I = ANY ($2) AND (begin_snapshot '
                '> $3 OR end_snapshot > $3) LIMIT 1',
                           e.defines_table, e.entity)
            INTO changed USING p_catalog_id, ids, p_base;
            IF changed IS NOT NULL THEN
                RAISE EXCEPTION 'the definition of table % has changed since snapshot %', changed, p_base
                    USING ERRCODE = 'LFC01';
            END IF;
        END LOOP;
    END IF;
    SELECT f.table_id INTO changed
    FROM jsonb_array_elements_text(p_requires -> 'files') v
    JOIN public.ducklake_data_file f ON f.catalog_id = p_catalog_id AND f.table_id = v::bigint
    WHERE f.begin_snapshot > p_base OR f.end_snapshot > p_base LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'files of table % have changed since snapshot %', changed, p_base USING ERRCODE = 'LFC01';
    END IF;
END $$;

-- Ends what belongs to something that ended without a successor.
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
    WHERE t.catalog_id = p_catalog_id AND t.end_snapshot = p_snapshot AND s.catalog_id = p_catalog_id
        AND s.table_id = t.table_id
      AND NOT EXISTS (SELECT FROM public.ducklake_table l WHERE l.catalog_id = p_catalog_id AND l.table_id = s.table_id
          AND l.end_snapshot IS NULL);
    UPDATE public.ducklake_tag t SET end_snapshot = p_snapshot
    FROM (SELECT catalog_id, schema_id AS object_id, end_snapshot FROM public.ducklake_schema
          UNION ALL SELECT catalog_id, table_id, end_snapshot FROM public.ducklake_table
          UNION ALL SELECT catalog_id, view_id, end_snapshot FROM public.ducklake_view) o
    WHERE o.catalog_id = p_catalog_id AND o.end_snapshot = p_snapshot
      AND t.catalog_id = p_catalog_id AND t.object_id = o.object_id AND t.end_snapshot IS NULL
      AND NOT EXISTS (SELECT FROM public.ducklake_schema l WHERE l.catalog_id = p_catalog_id
          AND l.schema_id = o.object_id AND l.end_snapshot IS NULL)
      AND NOT EXISTS (SELECT FROM public.ducklake_table l WHERE l.catalog_id = p_catalog_id AND l.table_id = o.object_id
          AND l.end_snapshot IS NULL)
      AND NOT EXISTS (SELECT FROM public.ducklake_view l WHERE l.catalog_id = p_catalog_id AND l.view_id = o.object_id
          AND l.end_snapshot IS NULL);
END $$;

-- A table has totals from its creation; their existence tells add_files that it is live.
CREATE FUNCTION lakefork.add_totals(p_catalog_id bigint, p_first_catalog_id bigint, p_tables jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO public.ducklake_table_stats (catalog_id, table_id, record_count, next_row_id, file_size_bytes)
    SELECT p_catalog_id, lakefork.resolve_id((v ->> 'table_id')::bigint, p_first_catalog_id), 0, 0, 0
        FROM jsonb_array_elements(p_tables) v
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
    ELSIF 'ducklake_file_column_stats' = ANY (entities) THEN
        RAISE EXCEPTION 'file statistics are added and ended with their file' USING ERRCODE = 'LFV01';
    END IF;
    RETURN coalesce(entities, '{}');
END $$;

-- Tells whether a change of these tables changes definitions, and so makes a new schema version.
CREATE FUNCTION lakefork.redefines(p_entities text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT p_entities <@
        '{ducklake_data_file,ducklake_delete_file,ducklake_file_partition_value,ducklake_column_mapping,'
        'ducklake_name_mapping,ducklake_inlined_data_tables}'::text[]
$$;

-- The tables whose definition a commit changes.
CREATE FUNCTION lakefork.defined_tables(p_catalog_id bigint, p_first_catalog_id bigint, p_new jsonb, p_ended jsonb)
    RETURNS bigint[]
LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(DISTINCT t.table_id), '{}')
    FROM lakefork.entity e
    CROSS JOIN LATERAL (SELECT jsonb_array_elements(p_new -> e.entity) UNION ALL
        SELECT jsonb_array_elements(p_ended -> e.entity)) r (v)
    JOIN public.ducklake_table t ON t.catalog_id = p_catalog_id
        AND t.table_id = lakefork.resolve_id((v ->> e.defines_table)::bigint, p_first_catalog_id)
    WHERE e.defines_table IS NOT NULL
$$;

-- Dates belong to what was defined: its snapshots expire.
CREATE FUNCTION lakefork.date_definitions(
    p_catalog_id bigint, p_snapshot bigint, p_first_catalog_id bigint, p_tables bigint[], p_namespaces jsonb,
        p_time timestamptz, p_author text
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.definition_date (catalog_id, object_id, begin_snapshot, defined_at, author)
    SELECT p_catalog_id, o.object_id, p_snapshot, p_time, p_author
    FROM (SELECT unnest(p_tables) AS object_id
          UNION SELECT lakefork.resolve_id((v ->> 'schema_id')::bigint, p_first_catalog_id)
              FROM jsonb_array_elements(p_namespaces) v) o
$$;

-- The commit. p_changes, all parts optional:
--   new       {"ducklake_table": [{row}, …], …}   rows to add; new objects have the ids -1, -2, … (per counter);
--                                                 files have their statistics with them (see add_file)
--   end       {"ducklake_table": [{key}, …], …}   rows to end; they must be as they were at the base snapshot
--   requires  see check_requirements
--   catalog_ids, file_ids                         how many new ids of each counter the rows use
-- history   {"snapshots": n, "schema_versions": n}   how many snapshot ids and schema versions a restore takes for what
-- was before (functions/restore.sql)
CREATE FUNCTION lakefork.commit(
    p_catalog_id bigint, p_base_snapshot bigint, p_changes jsonb,
    p_author text DEFAULT NULL, p_message text DEFAULT NULL, p_commit_key text DEFAULT NULL, p_extra text DEFAULT NULL,
    OUT snapshot_id bigint, OUT schema_version bigint, OUT first_catalog_id bigint, OUT first_file_id bigint,
    OUT replayed boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    added jsonb := coalesce(p_changes -> 'new', '{}');
    ended jsonb := coalesce(p_changes -> 'end', '{}');
    new_catalog_ids bigint := coalesce((p_changes ->> 'catalog_ids')::bigint, 0);
    new_file_ids bigint := coalesce((p_changes ->> 'file_ids')::bigint, 0);
    -- Nearly all commits add files and nothing else.
    only_files boolean := ended = '{}' AND added ? 'ducklake_data_file'
                          AND added - 'ducklake_data_file'::text = '{}';
    entities text[] := CASE WHEN only_files THEN '{ducklake_data_file}' ELSE lakefork.entities_of(added, ended) END;
    redefines boolean := NOT only_files AND lakefork.redefines(entities);
    taken_snapshots bigint := greatest((p_changes #>> '{history,snapshots}')::bigint, 1);
    taken_versions bigint := greatest((p_changes #>> '{history,schema_versions}')::bigint, 1);
    newest public.ducklake_snapshot;
    new_schema_version bigint;
    defined_tables bigint[] := '{}';
    committed_at timestamptz;
    entity text;
    words text;
    ignored text;   -- an assignment costs less than PERFORM
BEGIN
    IF new_catalog_ids < 0 OR new_file_ids < 0 THEN
        RAISE EXCEPTION 'a commit cannot return ids' USING ERRCODE = 'LFV01';
    END IF;
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
    -- New files depend only on their table, which add_file checks.
    IF NOT only_files OR p_changes ? 'requires' THEN
        PERFORM lakefork.check_requirements(p_catalog_id, p_base_snapshot, p_changes -> 'requires');
    END IF;

    snapshot_id := newest.snapshot_id + 1;
    first_catalog_id := newest.next_catalog_id;
    first_file_id := newest.next_file_id;
    FOREACH entity IN ARRAY entities LOOP
        IF entity <> 'ducklake_data_file' THEN
            EXECUTE format('SELECT lakefork.apply_%s($1, $2, $3, $4, $5, $6, $7, $8, $9)', entity)
            USING p_catalog_id, p_base_snapshot, snapshot_id, first_catalog_id, new_catalog_ids, first_file_id,
                new_file_ids,
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
            words := lakefork.add_file(p_catalog_id, snapshot_id, first_catalog_id, first_file_id,
                added -> entity -> 0);
        ELSIF added ? entity THEN
            words := lakefork.add_files(p_catalog_id, snapshot_id, first_catalog_id, first_file_id, new_file_ids,
                                        added -> entity);
        END IF;
    END LOOP;
    IF ended <> '{}' THEN
        PERFORM lakefork.end_children(p_catalog_id, snapshot_id, ARRAY(SELECT jsonb_object_keys(ended)));
    END IF;
    new_schema_version := newest.schema_version + CASE WHEN redefines THEN taken_versions ELSE 0 END;
    committed_at := clock_timestamp();
    IF redefines THEN
        defined_tables := lakefork.defined_tables(p_catalog_id, first_catalog_id, added, ended);
        INSERT INTO public.ducklake_schema_versions (catalog_id, begin_snapshot, schema_version, table_id)
        SELECT p_catalog_id, newest.snapshot_id + 1, new_schema_version, t FROM unnest(defined_tables) t;
        PERFORM lakefork.date_definitions(p_catalog_id, newest.snapshot_id + 1, first_catalog_id, defined_tables,
            added -> 'ducklake_schema', committed_at,
                                          p_author);
    END IF;
    IF NOT only_files THEN
        words := lakefork.describe_changes(p_catalog_id, first_catalog_id, added, ended, defined_tables);
    END IF;
    IF taken_snapshots > 1 THEN
        INSERT INTO lakefork.expired_snapshots (first_snapshot, last_snapshot)
            VALUES (snapshot_id, newest.snapshot_id + taken_snapshots - 1);
        snapshot_id := newest.snapshot_id + taken_snapshots;
    END IF;
    INSERT INTO public.ducklake_snapshot
    VALUES (snapshot_id, committed_at, new_schema_version, newest.next_catalog_id + new_catalog_ids,
            newest.next_file_id + new_file_ids);
    INSERT INTO public.ducklake_snapshot_changes VALUES (snapshot_id, p_catalog_id, words, p_author, p_message,
        p_extra);
    IF p_commit_key IS NOT NULL THEN
        INSERT INTO lakefork.commit_key
        VALUES (p_commit_key, p_catalog_id, snapshot_id, new_schema_version, newest.next_catalog_id,
            newest.next_file_id,
                clock_timestamp());
    END IF;
    schema_version := new_schema_version;
    replayed := false;
END $$;
