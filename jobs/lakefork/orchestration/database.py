"""The catalog database as Airflow knows it: the connection `lakefork`."""

from typing import Any

from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.conninfo import make_conninfo

CONNECTION = "lakefork"


def catalog_dsn() -> str:
    return _dsn(PostgresHook.get_connection(CONNECTION))


async def catalog_dsn_async() -> str:
    """The same, for triggers."""
    return _dsn(await PostgresHook.aget_connection(CONNECTION))


def _dsn(connection: Any) -> str:
    parts = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "dbname": connection.schema,
        **connection.extra_dejson,
    }
    return make_conninfo("", **{key: value for key, value in parts.items() if value is not None})
