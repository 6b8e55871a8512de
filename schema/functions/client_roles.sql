-- Postgres roles that can read the views for stock DuckDB, and nothing else.

-- By which a role is known as one of ours when the catalog that it was made for is gone. Roles belong to all databases of a server.
CREATE FUNCTION lakefork.client_comment() RETURNS text
LANGUAGE sql STABLE AS $$ SELECT 'client of Lakefork in database ' || current_database() $$;

CREATE FUNCTION lakefork.is_client_role(p_role text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p_role AND shobj_description(r.oid, 'pg_authid') = lakefork.client_comment())
$$;

-- p_catalog: the only one that the role can read (NULL: whichever it names).
CREATE FUNCTION lakefork.create_client_role(p_role text, p_password text, p_catalog text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bound_to bigint := CASE WHEN p_catalog IS NOT NULL THEN lakefork.live_catalog_id(p_catalog) END;
BEGIN
    IF p_role !~ '^[a-z_][a-z0-9_]{0,62}$' OR p_role ~ '^pg_' OR p_role IS NULL THEN
        RAISE EXCEPTION 'role name % is not well formed: up to 63 small letters, digits and _, not starting with a digit or pg_',
            coalesce(quote_literal(left(p_role, 80)), 'NULL') USING ERRCODE = 'LFV01';
    ELSIF coalesce(p_password, '') = '' THEN
        RAISE EXCEPTION 'role % needs a password', quote_literal(p_role) USING ERRCODE = 'LFV01';
    ELSIF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p_role) THEN
        RAISE EXCEPTION 'there is a role % already%', quote_literal(p_role),
            CASE WHEN lakefork.is_client_role(p_role) THEN ': drop it first (`lakefork client-role ' || p_role || ' --drop`)' ELSE '' END USING ERRCODE = 'LFX01';
    END IF;
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L', p_role, p_password);
    EXECUTE format('COMMENT ON ROLE %I IS %L', p_role, lakefork.client_comment());
    EXECUTE format('ALTER ROLE %I SET default_transaction_read_only = on', p_role);
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), p_role);
    EXECUTE format('GRANT USAGE ON SCHEMA ducklake_client TO %I', p_role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA ducklake_client TO %I', p_role);
    INSERT INTO lakefork.client_role AS r (role_name, catalog_id) VALUES (p_role, bound_to)
    ON CONFLICT (role_name) DO UPDATE SET catalog_id = excluded.catalog_id;
END $$;

CREATE FUNCTION lakefork.drop_client_role(p_role text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM lakefork.client_role r WHERE r.role_name = p_role;
    IF NOT FOUND AND NOT lakefork.is_client_role(p_role) THEN
        RAISE EXCEPTION 'there is no client role %', coalesce(quote_literal(p_role), 'NULL') USING ERRCODE = 'LFN01';
    END IF;
    EXECUTE format('DROP OWNED BY %I', p_role);
    EXECUTE format('DROP ROLE %I', p_role);
END $$;
