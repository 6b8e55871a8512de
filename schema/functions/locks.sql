-- Locks that stop everybody. They are empty tables: every login can take an advisory lock, but a table only with rights on it. All are held until the
-- transaction ends. What takes a lock alone uses SHARE UPDATE EXCLUSIVE, the weakest mode that excludes itself: stronger ones look through all backends.
--
-- Locks of one table, user or key are advisory (functions/hot.sql): there are too many for tables. public_rights.sql takes those from other logins.
CREATE SCHEMA lakefork_locks;
CREATE TABLE lakefork_locks.fence ();     -- commits and forks share it (ROW SHARE), file cleanup takes it alone (EXCLUSIVE)
CREATE TABLE lakefork_locks.commits ();   -- one commit at a time
CREATE TABLE lakefork_locks.gc ();        -- one batch of retention_gc at a time, and no tag meanwhile
CREATE TABLE lakefork_locks.counts ();    -- one at a time folds counts of hot rows
CREATE TABLE lakefork_locks.nodes ();     -- one at a time takes a node for SeqIds
