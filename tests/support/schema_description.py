"""Everything that a schema defines, as text that can be compared."""

import psycopg

SCHEMAS = "('public', 'lakefork', 'lakefork_locks', 'system', 'ducklake_client')"
QUERIES = {
    "schemas": "SELECT nspname, nspacl::text FROM pg_namespace WHERE nspname IN ('hot', 'stream', {schemas})",
    "relations": """SELECT c.oid::regclass::text, c.relkind::text, c.relpersistence::text, c.reloptions::text, c.relacl::text
        FROM pg_class c WHERE c.relnamespace = ANY ({oids})""",
    "columns": """SELECT a.attrelid::regclass::text, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text,
            a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid), a.attacl::text
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = ANY ({oids}) AND a.attnum > 0""",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = ANY ({oids})",
    "indexes": "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid "
    "WHERE c.relnamespace = ANY ({oids})",
    "functions": """SELECT oid::regprocedure::text, pg_get_functiondef(oid), proacl::text FROM pg_proc
        WHERE pronamespace = ANY ({oids}) AND prokind IN ('f', 'p')""",
    "views": "SELECT oid::regclass::text, pg_get_viewdef(oid) FROM pg_class WHERE relkind = 'v' AND relnamespace = ANY ({oids})",
    "triggers": "SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "types": "SELECT oid::regtype::text, typtype::text, typbasetype::regtype::text FROM pg_type WHERE typnamespace = ANY ({oids})",
    "entities": "SELECT e::text FROM lakefork.entity e",
    "scripts": "SELECT name FROM lakefork.schema_upgrade",
    "metadata": "SELECT key, value FROM public.ducklake_metadata WHERE scope IS NULL AND key IN ('version', 'lakefork_version', 'lakefork_schema')",
}  # fmt: skip


def describe_schema(connection: psycopg.Connection[object]) -> dict[str, list[str]]:
    """Lines by kind."""
    oids = f"ARRAY(SELECT n.oid FROM pg_namespace n WHERE n.nspname IN {SCHEMAS})"
    described = {}
    for kind, query in QUERIES.items():
        text = query.replace("{oids}", oids).replace("{schemas}", SCHEMAS.strip("()"))
        with psycopg.ClientCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            described[kind] = sorted(str(row) for row in cursor.execute(text))
    return described
