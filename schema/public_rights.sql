-- Revokes from PUBLIC what a read-only login could block or fill a server with: temporary tables, which the database's
-- owner can revoke, and functions (advisory locks, large objects, messages in the WAL), which only a superuser can
-- revoke.
--
-- psql -v ON_ERROR_STOP=1 -f schema/public_rights.sql      (`lakefork init` and `lakefork client-role` do it by
-- themselves as far as they may)
--
-- Lakefork works without it, and `lakefork client-role` says what is left open. Role airflow and all who own the
-- database, a schema or a table of it keep these rights: Airflow takes advisory locks itself. Safe to repeat; repeat it
-- when a role of another name is to own something.
DO $public_rights$
DECLARE
    is_superuser boolean := (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user);
    database oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    owner oid := (SELECT d.datdba FROM pg_database d WHERE d.oid = database);
    keepers oid[] := ARRAY(
        SELECT r.oid FROM pg_roles r
        WHERE r.rolname !~ '^pg_'
          AND (r.rolname = 'airflow' OR r.oid = owner
               OR EXISTS (SELECT FROM pg_namespace n WHERE n.nspowner = r.oid)
               OR EXISTS (SELECT FROM pg_class c WHERE c.relowner = r.oid AND c.relpersistence <> 't')));
    object text;
BEGIN
    FOR object IN
        SELECT format('TEMPORARY ON DATABASE %I', current_database())
        WHERE (is_superuser OR pg_has_role(owner, 'USAGE'))
          AND (has_database_privilege('public', database, 'TEMPORARY')
               OR EXISTS (SELECT FROM unnest(keepers) k WHERE NOT has_database_privilege(k, database, 'TEMPORARY')))
        UNION ALL
        SELECT format('EXECUTE ON FUNCTION %s', p.oid::regprocedure) FROM pg_proc p
        WHERE is_superuser AND p.pronamespace = 'pg_catalog'::regnamespace
          AND p.proname ~ '^(pg_(try_)?advisory_.*|lo_.*|loread|lowrite|pg_logical_emit_message)$'
          AND p.proname NOT IN ('lo_import', 'lo_export')   -- they access the server's files, and nobody needs them
          AND (has_function_privilege('public', p.oid, 'EXECUTE')
               OR EXISTS (SELECT FROM unnest(keepers) k WHERE NOT has_function_privilege(k, p.oid, 'EXECUTE')))
    LOOP
        EXECUTE format('REVOKE %s FROM PUBLIC', object);
        EXECUTE (SELECT format('GRANT %s TO %s', object, string_agg(quote_ident(r.rolname), ', ')) FROM pg_roles r
            WHERE r.oid = ANY (keepers));
    END LOOP;
END $public_rights$;
