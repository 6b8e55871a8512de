-- slot: a replication slot, if it is there, and where the source is
SELECT s.slot_name::text AS slot_name, s.active, s.wal_status, invalidation_reason AS invalidation_reason,
       coalesce((s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, 0) AS confirmed,
       (c.lsn - '0/0'::pg_lsn)::bigint AS current, (c.lsn - s.restart_lsn)::bigint AS wal_kept,
       s.safe_wal_size
FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END) AS c (lsn)
LEFT JOIN pg_replication_slots s ON s.slot_name = %(slot)s;

-- follow_needs: whether the server can send changes to this role
SELECT current_setting('wal_level') AS wal_level, current_user::text AS role,
       (SELECT r.rolreplication OR r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) AS may_replicate,
       current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots) AS free_slots,
       current_setting('max_wal_senders')::int
           - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender') AS free_senders;

-- unfollowable: tables whose changes a publication cannot have, or whose rows cannot be told apart
SELECT format('%%I.%%I', n.nspname, c.relname) AS name,
       CASE WHEN c.relpersistence = 'u' THEN 'unlogged'
            WHEN NOT pg_has_role(c.relowner, 'USAGE') THEN 'owner' ELSE 'identity' END AS reason,
       pg_has_role(c.relowner, 'USAGE') AS is_owned
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::oid[])
  AND (c.relpersistence = 'u' OR NOT pg_has_role(c.relowner, 'USAGE') OR c.relreplident = 'n'
       OR (c.relreplident = 'd'
           AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)))
ORDER BY 1;
