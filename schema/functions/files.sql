-- Applies a commit to data files. Every other commit waits for this, so it is kept lean.

-- New objects are named -1, -2, … by the caller; they become the next ids of their counter.
CREATE FUNCTION lakefork.resolve_id(p_id bigint, p_first bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT CASE WHEN p_id < 0 THEN p_first - 1 - p_id ELSE p_id END $$;

-- Ends files and subtracts them from their tables' totals.
CREATE FUNCTION lakefork.end_files(p_catalog_id bigint, p_base bigint, p_snapshot bigint, p_ended jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    done bigint;
BEGIN
    WITH ended AS (
        UPDATE public.ducklake_data_file f SET end_snapshot = p_snapshot
        FROM jsonb_to_recordset(p_ended) AS r (data_file_id bigint)
        WHERE f.catalog_id = p_catalog_id AND f.data_file_id = r.data_file_id AND f.end_snapshot IS NULL
            AND f.begin_snapshot <= p_base
        RETURNING f.table_id, f.record_count, f.file_size_bytes
    ), totals AS (
        SELECT table_id, count(*) AS files, sum(record_count) AS records, sum(file_size_bytes) AS bytes FROM ended
            GROUP BY table_id
    ), shrunk AS (
        UPDATE public.ducklake_table_stats s
        SET record_count = s.record_count - t.records, file_size_bytes = s.file_size_bytes - t.bytes
        FROM totals t WHERE s.catalog_id = p_catalog_id AND s.table_id = t.table_id
    )
    SELECT coalesce(sum(files), 0) INTO done FROM totals;
    PERFORM lakefork.expect_ended('ducklake_data_file', done, p_ended, p_base);
END $$;

-- One file and its statistics ([[column_id, value_count, null_count, min, max, contains_nan], …], also as text), as
-- add_files does for many. Most commits add one, and the plain statements take less time, while all other commits wait.
CREATE FUNCTION lakefork.add_file(
    p_catalog_id bigint, p_snapshot bigint, p_first_catalog_id bigint, p_first_file_id bigint, p_file jsonb
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    file_table_id bigint := lakefork.resolve_id((p_file ->> 'table_id')::bigint, p_first_catalog_id);
    records bigint := (p_file ->> 'record_count')::bigint;
    bytes bigint := (p_file ->> 'file_size_bytes')::bigint;
    new_row_id bigint;
BEGIN
    UPDATE public.ducklake_table_stats s
    SET record_count = s.record_count + records, next_row_id = s.next_row_id + records,
        file_size_bytes = s.file_size_bytes + bytes
    WHERE s.catalog_id = p_catalog_id AND s.table_id = file_table_id
    RETURNING s.next_row_id INTO new_row_id;
    IF new_row_id IS NULL OR p_file ->> 'data_file_id' <> '-1' OR p_file ->> 'path' IS NULL
        OR NOT (records >= 0 AND coalesce(bytes, -1) >= 0) THEN
        PERFORM lakefork.refuse_rows('ducklake_data_file', 0, jsonb_build_array(p_file));
    END IF;
    INSERT INTO public.ducklake_data_file
        (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format,
            record_count,
         file_size_bytes, footer_size, row_id_start, partition_id, encryption_key, partial_file_info, mapping_id)
    VALUES (p_catalog_id, p_first_file_id, file_table_id, p_snapshot, p_snapshot, p_file ->> 'path',
            (p_file ->> 'path_is_relative')::boolean, coalesce(p_file ->> 'file_format', 'parquet'), records, bytes,
            (p_file ->> 'footer_size')::bigint, new_row_id - records,
            lakefork.resolve_id((p_file ->> 'partition_id')::bigint, p_first_catalog_id), p_file ->> 'encryption_key',
            p_file ->> 'partial_file_info', (p_file ->> 'mapping_id')::bigint);
    INSERT INTO public.ducklake_file_column_stats
        (catalog_id, data_file_id, table_id, column_id, value_count, null_count, min_value, max_value, contains_nan)
    SELECT p_catalog_id, p_first_file_id, file_table_id, (c ->> 0)::bigint, (c ->> 1)::bigint, (c ->> 2)::bigint,
        c ->> 3, c ->> 4, (c ->> 5)::boolean
    FROM jsonb_array_elements((p_file ->> 'statistics')::jsonb) c;
    RETURN 'inserted_into_table:' || file_table_id;
END $$;

-- Their place in the table (file_order) is the snapshot that added them first: forks begin all at once, and keep it.
-- Adds files with their statistics, gives out their row ids, and adds them to their tables' totals, which exist for
-- live tables only. Returns the words for it. One statement, because every commit waits while another does this.
CREATE FUNCTION lakefork.add_files(
    p_catalog_id bigint, p_snapshot bigint, p_first_catalog_id bigint, p_first_file_id bigint, p_file_ids bigint,
        p_files jsonb
) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    added_files bigint;
    words text;
BEGIN
    WITH incoming AS MATERIALIZED (
        SELECT r.*, lakefork.resolve_id(r.table_id, p_first_catalog_id) AS real_table_id,
               sum(r.record_count) OVER (PARTITION BY r.table_id ORDER BY r.position) AS rows_until_here
        FROM ROWS FROM (jsonb_to_recordset(p_files) AS (
            data_file_id bigint, table_id bigint, path text, path_is_relative boolean, file_format text,
            record_count bigint, file_size_bytes bigint, footer_size bigint, partition_id bigint, encryption_key text,
            partial_file_info text, mapping_id bigint, statistics text)) WITH ORDINALITY AS r
            (data_file_id, table_id, path, path_is_relative, file_format, record_count, file_size_bytes, footer_size,
             partition_id, encryption_key, partial_file_info, mapping_id, statistics, position)
    ), totals AS (
        UPDATE public.ducklake_table_stats s SET
            record_count = s.record_count + t.records, next_row_id = s.next_row_id + t.records,
                file_size_bytes = s.file_size_bytes + t.bytes
        FROM (SELECT i.real_table_id, sum(i.record_count) AS records, sum(i.file_size_bytes) AS bytes FROM incoming i
            GROUP BY 1) t
        WHERE s.catalog_id = p_catalog_id AND s.table_id = t.real_table_id
        RETURNING s.table_id, s.next_row_id - t.records AS first_row_id
    ), files AS (
        INSERT INTO public.ducklake_data_file
            (catalog_id, data_file_id, table_id, begin_snapshot, file_order, path, path_is_relative, file_format,
                record_count,
             file_size_bytes, footer_size, row_id_start, partition_id, encryption_key, partial_file_info, mapping_id)
        SELECT p_catalog_id, p_first_file_id - 1 - i.data_file_id, i.real_table_id, p_snapshot, p_snapshot, i.path,
            i.path_is_relative,
               coalesce(i.file_format, 'parquet'), i.record_count, i.file_size_bytes, i.footer_size,
               t.first_row_id + i.rows_until_here - i.record_count,
               lakefork.resolve_id(i.partition_id, p_first_catalog_id), i.encryption_key, i.partial_file_info,
               lakefork.resolve_id(i.mapping_id, p_first_file_id)
        FROM incoming i JOIN totals t ON t.table_id = i.real_table_id
        WHERE i.data_file_id BETWEEN -p_file_ids AND -1 AND i.path IS NOT NULL AND i.record_count >= 0
            AND i.file_size_bytes >= 0
        RETURNING 1
    ), stats AS (
        INSERT INTO public.ducklake_file_column_stats
            (catalog_id, data_file_id, table_id, column_id, value_count, null_count, min_value, max_value, contains_nan)
        SELECT p_catalog_id, p_first_file_id - 1 - i.data_file_id, i.real_table_id, (c ->> 0)::bigint,
            (c ->> 1)::bigint, (c ->> 2)::bigint,
               c ->> 3, c ->> 4, (c ->> 5)::boolean
        FROM incoming i CROSS JOIN LATERAL jsonb_array_elements(i.statistics::jsonb) c
    )
    SELECT (SELECT count(*) FROM files),
           (SELECT string_agg('inserted_into_table:' || table_id, ',' ORDER BY table_id) FROM totals)
    INTO added_files, words;
    IF added_files <> jsonb_array_length(p_files) THEN
        PERFORM lakefork.refuse_rows('ducklake_data_file', added_files, p_files);
    END IF;
    RETURN words;
END $$;

-- Postgres takes tables that were just filled for empty ones, and would look through them for each row.
CREATE FUNCTION lakefork.analyze_files() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    ANALYZE lakefork.manifest_pending, public.ducklake_data_file, public.ducklake_file_partition_value,
        public.ducklake_file_column_stats;
END $$;

CREATE FUNCTION lakefork.expect_ended(p_entity text, p_done bigint, p_ended jsonb, p_base bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_done <> jsonb_array_length(p_ended) THEN
        RAISE EXCEPTION '% of % rows of % that this commit ends have changed since snapshot %',
            jsonb_array_length(p_ended) - p_done, jsonb_array_length(p_ended), p_entity, p_base USING ERRCODE = 'LFC01';
    END IF;
END $$;

CREATE FUNCTION lakefork.refuse_rows(p_entity text, p_done bigint, p_new jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % new rows of % are refused: an id that was not given out, an owner that does not exist, '
        'or no path or size',
        jsonb_array_length(p_new) - p_done, jsonb_array_length(p_new), p_entity USING ERRCODE = 'LFN01';
END $$;
