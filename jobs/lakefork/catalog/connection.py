"""Connections to the catalog database, and the check that it holds a catalog of this version."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from lakefork.errors import BY_SQLSTATE, CatalogVersionError, ConflictError, SetupError

Connection = psycopg.Connection[dict[str, Any]]

CATALOG_VERSION = "0.5-dev1"
OLDEST_POSTGRES = 14

_NAME_CONSTRAINTS = {
    "ducklake_catalog_live_name": "catalog",
    "ducklake_schema_live_name": "namespace",
    "ducklake_table_live_name": "table",
    "ducklake_view_live_name": "view",
    "ducklake_macro_live_name": "macro",
    "ducklake_column_live_name": "column",
}


def connect(dsn: str, *, autocommit: bool = True, check_version: bool = True) -> Connection:
    """A connection whose database is known to hold a catalog of this version."""
    try:
        connection = psycopg.connect(
            dsn, autocommit=autocommit, row_factory=dict_row, application_name="lakefork", connect_timeout=10
        )
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SetupError(
            f"cannot connect to Postgres at {describe_dsn(dsn)}: {reason}; "
            "start the embedded one with `lakefork db start`, or check LAKEFORK_DSN"
        ) from None
    if check_version:
        try:
            require_version(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def describe_dsn(dsn: str) -> str:
    """Where a DSN points to, without its password."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise SetupError("LAKEFORK_DSN is neither postgresql://… nor a libpq connection string") from None
    host, port = parts.get("host", "the local socket"), parts.get("port", 5432)
    return f"{host}:{port}/{parts.get('dbname', parts.get('user', ''))}"


def require_version(connection: Connection) -> None:
    version = found_version(connection)
    if version is None:
        raise CatalogVersionError("this database holds no Lakefork catalog: run `lakefork init` first")
    if version != CATALOG_VERSION:
        raise CatalogVersionError(
            f"this database holds a catalog of version {version}, and this Lakefork needs {CATALOG_VERSION}: "
            "there are no migrations, so point LAKEFORK_DSN at an empty database and run `lakefork init`"
        )


def found_version(connection: Connection) -> str | None:
    """The version of the catalog in this database; None without one."""
    if connection.info.server_version < OLDEST_POSTGRES * 10000:
        raise SetupError(
            f"Postgres {connection.info.server_version // 10000} is too old: Lakefork needs {OLDEST_POSTGRES}"
        )
    try:
        with connection.transaction():
            row = connection.execute(
                "SELECT value FROM public.ducklake_metadata WHERE key = 'version' AND scope IS NULL"
            ).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return row["value"] if row else None


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turns what Postgres reports, by SQLSTATE and constraint name, into Lakefork's errors."""
    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        constraint = error.diag.constraint_name or ""
        if what := _NAME_CONSTRAINTS.get(constraint):
            raise ConflictError(f"a {what} of this name exists already ({error.diag.message_detail})") from error
        raise ConflictError(f"another commit added the same row first ({constraint})") from error
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
        raise ConflictError("another transaction got in the way: try again") from error
    except psycopg.Error as error:
        if domain_error := BY_SQLSTATE.get(error.sqlstate or ""):
            raise domain_error(error.diag.message_primary) from error
        raise
