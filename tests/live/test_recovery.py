"""Scenarios 24 and 27: clients that come back, servers and Postgres that go away, upkeep that nobody sees."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings
from live.conftest import Connect
from support.api_server import ApiServer, running_server
from support.flush_lake import FlushLake
from support.live_client import LiveClient
from support.sql_lake import SqlLake, open_lake
from support.waiting import wait_until

ADA = {"user": "ada"}
SQL = "SELECT id, v FROM {ns}.t"


def rows(lake: SqlLake, ns: str) -> dict[Any, Any]:
    return {key: {"id": key, "v": value} for key, value in lake.rows(SQL.format(ns=ns), **ADA)}


def test_scenario_24_a_client_resumes_after_the_last_message(lake: SqlLake, ns: str, client: Connect) -> None:
    first = client()
    first.subscribe("s", SQL.format(ns=ns))
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a'), (2, 'b'), (3, 'c')", **ADA)
    assert first.change()["new_values"]["id"] == 1  # and no more of the three
    first.close()
    lake.run(f"UPDATE {ns}.t SET v = 'B' WHERE id = 2; DELETE FROM {ns}.t WHERE id = 1", **ADA)
    again = client()
    again.copies["s"] = dict(first.copies["s"])
    answer = again.subscribe("s", SQL.format(ns=ns), resume=first.resume["s"])
    assert (answer["rows"], answer["resume"]) == ([], first.resume["s"])
    told = [again.change() for _ in range(4)]
    assert [(m["change_type"], (m.get("new_values") or m["old_values"])["id"]) for m in told] == [
        ("INSERT", 2), ("INSERT", 3), ("UPDATE", 2), ("DELETE", 1),
    ]  # fmt: skip
    assert again.quiet() == []
    assert again.copies["s"] == rows(lake, ns)


def test_scenario_24_a_cursor_of_something_else_is_told_to_read_again(lake: SqlLake, ns: str, client: Connect) -> None:
    one = client()
    one.subscribe("s", SQL.format(ns=ns))
    cursor = one.resume["s"]
    parts = cursor.split(".")
    lake.run(f"CREATE USER TABLE {ns}.other (id BIGINT PRIMARY KEY)")
    others = {
        "cluster": [*parts[:1], "1-1", *parts[2:]],
        "timeline": [*parts[:2], "99", *parts[3:]],
        "mark": [*parts[:3], "00000000-0000-0000-0000-000000000000", *parts[4:]],
        "future": [*parts[:8], "999999999:999999999:"],
    }
    for name, changed in others.items():
        one.subscribe(name, SQL.format(ns=ns), resume=".".join(changed))
        assert [m["type"] for m in one.told[name]] == ["resync", "initial_data"], name
    one.subscribe("query", f"SELECT id FROM {ns}.t", resume=cursor)
    one.subscribe("table", f"SELECT id FROM {ns}.other", resume=cursor)
    assert [one.told[name][0]["type"] for name in ("query", "table")] == ["resync", "resync"]


def test_scenario_24_the_server_is_killed(lake: SqlLake, ns: str, make_settings: Any, tmp_path: Path) -> None:
    with (
        running_server(make_settings(), lake.dsn, tmp_path) as server,
        LiveClient(server, server.token("ada")) as first,
    ):
        first.subscribe("s", SQL.format(ns=ns))
        lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a')", **ADA)
        first.change()
        for worker in server.workers():
            os.kill(worker.pid, signal.SIGKILL)
        first.closed()
        lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (2, 'b')", **ADA)
        wait_until(lambda: _answers(server))
        with LiveClient(server, server.token("ada")) as again:
            again.copies["s"] = dict(first.copies["s"])
            again.subscribe("s", SQL.format(ns=ns), resume=first.resume["s"])
            assert again.change()["new_values"]["id"] == 2
            assert again.copies["s"] == rows(lake, ns)
            of_ns = f"SELECT count(*) FROM system.live_queries WHERE namespace = '{ns}'"
            wait_until(lambda: lake.rows(of_ns) == [(1,)], seconds=10)  # what was killed has lost its lease


def _answers(server: ApiServer) -> bool:
    try:
        return bool(server.http.get("/health").is_success)
    except Exception:
        return False


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_scenario_24_postgres_restarts(make_settings: Callable[..., Settings], tmp_path: Path, mode: str) -> None:
    settings = make_settings()
    postgres = EmbeddedPostgres(settings, server_options={"max_wal_size": "1GB"})
    dsn = postgres.start()
    try:
        with connect(dsn, check_version=False) as connection:
            init_catalog(connection)
        with open_lake(dsn, tmp_path, settings) as lake, running_server(settings, dsn, tmp_path) as server:
            lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v STRING)")
            with LiveClient(server, server.token("ada")) as one:
                one.subscribe("s", SQL.format(ns="app"))
                lake.run("INSERT INTO app.t (id, v) VALUES (1, 'a')", **ADA)
                one.change()
                _restart(postgres, mode)
                wait_until(lambda: _runs(lake, "INSERT INTO app.t (id, v) VALUES (2, 'b')"))
                one.until(lambda _: one.copies["s"] == rows(lake, "app"))
                kinds = [m["type"] for m in one.told["s"]]
                assert ("resync" in kinds) == (mode == "immediate")
                assert kinds.count("change") <= 2
    finally:
        postgres.stop()


def _restart(postgres: EmbeddedPostgres, mode: str) -> None:
    postgres._run("pg_ctl", "stop", "-D", postgres._data, "-m", mode, "-w", "-s")
    postgres.start()


def _runs(lake: SqlLake, sql: str) -> bool:
    try:
        lake.run(sql, **ADA)
    except Exception:
        return False
    return True


def test_scenario_27_flush_and_trim_are_invisible(flush_lake: FlushLake, ns: str, client: Connect) -> None:
    lake, one = flush_lake.lake, client()
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a'), (2, 'b')", **ADA)
    one.subscribe("s", SQL.format(ns=ns))
    start = one.resume["s"]
    flush_lake.flush(namespace=ns)
    lake.run(f"UPDATE {ns}.t SET v = 'B' WHERE id = 2", **ADA)
    told = one.change()
    assert (told["change_type"], told["old_values"]["v"], told["new_values"]["v"]) == ("UPDATE", "b", "B")
    middle = one.resume["s"]
    one.subscribe("again", SQL.format(ns=ns), resume=start)
    assert one.change("again")["new_values"]["v"] == "B"
    flush_lake.flush(namespace=ns)  # which trims what the first one published
    lake.run(f"DELETE FROM {ns}.t WHERE id = 1", **ADA)
    assert one.change()["old_values"] == {"id": 1, "v": "a", "_deleted": True}
    flush_lake.flush(namespace=ns)
    assert [m for m in one.quiet() if m["subscription_id"] == "s"] == []
    assert one.copies["s"] == rows(lake, ns) == {2: {"id": 2, "v": "B"}}
    one.subscribe("late", SQL.format(ns=ns), resume=middle)
    assert one.change("late")["change_type"] == "DELETE"
    one.subscribe("too late", SQL.format(ns=ns), resume=start)
    assert one.told["too late"][0]["type"] == "resync"
    assert one.copies["too late"] == rows(lake, ns)


def test_rows_that_arrive_as_files_are_read_again(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a')", **ADA)
    one = client()
    one.subscribe("s", SQL.format(ns=ns))
    lake.flush_by_hand(f"{ns}.t", "ada", trim=False)  # a commit of files by somebody who is no flush
    assert one.next()["type"] == "resync"
    assert one.next()["rows"] == [{"id": 1, "v": "a"}]


def test_hot_rows_of_another_postgres_end_a_subscription(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a')", **ADA)
    one = client()
    one.subscribe("s", SQL.format(ns=ns))
    with psycopg.connect(lake.dsn) as connection:
        connection.execute(f"UPDATE {lake.find(f'{ns}.t').hot[0].qualified} SET _xid = '99999999999'")
    ended = one.next()
    assert (ended["type"], "adopt_hot_rows" in ended["reason"]) == ("ended", True)
