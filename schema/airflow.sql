-- Airflow's records of jobs. The only file that knows Airflow's tables, those of Airflow 3.3 in schema airflow of the
-- same database.
--
--   lakefork airflow link      (the stack of `make up` does it automatically)
--
-- Functions and not views: Airflow's own migrations change its tables, and a view that uses them would forbid that.

-- An attempt that has been silent for longer than Airflow waits has failed, even if no scheduler is running to record
-- it.
CREATE OR REPLACE FUNCTION lakefork.airflow_status(p_trace text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN t.try_number > lakefork.attempt_of(p_trace) OR t.state = 'up_for_retry'
                THEN coalesce((SELECT CASE h.state WHEN 'success' THEN 'completed' ELSE 'failed' END
                    FROM airflow.task_instance_history h
                               WHERE h.dag_id = t.dag_id AND h.task_id = t.task_id AND h.run_id = t.run_id
                                   AND h.map_index = t.map_index
                                 AND h.try_number = lakefork.attempt_of(p_trace)), 'failed')
                WHEN t.state = 'success' THEN 'completed'
                WHEN t.state IN ('running', 'restarting', 'deferred')
                    AND coalesce(t.last_heartbeat_at, now()) >= now() - interval '6 minutes' THEN 'running'
                ELSE 'failed' END
    FROM airflow.task_instance t
    WHERE t.dag_id = split_part(p_trace, '/', 1) AND t.run_id = split_part(p_trace, '/', 2)
        AND t.task_id = split_part(p_trace, '/', 3)
      AND t.map_index = -1
$$;

-- The last attempts are task instances; earlier ones, including one that waits for a retry, are in the history.
CREATE OR REPLACE FUNCTION lakefork.unreported_attempts()
RETURNS TABLE (trace text, job_type varchar, run_id varchar, params jsonb, status text, start_time timestamptz,
    end_time timestamptz,
               problem text, node_id varchar)
LANGUAGE sql STABLE AS $$
    SELECT a.trace, a.dag_id, a.run_id, d.conf, s.status, a.start_date, a.end_date,
           CASE WHEN s.status <> 'failed' THEN NULL WHEN a.state = 'upstream_failed' THEN 'a task before it failed'
                ELSE 'the task failed before the job could report anything; see its log' END,
           a.hostname
    FROM (
        SELECT t.dag_id || '/' || t.run_id || '/' || t.task_id || '/' || t.try_number AS trace, t.dag_id, t.run_id,
            t.state, t.start_date, t.end_date,
               t.hostname, t.last_heartbeat_at
        FROM airflow.task_instance t
        WHERE t.operator = 'LakeforkJobOperator' AND t.state IN ('running', 'restarting', 'deferred', 'failed',
            'upstream_failed')
        UNION ALL
        SELECT h.dag_id || '/' || h.run_id || '/' || h.task_id || '/' || h.try_number, h.dag_id, h.run_id, h.state,
            h.start_date, h.end_date,
               h.hostname, NULL
        FROM airflow.task_instance_history h
        WHERE h.operator = 'LakeforkJobOperator' AND h.state = 'failed'
    ) a
    JOIN airflow.dag_run d ON d.dag_id = a.dag_id AND d.run_id = a.run_id
    CROSS JOIN LATERAL (SELECT CASE WHEN a.state IN ('failed', 'upstream_failed')
        OR a.last_heartbeat_at < now() - interval '6 minutes' THEN 'failed'
                                    ELSE 'running' END AS status) s
    WHERE NOT EXISTS (SELECT FROM lakefork.job_run r WHERE r.trace = a.trace)
$$;

CREATE OR REPLACE FUNCTION lakefork.airflow_schedule() RETURNS TABLE (job_type varchar, next_run timestamptz,
    is_paused boolean)
LANGUAGE sql STABLE AS $$ SELECT d.dag_id, d.next_dagrun_create_after, d.is_paused FROM airflow.dag d
    WHERE NOT d.is_stale $$;
