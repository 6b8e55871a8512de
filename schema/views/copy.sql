-- Copies of Postgres databases, and how far they are. A copy whose run ended without a word is 'interrupted': it can be
-- resumed.
CREATE VIEW system.copies AS
    SELECT c.copy_id, c.source, c.target, c.into_catalog,
           CASE WHEN c.status = 'running' AND NOT EXISTS (SELECT FROM lakefork.lease l
               WHERE l.name = 'copy/' || c.copy_id AND l.expires_at >= clock_timestamp())
                THEN 'interrupted' ELSE c.status END AS status,
           c.phase, c.started_at, c.finished_at, c.snapshot_at, c.snapshot_lsn, c.snapshot_id, c.slot_name, c.snapshots,
           EXISTS (SELECT FROM lakefork.lease l WHERE l.name = 'copy-holder/' || c.copy_id
               AND l.expires_at >= clock_timestamp()) AS snapshot_held,
           t.tables, s.parts, s.parts_done, s.bytes, s.bytes_done, s.rows_done, s.steps, s.steps_done, s.running,
           CASE WHEN s.bytes_done > 0 AND c.finished_at IS NULL AND s.bytes > s.bytes_done
                THEN s.data_seconds * (s.bytes - s.bytes_done) / s.bytes_done END AS seconds_left,
           c.notes, c.differences, c.error, c.run_id
    FROM lakefork.copy c
    CROSS JOIN LATERAL (SELECT count(*) AS tables FROM lakefork.copy_table t WHERE t.copy_id = c.copy_id) t
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE s.kind IN ('part', 'large_objects')) AS parts,
               count(*) FILTER (WHERE s.kind IN ('part', 'large_objects') AND s.status = 'done') AS parts_done,
               coalesce(sum(s.size_bytes) FILTER (WHERE s.kind = 'part'), 0)::bigint AS bytes,
               coalesce(sum(s.size_bytes) FILTER (WHERE s.kind = 'part' AND s.status = 'done'),
                   0)::bigint AS bytes_done,
               coalesce(sum(s.rows) FILTER (WHERE s.kind = 'part'), 0)::bigint AS rows_done,
               count(*) AS steps, count(*) FILTER (WHERE s.status = 'done') AS steps_done,
               array_agg(s.kind || ' ' || s.name ORDER BY s.step_id) FILTER (WHERE s.status = 'running') AS running,
               extract(epoch FROM max(s.finished_at) FILTER (WHERE s.kind = 'part')
                                  - min(s.started_at) FILTER (WHERE s.kind = 'part'))::double precision AS data_seconds
        FROM lakefork.copy_step s WHERE s.copy_id = c.copy_id) s;
