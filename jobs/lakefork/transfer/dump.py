"""Writes a whole catalog, as it is at one moment, into a DuckDB file made by schema/duckdb.sql."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import duckdb

from lakefork.catalog.connection import Connection, connect
from lakefork.errors import InvalidInputError
from lakefork.progress import Bar
from lakefork.queries import load
from lakefork.resources import resource

DUCKDB_SCHEMA = resource("schema/duckdb.sql")
_SQL = load(__package__)


def dump_catalog(dsn: str, target: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Copies every table; returns the rows of each. A failed dump leaves no file. say: how far it is."""
    with connect(dsn) as catalog, new_file(target) as duck, one_moment(dsn) as cursor:
        duck.execute(DUCKDB_SCHEMA.read_text())
        duck.execute("DELETE FROM ducklake_metadata")  # its rows come with the catalog's
        tables = catalog_tables(catalog)
        bar, copied = Bar(say, len(tables)), {}
        for table in tables:
            schema = "main" if table["schema"] == "public" else table["schema"]
            copied[f"{table['schema']}.{table['table']}"] = copy_table(cursor, duck, table, schema)
            bar.reach(len(copied), f"{len(copied)} of {len(tables)} tables, {sum(copied.values()):,} rows")
        return copied


@contextmanager
def new_file(target: Path) -> Iterator[Any]:
    """A DuckDB in a file that was not there before; if something fails, it is not there afterwards either."""
    if target.exists():
        raise InvalidInputError(f"{target} already exists: specify another file, or remove it first")
    if not target.parent.is_dir():
        raise InvalidInputError(f"{target.parent} is not a directory")
    try:
        with duckdb.connect(str(target)) as duck:
            yield duck
    except BaseException:
        target.unlink(missing_ok=True)
        raise


@contextmanager
def one_moment(dsn: str) -> Iterator[Any]:
    """A cursor whose queries all see the catalog as it is at one moment."""
    with adbc_driver_postgresql.dbapi.connect(dsn, autocommit=False) as reader, reader.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield cursor


def catalog_tables(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute(_SQL["catalog_tables"]).fetchall()


def copy_table(cursor: Any, duck: Any, table: dict[str, Any], duck_schema: str) -> int:
    """Streams one table as Arrow; values that Arrow lacks travel as text and are cast by DuckDB."""
    columns = ", ".join(f'"{column}"' for column in table["columns"])
    types = dict(
        duck.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? AND table_name = ?",
            [duck_schema, table["table"]],
        ).fetchall()
    )
    selected = ", ".join(
        f'"{column}"::text AS "{column}"' if types[column] in ("UUID", "JSON") else f'"{column}"'
        for column in table["columns"]
    )
    cursor.execute(f'SELECT {selected} FROM "{table["schema"]}"."{table["table"]}"')  # noqa: S608 - names from pg_catalog
    duck.register("batches", cursor.fetch_record_batch())
    copied = duck.execute(
        f'INSERT INTO {duck_schema}."{table["table"]}" ({columns}) SELECT {columns} FROM batches'  # noqa: S608
    ).fetchone()
    return int(copied[0])
