"""The catalog's DSN from Airflow's connection `lakefork`."""

from collections.abc import Iterable
from typing import Any

from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.conninfo import make_conninfo

from lakefork.catalog.named_connections import variable_of

CONNECTION = "lakefork"


def catalog_dsn() -> str:
    return _dsn(PostgresHook.get_connection(CONNECTION))


async def catalog_dsn_async() -> str:
    """Returns the DSN, for triggers."""
    return _dsn(await PostgresHook.aget_connection(CONNECTION))


def named_dsns(names: Iterable[str]) -> dict[str, str]:
    """Environment variables with the DSNs of Airflow connections, as jobs look for them."""
    return {variable_of(name): _dsn(PostgresHook.get_connection(name)) for name in names}


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
