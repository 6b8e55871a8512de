-- dedup_candidates: the batches of all owners that have more than one
SELECT * FROM lakefork.dedup_candidates(%(catalog)s, %(namespace)s, %(table)s);

-- publish_dedup: batches replaced by what they were merged into, in one transaction
SELECT snapshot_id, replayed
FROM lakefork.publish_dedup(%(job_id)s, %(run_id)s, %(catalog_id)s, %(table_id)s, %(user_id)s, %(directory)s, %(base)s,
    %(changes)s,
                            %(paths)s::text[], %(commit_key)s, %(counts)s);
