"""Applies the schema to an empty database, and scripts that can be repeated."""

from typing import Any

import psycopg

from lakefork import __version__
from lakefork.catalog.connection import DIGEST_KEY, LAKEFORK_KEY, Connection, find_installed
from lakefork.catalog.scripts import AIRFLOW_FILE, PUBLIC_RIGHTS_FILE, read_script, schema_digest
from lakefork.errors import SetupError


def init_catalog(connection: Connection) -> None:
    """Makes the catalog in an empty database, or nothing at all."""
    installed = find_installed(connection)
    if installed is not None:
        raise SetupError(
            f"this database holds a Lakefork catalog already (version {installed.version}); nothing was changed"
        )
    if table := _any_table(connection):
        raise SetupError(
            f"this database is not empty (it has {table}): Lakefork is set up only in an empty one; nothing was changed"
        )
    with connection.transaction():
        connection.execute(read_script())
        record_schema(connection)


def record_schema(connection: Connection) -> None:
    """From now on the database is known to have the schema of this Lakefork, and no other."""
    connection.execute(
        "INSERT INTO public.ducklake_metadata (key, value) VALUES (%s, %s), (%s, %s) "
        "ON CONFLICT (key, coalesce(scope, ''), coalesce(scope_id, -1)) DO UPDATE SET value = excluded.value",
        (LAKEFORK_KEY, __version__, DIGEST_KEY, schema_digest()),
    )


def restrict_public(connection: psycopg.Connection[Any]) -> None:
    """Revokes rights from PUBLIC that owners keep, as far as the connected role may. Safe to repeat."""
    connection.execute(read_script(PUBLIC_RIGHTS_FILE))


def link_airflow(connection: Connection) -> None:
    """Connects system.jobs to Airflow's tables. Safe to repeat; an upgrade repeats it automatically."""
    try:
        with connection.transaction():
            connection.execute(read_script(AIRFLOW_FILE))
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName) as error:
        raise SetupError(
            f"Airflow's tables are not in schema airflow of this database, or not those of Airflow 3.3 "
            f"({error.diag.message_primary}): let Airflow use it with a role whose search_path is airflow, and run "
            "`airflow db migrate` first"
        ) from None


def _any_table(connection: Connection) -> str | None:
    """Something in the way; tables in schemas of their own, as Airflow's, are not."""
    row = connection.execute(
        "SELECT format('%I.%I', n.nspname, c.relname) AS name "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname IN ('public', 'lakefork', 'system') AND c.relkind IN ('r', 'v', 'p', 'm') "
        "UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname IN ('lakefork', 'system') LIMIT 1"
    ).fetchone()
    return row["name"] if row else None
