"""Statements by key: few round trips and no worker once they were planned, and never an answer of yesterday."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from lakefork.errors import ConflictError, NotFoundError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role
from lakefork.sql.workers.pool import QueryWorkers
from support.sql_lake import SqlLake, new_name

TIMES = 3  # the first time a shape is noted, the second time it is planned


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of Postgres and of workers from now on."""
    found: list[str] = []
    execute, stream, run = psycopg.Connection.execute, ArrowConnection.stream, QueryWorkers.stream

    thread = threading.get_ident()  # others look after manifests

    def executing(connection: Any, sql: Any, *given: Any, **more: Any) -> Any:
        if threading.get_ident() == thread:
            found.append(str(sql))
        return execute(connection, sql, *given, **more)

    def streaming(connection: ArrowConnection, sql: str) -> Any:
        if threading.get_ident() == thread:
            found.append(sql)
        return stream(connection, sql)

    def running(workers: QueryWorkers, request: Any, **more: Any) -> Any:
        found.append("worker")
        return run(workers, request, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", executing)
    monkeypatch.setattr(ArrowConnection, "stream", streaming)
    monkeypatch.setattr(QueryWorkers, "stream", running)
    return found


@pytest.fixture
def other(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    """The same lake, by an engine of another process that learns of changes only from Postgres."""
    with Engine(make_settings(), lake.dsn) as engine:
        yield SqlLake(engine, lake.dsn, lake.catalog)


@pytest.fixture
def table(lake: SqlLake) -> str:
    ns = new_name("ns")
    lake.run(f"CREATE NAMESPACE {ns}; CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY, n INT, s TEXT)")
    lake.run(f"INSERT INTO {ns}.t SELECT i, i, 'text' FROM range(10) r(i)", user="alice")
    return f"{ns}.t"


def test_select_of_a_hot_row_is_one_question(lake: SqlLake, table: str, asked: list[str]) -> None:
    for key in range(TIMES):
        asked.clear()
        assert lake.rows(f"SELECT id, s FROM {table} WHERE id = {key}", user="alice") == [(key, "text")]
    assert len(asked) == 1


def test_select_of_a_flushed_row_asks_only_the_catalog(lake: SqlLake, table: str, asked: list[str]) -> None:
    lake.flush_by_hand(table, "alice")
    for key in range(TIMES):
        asked.clear()
        assert lake.rows(f"SELECT id, s FROM {table} WHERE id = ?", key, user="alice") == [(key, "text")]
    assert len(asked) == 1


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    "statement", ["UPDATE {t} SET n = n + 1 WHERE id = {key}", "DELETE FROM {t} WHERE id = {key}", "INSERT INTO {t} (id, n) VALUES (2{key}, 1)"]
)  # fmt: skip
def test_changes_by_key_need_no_worker(
    lake: SqlLake, table: str, asked: list[str], statement: str, *, flushed: bool
) -> None:
    if flushed:
        lake.flush_by_hand(table, "alice", trim=False)
    for key in range(2 * TIMES):
        asked.clear()
        assert lake.count(statement.format(t=table, key=key), user="alice") == 1
    assert "worker" not in asked
    assert len(asked) == 5  # in two round trips: begin, lock, look; append, commit


def test_a_key_that_is_taken_is_refused_without_a_worker(lake: SqlLake, table: str, asked: list[str]) -> None:
    for key in range(TIMES):
        asked.clear()
        with pytest.raises(ConflictError, match=rf"already exists \(id = {key}\)"):
            lake.run(f"INSERT INTO {table} (id) VALUES ({key})", user="alice")
    assert "worker" not in asked


def _select(lake: SqlLake, table: str) -> list[tuple[Any, ...]]:
    return lake.rows(f"SELECT * FROM {table} WHERE id = 1", user="alice")


def test_what_another_process_changes_counts_at_once(lake: SqlLake, other: SqlLake, table: str) -> None:
    for _ in range(TIMES):
        assert len(_select(lake, table)[0]) == 5
    other.run(f"ALTER TABLE {table} ADD COLUMN x INT DEFAULT 7")
    assert _select(lake, table)[0][:4] == (1, 1, "text", 7)
    other.run(f"UPDATE {table} SET n = 5 WHERE id = 1", user="alice")
    assert _select(lake, table)[0][1] == 5
    other.flush_by_hand(table, "alice")
    assert _select(lake, table)[0][1] == 5
    other.run(f"DELETE FROM {table} WHERE id = 1", user="alice")
    assert _select(lake, table) == []
    other.run(f"DROP TABLE {table}")
    with pytest.raises(NotFoundError):
        _select(lake, table)


def test_rights_that_another_process_takes_are_gone_at_once(lake: SqlLake, other: SqlLake, table: str) -> None:
    name = new_name("user")
    lake.run("INSERT INTO system.users (user_id, role) VALUES (?, 'user')", name)
    lake.run(f"INSERT INTO {table} (id, n) VALUES (1, 1)", user=name)
    update = f"UPDATE {table} SET n = n + 1 WHERE id = 1"
    for _ in range(TIMES):
        assert lake.rows(f"SELECT id FROM {table} WHERE id = 1", user=name) == [(1,)]
        assert lake.count(update, user=name) == 1
    other.run("UPDATE system.users SET permissions = ? WHERE user_id = ?", [f"{table}.n = 0"], name)
    assert lake.rows(f"SELECT id FROM {table} WHERE id = 1", user=name) == []
    assert lake.count(update, user=name) == 0
    other.run("DELETE FROM system.users WHERE user_id = ?", name)
    for statement in (f"SELECT id FROM {table} WHERE id = 1", update):
        with pytest.raises(PermissionDeniedError, match="was deleted"):
            lake.run(statement, user=name)


def test_the_setting_turns_shortcuts_off(
    lake: SqlLake, table: str, make_settings: Callable[..., Settings], asked: list[str]
) -> None:
    without = Settings().sql.model_copy(update={"shortcuts": False})
    with Engine(make_settings(sql=without), lake.dsn) as engine:
        general = SqlLake(engine, lake.dsn, lake.catalog)
        for _ in range(TIMES):
            asked.clear()
            assert general.rows(f"SELECT n FROM {table} WHERE id = 3", user="alice", role=Role.USER) == [(3,)]
    assert "worker" in asked
