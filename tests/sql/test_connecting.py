"""How long connecting takes does not depend on how many tables there are."""

import psycopg

from conftest import in_database
from lakefork.hot.connections import ArrowConnection


def test_connecting_reads_nothing_of_the_tables_there_are(dsn: str) -> None:
    _connect(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        before = _rows_read(connection)
        _connect(dsn)
        assert _rows_read(connection) - before < 100


def test_a_role_that_may_not_use_the_maintenance_database_connects(postgres: str, dsn: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow'; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
        try:
            server = dsn.partition("@")[2]
            _connect(f"postgresql://narrow:narrow@{server}")
        finally:
            admin.execute("GRANT CONNECT ON DATABASE postgres TO PUBLIC; DROP ROLE narrow")


def test_databases_of_one_server_are_told_apart(postgres: str, dsn: str) -> None:
    assert _connect(dsn) == in_database(dsn, _connect(dsn)).rpartition("/")[2]
    assert _connect(postgres) != _connect(dsn)


def _connect(dsn: str) -> str:
    connection = ArrowConnection(dsn, read_only=True, timeout_seconds=10, max_bytes=1 << 20)
    try:
        return str(connection.query("SELECT current_database()::text")[0][0])
    finally:
        connection.close()


def _rows_read(connection: psycopg.Connection) -> int:
    """The rows of pg_attribute and pg_type that sessions of this database have read."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute(
        "SELECT sum(seq_tup_read) FROM pg_stat_sys_tables WHERE relname IN ('pg_attribute', 'pg_type')"
    ).fetchone()
    return int(row[0]) if row else 0
