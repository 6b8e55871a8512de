"""Connections to the catalog database, and the check that it holds a catalog of this version."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from lakefork.database_errors import refusal
from lakefork.errors import CatalogVersionError, SetupError

Connection = psycopg.Connection[dict[str, Any]]

CATALOG_VERSION = "0.5-dev1"
OLDEST_POSTGRES = 14

CONNECT_SECONDS = 10


def connect(dsn: str, *, autocommit: bool = True, check_version: bool = True) -> Connection:
    """A connection whose database is known to hold a catalog of this version."""
    try:
        connection = open_connection(dsn, autocommit=autocommit)
    except psycopg.Error as error:
        raise SetupError(
            f"cannot connect to Postgres at {describe_dsn(dsn)}: {refusal(error)}; "
            "start the embedded one with `lakefork db start`, or check LAKEFORK_DSN"
        ) from None
    if check_version:
        try:
            require_version(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def open_connection(dsn: str, **options: Any) -> Connection:
    return psycopg.connect(
        dsn, row_factory=dict_row, application_name="lakefork", connect_timeout=CONNECT_SECONDS, **options
    )


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
