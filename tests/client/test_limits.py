"""A client role over a connection of its own: with all that it can switch off, it can still only read."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from conftest import in_database
from lakefork.catalog.connection import connect
from lakefork.catalog.schema import restrict_public
from lakefork.transfer.client import DEFAULT_CONNECTIONS, client_gaps, create_client_role, drop_client_role
from support.duckdb_client import libpq, run, stock
from support.lake import rows_of
from support.sql_lake import SqlLake

ROLE = "client_with_limits"
ADVISORY = "SELECT oid::regprocedure::text, pronargs FROM pg_proc WHERE proname ~ 'advisory' ORDER BY 1"
OLD_LOCK_NUMBERS = range(5063717811, 5063717820)


@pytest.fixture
def who(lake: SqlLake) -> Iterator[dict[str, str]]:
    with connect(lake.dsn) as connection:
        yield {"user": ROLE, "password": create_client_role(connection, ROLE, "main")}
        drop_client_role(connection, ROLE)


@pytest.fixture
def client(lake: SqlLake, who: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    """One who has switched off what a session can."""
    with psycopg.connect(libpq(lake.dsn, **who), autocommit=True) as client:
        client.execute("SET default_transaction_read_only = off; SET statement_timeout = 0; SET work_mem = '1GB'")
        client.execute("SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0")
        yield client


def refuse(
    client: psycopg.Connection[Any], statement: str, kind: type[Exception] = psycopg.errors.InsufficientPrivilege
) -> None:
    with pytest.raises(kind):
        client.execute(statement)  # type: ignore[call-overload]


def test_a_client_takes_no_lock_that_matters(lake: SqlLake, client: psycopg.Connection[Any]) -> None:
    functions = rows_of(client, ADVISORY)
    assert len(functions) == 21
    for name, arguments in functions:
        values = {0: "", 1: "5063717812", 2: "1, 2"}[arguments]
        refuse(client, f"SELECT {name.partition('(')[0]}({values})")
    relations = rows_of(
        client,
        "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'v') AND n.nspname IN ('lakefork_locks', 'lakefork', 'public', 'hot', 'ducklake_client', 'system')",
    )
    assert ("lakefork_locks.commits",) in relations
    for (name,) in relations:
        for mode in ("ROW SHARE", "SHARE UPDATE EXCLUSIVE", "ACCESS EXCLUSIVE"):
            refuse(client, f"BEGIN; LOCK TABLE {name} IN {mode} MODE")
            client.execute("ROLLBACK")
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.execute("SELECT count(*) FROM ducklake_client.ducklake_snapshot")
    lake.run("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY); INSERT INTO app.t VALUES (1)")
    lake.run("ALTER TABLE app.t ADD COLUMN v INT; DROP TABLE app.t")


def test_a_client_stores_nothing(client: psycopg.Connection[Any]) -> None:
    for statement in (
        "CREATE TEMP TABLE t (id int)",
        "SELECT 1 INTO TEMP t",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE TEMP SEQUENCE s",
        "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE t (id int)",
        "CREATE SCHEMA s",
        "CREATE TABLE ducklake_client.t (id int)",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "COPY (SELECT 1) TO '/tmp/never'",
        "SELECT lo_create(0)",
        "SELECT lo_creat(-1)",
        "SELECT lo_from_bytea(0, 'x')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT lo_put(1, 0, 'x')",
        "SELECT pg_logical_emit_message(false, 'x', 'x')",
        "SELECT pg_logical_emit_message(false, 'x', 'x'::bytea)",
        "SET temp_file_limit = -1",
        f"ALTER ROLE {ROLE} SET temp_file_limit = -1",
        f"ALTER ROLE {ROLE} CONNECTION LIMIT 1000",
        "CREATE ROLE another",
    ):
        refuse(client, statement)


def test_a_client_begins_with_limits(lake: SqlLake, who: dict[str, str]) -> None:
    with psycopg.connect(libpq(lake.dsn, **who), autocommit=True) as client:
        for setting, value in (
            ("default_transaction_read_only", "on"),
            ("statement_timeout", "5min"),
            ("idle_in_transaction_session_timeout", "5min"),
            ("idle_session_timeout", "1h"),
            ("temp_file_limit", "1GB"),
        ):
            assert rows_of(client, f"SHOW {setting}") == [(value,)]


def test_a_client_has_few_connections(lake: SqlLake, who: dict[str, str]) -> None:
    with ExitStack() as stack:
        for _ in range(DEFAULT_CONNECTIONS):
            stack.enter_context(closing(psycopg.connect(libpq(lake.dsn, **who))))
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            psycopg.connect(libpq(lake.dsn, **who))
    with connect(lake.dsn) as connection:
        drop_client_role(connection, ROLE)
        who["password"] = create_client_role(connection, ROLE, "main", 1)
    with stock(lake.dsn, **who) as duck:  # one is enough for it
        assert duck.execute("SELECT count(*) FROM ducklake_snapshots('lake')").fetchall() == [(1,)]


@pytest.fixture
def plain_dsn(postgres: str) -> Iterator[str]:
    """A database whose owner is no superuser, as a managed Postgres has it."""
    name, owner = "managed", "plain_owner"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD 'x'").format(sql.Identifier(owner)))
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(owner)))
        yield in_database(postgres, name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(owner)))


def test_without_a_superuser_gaps_are_reported_and_commits_continue(plain_dsn: str, tmp_path: Path) -> None:
    plain = psycopg.conninfo.make_conninfo(plain_dsn, user="plain_owner", password="x")
    done = run("init", "--data-path", str(tmp_path), dsn=plain)
    assert done.returncode == 0 and done.stderr.count("warning: every login of this database") == 3
    with connect(plain) as connection:
        gaps = client_gaps(connection)
        assert sorted(gap.partition(",")[0].partition(":")[0] for gap in gaps) == [
            "fill the disk with WAL",
            "fill the disk with large objects",
            "take advisory locks",
        ]
        password = create_client_role(connection, ROLE, "main")
        assert [gap for gap in client_gaps(connection, ROLE) if "temp_file_limit" in gap]
        with psycopg.connect(libpq(plain, user=ROLE, password=password), autocommit=True) as client:
            refuse(client, "BEGIN READ WRITE; CREATE TEMP TABLE t (id int)")
            client.execute("ROLLBACK")
            for number in OLD_LOCK_NUMBERS:
                client.execute("SELECT pg_advisory_lock(%s)", (number,))
            connection.execute("SET lock_timeout = '5s'")
            connection.execute("SELECT lakefork.create_catalog('next', '/lake/next')")
            connection.execute("SELECT * FROM ducklake_fork_catalog('next', 'fork')")
            connection.execute("SELECT lakefork.fold_counts(1)")
        with psycopg.connect(plain_dsn, autocommit=True) as superuser:
            restrict_public(superuser)
        assert client_gaps(connection) == []
        assert rows_of(connection, "SELECT pg_try_advisory_lock(1)") == [(True,)], "its owner keeps them"
        drop_client_role(connection, ROLE)


def test_airflow_keeps_what_it_needs(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE airflow LOGIN PASSWORD 'x'")
        try:
            restrict_public(admin)
            with psycopg.connect(libpq(dsn, user="airflow", password="x"), autocommit=True) as airflow:
                airflow.execute("SELECT pg_try_advisory_xact_lock(1), pg_advisory_lock(2)")
                airflow.execute("CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
                refuse(airflow, "SELECT lo_import('/etc/passwd')")
        finally:
            admin.execute("DROP OWNED BY airflow")
            admin.execute("DROP ROLE airflow")
