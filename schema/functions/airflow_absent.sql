-- Airflow's records of jobs before Airflow is linked: nothing. schema/airflow.sql replaces these functions.

-- The number of an attempt, by its trace: DAG/run/task/try.
CREATE FUNCTION lakefork.attempt_of(p_trace text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT coalesce(substring(p_trace FROM '^[^/]+/[^/]+/[^/]+/([0-9]{1,9})$')::integer, 1) $$;

-- The status of an attempt (running, completed, failed); NULL: unknown to Airflow.
CREATE FUNCTION lakefork.airflow_status(p_trace text) RETURNS text LANGUAGE sql STABLE AS 'SELECT NULL::text';

-- Attempts of tasks whose job has not reported anything.
CREATE FUNCTION lakefork.unreported_attempts()
RETURNS TABLE (trace text, job_type varchar, run_id varchar, params jsonb, status text, start_time timestamptz,
    end_time timestamptz,
               problem text, node_id varchar)
LANGUAGE sql STABLE AS $$
    SELECT NULL::text, NULL::varchar, NULL::varchar, NULL::jsonb, NULL::text, NULL::timestamptz, NULL::timestamptz,
        NULL::text, NULL::varchar
    WHERE false
$$;

-- The next scheduled run of each job.
CREATE FUNCTION lakefork.airflow_schedule() RETURNS TABLE (job_type varchar, next_run timestamptz, is_paused boolean)
LANGUAGE sql STABLE AS $$ SELECT NULL::varchar, NULL::timestamptz, NULL::boolean WHERE false $$;
