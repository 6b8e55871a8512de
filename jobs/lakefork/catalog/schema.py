"""Applies schema/postgresql.sql, the one place that defines the catalog."""

from pathlib import Path
from typing import Any

import psycopg

from lakefork.catalog.connection import Connection, found_version
from lakefork.errors import SetupError
from lakefork.settings import PROJECT

SCHEMA_FILE = PROJECT / "schema" / "postgresql.sql"
PUBLIC_RIGHTS_FILE = PROJECT / "schema" / "public_rights.sql"
AIRFLOW_FILE = PROJECT / "schema" / "airflow.sql"


def read_script(path: Path = SCHEMA_FILE) -> str:
    """The script for the caller's transaction: `\\ir` replaced by the file, other psql commands and COMMIT left out."""
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith("\\ir "):
            lines.append(read_script(path.parent / line.removeprefix("\\ir ").strip()))
        elif not line.startswith("\\") and line not in ("BEGIN;", "COMMIT;"):
            lines.append(line)
    return "\n".join(lines)


def init_catalog(connection: Connection) -> None:
    """Makes the catalog in an empty database, or nothing at all."""
    version = found_version(connection)
    if version is not None:
        raise SetupError(f"this database holds a Lakefork catalog already (version {version}); nothing was changed")
    if table := _any_table(connection):
        raise SetupError(
            f"this database is not empty (it has {table}): Lakefork is set up only in an empty one; nothing was changed"
        )
    with connection.transaction():
        connection.execute(read_script())


def restrict_public(connection: psycopg.Connection[Any]) -> None:
    """Takes rights from PUBLIC that owners keep, as far as whoever is connected may. Safe to repeat."""
    connection.execute(read_script(PUBLIC_RIGHTS_FILE))


def link_airflow(connection: Connection) -> None:
    """From now on system.jobs knows what Airflow says. Safe to repeat; needed again after an upgrade."""
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
