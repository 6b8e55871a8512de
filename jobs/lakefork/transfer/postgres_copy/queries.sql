-- identity: which database this is, and as whom we are there
SELECT (SELECT system_identifier::text FROM pg_control_system()) AS system_identifier,
    current_database()::text AS database, current_user::text AS role,
       current_setting('server_version_num')::int AS version, current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS is_standby;

-- identity_without_right: the same where pg_control_system may not be called
SELECT coalesce(inet_server_addr()::text, 'local') || ':' || coalesce(inet_server_port()::text,
    '') AS system_identifier, current_database()::text AS database,
       current_user::text AS role, current_setting('server_version_num')::int AS version,
       current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS is_standby;

-- relations: everything of users that pg_class has and is a table or like one; extensions' own are left to them
SELECT c.oid::bigint AS oid, n.nspname::text AS namespace, c.relname::text AS name, c.relkind::text AS kind,
    c.relispartition AS is_partition,
       c.relrowsecurity AS row_security, am.amname = 'heap' AS is_heap
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_am am ON am.oid = c.relam
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S') AND n.nspname !~ '^pg_'
    AND n.nspname NOT IN ('information_schema', 'lakefork_copy', 'lakefork_follow')
  AND c.relpersistence <> 't'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
      AND d.deptype = 'e')
ORDER BY n.nspname, c.relname;

-- sizes: of tables, with what is kept out of line
SELECT o AS oid, coalesce(pg_table_size(o::oid), 0) AS size_bytes,
       coalesce(pg_relation_size(o::oid), 0) / current_setting('block_size')::bigint AS blocks,
       greatest(c.reltuples, 0)::bigint AS estimated_rows
FROM unnest(%(oids)s::bigint[]) o JOIN pg_class c ON c.oid = o::oid;

-- columns: of tables, in order. in_binary: the type's binary form has no object ids in it, which would be others on the
-- target
WITH RECURSIVE used AS (
    SELECT DISTINCT a.atttypid AS top, a.atttypid AS oid FROM pg_attribute a
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT u.top, p.oid FROM used u JOIN pg_type t ON t.oid = u.oid LEFT JOIN pg_range r ON r.rngtypid = t.oid
    CROSS JOIN LATERAL (VALUES (t.typbasetype), (CASE WHEN t.typcategory = 'A' THEN t.typelem END), (r.rngsubtype)) AS p
        (oid)
    WHERE p.oid <> 0
), textual AS (
    SELECT DISTINCT u.top FROM used u JOIN pg_type t ON t.oid = u.oid
    WHERE t.typsend = 0 OR t.typreceive = 0 OR t.typtype = 'c' OR (t.typcategory = 'A' AND t.typelem >= 16384)
        OR t.typname ~ '^(reg|_reg)'
       OR t.oid = 'xml'::regtype OR (t.typtype = 'm' AND u.top >= 16384)
)
SELECT a.attrelid::bigint AS oid,
       json_agg(json_build_array(a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::bigint, a.attnotnull,
           a.attgenerated <> '', x.top IS NULL)
                ORDER BY a.attnum) AS columns
FROM pg_attribute a LEFT JOIN textual x ON x.top = a.atttypid
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY 1;

-- keys: the integer column by which a table can be split, and its primary key
SELECT i.indrelid::bigint AS oid,
       (array_agg(a.attname::text ORDER BY i.indisprimary DESC, i.indexrelid)
            FILTER (WHERE i.indnkeyatts = 1 AND a.atttypid IN (20, 21, 23) AND i.indisunique))[1] AS split_key,
       (array_agg(ARRAY(SELECT k.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS p (attnum, place)
                        JOIN pg_attribute k ON k.attrelid = i.indrelid AND k.attnum = p.attnum
                        WHERE p.place <= i.indnkeyatts ORDER BY p.place)) FILTER (WHERE i.indisprimary)) AS primary_keys
FROM pg_index i LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = ANY (%(oids)s::oid[]) AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    AND (i.indisunique OR i.indisprimary)
GROUP BY 1;

-- indexes: those that are built table by table, with the constraint that stands on each. Those of partitioned tables
-- have no rows of their own.
SELECT i.indexrelid::bigint AS oid, i.indrelid::bigint AS table_oid, n.nspname::text AS namespace,
    c.relname::text AS name,
       pg_get_indexdef(i.indexrelid) AS definition, pg_relation_size(i.indexrelid) AS size_bytes,
       i.indisvalid AS is_valid,
       i.indisclustered AS is_clustered, i.indisreplident AS is_replica_identity,
       k.oid::bigint AS constraint_oid, k.conname::text AS constraint_name, k.contype::text AS constraint_kind,
       pg_get_constraintdef(k.oid) AS constraint_definition,
       k.condeferrable AS is_deferrable, k.condeferred AS is_deferred
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class t ON t.oid = i.indrelid
LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x') AND k.conrelid = i.indrelid
WHERE i.indrelid = ANY (%(oids)s::oid[]) AND t.relkind = 'r'
ORDER BY i.indexrelid;

-- foreign_keys: is_step: one statement can add it without looking at rows, and another can check it
SELECT k.oid::bigint AS oid, k.conrelid::bigint AS table_oid, k.confrelid::bigint AS referenced_oid,
    k.conname::text AS name, pg_get_constraintdef(k.oid) AS definition,
       k.convalidated AS is_valid, t.relkind = 'r' AND pg_get_constraintdef(k.oid) !~ 'NOT ENFORCED' AS is_step
FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.conrelid = ANY (%(oids)s::oid[])
ORDER BY k.oid;

-- dependents: views and rules' owners, functions and foreign keys that cannot be without some relations, of any depth
WITH RECURSIVE gone AS (
    SELECT 'pg_class'::regclass::oid AS classid, o::oid AS objid FROM unnest(%(oids)s::bigint[]) o
    UNION
    SELECT CASE WHEN d.classid = 'pg_rewrite'::regclass THEN 'pg_class'::regclass::oid ELSE d.classid END,
           CASE WHEN d.classid = 'pg_rewrite'::regclass THEN (SELECT r.ev_class FROM pg_rewrite r WHERE r.oid = d.objid)
               ELSE d.objid END
    FROM gone g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid AND d.deptype IN ('n', 'a', 'i')
    WHERE d.classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass) OR (d.classid = 'pg_type'::regclass
        AND d.deptype = 'i')
)
SELECT g.classid::regclass::text AS catalog, g.objid::bigint AS oid, pg_describe_object(g.classid, g.objid,
    0) AS description
FROM gone g WHERE NOT (g.classid = 'pg_class'::regclass AND g.objid = ANY (%(oids)s::oid[]))
    AND g.classid <> 'pg_type'::regclass;

-- sequences: those whose values are copied; owned: by which tables
SELECT c.oid::bigint AS oid, n.nspname::text AS namespace, c.relname::text AS name, d.refobjid::bigint AS owner_oid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_class'::regclass
    AND d.deptype IN ('a', 'i')
WHERE c.relkind = 'S' AND c.oid = ANY (%(oids)s::oid[])
ORDER BY n.nspname, c.relname;

-- large_objects: their ids, some at a time
SELECT m.oid::bigint AS oid FROM pg_largeobject_metadata m ORDER BY m.oid;

-- large_object_rights: who owns each, who may do what, and what is said of it
SELECT m.oid::bigint AS oid, pg_get_userbyid(m.lomowner)::text AS owner,
    obj_description(m.oid, 'pg_largeobject') AS comment,
       (SELECT json_agg(json_build_array(CASE WHEN a.grantee = 0 THEN NULL ELSE pg_get_userbyid(a.grantee) END,
           a.privilege_type, a.is_grantable))
        FROM aclexplode(m.lomacl) a) AS grants
FROM pg_largeobject_metadata m WHERE m.oid BETWEEN %(first)s AND %(last)s ORDER BY m.oid;

-- extensions: which there are, and tables of theirs whose rows are a matter of users
SELECT e.extname::text AS name, coalesce(cardinality(e.extconfig), 0) AS configuration_tables FROM pg_extension e
    WHERE e.extname <> 'plpgsql' ORDER BY 1;

-- needed_roles: who owns or may use something here
WITH named AS (
    SELECT c.relowner AS oid FROM pg_class c WHERE c.oid >= 16384 UNION SELECT n.nspowner FROM pg_namespace n
        WHERE n.nspname !~ '^pg_'
    UNION SELECT p.proowner FROM pg_proc p WHERE p.oid >= 16384 UNION SELECT t.typowner FROM pg_type t
        WHERE t.oid >= 16384
    UNION SELECT a.grantee FROM pg_class c CROSS JOIN aclexplode(c.relacl) a WHERE c.oid >= 16384
    UNION SELECT a.grantee FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a
    UNION SELECT a.grantee FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a WHERE p.oid >= 16384
)
SELECT r.rolname::text AS name, r.rolsuper, r.rolinherit, r.rolcreaterole, r.rolcreatedb, r.rolcanlogin,
    r.rolreplication, r.rolbypassrls, r.rolconnlimit
FROM pg_roles r WHERE r.oid IN (SELECT oid FROM named) AND r.rolname !~ '^pg_' ORDER BY 1;

-- role_members: which of some roles are in which
SELECT g.rolname::text AS role, m.rolname::text AS member, a.admin_option
FROM pg_auth_members a JOIN pg_roles g ON g.oid = a.roleid JOIN pg_roles m ON m.oid = a.member
WHERE m.rolname = ANY (%(names)s) AND (g.rolname = ANY (%(names)s) OR g.rolname ~ '^pg_');

-- lock_room: how many locks all transactions together can have, and how many are taken
SELECT current_setting('max_locks_per_transaction')::bigint AS per_transaction,
       current_setting('max_locks_per_transaction')::bigint * (current_setting('max_connections')::bigint +
           current_setting('max_prepared_transactions')::bigint)
       AS room, (SELECT count(*) FROM pg_locks WHERE NOT fastpath AND locktype <> 'virtualxid') AS taken;

-- user_objects: something that users made, if there is anything
SELECT format('%%I.%%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'lakefork_copy', 'lakefork_follow')
    AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND c.relpersistence <> 't'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
      AND d.deptype = 'e')
UNION ALL
SELECT 'large object ' || m.oid FROM pg_largeobject_metadata m
LIMIT 1;

-- start_copy: a copy begins
INSERT INTO lakefork.copy (copy_id, source, target, into_catalog, source_identity, target_identity, setup, status,
    phase, run_id, started_at)
VALUES (%(copy_id)s, %(source)s, %(target)s, %(into_catalog)s, %(source_identity)s, %(target_identity)s, %(setup)s,
    'running', 'snapshot', %(run_id)s,
        clock_timestamp());

-- find_copy: a copy with all that is known of it
SELECT * FROM lakefork.copy WHERE copy_id = %(copy_id)s;

-- add_tables: the tables of a copy
INSERT INTO lakefork.copy_table (copy_id, table_oid, namespace, name, size_bytes, definition)
SELECT %(copy_id)s, r.oid, r.namespace, r.name, r.size_bytes, r.definition
FROM jsonb_to_recordset(%(tables)s) AS r (oid bigint, namespace text, name text, size_bytes bigint, definition jsonb);

-- add_steps: the steps of a copy; the ready ones are those without others before them
INSERT INTO lakefork.copy_step (copy_id, step_id, kind, pool, table_oid, stage, priority, name, size_bytes, detail,
    status)
SELECT %(copy_id)s, r.step_id, r.kind, r.pool, r.table_oid, r.stage, r.priority, r.name, r.size_bytes, r.detail,
    'waiting'
FROM jsonb_to_recordset(%(steps)s) AS r (step_id bigint, kind text, pool text, table_oid bigint, stage int,
    priority bigint, name text, size_bytes bigint,
                                         detail jsonb);

-- copy_totals: how far a copy is
SELECT * FROM system.copies WHERE copy_id = %(copy_id)s;

-- definitions: what tables are made of, item by item
WITH tables AS MATERIALIZED (
    SELECT c.oid, n.nspname::text AS namespace, c.relname::text AS table_name
    FROM unnest(%(namespaces)s::text[], %(names)s::text[]) AS w (namespace, name)
    JOIN pg_namespace n ON n.nspname = w.namespace JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
)
SELECT t.namespace, t.table_name, 'table' AS kind, '' AS name, c.relpersistence::text || c.relrowsecurity::text ||
    coalesce(c.reloptions::text, '') AS definition
FROM tables t JOIN pg_class c ON c.oid = t.oid
UNION ALL
SELECT t.namespace, t.table_name, 'column', a.attname::text,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
           a.attidentity::text, a.attgenerated::text,
                 pg_get_expr(d.adbin, d.adrelid))
FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT t.namespace, t.table_name, 'index', c.relname::text, pg_get_indexdef(i.indexrelid) || CASE WHEN i.indisvalid
    THEN '' ELSE ' INVALID' END
FROM tables t JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class c ON c.oid = i.indexrelid
UNION ALL
SELECT t.namespace, t.table_name, 'constraint', k.conname::text, pg_get_constraintdef(k.oid)
FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype IN ('p', 'u', 'x', 'c', 'f')
UNION ALL
SELECT t.namespace, t.table_name, 'trigger', g.tgname::text, pg_get_triggerdef(g.oid)
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION ALL
SELECT t.namespace, t.table_name, 'sequence', s.relname::text,
       concat_ws(' ', q.seqtypid::regtype, q.seqstart, q.seqincrement, q.seqmin, q.seqmax, q.seqcycle)
FROM tables t JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid
    AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_sequence q ON q.seqrelid = s.oid;

-- types: of columns, without their domains
WITH RECURSIVE base AS (
    SELECT t.oid AS top, t.oid, t.typtype, t.typbasetype, t.typtypmod, t.typcategory, t.typelem, -1 AS typmod,
        0 AS depth
    FROM pg_type t WHERE t.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT b.top, t.oid, t.typtype, t.typbasetype, t.typtypmod, t.typcategory, t.typelem, b.typtypmod, b.depth + 1
    FROM base b JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
)
SELECT b.top::bigint AS oid, b.depth > 0 AS is_domain, format_type(b.oid, b.typmod) AS name, b.typtype = 'e' AS is_enum,
       CASE WHEN b.typcategory = 'A' AND b.typelem <> 0 THEN format_type(b.typelem, b.typmod) END AS element,
       CASE WHEN b.typcategory = 'A' THEN (SELECT e.typtype = 'e' FROM pg_type e WHERE e.oid = b.typelem) END
           AS element_is_enum
FROM base b WHERE b.typtype <> 'd';

-- publish_copy: all tables and files of a copy, in one commit
SELECT * FROM lakefork.publish_copy(%(copy_id)s, %(job_id)s, %(staged_job)s, %(catalog_id)s, %(changes)s,
    %(paths)s::text[], %(directories)s, %(author)s,
                                    %(message)s, %(extra)s);

-- lake_counts: what a copy into a catalog has done
SELECT (SELECT count(*) FROM lakefork.copy_table t WHERE t.copy_id = c.copy_id) AS tables, count(s.step_id) AS parts,
    coalesce(sum(s.rows), 0)::bigint AS rows,
       coalesce(sum(jsonb_array_length(s.result -> 'files')), 0)::bigint AS files_written,
       coalesce(sum(s.bytes), 0)::bigint AS bytes_written, c.snapshot_id
FROM lakefork.copy c LEFT JOIN lakefork.copy_step s ON s.copy_id = c.copy_id
WHERE c.copy_id = %(copy_id)s GROUP BY c.copy_id;

-- defaults: of columns that are not generated; is_serial: values come from a sequence
SELECT d.adrelid::bigint AS oid, a.attname::text AS "column", pg_get_expr(d.adbin, d.adrelid) AS expression,
       pg_get_expr(d.adbin, d.adrelid) ~ '^nextval\(' AS is_serial
FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE d.adrelid = ANY (%(oids)s::oid[]) AND a.attgenerated = '' AND NOT a.attisdropped;
