"""Reads a table of a catalog, or of a fork, with stock DuckDB: python read_with_duckdb.py DSN CATALOG NAMESPACE.TABLE

Use the DSN of a role that `lakefork client-role` created. DuckDB sees the rows that are in files; FLUSH TABLE writes
the others there (docs/duckdb.md).
"""

import sys
from urllib.parse import unquote, urlsplit

import duckdb


def attach(duck: duckdb.DuckDBPyConnection, dsn: str, catalog: str) -> None:
    url = urlsplit(dsn)
    parts = {
        "host": url.hostname,
        "port": url.port,
        "dbname": url.path.lstrip("/"),
        "user": url.username,
        "password": unquote(url.password or ""),
        "options": f"-clakefork.catalog={catalog}",
    }
    libpq = " ".join(f"{name}={value}" for name, value in parts.items())
    duck.execute("INSTALL ducklake; INSTALL postgres")
    duck.execute(f"ATTACH 'ducklake:postgres:{libpq}' AS lake (METADATA_SCHEMA 'ducklake_client', READ_ONLY)")


def main(dsn: str, catalog: str, table: str) -> None:
    with duckdb.connect() as duck:
        attach(duck, dsn, catalog)
        duck.sql(f"SELECT * FROM lake.{table} ORDER BY ALL LIMIT 20").show()
        duck.sql("SELECT snapshot_id, snapshot_time, changes FROM ducklake_snapshots('lake')").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
