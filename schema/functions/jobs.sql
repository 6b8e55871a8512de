-- What system.jobs is made of.

-- Where to look for an attempt: 'cli', or DAG/run/task/try of Airflow with its page there.
CREATE FUNCTION lakefork.trace_with_link(p_trace text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_trace LIKE 'cli/%' THEN 'cli'
                ELSE p_trace || format(' /dags/%s/runs/%s/tasks/%s?try_number=%s', split_part(p_trace, '/', 1), split_part(p_trace, '/', 2),
                                       split_part(p_trace, '/', 3), split_part(p_trace, '/', 4)) END
$$;

CREATE FUNCTION lakefork.parameter_list(p_params jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$ SELECT ARRAY(SELECT k || '=' || v FROM jsonb_each_text(p_params) AS e (k, v) WHERE v IS NOT NULL) $$;

-- How an attempt is doing that has not said that it ended. Without Airflow, one that does not report has failed.
CREATE FUNCTION lakefork.status_of_silent(p_trace text, p_heartbeat_at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT coalesce(CASE WHEN p_trace NOT LIKE 'cli/%' THEN lakefork.airflow_status(p_trace) END,
                    CASE WHEN p_heartbeat_at < now() - interval '2 minutes' THEN 'failed' ELSE 'running' END)
$$;

-- Says in the place of a job that was stopped why it ended; what it reported itself stands.
CREATE FUNCTION lakefork.fail_attempt(p_trace text, p_error text) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.job_run SET status = 'failed', finished_at = clock_timestamp(), error = p_error, retryable = true
    WHERE trace = p_trace AND status = 'running'
$$;

-- Forgets what jobs reported longer ago, some at a time. Airflow's own records stay; from now on those since then are shown.
CREATE FUNCTION lakefork.forget_jobs(p_older_than interval, p_limit bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    since timestamptz := now() - p_older_than;
    forgotten bigint;
BEGIN
    DELETE FROM lakefork.job_run
    WHERE job_id IN (SELECT r.job_id FROM lakefork.job_run r WHERE r.started_at < since AND r.heartbeat_at < since LIMIT p_limit);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    INSERT INTO public.ducklake_metadata (key, value) VALUES ('jobs_since', extract(epoch FROM since)::text)
    ON CONFLICT (key, coalesce(scope, ''), coalesce(scope_id, -1)) DO UPDATE SET value = excluded.value;
    RETURN forgotten;
END $$;
