"""Connections of other databases by name. What they are stands in the environment, and nowhere else.

Outside Airflow a person sets LAKEFORK_CONNECTIONS__<NAME>; inside, the task that starts a job sets it from the Airflow
connection of that name. Names are kept, logged and passed on; connection strings never are.
"""

import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lakefork.database_errors import refusal
from lakefork.errors import SetupError

PREFIX = "LAKEFORK_CONNECTIONS__"
CONNECT_SECONDS = 10
ANY_BYTES = "LATIN1"  # a client encoding in which all bytes are valid; SQL_ASCII servers convert nothing


def variable_of(name: str) -> str:
    """The environment variable of a connection; - cannot be in a shell's variable."""
    return f"{PREFIX}{name.upper().replace('-', '_')}"


def find_dsn(name: str) -> str:
    """The connection string of a name; the error names what is missing, and never what is there."""
    wanted = variable_of(name)
    found = next((value for key, value in os.environ.items() if key.upper() == wanted), None)
    if not found:
        raise SetupError(
            f"there is no connection {name!r}: set {wanted}=postgresql://… (inside Airflow, add a connection {name!r})"
        )
    try:
        conninfo_to_dict(found)
    except psycopg.Error:
        raise SetupError(f"connection {name!r} is neither postgresql://… nor a libpq connection string") from None
    return found


def connect_to(name: str, dsn: str | None = None, **options: Any) -> psycopg.Connection[Any]:
    """A connection to the database of that name; dsn: as find_dsn returned it to somebody else."""
    try:
        connection = psycopg.connect(
            dsn or find_dsn(name), connect_timeout=CONNECT_SECONDS, application_name="lakefork", **options
        )
    except psycopg.Error as error:
        raise SetupError(f"cannot connect to {name!r}: {refusal(error)}") from None
    if connection.info.parameter_status("client_encoding") == "SQL_ASCII":  # whose text the driver returns as bytes
        connection.execute(f"SET client_encoding = '{ANY_BYTES}'")
        if not connection.autocommit:
            connection.commit()
    return connection
