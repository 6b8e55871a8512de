-- The entity tables, one row each. Ids are shared between catalogs: a fork keeps its parent's.
DELETE FROM lakefork.entity;   -- in an upgrade
INSERT INTO lakefork.entity
    (entity, rank, key_columns, id_column, id_counter, catalog_refs, file_refs, versioned, parent, parent_columns,
        defines_table)
VALUES
    ('ducklake_schema', 1, '{schema_id}', 'schema_id', 'catalog', '{schema_id}', '{}', true, NULL, NULL, NULL),
    ('ducklake_table', 2, '{table_id}', 'table_id', 'catalog', '{table_id,schema_id}', '{}', true,
     'ducklake_schema', '{schema_id}', 'table_id'),
    ('ducklake_view', 2, '{view_id}', 'view_id', 'catalog', '{view_id,schema_id}', '{}', true,
     'ducklake_schema', '{schema_id}', NULL),
    ('ducklake_macro', 2, '{macro_id}', 'macro_id', 'catalog', '{macro_id,schema_id}', '{}', true,
     'ducklake_schema', '{schema_id}', NULL),
    ('ducklake_macro_impl', 3, '{macro_id,impl_id}', NULL, NULL, '{macro_id}', '{}', false,
     'ducklake_macro', '{macro_id}', NULL),
    ('ducklake_macro_parameters', 4, '{macro_id,impl_id,column_id}', NULL, NULL, '{macro_id}', '{}', false,
     'ducklake_macro_impl', '{macro_id,impl_id}', NULL),
    ('ducklake_column', 3, '{table_id,column_id}', NULL, NULL, '{table_id}', '{}', true,
     'ducklake_table', '{table_id}', 'table_id'),
    ('ducklake_column_tag', 4, '{table_id,column_id,key}', NULL, NULL, '{table_id}', '{}', true,
     'ducklake_column', '{table_id,column_id}', 'table_id'),
    ('ducklake_tag', 4, '{object_id,key}', NULL, NULL, '{object_id}', '{}', true, NULL, NULL, 'object_id'),
    ('ducklake_partition_info', 3, '{partition_id}', 'partition_id', 'catalog', '{partition_id,table_id}', '{}', true,
     'ducklake_table', '{table_id}', 'table_id'),
    ('ducklake_partition_column', 4, '{partition_id,partition_key_index}', NULL, NULL, '{partition_id,table_id}', '{}',
        false,
     'ducklake_partition_info', '{partition_id}', NULL),
    ('ducklake_column_mapping', 3, '{mapping_id}', 'mapping_id', 'file', '{table_id}', '{mapping_id}', false,
     'ducklake_table', '{table_id}', NULL),
    ('ducklake_name_mapping', 4, '{mapping_id,column_id}', NULL, NULL, '{}', '{mapping_id}', false,
     'ducklake_column_mapping', '{mapping_id}', NULL),
    ('ducklake_inlined_data_tables', 3, '{table_id,schema_version}', NULL, NULL, '{table_id}', '{}', false,
     'ducklake_table', '{table_id}', NULL),
    ('ducklake_data_file', 5, '{data_file_id}', 'data_file_id', 'file', '{table_id,partition_id}',
        '{data_file_id,mapping_id}', true,
     'ducklake_table', '{table_id}', NULL),
    ('ducklake_delete_file', 6, '{delete_file_id}', 'delete_file_id', 'file', '{table_id}',
        '{delete_file_id,data_file_id}', true,
     'ducklake_data_file', '{data_file_id}', NULL),
    ('ducklake_file_column_stats', 6, '{data_file_id,column_id}', NULL, NULL, '{table_id}', '{data_file_id}', false,
     'ducklake_data_file', '{data_file_id}', NULL),
    ('ducklake_file_partition_value', 6, '{data_file_id,partition_key_index}', NULL, NULL, '{table_id}',
        '{data_file_id}', false,
     'ducklake_data_file', '{data_file_id}', NULL);

-- Ids of the columns that every table has; those of users begin after them.
CREATE FUNCTION lakefork.seq_column_id() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1::bigint $$;
CREATE FUNCTION lakefork.deleted_column_id() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 2::bigint $$;

-- Columns of an entity table, in order, with their types and defaults.
CREATE FUNCTION lakefork.entity_columns(p_entity text)
RETURNS TABLE (name text, type text, default_expression text)
LANGUAGE sql STABLE AS $$
    SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)
    FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = format('public.%I', p_entity)::regclass AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
$$;
