-- Global locks. They are empty tables: every login can take an advisory lock, but can lock a table only with rights on
-- it. All are held until the transaction ends. Exclusive holders use SHARE UPDATE EXCLUSIVE, the weakest mode that
-- conflicts with itself: stronger ones check all backends.
--
-- Locks of one table, user or key are advisory: there are too many for tables. public_rights.sql takes those from other
-- logins. Each kind has a number of its own, which is named here and nowhere else.

-- Writers of rows share it, changes of the definition take it alone.
CREATE FUNCTION lakefork.definition_lock(p_catalog_id bigint, p_table_id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashint8extended(p_table_id, hashint8extended(p_catalog_id, 5063717813)) $$;

-- Per table and user (NULL: of a shared table): writers of single keys share it, bulk writers take it alone.
CREATE FUNCTION lakefork.rows_lock(p_catalog_id bigint, p_table_id bigint, p_user_id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT hashtextextended(coalesce('u' || p_user_id, ''),
    lakefork.definition_lock(p_catalog_id, p_table_id)) $$;

-- One writer of a key at a time; p_rows: the rows_lock that it belongs to.
CREATE FUNCTION lakefork.key_lock(p_key bigint, p_rows bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT hashint8extended(p_key, p_rows) $$;

-- One at a time makes or drops a hot table, whichever catalog it is for.
CREATE FUNCTION lakefork.hot_table_lock(p_hot_table text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT hashtextextended(p_hot_table, 5063717814) $$;

-- One at a time writes the schema files of a namespace.
CREATE FUNCTION lakefork.schema_files_lock(p_catalog_id bigint, p_namespace text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended(p_namespace, hashint8extended(p_catalog_id, 5063717815)) $$;

-- An id for a new catalog belongs to one transaction.
CREATE FUNCTION lakefork.catalog_id_lock(p_catalog_id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT hashint8extended(p_catalog_id, 5063717816) $$;

-- Forks are copied in turns.
CREATE FUNCTION lakefork.copy_lock() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 5063717819 $$;

