"""Connections to the catalog database, and the check that it holds a catalog of this version."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from lakefork import __version__
from lakefork.catalog.scripts import schema_digest, upgrade_scripts
from lakefork.database_errors import refusal
from lakefork.errors import CatalogVersionError, SetupError
from lakefork.watchdog import claim, shut_down

Connection = psycopg.Connection[dict[str, Any]]

CATALOG_VERSION = "0.5-dev1"
OLDEST_POSTGRES = 14
LAKEFORK_KEY = "lakefork_version"  # of ducklake_metadata, as DIGEST_KEY
DIGEST_KEY = "lakefork_schema"

CONNECT_SECONDS = 10


def connect(dsn: str, *, autocommit: bool = True, check_version: bool = True) -> Connection:
    """Connects to a database that must have a catalog of this version."""
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
    connection = psycopg.connect(
        dsn, row_factory=dict_row, application_name="lakefork", connect_timeout=CONNECT_SECONDS, **options
    )
    claim(connection, connection.fileno())
    return connection


def cancel(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Ends, from another thread, what Postgres does for this connection now; psycopg's own cancel() has no limit."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=seconds)


def shut(connection: psycopg.Connection[Any]) -> None:
    """Ends, from another thread, waiting for a server that does not answer."""
    if not connection.closed:
        shut_down(connection.fileno())


def describe_dsn(dsn: str) -> str:
    """Where a DSN points to, without its password."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise SetupError("LAKEFORK_DSN is neither postgresql://… nor a libpq connection string") from None
    host, port = parts.get("host", "the local socket"), parts.get("port", 5432)
    return f"{host}:{port}/{parts.get('dbname', parts.get('user', ''))}"


@dataclass(frozen=True)
class InstalledSchema:
    """The schema that is installed in a database."""

    version: str  # of the catalog's format
    lakefork: str | None  # that made or upgraded it; None: one from before upgrades
    digest: str | None  # of the files that it was made from; None: psql did it, or one from before upgrades

    @property
    def is_current(self) -> bool:
        return self.lakefork == __version__ if self.digest is None else self.digest == schema_digest()


def require_version(connection: Connection) -> None:
    """Raises an error that names the way out unless the database has the schema of this Lakefork."""
    installed = find_installed(connection)
    if installed is None:
        raise CatalogVersionError("this database holds no Lakefork catalog: run `lakefork init` first")
    require_format(installed)
    if not installed.is_current:
        reject_newer(connection, installed)
        other = f"not that of this Lakefork {__version__}"
        if installed.lakefork != __version__:
            other = f"that of Lakefork {installed.lakefork or 'before 0.2'}, and this is Lakefork {__version__}"
        raise CatalogVersionError(
            f"the schema of this database is {other}: run `lakefork upgrade` (--dry-run only prints what it would do)"
        )


def require_format(installed: InstalledSchema) -> None:
    if installed.version != CATALOG_VERSION:
        raise CatalogVersionError(
            f"this database holds a catalog of version {installed.version}, and this Lakefork needs {CATALOG_VERSION}: "
            "no upgrade leads from one to the other, so point LAKEFORK_DSN at an empty database and run `lakefork init`"
        )


def reject_newer(connection: Connection, installed: InstalledSchema) -> None:
    """Raises an error if a newer Lakefork has changed the schema: this one does not know what the tables mean."""
    unknown = applied_upgrades(connection) - {script.name for script in upgrade_scripts()}
    if unknown or _numbers(installed.lakefork or "") > _numbers(__version__):
        raise CatalogVersionError(
            f"the schema of this database is that of Lakefork {installed.lakefork}, which is newer than this Lakefork "
            f"{__version__}: install that version, or a newer one"
        )


def applied_upgrades(connection: Connection) -> set[str]:
    """Returns the names of the scripts in schema/upgrades that the database has had."""
    try:
        with connection.transaction():
            rows = connection.execute("SELECT name FROM lakefork.schema_upgrade").fetchall()
    except psycopg.errors.UndefinedTable:
        return set()  # from before there were upgrades
    return {row["name"] for row in rows}


def find_installed(connection: Connection) -> InstalledSchema | None:
    """Returns what is known of the schema in this database; None if it holds no catalog."""
    if connection.info.server_version < OLDEST_POSTGRES * 10000:
        raise SetupError(
            f"Postgres {connection.info.server_version // 10000} is too old: Lakefork needs {OLDEST_POSTGRES}"
        )
    try:
        with connection.transaction():
            rows = connection.execute(
                "SELECT key, value FROM public.ducklake_metadata WHERE key = ANY (%s) AND scope IS NULL",
                (["version", LAKEFORK_KEY, DIGEST_KEY],),
            ).fetchall()
    except psycopg.errors.UndefinedTable:
        return None
    found = {row["key"]: row["value"] for row in rows}
    return (
        InstalledSchema(found["version"], found.get(LAKEFORK_KEY), found.get(DIGEST_KEY))
        if "version" in found
        else None
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
