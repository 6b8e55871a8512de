"""While Postgres hangs (it is stopped, or its machine swaps) statements end soon after their time or when cancelled."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lakefork.errors import CancelledError, DatabaseError, LakeforkError, LimitError
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.sql.workers import pool
from lakefork.sql.workers.pool import Cancellation
from support.faulty_server import STATEMENTS, Server, check, engine_with
from support.sql_lake import SqlLake

TEXTS = [STATEMENTS[0], STATEMENTS[1], "SHOW TABLES"]  # each connection is of another kind, and was open before
ADMIN = Session("main", role=Role.ADMIN)
HANGS = 60  # seconds: far beyond every limit here


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ANSWER_SECONDS", 1.0)


@contextmanager
def stopped(server: Server, engine: Engine) -> Iterator[ThreadPoolExecutor]:
    """Postgres does nothing any more; the engine's connections are there."""
    for text in ("SELECT * FROM app.t", "SHOW TABLES", "UPDATE app.t SET v = 'y' WHERE id = 2"):
        engine.execute(ADMIN, text)
    with ThreadPoolExecutor(len(TEXTS)) as threads:
        server.send(signal.SIGSTOP)
        try:
            yield threads
        finally:
            server.send(signal.SIGCONT)


def error_of(running: "Future[LakeforkError | None]") -> LakeforkError:
    error = running.result(HANGS)
    assert error is not None
    check(str(error))
    return error


def test_statements_end_soon_after_their_time(app: SqlLake, server: Server) -> None:
    with engine_with(server, statement_timeout_seconds=1, connections=len(TEXTS)) as engine:
        with stopped(server, engine) as threads:
            running = [threads.submit(lambda text: engine.run(ADMIN, text).error, text) for text in TEXTS]
            errors = [error_of(one) for one in running]
        assert all(isinstance(error, DatabaseError | LimitError) for error in errors), errors
        app.engine.run(ADMIN, "SELECT 1")
        assert engine.run(ADMIN, "SELECT * FROM app.t").error is None
        assert app.rows("SELECT count(*) FROM app.t WHERE id IN (1, 2)") in ([(2,)], [(1,)])


@pytest.mark.parametrize("text", TEXTS[:2])
def test_a_statement_is_cancelled_at_once(app: SqlLake, server: Server, text: str) -> None:
    """Whoever cancels does not wait, although Postgres does not answer the cancellation either."""
    cancellation = Cancellation()
    with engine_with(server, statement_timeout_seconds=600) as engine:
        with stopped(server, engine) as threads:
            running = threads.submit(lambda: engine.run(ADMIN, text, (), cancellation).error)
            while not cancellation._workers and not running.done():
                pass
            threads.submit(cancellation.cancel).result(HANGS)
            assert isinstance(error_of(running), CancelledError | DatabaseError)
        engine.run(ADMIN, "SELECT * FROM app.t")
        assert engine.run(ADMIN, "SELECT * FROM app.t").error is None
