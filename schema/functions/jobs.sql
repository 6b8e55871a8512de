-- Functions for system.jobs.

-- The trace of an attempt: 'cli', or DAG/run/task/try of Airflow with its page there.
CREATE FUNCTION lakefork.trace_with_link(p_trace text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_trace LIKE 'cli/%' THEN 'cli'
                ELSE p_trace || format(' /dags/%s/runs/%s/tasks/%s?try_number=%s', split_part(p_trace, '/', 1),
                    split_part(p_trace, '/', 2),
                                       split_part(p_trace, '/', 3), split_part(p_trace, '/', 4)) END
$$;

-- Numbers of the same name added up.
CREATE FUNCTION lakefork.added_counts(p_counts jsonb[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_object_agg(s.name, s.total), '{}')
    FROM (SELECT e.name, sum(e.value::numeric) AS total FROM unnest(p_counts) c, jsonb_each_text(c) AS e (name, value)
        GROUP BY 1) s
$$;

CREATE FUNCTION lakefork.parameter_list(p_params jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$ SELECT ARRAY(SELECT k || '=' || v FROM jsonb_each_text(p_params) AS e (k, v)
    WHERE v IS NOT NULL) $$;

-- A job publishes something of a table; p_users: whose rows (empty: of a SHARED table), p_counts: numbers, which add
-- up.
CREATE FUNCTION lakefork.note_published(p_job_id text, p_catalog_id bigint, p_table_id bigint, p_users text[],
    p_counts jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO lakefork.job_table AS j (job_id, catalog_id, table_id, namespace, table_name, counts)
    SELECT r.job_id, p_catalog_id, p_table_id, n.schema_name, t.table_name, p_counts
    FROM lakefork.job_run r, lakefork.visible_table(p_catalog_id) t JOIN lakefork.visible_schema(p_catalog_id) n
        USING (schema_id)
    WHERE r.job_id = p_job_id AND t.table_id = p_table_id
    ON CONFLICT (job_id, catalog_id, table_id) DO UPDATE SET counts = lakefork.added_counts(ARRAY[j.counts,
        excluded.counts]);
    INSERT INTO lakefork.job_user (job_id, catalog_id, table_id, user_id)
    SELECT j.job_id, j.catalog_id, j.table_id, u FROM lakefork.job_table j, unnest(p_users) u
    WHERE j.job_id = p_job_id AND j.catalog_id = p_catalog_id AND j.table_id = p_table_id AND u <> ''
    ON CONFLICT DO NOTHING
$$;

-- The status of an attempt that has not reported its end. Without Airflow, a silent one has failed.
CREATE FUNCTION lakefork.status_of_silent(p_trace text, p_heartbeat_at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(CASE WHEN p_trace NOT LIKE 'cli/%' THEN lakefork.airflow_status(p_trace) END,
                    CASE WHEN p_heartbeat_at < now() - interval '2 minutes' THEN 'failed' ELSE 'running' END)
$$;

-- Records why a stopped job ended; its own report takes precedence.
CREATE FUNCTION lakefork.fail_attempt(p_trace text, p_error text) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.job_run SET status = 'failed', finished_at = clock_timestamp(), error = p_error, retryable = true
    WHERE trace = p_trace AND status = 'running'
$$;

-- Removes old reports of jobs, some at a time. Airflow's own records stay; only those since then are shown.
CREATE FUNCTION lakefork.forget_jobs(p_older_than interval, p_limit bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz := now() - p_older_than;
    forgotten bigint;
BEGIN
    DELETE FROM lakefork.job_run
    WHERE job_id IN (SELECT r.job_id FROM lakefork.job_run r WHERE r.started_at < since AND r.heartbeat_at < since
        LIMIT p_limit);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    PERFORM lakefork.set_global_setting('jobs_since', extract(epoch FROM since)::text);
    RETURN forgotten;
END $$;
