-- Gives back, after code.sql, the rights that drop_code.sql kept. Those on a function whose arguments changed are for
-- all that have its name now; those on what is gone are gone.
DO $grant_again$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('%s %s ON %s %s %s %s%s', CASE WHEN g.is_revoked THEN 'REVOKE' ELSE 'GRANT' END, g.privilege,
            g.kind, o.identity,
                      CASE WHEN g.is_revoked THEN 'FROM' ELSE 'TO' END, coalesce(quote_ident(r.rolname), 'PUBLIC'),
                      CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
        FROM jsonb_to_recordset(current_setting('lakefork.grants')::jsonb)
            AS g (kind text, schema text, name text, arguments text, is_revoked boolean, privilege text, grantee oid,
                is_grantable boolean)
        LEFT JOIN pg_roles r ON r.oid = g.grantee
        CROSS JOIN LATERAL (
            SELECT c.oid::regclass::text AS identity FROM pg_class c
            WHERE g.kind = 'TABLE' AND c.relkind = 'v' AND c.relname = g.name
                AND c.relnamespace = to_regnamespace(quote_ident(g.schema))
              AND (g.privilege !~ ' \(' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid
                  AND g.privilege LIKE '% (' || quote_ident(a.attname) || ')'))
            UNION ALL
            SELECT p.oid::regprocedure::text FROM pg_proc p
            WHERE g.kind = 'ROUTINE' AND p.proname = g.name AND p.pronamespace = to_regnamespace(quote_ident(g.schema))
              AND (pg_get_function_identity_arguments(p.oid) = g.arguments
                   OR NOT EXISTS (SELECT FROM pg_proc q WHERE q.proname = p.proname AND q.pronamespace = p.pronamespace
                                                          AND pg_get_function_identity_arguments(q.oid) = g.arguments))
        ) o
    LOOP
        EXECUTE statement;
    END LOOP;
END $grant_again$;
