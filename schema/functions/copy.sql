-- What workers of a copy do next. A run holds the lease of its copy; whoever lost it can neither take nor finish a
-- step.

-- Steps become ready: of each table those of the lowest stage that is not done.
CREATE FUNCTION lakefork.ready_copy_steps(p_copy_id text, p_tables bigint[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE lakefork.copy_step s SET status = 'ready'
    FROM (SELECT o.table_oid, min(o.stage) AS stage FROM lakefork.copy_step o
          WHERE o.copy_id = p_copy_id AND o.table_oid = ANY (p_tables) AND o.status <> 'done' GROUP BY 1) n
    WHERE s.copy_id = p_copy_id AND s.table_oid = n.table_oid AND s.stage = n.stage AND s.status = 'waiting'
$$;

-- Records what a worker has done ([{step_id, rows, bytes, digest, seconds, result}, …]), and gives it the next steps:
-- the one of the highest priority whose pool has room (p_limits: workers per pool), with more of its kind while they
-- are small. None: nothing is ready (now). p_left: how many are not done.
CREATE FUNCTION lakefork.next_copy_steps(
    p_copy_id text, p_job_id text, p_worker text, p_done jsonb, p_limits jsonb, p_small_bytes bigint, p_most bigint,
        OUT steps jsonb, OUT steps_left bigint
) LANGUAGE plpgsql AS $$
DECLARE
    first lakefork.copy_step;
BEGIN
    PERFORM lakefork.require_lease('copy/' || p_copy_id, p_job_id);
    IF p_done <> '[]' THEN
        UPDATE lakefork.copy_step s
        SET status = 'done', rows = d.rows, bytes = d.bytes, digest = d.digest, seconds = d.seconds, result = d.result,
            finished_at = clock_timestamp()
        FROM jsonb_to_recordset(p_done) AS d (step_id bigint, rows bigint, bytes bigint, digest text,
            seconds double precision, result jsonb)
        WHERE s.copy_id = p_copy_id AND s.step_id = d.step_id AND s.status <> 'done';
        PERFORM lakefork.ready_copy_steps(p_copy_id, ARRAY(
            SELECT DISTINCT s.table_oid FROM lakefork.copy_step s
            WHERE s.copy_id = p_copy_id AND s.step_id IN (SELECT (d ->> 'step_id')::bigint
                FROM jsonb_array_elements(p_done) d)));
    END IF;
    -- Whoever asks is at nothing: an answer that did not arrive, or an attempt that ended, is given out again.
    UPDATE lakefork.copy_step s SET status = 'ready', worker = NULL
    WHERE s.copy_id = p_copy_id AND s.status = 'running' AND s.worker = p_worker;
    -- Another worker failed, or the copy is over.
    IF NOT EXISTS (SELECT FROM lakefork.copy c WHERE c.copy_id = p_copy_id AND c.status = 'running') THEN
        steps_left := 0;
        RETURN;
    END IF;
    SELECT s.* INTO first
    FROM jsonb_each_text(p_limits) AS l (pool, most)
    CROSS JOIN LATERAL (SELECT * FROM lakefork.copy_step s WHERE s.copy_id = p_copy_id AND s.pool = l.pool
        AND s.status = 'ready'
                        ORDER BY s.priority DESC, s.step_id LIMIT 1) s
    WHERE l.most::bigint > (SELECT count(DISTINCT r.worker) FROM lakefork.copy_step r
                            WHERE r.copy_id = p_copy_id AND r.pool = l.pool AND r.status = 'running'
                                AND r.worker <> p_worker)
    ORDER BY s.priority DESC, s.step_id LIMIT 1;
    IF FOUND THEN
        WITH candidates AS (
            SELECT s.step_id, sum(s.size_bytes) OVER (ORDER BY s.priority DESC, s.step_id ROWS UNBOUNDED PRECEDING)
                AS until_here
            FROM (SELECT * FROM lakefork.copy_step s WHERE s.copy_id = p_copy_id AND s.pool = first.pool
                AND s.status = 'ready' AND s.kind = first.kind
                  ORDER BY s.priority DESC, s.step_id LIMIT p_most) s
        ), taken AS (
            UPDATE lakefork.copy_step s SET status = 'running', worker = p_worker, started_at = clock_timestamp()
            FROM candidates c
            WHERE s.copy_id = p_copy_id AND s.step_id = c.step_id
              AND (s.step_id = first.step_id OR (c.until_here <= p_small_bytes AND first.size_bytes <= p_small_bytes))
            RETURNING s.*
        )
        SELECT jsonb_agg(to_jsonb(t) ORDER BY t.priority DESC, t.step_id) INTO steps FROM taken t;
    END IF;
    steps_left := (SELECT count(*) FROM (SELECT FROM lakefork.copy_step s WHERE s.copy_id = p_copy_id
        AND s.status IN ('ready', 'running', 'waiting') LIMIT 1) s);
END $$;

-- A run begins: what the one before was at is to be done again, and what the target has (p_done) is not. p_target: is
-- there one that has marks? Then what it has not is not done either: commits to it do not wait for the disk, and it may
-- have crashed.
CREATE FUNCTION lakefork.restart_copy_steps(
    p_copy_id text, p_job_id text, p_done jsonb, p_target boolean
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lakefork.require_lease('copy/' || p_copy_id, p_job_id);
    UPDATE lakefork.copy_step s
    SET status = 'done', rows = d.rows, bytes = d.bytes, digest = d.digest, seconds = d.seconds,
        finished_at = coalesce(s.finished_at, clock_timestamp())
    FROM jsonb_to_recordset(p_done) AS d (step_id bigint, rows bigint, bytes bigint, digest text,
        seconds double precision)
    WHERE s.copy_id = p_copy_id AND s.step_id = d.step_id AND s.status <> 'done';
    UPDATE lakefork.copy_step s SET status = 'waiting', worker = NULL
    WHERE s.copy_id = p_copy_id
      AND (s.status IN ('running', 'ready')
           OR (p_target AND s.kind <> 'vacuum'
               AND s.step_id NOT IN (SELECT (d ->> 'step_id')::bigint FROM jsonb_array_elements(p_done) d)));
    PERFORM lakefork.ready_copy_steps(p_copy_id, ARRAY(SELECT DISTINCT s.table_oid FROM lakefork.copy_step s
        WHERE s.copy_id = p_copy_id AND s.status = 'waiting'));
END $$;

-- Publishes what a copy staged: namespaces, tables and files in one commit. Asked again, it gives the first answer.
-- p_directories   [{table_id, user_id, directory}, …]: where a manifest is to be written; new tables by their
-- placeholders
CREATE FUNCTION lakefork.publish_copy(
    p_copy_id text, p_job_id text, p_staged_job text, p_catalog_id bigint, p_changes jsonb, p_paths text[],
        p_directories jsonb, p_author text,
    p_message text, p_extra text, OUT snapshot_id bigint
) LANGUAGE plpgsql SET work_mem = '64MB' AS $$
DECLARE
    first_id bigint;
BEGIN
    PERFORM lakefork.require_lease('copy/' || p_copy_id, p_job_id);
    SELECT c.snapshot_id INTO snapshot_id FROM lakefork.copy c WHERE c.copy_id = p_copy_id;
    IF snapshot_id IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM lakefork.take_staged(p_staged_job, p_paths);
    SELECT k.snapshot_id, k.first_catalog_id INTO snapshot_id, first_id
    FROM lakefork.commit(p_catalog_id, lakefork.newest_snapshot(), p_changes, p_author, p_message, 'copy/' || p_copy_id,
        p_extra) k;
    UPDATE lakefork.copy c SET snapshot_id = publish_copy.snapshot_id WHERE c.copy_id = p_copy_id;
    INSERT INTO lakefork.manifest_pending (catalog_id, table_id, user_id, directory, run_id)
    SELECT p_catalog_id, lakefork.resolve_id(d.table_id, first_id), d.user_id, d.directory, p_extra
    FROM jsonb_to_recordset(p_directories) AS d (table_id bigint, user_id text, directory text);
END $$;
