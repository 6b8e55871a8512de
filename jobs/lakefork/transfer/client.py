"""What stock DuckDB gets to see: an export of one catalog, and roles that read nothing but the views for it."""

import secrets
from collections.abc import Callable
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.schema import restrict_public
from lakefork.database_errors import domain_errors
from lakefork.progress import Bar
from lakefork.queries import load
from lakefork.transfer.dump import copy_table, new_file, one_moment

_SQL = load(__package__)
DEFAULT_CONNECTIONS = 8  # DuckDB opens one for each query of the catalog, and keeps some


def export_catalog(dsn: str, name: str, target: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Writes what the views show of a catalog into a new DuckDB file; returns the rows of each table."""
    with connect(dsn) as catalog, new_file(target) as duck, one_moment(dsn) as cursor:
        find_catalog(catalog, name)
        cursor.execute("SELECT set_config('lakefork.catalog', $1, true)", (name,))
        cursor.fetchall()
        tables = catalog.execute(_SQL["client_tables"]).fetchall()
        bar, copied = Bar(say, len(tables)), {}
        for table in tables:
            columns = ", ".join(
                f'"{column}" {kind}' for column, kind in zip(table["columns"], table["types"], strict=True)
            )
            duck.execute(f'CREATE TABLE "{table["table"]}" ({columns})')
            copied[table["table"]] = copy_table(cursor, duck, table, "main")
            bar.reach(len(copied), f"{len(copied)} of {len(tables)} tables, {sum(copied.values()):,} rows")
        return copied


def create_client_role(
    connection: Connection, role: str, catalog: str | None, connections: int = DEFAULT_CONNECTIONS
) -> str:
    """Returns the new role's password, which is kept nowhere."""
    password = secrets.token_urlsafe(24)
    restrict_public(connection)
    with domain_errors():
        connection.execute("SELECT lakefork.create_client_role(%s, %s, %s, %s)", (role, password, catalog, connections))
    return password


def client_gaps(connection: Connection, role: str = "public") -> list[str]:
    """What a role can do beside reading, and who can end it; by default what every login can do."""
    return [row["gap"] for row in connection.execute("SELECT lakefork.client_gaps(%s) AS gap", (role,))]


def drop_client_role(connection: Connection, role: str) -> None:
    with domain_errors():
        connection.execute("SELECT lakefork.drop_client_role(%s)", (role,))


def attach_statement(dsn: str, role: str, password: str, catalog: str) -> str:
    """What somebody with the role types into DuckDB."""
    parts = {**conninfo_to_dict(dsn), "user": role, "password": password}
    words = [f"{name}={parts[name]}" for name in ("host", "port", "dbname", "user", "password") if name in parts]
    libpq = " ".join([*words, f"options=-clakefork.catalog={catalog}"])
    return f"ATTACH 'ducklake:postgres:{libpq}' AS lake (METADATA_SCHEMA 'ducklake_client', READ_ONLY)"
