"""Every fault is one clear sentence with the cause and the remedy, without internals."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from lakefork.errors import (
    ConflictError,
    DatabaseError,
    InvalidInputError,
    LakeforkError,
    LimitError,
    OutcomeUnknownError,
    StorageError,
)
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from support.faulty_server import STATEMENTS, Server, check, engine_with
from support.sql_lake import SqlLake

ADMIN = Session("main", role=Role.ADMIN)


def fail(engine: Engine, text: str, *parameters: Any) -> LakeforkError:
    outcome = engine.run(ADMIN, text, parameters)
    assert outcome.error is not None, text
    return outcome.error


@contextmanager
def locked_hot_rows(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Whoever reads or writes hot rows waits."""
    with psycopg.connect(dsn) as connection:
        for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hot'").fetchall():
            connection.execute(f"LOCK TABLE hot.{name} IN ACCESS EXCLUSIVE MODE")
        yield connection
        connection.rollback()


@contextmanager
def waiting(
    server: Server, app: SqlLake, text: str, *parameters: Any
) -> Iterator[tuple[Future[LakeforkError], list[int]]]:
    """A statement that waits for a lock in Postgres, and the processes that serve it."""
    with ThreadPoolExecutor() as pool, locked_hot_rows(server.dsn) as other:
        failing = pool.submit(fail, app.engine, text, *parameters)
        found: list[int] = []
        deadline = time.monotonic() + 10
        while not found and time.monotonic() < deadline:
            rows = other.execute("SELECT pid FROM pg_locks WHERE NOT granted").fetchall()
            found = [pid for (pid,) in rows]
        assert found
        yield failing, found


@pytest.mark.parametrize("text", STATEMENTS)
def test_connections_that_were_ended_while_they_were_idle(app: SqlLake, server: Server, text: str) -> None:
    """One error at most; whoever asks again gets an answer."""
    for statement in ("SELECT * FROM app.t", "SHOW TABLES", "UPDATE app.t SET v = 'z' WHERE id = 2"):
        app.run(statement)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = 'lakefork' AND pid <> pg_backend_pid()"
        )
    error = app.engine.run(ADMIN, text).error
    if error is not None:
        assert isinstance(error, DatabaseError) and error.retryable
        check(str(error), "ended the connection", "the connection to Postgres broke")
        app.run(text)


@pytest.mark.parametrize("text", STATEMENTS[:4])
@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("pg_terminate_backend", "the connection"),
        ("pg_cancel_backend", "somebody cancelled the statement in Postgres: try again"),
    ],
)
def test_a_statement_that_somebody_ends(app: SqlLake, server: Server, text: str, end: str, sentence: str) -> None:
    with waiting(server, app, text) as (failing, pids), psycopg.connect(server.dsn) as admin:
        admin.execute(f"SELECT {end}(pid) FROM unnest(%s::int[]) pid", (pids,))
        error = failing.result(20)
    assert isinstance(error, DatabaseError) and error.retryable
    check(str(error), sentence)
    app.run(text)


@pytest.mark.parametrize("text", STATEMENTS[:2])
def test_a_postgres_that_is_killed_under_a_statement(app: SqlLake, server: Server, text: str) -> None:
    with pytest.raises(psycopg.OperationalError), waiting(server, app, text) as (failing, _):
        server.kill()
        error = failing.result(20)
        check(str(error), "the connection to Postgres broke", "ended the connection")
        assert isinstance(error, DatabaseError)
    away = fail(app.engine, text)
    check(str(away), "cannot connect to Postgres: nothing listens there")
    server.postgres.start()
    app.run(text)


def test_a_change_with_unknown_outcome_must_not_be_repeated_blindly(app: SqlLake, server: Server) -> None:
    """It broke at COMMIT, or in a statement that is a transaction of its own."""
    with pytest.raises(OutcomeUnknownError) as caught, app.engine._resources.writers.transaction() as connection:
        (pid,) = connection.query("SELECT pg_backend_pid() AS pid")["pid"].to_pylist()
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
    check(str(caught.value), "look whether it is there before you repeat it")
    assert not caught.value.retryable
    server.postgres.start()
    app.engine._resources.drop_idle_connections()
    text = "INSERT INTO app.t (v) VALUES (?)"
    app.run(text, "x")
    error = None
    with suppress(psycopg.OperationalError), waiting(server, app, text, "y") as (failing, pids):
        os.kill(pids[0], signal.SIGKILL)
        error = failing.result(20)  # the server ends all other connections, by and by
    check(str(error), "look whether it is there before you repeat it")
    assert isinstance(error, OutcomeUnknownError)


@pytest.mark.parametrize("text", STATEMENTS[:4])
def test_time_is_over(app: SqlLake, server: Server, text: str) -> None:
    with engine_with(server, statement_timeout_seconds=0.5) as engine, locked_hot_rows(server.dsn):
        error = fail(engine, text)
    assert isinstance(error, LimitError)
    check(str(error), "took too long and was stopped (setting sql.statement_timeout_seconds)")


@pytest.mark.parametrize("text", STATEMENTS[:4])
def test_a_lock_that_postgres_does_not_wait_for(app: SqlLake, server: Server, text: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("ALTER DATABASE lakefork SET lock_timeout = '200ms'")
        try:
            with engine_with(server) as engine, locked_hot_rows(server.dsn):
                error = fail(engine, text)
        finally:
            admin.execute("ALTER DATABASE lakefork RESET lock_timeout")
    assert isinstance(error, ConflictError)
    check(str(error), "holds a lock that this statement needs: try again")


@pytest.mark.parametrize("text", STATEMENTS)
def test_all_connections_of_the_process_are_busy(app: SqlLake, server: Server, text: str) -> None:
    with engine_with(server, connections=1, statement_timeout_seconds=0.5) as engine, ExitStack() as busy:
        resources = engine._resources
        busy.enter_context(resources.readers.transaction())
        busy.enter_context(resources.writers.transaction())
        busy.enter_context(resources.catalog.connection())
        error = fail(engine, text)
        check(str(error), "all connections to Postgres are busy: try again, or raise the setting sql.connections")
    assert isinstance(error, LimitError)


def test_all_connections_of_postgres_are_taken(app: SqlLake, server: Server) -> None:
    with engine_with(server) as engine, ExitStack() as others:
        with pytest.raises(psycopg.OperationalError):
            for _ in range(50):
                others.enter_context(psycopg.connect(server.dsn))
        for text in STATEMENTS:
            check(str(fail(engine, text)), "cannot connect to Postgres: it has no free connection")
        check(*_cli(server.dsn), "it has no free connection, close some or raise its max_connections")


def _cli(dsn: str, text: str = "SHOW TABLES") -> tuple[str]:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lakefork"), "sql", text],
        env={**os.environ, "LAKEFORK_DSN": dsn}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    return (done.stderr.removeprefix("lakefork: ").removesuffix("\n"),)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda dsn: re.sub(r":[^:@/]+@", ":wrong@", dsn), 'password authentication failed for user "lakefork"; '),
        (lambda dsn: f"{dsn}_missing", 'database "lakefork_missing" does not exist; '),
        (lambda dsn: re.sub(r":\d+/", ":1/", dsn), "nothing listens there; "),
        (lambda dsn: "postgresql://nowhere.invalid/x", "cannot connect to Postgres at nowhere.invalid:5432/x: "),
    ],
)
def test_refused_connections(server: Server, change: Callable[[str], str], sentence: str) -> None:
    check(*_cli(change(server.dsn)), sentence)


def test_hot_rows_that_are_dropped_under_a_reader(app: SqlLake, server: Server) -> None:
    with psycopg.connect(server.dsn) as connection:
        for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hot'").fetchall():
            connection.execute(f"DROP TABLE hot.{name}")
    for text in STATEMENTS[:4]:
        error = fail(app.engine, text)
        assert isinstance(error, ConflictError)
        check(str(error), "the table changed concurrently; retry")


def test_a_catalog_that_lacks_a_part(app: SqlLake, server: Server) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE public.ducklake_table RENAME TO lost")
        try:
            for text in ("SELECT * FROM app.u", "CREATE SHARED TABLE app.u (id BIGINT PRIMARY KEY)"):
                check(
                    str(fail(app.engine, text)), "this database lacks a part of Lakefork's catalog: check LAKEFORK_DSN"
                )
        finally:
            connection.execute("ALTER TABLE public.lost RENAME TO ducklake_table")


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "garbage"])
def test_a_batch_that_cannot_be_read(app: SqlLake, damage: str) -> None:
    (batch,) = Path(app.catalog.data_path).rglob("batch-*.parquet")
    content = batch.read_bytes()
    if damage == "missing":
        batch.unlink()
    else:
        batch.write_bytes({"truncated": content[:-20], "empty": b"", "garbage": os.urandom(len(content))}[damage])
    for text in ("SELECT * FROM app.t", "UPDATE app.t SET v = 'y'", "SELECT count(*) FROM app.t WHERE v = 'cold'"):
        error = fail(app.engine, text)
        assert isinstance(error, StorageError), error
        check(str(error), "batch-0.parquet")
        assert app.catalog.data_path not in str(error), "users need not know where files lie"


def test_text_that_is_no_text(app: SqlLake) -> None:
    for text, parameters in (
        ("INSERT INTO app.t (id, v) VALUES (9, ?)", ["a\0b"]),
        ("INSERT INTO app.t (id, v) VALUES (9, 'a\0b')", []),
        ("INSERT INTO app.t (id, v) VALUES (9, ?)", ["\ud800"]),
        ("SELECT '\ud800'", []),
        ("SELECT * FROM app.t WHERE v = ?", ["\udfff"]),
        ("UPDATE app.t SET v = ? WHERE id = 1", ["a\0b"]),
        ("UPDATE app.t SET v = chr(0) WHERE id = 1", []),
    ):
        error = fail(app.engine, text, *parameters)
        assert isinstance(error, InvalidInputError), error
        check(str(error))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(InvalidInputError) as caught:
        app.engine.load(ADMIN, "app.t", pa.table({"id": [9], "v": broken}))
    check(str(caught.value), "UTF-8")


NESTED: dict[str, Callable[[int], str]] = {
    "brackets": lambda depth: "SELECT " + "(" * depth + "1" + ")" * depth,
    "terms": lambda depth: "SELECT " + "1 + " * depth + "1",
    "not": lambda depth: "SELECT " + "NOT " * depth + "true",
    "calls": lambda depth: "SELECT " + "abs(" * depth + "1" + ")" * depth,
    "case": lambda depth: "SELECT " + "CASE WHEN true THEN " * depth + "1" + " END" * depth,
    "subqueries": lambda depth: "SELECT * FROM " + "(SELECT * FROM " * depth + "app.t" + ") x" * depth,
    "lists": lambda depth: "SELECT " + "[" * depth + "]" * depth,
    "update": lambda depth: "UPDATE app.t SET v = " + "upper(" * depth + "v" + ")" * depth,
}


@pytest.mark.parametrize("depth", [150, 1_500, 20_000])
@pytest.mark.parametrize("nested", NESTED)
def test_a_query_that_is_nested_too_deeply(app: SqlLake, nested: str, depth: int) -> None:
    error = app.engine.run(ADMIN, NESTED[nested](depth)).error
    if error is not None:
        assert isinstance(error, InvalidInputError | LimitError), error
        check(str(error))


def test_a_query_that_only_the_query_engine_finds_too_deep(app: SqlLake) -> None:
    error = fail(app.engine, "SELECT (" + "1 + " * 600 + "1)" + " - 1" * 600)
    assert isinstance(error, LimitError), error
    check(str(error), "nested too deeply: use fewer terms, or split it")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT nosuch FROM app.t",
        "SELECT x.nosuch FROM app.t x",
        "SELECT app.t.nosuch FROM app.t",
        "SELECT t.id.x FROM app.t",
        "SELECT id, count(*) FROM app.t",
        "SELECT a.id FROM app.t a JOIN app.t b USING (nosuch)",
        "SELECT id FROM app.t a, app.t b",
        "SELECT v + 1 FROM app.t",
        "SELECT CAST(v AS BIGINT) FROM app.t",
        "SELECT sum(v) FROM app.t",
        "SELECT nosuch(id) FROM app.t",
        "SELECT * FROM app.t ORDER BY 7",
        "SELECT * EXCLUDE (nosuch) FROM app.t",
        "SELECT (SELECT id FROM app.t)",
        "UPDATE app.t SET v = nosuch",
        "UPDATE app.t SET id = v",
        "DELETE FROM app.t WHERE nosuch = 1",
        "INSERT INTO app.t (id, v) SELECT nosuch, v FROM app.t",
    ],
)
def test_what_the_query_engine_says_names_nothing_of_ours(app: SqlLake, text: str) -> None:
    check(str(fail(app.engine, text)))


def test_a_file_that_postgres_cannot_write(app: SqlLake, server: Server) -> None:
    """Its limit on temporary files is reached, as a full disk would be."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("ALTER DATABASE lakefork SET temp_file_limit = '64kB'")
        admin.execute("ALTER DATABASE lakefork SET work_mem = '64kB'")
        try:
            with (
                engine_with(server) as engine,
                pytest.raises(DatabaseError) as caught,
                engine._resources.readers.transaction() as connection,
            ):
                connection.query("SELECT * FROM generate_series(1, 100000) g ORDER BY md5(g::text)")
        finally:
            admin.execute("ALTER DATABASE lakefork RESET temp_file_limit")
            admin.execute("ALTER DATABASE lakefork RESET work_mem")
    check(str(caught.value), "a limit in the configuration of Postgres is reached")


@pytest.mark.parametrize("state", ["53100", "53200", "58030", "XX000", "XX001", "25006", "57P04", "42501", "54000"])
def test_faults_that_cannot_be_provoked_here(server: Server, state: str) -> None:
    """Postgres reports it all the same, and both drivers understand it."""
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'could not SELECT * FROM lakefork.x' USING ERRCODE = '{state}'; END $$"
    with engine_with(server) as engine:
        with pytest.raises(LakeforkError) as arrow, engine._resources.writers.transaction() as connection:
            connection.execute(raising)
        with (
            pytest.raises(LakeforkError) as plain,
            engine._domain_errors(),
            engine._resources.catalog.connection() as own,
        ):
            own.execute(raising)
    assert (type(arrow.value), str(arrow.value)) == (type(plain.value), str(plain.value))
    check(str(arrow.value).replace("could not SELECT * FROM lakefork.x", "") if state == "42501" else str(arrow.value))
