"""The page's connections to the catalog: a small pool of read-only ones."""

import functools
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from lakefork.catalog.connection import Connection, require_version
from lakefork.errors import SetupError
from lakefork.orchestration.database import catalog_dsn

OPTIONS = "-c default_transaction_read_only=on -c statement_timeout=15s -c timezone=UTC"


@functools.cache
def _pool() -> ConnectionPool[Connection]:
    return ConnectionPool(
        catalog_dsn(),
        min_size=1,
        max_size=4,
        timeout=5,
        configure=require_version,
        kwargs={"autocommit": True, "row_factory": dict_row, "application_name": "lakefork page", "options": OPTIONS},
        open=True,
    )


def open_connection() -> Iterator[Connection]:
    try:
        with _pool().connection() as connection:
            yield connection
    except PoolTimeout as error:
        raise SetupError("the catalog's Postgres does not answer: check Airflow's connection 'lakefork'") from error


ReadOnlyConnection = Annotated[Connection, Depends(open_connection)]
