-- Postgres roles that can read the views for stock DuckDB, and nothing else.

-- Marks a role as ours even after its catalog is gone. Roles belong to all databases of a server.
CREATE FUNCTION lakefork.client_comment() RETURNS text
LANGUAGE sql STABLE AS $$ SELECT 'client of Lakefork in database ' || current_database() $$;

CREATE FUNCTION lakefork.is_client_role(p_role text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p_role
        AND shobj_description(r.oid, 'pg_authid') = lakefork.client_comment())
$$;

-- What a role can do besides reading, each with the way to prevent it; 'public': what every login of the database can.
CREATE FUNCTION lakefork.client_gaps(p_role text) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT f.can || ': a superuser can prevent that with schema/public_rights.sql'
    FROM (VALUES ('pg_advisory_lock(bigint)', 'take advisory locks, and so block writers of a table or a row'),
                 ('lo_from_bytea(oid,bytea)', 'fill the disk with large objects'),
                 ('pg_logical_emit_message(boolean,text,text,boolean)', 'fill the disk with WAL'),
                 -- before Postgres 17
                 ('pg_logical_emit_message(boolean,text,text)', 'fill the disk with WAL')) AS f (function, can)
    WHERE has_function_privilege(p_role, to_regprocedure(f.function), 'EXECUTE')
    UNION ALL
    SELECT format('make temporary tables: its owner can prevent that with REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC',
        current_database())
    WHERE has_database_privilege(p_role, current_database(), 'TEMPORARY')
    UNION ALL
    SELECT format('connect to other databases of this server (%s) and fill them: their owners can prevent that by '
        'REVOKE '
        'CONNECT ON DATABASE … FROM PUBLIC',
                  string_agg(quote_ident(d.datname), ', ' ORDER BY d.datname) FILTER (WHERE d.place <= 3) || CASE
                      WHEN count(*) > 3 THEN ', …' ELSE '' END)
    FROM (SELECT d.datname, row_number() OVER (ORDER BY d.datname) AS place FROM pg_database d
          WHERE d.datname <> current_database() AND d.datallowconn AND p_role <> 'public'
              AND has_database_privilege(p_role, d.oid, 'CONNECT')) d
    HAVING count(*) > 0
    UNION ALL
    SELECT format('fill the disk with temporary files of queries: a superuser can prevent that with ALTER ROLE %I SET '
        'temp_file_limit = ''1GB''', p_role)
    WHERE p_role <> 'public' AND NOT EXISTS (
        SELECT FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) AS setting
        WHERE r.rolname = p_role AND setting LIKE 'temp_file_limit=%')
$$;

-- Initial settings of a role. It can change all but the last for itself, but gains no right to write.
CREATE FUNCTION lakefork.limit_client_role(p_role text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER ROLE %I SET default_transaction_read_only = on', p_role);
    EXECUTE format('ALTER ROLE %I SET statement_timeout = ''5min''', p_role);
    EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = ''5min''', p_role);
    EXECUTE format('ALTER ROLE %I SET idle_session_timeout = ''1h''', p_role);
    BEGIN
        EXECUTE format('ALTER ROLE %I SET temp_file_limit = ''1GB''', p_role);
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;   -- client_gaps reports it
    END;
END $$;

CREATE FUNCTION lakefork.grant_client_views(p_role text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA ducklake_client TO %I', p_role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA ducklake_client TO %I', p_role);
END $$;

-- In an upgrade: the views were made again, and there may be more of them.
DO $grant$
BEGIN
    PERFORM lakefork.grant_client_views(r.rolname) FROM pg_roles r
        JOIN lakefork.client_role c ON c.role_name = r.rolname;
END $grant$;

-- p_catalog: the only one that the role can read (NULL: whichever it names). p_connections: how many at the same time.
CREATE FUNCTION lakefork.create_client_role(p_role text, p_password text, p_catalog text DEFAULT NULL,
    p_connections integer DEFAULT 8) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bound_to bigint := CASE WHEN p_catalog IS NOT NULL THEN lakefork.live_catalog_id(p_catalog) END;
BEGIN
    IF p_role !~ '^[a-z_][a-z0-9_]{0,62}$' OR p_role ~ '^pg_' OR p_role IS NULL THEN
        RAISE EXCEPTION 'role name % is invalid: use up to 63 lower-case letters, digits and _, not starting with '
            'a digit or pg_',
            coalesce(quote_literal(left(p_role, 80)), 'NULL') USING ERRCODE = 'LFV01';
    ELSIF coalesce(p_password, '') = '' THEN
        RAISE EXCEPTION 'role % needs a password', quote_literal(p_role) USING ERRCODE = 'LFV01';
    ELSIF coalesce(p_connections, 0) NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a client role has 1 to 1000 connections, not %', p_connections USING ERRCODE = 'LFV01';
    ELSIF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p_role) THEN
        RAISE EXCEPTION 'role % already exists%', quote_literal(p_role),
            CASE WHEN lakefork.is_client_role(p_role)
                THEN ': drop it first (`lakefork client-role ' || p_role || ' --drop`)' ELSE '' END
            USING ERRCODE = 'LFX01';
    END IF;
    EXECUTE format('CREATE ROLE %I LOGIN CONNECTION LIMIT %s PASSWORD %L', p_role, p_connections, p_password);
    EXECUTE format('COMMENT ON ROLE %I IS %L', p_role, lakefork.client_comment());
    PERFORM lakefork.limit_client_role(p_role);
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), p_role);
    PERFORM lakefork.grant_client_views(p_role);
    INSERT INTO lakefork.client_role AS r (role_name, catalog_id) VALUES (p_role, bound_to)
    ON CONFLICT (role_name) DO UPDATE SET catalog_id = excluded.catalog_id;
END $$;

CREATE FUNCTION lakefork.drop_client_role(p_role text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lakefork.client_role r WHERE r.role_name = p_role;
    IF NOT FOUND AND NOT lakefork.is_client_role(p_role) THEN
        RAISE EXCEPTION 'client role % does not exist', coalesce(quote_literal(p_role), 'NULL') USING ERRCODE = 'LFN01';
    END IF;
    -- the creator of the role may become a member, and only members may revoke its grants
    IF NOT pg_has_role(p_role, 'USAGE') THEN
        EXECUTE format('GRANT %I TO CURRENT_USER', p_role);
    END IF;
    EXECUTE format('DROP OWNED BY %I', p_role);
    EXECUTE format('DROP ROLE %I', p_role);
END $$;
