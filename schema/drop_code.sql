-- Drops what code.sql makes, so that `lakefork upgrade` can make it with other columns, arguments and names. What
-- something else uses, as an index uses a function and somebody's own view one of ours, stays: code.sql replaces it in
-- place, or fails where that cannot be.
--
-- Rights that were granted on views and functions are kept for grant_again.sql, in a setting of the transaction.

SELECT set_config('lakefork.grants', coalesce(jsonb_agg(to_jsonb(g))::text, '[]'), true)
FROM (
    SELECT 'TABLE' AS kind, n.nspname AS schema, c.relname AS name, '' AS arguments, false AS is_revoked,
           a.privilege_type || coalesce(' (' || quote_ident(a.column) || ')', '') AS privilege, a.grantee,
           a.is_grantable
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        SELECT NULL AS column, e.* FROM aclexplode(c.relacl) e
        UNION ALL
        SELECT t.attname, e.* FROM pg_attribute t CROSS JOIN LATERAL aclexplode(t.attacl) e WHERE t.attrelid = c.oid
    ) a
    WHERE c.relkind = 'v' AND n.nspname IN ('lakefork', 'system', 'ducklake_client') AND a.grantee <> c.relowner
    UNION ALL
    SELECT 'ROUTINE', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid), a.is_revoked, 'EXECUTE',
        a.grantee, a.is_grantable
    FROM pg_proc p
    JOIN pg_namespace n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL (
        SELECT false AS is_revoked, e.grantee, e.is_grantable FROM aclexplode(p.proacl) e
            WHERE e.grantee NOT IN (0, p.proowner)
        UNION ALL   -- what everybody has from the start, and lost
        SELECT true, 0, false WHERE NOT EXISTS (SELECT FROM aclexplode(p.proacl) e WHERE e.grantee = 0)
    ) a
    WHERE p.proacl IS NOT NULL AND n.nspname IN ('lakefork', 'system', 'ducklake_client', 'public')
) g;

DO $drop$
DECLARE
    statement text;
    kept integer := -1;
    kept_before integer;
BEGIN
    LOOP
        kept_before := kept;
        kept := 0;
        FOR statement IN
            SELECT o.statement FROM (
                SELECT 1 AS rank, t.oid, format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) AS statement
                FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                WHERE p.pronamespace = 'lakefork'::regnamespace AND NOT t.tgisinternal
                UNION ALL
                SELECT 2, c.oid, format('DROP VIEW %s', c.oid::regclass) FROM pg_class c
                    JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relkind = 'v' AND n.nspname IN ('lakefork', 'system', 'ducklake_client')
                UNION ALL
                SELECT 3, p.oid, format('DROP ROUTINE %s', p.oid::regprocedure) FROM pg_proc p
                    JOIN pg_namespace n ON n.oid = p.pronamespace
                WHERE n.nspname IN ('lakefork', 'system', 'ducklake_client')
                    OR p.oid::regproc::text ~ '^(public\.)?ducklake_fork_catalog$'
                UNION ALL
                SELECT 4, t.oid, format('DROP TYPE %s', t.oid::regtype) FROM pg_type t
                    LEFT JOIN pg_class c ON c.oid = t.typrelid
                WHERE t.typnamespace = 'lakefork'::regnamespace AND (t.typtype IN ('d', 'e') OR c.relkind = 'c')
            ) o ORDER BY o.rank, o.oid DESC   -- what was made later uses what was there before
        LOOP
            BEGIN
                EXECUTE statement;
            EXCEPTION WHEN dependent_objects_still_exist THEN
                kept := kept + 1;
            END;
        END LOOP;
        EXIT WHEN kept IN (0, kept_before);
    END LOOP;
END $drop$;
