-- One catalog as the tables of DuckLake 1.0, read-only, for stock DuckDB:
--
-- ATTACH 'ducklake:postgres:<libpq string> options=-clakefork.catalog=NAME' AS lake (METADATA_SCHEMA 'ducklake_client',
-- READ_ONLY)
--
-- DuckDB knows neither versions nor tombstones: it is shown the clean states of tables (functions/clean.sql). A file
-- begins and ends for it with the first clean snapshot at or after the real one; tombstones and hot rows are left out.
--
-- The views read with their owner's rights, so they use views (retained_*), and of functions only those that read
-- nothing: these run with the rights of whoever asks.

-- The catalog that the connection names, if whoever is connected may read it (functions/client_roles.sql). No row: an
-- empty catalog.
CREATE VIEW lakefork.client_catalog AS
    SELECT c.catalog_id, c.begin_snapshot
    FROM lakefork.retained_catalog c
    WHERE c.catalog_name = current_setting('lakefork.catalog', true) AND c.end_snapshot IS NULL
      AND (has_table_privilege(session_user, 'public.ducklake_catalog', 'SELECT')
           OR EXISTS (SELECT FROM lakefork.client_role r
                      WHERE r.role_name = session_user AND (r.catalog_id IS NULL OR r.catalog_id = c.catalog_id)));

-- Tables that are shown unchanged: DuckLake's columns, filtered.
DO $generate$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT * FROM (VALUES
        ('ducklake_column', 'column_id, begin_snapshot, end_snapshot, table_id, column_order, column_name, '
            'column_type, initial_default, '
                            'default_value, nulls_allowed, parent_column, default_value_type, default_value_dialect'),
        ('ducklake_column_mapping', 'mapping_id, table_id, type'),
        ('ducklake_column_tag', 'table_id, column_id, begin_snapshot, end_snapshot, key, value'),
        ('ducklake_file_column_stats',
            'data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, '
                                       'contains_nan, extra_stats'),
        ('ducklake_file_partition_value', 'data_file_id, table_id, partition_key_index, partition_value'),
        ('ducklake_macro', 'schema_id, macro_id, macro_name, begin_snapshot, end_snapshot'),
        ('ducklake_macro_impl', 'macro_id, impl_id, dialect, sql, type'),
        ('ducklake_macro_parameters',
            'macro_id, impl_id, column_id, parameter_name, parameter_type, default_value, default_value_type'),
        ('ducklake_name_mapping', 'mapping_id, column_id, source_name, target_field_id, parent_column, is_partition'),
        ('ducklake_partition_column', 'partition_id, table_id, partition_key_index, column_id, transform'),
        ('ducklake_partition_info', 'partition_id, table_id, begin_snapshot, end_snapshot'),
        ('ducklake_schema_versions', 'begin_snapshot, schema_version, table_id'),
        -- of now: DuckDB plans with them, and no more
        ('ducklake_table_stats', 'table_id, record_count, next_row_id, file_size_bytes'),
        ('ducklake_view', 'view_id, view_uuid, begin_snapshot, end_snapshot, schema_id, view_name, dialect, sql, '
            'column_aliases')
    ) AS t (name, columns) LOOP
        EXECUTE format('CREATE VIEW ducklake_client.%I WITH (security_barrier) AS SELECT %s FROM lakefork.%I
                        WHERE catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c)',
                       t.name, t.columns, replace(t.name, 'ducklake_', 'retained_'));
    END LOOP;

    -- Tables that Lakefork does not have or does not show.
    FOR t IN SELECT * FROM (VALUES
        ('ducklake_delete_file',
            'delete_file_id bigint, table_id bigint, begin_snapshot bigint, end_snapshot bigint, data_file_id bigint, '
            'path varchar, '
                                 'path_is_relative boolean, format varchar, delete_count bigint, file_size_bytes '
                                     'bigint, footer_size bigint, '
                                 'encryption_key varchar, partial_max bigint'),
        ('ducklake_file_variant_stats',
            'data_file_id bigint, table_id bigint, column_id bigint, variant_path varchar, shredded_type varchar, '
                                        'column_size_bytes bigint, value_count bigint, null_count bigint, min_value '
                                            'varchar, max_value varchar, '
                                        'contains_nan boolean, extra_stats varchar'),
        ('ducklake_files_scheduled_for_deletion',
            'data_file_id bigint, path varchar, path_is_relative boolean, schedule_start timestamptz'),
        ('ducklake_inlined_data_tables', 'table_id bigint, table_name varchar, schema_version bigint'),
        ('ducklake_sort_expression',
            'sort_id bigint, table_id bigint, sort_key_index bigint, expression varchar, dialect varchar, '
                                     'sort_direction varchar, null_order varchar'),
        ('ducklake_sort_info', 'sort_id bigint, table_id bigint, begin_snapshot bigint, end_snapshot bigint'),
        -- Current bounds would not be valid for the past.
        ('ducklake_table_column_stats',
            'table_id bigint, column_id bigint, contains_null boolean, contains_nan boolean, min_value varchar, '
                                        'max_value varchar, extra_stats varchar')
    ) AS t (name, columns) LOOP
        EXECUTE format('CREATE VIEW ducklake_client.%I WITH (security_barrier) AS
                        SELECT r.* FROM jsonb_to_recordset(%L) AS r (%s) WHERE false', t.name, '[]', t.columns);
    END LOOP;
END $generate$;

CREATE VIEW ducklake_client.ducklake_metadata WITH (security_barrier) AS
    SELECT m.key::varchar, m.value::varchar, NULL::varchar AS scope, NULL::bigint AS scope_id
    FROM (VALUES ('version', '1.0'), ('created_by', 'Lakefork'), ('encrypted', 'false')) AS m (key, value)
    UNION ALL
    SELECT 'data_path', coalesce(rtrim((SELECT d.value FROM lakefork.catalog_setting d JOIN lakefork.client_catalog c
        USING (catalog_id)
                                        WHERE d.key = 'data_path'), '/'), '') || '/', NULL, NULL;

-- The catalog's own snapshots that it retains with all of their files: DuckDB reads what is left of others, and says
-- nothing. Tables that keep less than the catalog decide for all, and tags of others mean nothing. What happened
-- between a tag and the rest is no longer known: a tagged snapshot from before has a time that never comes, so that
-- only its number finds it.
CREATE VIEW lakefork.client_snapshot AS
    SELECT s.snapshot_id, CASE WHEN s.snapshot_id >= k.first_kept THEN s.snapshot_time
        ELSE '9999-12-31 00:00:00+00' END AS snapshot_time,
           s.schema_version, s.next_catalog_id, s.next_file_id
    FROM lakefork.client_catalog c
    CROSS JOIN LATERAL (SELECT coalesce(max(r.snapshot_id), 0) AS first_kept FROM lakefork.retained_from r
        WHERE r.catalog_id = c.catalog_id) k
    JOIN lakefork.retained_snapshot s ON s.catalog_id = c.catalog_id
    WHERE s.snapshot_id >= k.first_kept
       OR EXISTS (SELECT FROM lakefork.snapshot_tag g WHERE g.catalog_id = c.catalog_id
           AND g.snapshot_id = s.snapshot_id);

-- A catalog always has one: if its own are expired, the newest of all shows what it holds; an empty one has snapshot 0.
CREATE VIEW ducklake_client.ducklake_snapshot WITH (security_barrier) AS
    SELECT s.snapshot_id, s.snapshot_time, s.schema_version, s.next_catalog_id, s.next_file_id
        FROM lakefork.client_snapshot s
    UNION ALL
    (SELECT s.snapshot_id, s.snapshot_time, s.schema_version, s.next_catalog_id, s.next_file_id
        FROM lakefork.retained_snapshot s
     WHERE EXISTS (SELECT FROM lakefork.client_catalog) AND NOT EXISTS (SELECT FROM lakefork.client_snapshot)
     ORDER BY s.snapshot_id DESC LIMIT 1)
    UNION ALL
    SELECT 0, to_timestamp(0), 0, 0, 0 WHERE NOT EXISTS (SELECT FROM lakefork.client_catalog);

-- DuckDB has no change types for whole catalogs.
CREATE VIEW ducklake_client.ducklake_snapshot_changes WITH (security_barrier) AS
    SELECT m.snapshot_id, CASE WHEN w.is_known THEN m.changes_made END AS changes_made, m.author, m.commit_message,
           CASE WHEN w.is_known THEN m.commit_extra_info END AS commit_extra_info
    FROM lakefork.retained_snapshot m
    CROSS JOIN LATERAL (SELECT m.changes_made !~ '^([a-z]+_catalog|forked_from):' AS is_known) w
    WHERE m.catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c);

-- DuckDB expects a schema main.
CREATE VIEW ducklake_client.ducklake_schema WITH (security_barrier) AS
    SELECT s.schema_id, s.schema_uuid, s.begin_snapshot, s.end_snapshot, s.schema_name,
        (lakefork.place(s.path) || '/')::varchar AS path, s.path_is_relative
    FROM lakefork.retained_schema s
    WHERE s.catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c)
    UNION ALL
    SELECT 0, '00000000-0000-0000-0000-000000000000', 0, NULL, 'main', 'main/', true
    WHERE NOT EXISTS (SELECT FROM lakefork.retained_schema s
                      WHERE s.catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c)
                          AND lower(s.schema_name COLLATE "C") = 'main');

CREATE VIEW ducklake_client.ducklake_table WITH (security_barrier) AS
    SELECT t.table_id, t.table_uuid, t.begin_snapshot, t.end_snapshot, t.schema_id, t.table_name,
        (lakefork.place(t.path) || '/')::varchar AS path,
           t.path_is_relative
    FROM lakefork.retained_table t
    WHERE t.catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c);

CREATE VIEW ducklake_client.ducklake_data_file WITH (security_barrier) AS
    SELECT f.data_file_id, f.table_id, b.snapshot_id AS begin_snapshot, e.snapshot_id AS end_snapshot, f.file_order,
           (CASE WHEN f.path_is_relative OR f.path NOT LIKE 's3%@%' THEN f.path
               ELSE lakefork.place(f.path) END)::varchar AS path, f.path_is_relative,
           f.file_format, f.record_count, f.file_size_bytes, f.footer_size, f.row_id_start, f.partition_id,
           f.encryption_key, f.mapping_id,
           NULL::bigint AS partial_max
    FROM lakefork.retained_data_file f
    CROSS JOIN LATERAL (SELECT min(c.snapshot_id) AS snapshot_id FROM lakefork.clean_snapshot c
                        WHERE c.catalog_id = f.catalog_id AND c.table_id = f.table_id AND c.snapshot_id >= f.file_order)
                            b
    CROSS JOIN LATERAL (SELECT min(c.snapshot_id) AS snapshot_id FROM lakefork.clean_snapshot c
                        WHERE c.catalog_id = f.catalog_id AND c.table_id = f.table_id
                            AND c.snapshot_id >= f.end_snapshot) e
    WHERE f.catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c)
        AND b.snapshot_id < coalesce(e.snapshot_id, b.snapshot_id + 1)
      AND EXISTS (SELECT FROM lakefork.retained_file_column_stats d
                  WHERE d.catalog_id = f.catalog_id AND d.data_file_id = f.data_file_id
                      AND d.column_id = lakefork.deleted_column_id() AND d.max_value = '0');

-- The other tags are options of Lakefork.
CREATE VIEW ducklake_client.ducklake_tag WITH (security_barrier) AS
    SELECT g.object_id, g.begin_snapshot, g.end_snapshot, g.key, g.value
    FROM lakefork.retained_tag g
    WHERE g.catalog_id = (SELECT c.catalog_id FROM lakefork.client_catalog c) AND g.key = 'comment';
