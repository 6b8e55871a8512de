-- changes_made, in DuckLake's format.
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
    IF p_new ?| '{ducklake_data_file,ducklake_delete_file}' OR p_ended ?| '{ducklake_data_file,ducklake_delete_file}'
        THEN
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
                SELECT f.table_id, false
                    FROM jsonb_to_recordset(p_ended -> 'ducklake_data_file') AS r (data_file_id bigint)
                JOIN public.ducklake_data_file f ON f.catalog_id = p_catalog_id AND f.data_file_id = r.data_file_id
                UNION ALL
                SELECT f.table_id, true FROM jsonb_to_recordset(p_ended -> 'ducklake_delete_file') AS r
                    (delete_file_id bigint)
                JOIN public.ducklake_delete_file f ON f.catalog_id = p_catalog_id
                    AND f.delete_file_id = r.delete_file_id
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
        VALUES ('schema', 'ducklake_schema', 'schema_id', 'schema_name'), ('table', 'ducklake_table', 'table_id',
            'table_name'),
               ('view', 'ducklake_view', 'view_id', 'view_name'), ('macro', 'ducklake_macro', 'macro_id', 'macro_name')
    ), added AS (
        SELECT o.kind, lakefork.resolve_id((v ->> o.id_column)::bigint, p_first_catalog_id) AS id,
            v ->> o.name_column AS name,
               lakefork.resolve_id((v ->> 'schema_id')::bigint, p_first_catalog_id) AS schema_id
        FROM objects o, jsonb_array_elements(p_new -> o.entity) v
    ), removed AS (
        SELECT o.kind, (v ->> o.id_column)::bigint AS id FROM objects o, jsonb_array_elements(p_ended -> o.entity) v
    ), words AS (
        SELECT format('created_%s:%s%s', a.kind, CASE WHEN a.kind <> 'schema'
            THEN lakefork.quoted(s.schema_name) || '.' END, lakefork.quoted(a.name)) AS word
        FROM added a
        LEFT JOIN public.ducklake_schema s ON s.catalog_id = p_catalog_id AND s.schema_id = a.schema_id
            AND s.end_snapshot IS NULL
        WHERE a.id >= p_first_catalog_id
        UNION
        SELECT format('dropped_%s:%s', kind, id) FROM removed WHERE (kind, id) NOT IN (SELECT kind, id FROM added)
        UNION
        SELECT format('altered_%s:%s', kind, id) FROM added WHERE id < p_first_catalog_id
        UNION
        SELECT 'altered_table:' || t FROM unnest(p_defined_tables) t
        WHERE t < p_first_catalog_id AND ('table', t) NOT IN (SELECT kind, id FROM removed
            WHERE (kind, id) NOT IN (SELECT kind, id FROM added))
    )
    SELECT coalesce(array_agg(word ORDER BY word), '{}') FROM words
$$;
