"""Closing an engine never raises, ends soon, and releases what it can, whatever the state of Postgres."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from lakefork.sql.console import run_sql
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from support.faulty_server import Server
from support.sql_lake import SqlLake

MOST_SECONDS = 10.0


@pytest.fixture
def engine(app: SqlLake, server: Server) -> Engine:
    """Its pools have connections, it has a node, and its manifests are being looked at."""
    engine = Engine(server.settings, server.dsn)
    session = Session("main", role=Role.ADMIN)
    engine.execute(session, "INSERT INTO app.t (id, v) VALUES (3, 'x'); SELECT * FROM app.t; SHOW TABLES")
    return engine


@pytest.fixture
def hanging(server: Server) -> Iterator[Server]:
    yield server
    server.send(signal.SIGCONT)


def seconds_to_close(engine: Engine) -> float:
    started = time.monotonic()
    engine.close()
    return time.monotonic() - started


def test_a_healthy_postgres_gets_its_node_and_its_connections_back(engine: Engine, app: SqlLake) -> None:
    app.engine.close()
    assert seconds_to_close(engine) < MOST_SECONDS
    with psycopg.connect(app.dsn) as connection:
        nodes = "SELECT count(*) FROM lakefork.node WHERE expires_at > clock_timestamp()"
        others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lakefork' AND pid <> pg_backend_pid()"
        assert connection.execute(nodes).fetchone() == (0,)
        deadline = time.monotonic() + 5
        while connection.execute(others).fetchone() != (0,) and time.monotonic() < deadline:
            time.sleep(0.05)
            connection.execute("SELECT pg_stat_clear_snapshot()")
        assert connection.execute(others).fetchone() == (0,)
    engine.close()


def test_a_postgres_that_is_gone(engine: Engine, server: Server) -> None:
    server.kill()
    assert seconds_to_close(engine) < MOST_SECONDS


def test_a_postgres_that_hangs(engine: Engine, hanging: Server) -> None:
    hanging.send(signal.SIGSTOP)
    assert seconds_to_close(engine) < MOST_SECONDS


def test_an_interrupt_while_it_waits_releases_the_rest_and_is_raised(engine: Engine, hanging: Server) -> None:
    hanging.send(signal.SIGSTOP)
    threads = set(threading.enumerate())
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    resources = engine._resources
    assert [pool._idle for pool in (resources.catalog, resources.readers._pool, resources.writers._pool)] == [[]] * 3
    hanging.send(signal.SIGCONT)
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)


def test_the_process_ends_though_postgres_hangs(app: SqlLake, hanging: Server) -> None:
    """No thread that waits for Postgres keeps it."""
    script = f"""
import sys
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
with Engine(Settings(), {hanging.dsn!r}) as engine:
    engine.execute(Session("main", role=Role.ADMIN), "INSERT INTO app.t (id, v) VALUES (7, 'x'); SELECT * FROM app.t")
    print("done", flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        hanging.send(signal.SIGSTOP)
        started = time.monotonic()
        _, problems = process.communicate("go on\n", timeout=60)
    assert process.returncode == 0 and "Traceback" not in problems, problems
    assert time.monotonic() - started < MOST_SECONDS + 20


def test_a_success_is_reported_even_if_postgres_dies_afterwards(app: SqlLake, server: Server) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        server.kill()

    session = {"catalog": "main", "user": None, "role": None, "namespace": None}
    error = run_sql(server.dsn, session, "INSERT INTO app.t (id, v) VALUES (8, 'x')", tell, as_json=False)
    assert (error, told) == (None, ["1 row affected"])


def test_a_connection_that_is_in_use_is_closed_when_it_is_given_back(engine: Engine, server: Server) -> None:
    resources = engine._resources
    with resources.catalog.connection() as connection:
        engine.close()
        assert not connection.closed
    assert connection.closed
