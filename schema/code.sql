-- Everything that holds no rows of users: functions, views, triggers, types, and the description of the entity tables.
-- `lakefork upgrade` drops all of it (drop_code.sql) and makes it again.
\ir functions/locks.sql
\ir functions/entities.sql
\ir functions/paths.sql
\ir functions/visible.sql
\ir functions/snapshots.sql
\ir functions/files.sql
\ir functions/apply.sql
\ir functions/describe.sql
\ir functions/commit.sql
\ir functions/catalogs.sql
\ir functions/leases.sql
\ir functions/nodes.sql
\ir functions/tables.sql
\ir functions/clean.sql
\ir functions/fork.sql
\ir functions/hot.sql
<<<<<<< HEAD
\ir functions/points.sql
=======
\ir functions/live.sql
>>>>>>> e870265 (Add the change feed, live queries over WebSocket, KILL LIVE QUERY and lakefork subscribe)
\ir functions/streams.sql
\ir functions/flush.sql
\ir functions/manifests.sql
\ir functions/dedup.sql
\ir functions/retention.sql
\ir functions/expiry.sql
\ir functions/cleanup.sql
\ir functions/fsck.sql
\ir functions/orphans.sql
\ir functions/roots.sql
\ir functions/backup.sql
\ir functions/restore.sql
\ir functions/airflow_absent.sql
\ir functions/jobs.sql
\ir functions/copy.sql
\ir views/system.sql
\ir views/copy.sql
\ir views/client.sql
\ir functions/client_roles.sql
