"""The server stops, is killed, or loses its Postgres: clients are told, nothing acknowledged is lost, nothing stays behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import PostgresSettings, Settings
from support.api_server import ApiServer, running_server
from support.faulty_server import Server
from support.sql_lake import open_lake

SLOW = "SELECT sum(sin(a.i + b.i)) FROM range(10000000) a(i), range(1000) b(i)"
ENVIRONMENT = {"LAKEFORK_SERVER__STOP_SECONDS": "1", "LAKEFORK_SQL__STATEMENT_TIMEOUT_SECONDS": "20"}


@pytest.fixture(scope="module")
def own_postgres(make_settings: Callable[..., Settings]) -> Iterator[tuple[Settings, EmbeddedPostgres, str]]:
    settings = make_settings(postgres=PostgresSettings(shared_buffers="32MB", max_connections=60))
    postgres = EmbeddedPostgres(settings, server_options={"fsync": "off"})
    dsn = postgres.start()
    with connect(dsn, check_version=False) as connection:
        init_catalog(connection)
    with open_lake(dsn, settings.home / "data", settings) as lake:
        lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v STRING)")
    yield settings, postgres, dsn
    postgres.stop()


@pytest.fixture
def server(own_postgres: tuple[Settings, EmbeddedPostgres, str], tmp_path: Path) -> Iterator[ApiServer]:
    settings, postgres, dsn = own_postgres
    postgres.start()
    with running_server(settings, dsn, tmp_path, ENVIRONMENT, workers=2) as server:
        yield server


def descendants(server: ApiServer) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, seconds)
    return not [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def note() -> None:
        try:
            found.append(work())
        except httpx.HTTPError as error:
            found.append(error)

    thread = threading.Thread(target=note)
    thread.start()
    return thread, found


def test_a_stop_finishes_what_is_short_and_cancels_what_is_long(server: ApiServer) -> None:
    token = server.token()
    everything = descendants(server)
    slow, answers = in_background(lambda: server.post(SLOW, token))
    time.sleep(0.5)
    started = time.monotonic()
    assert server.stop() == 0
    slow.join()
    assert time.monotonic() - started < 30
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "cancelled")
    assert "retry-after" in answers[0].headers
    assert gone(everything, 5)
    with psycopg.connect(server.dsn) as connection:
        assert connections(connection) == 0
    assert "Traceback" not in server.log_file.read_text()


def connections(connection: psycopg.Connection[Any]) -> int:
    """Of Lakefork, besides this one."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lakefork' AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row
    return int(row[0])


def test_a_server_that_is_killed_leaves_nothing_behind(server: ApiServer) -> None:
    """The parent alone; its workers notice, and so do theirs and Postgres."""
    token = server.token()
    server.post("INSERT INTO app.t (v) VALUES ('before')", token)
    everything = descendants(server)
    (directory,) = {one.environ()["LAKEFORK_SERVER_RUN"] for one in server.workers()}
    assert Path(directory).is_dir()
    slow, answers = in_background(lambda: server.post(SLOW, token))
    time.sleep(0.5)
    server.process.kill()
    server.process.wait()
    assert gone(everything, 15)
    assert not Path(directory).exists()
    slow.join()
    assert isinstance(answers[0], httpx.HTTPError) or answers[0].status_code == 503
    with psycopg.connect(server.dsn) as connection:
        assert connections(connection) == 0


def test_a_worker_that_is_killed_is_replaced(server: ApiServer) -> None:
    token = server.token()
    for worker in server.workers():
        worker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        try:
            if (
                httpx.post(
                    f"{server.url}/api/sql",
                    json={"sql": "SELECT 1"},
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=10,
                ).status_code
                == 200
            ):
                break
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_query_workers_that_are_killed_are_replaced(server: ApiServer) -> None:
    token = server.token()
    assert server.post("SELECT 1", token).status_code == 200
    serving = {worker.pid for worker in server.workers()}
    for process in descendants(server):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
            if process.pid not in serving and "resource_tracker" not in " ".join(process.cmdline()):
                process.kill()
    statuses = {server.post("SELECT 1", token).status_code for _ in range(6)}
    assert statuses <= {200, 503}
    assert server.post("SELECT 1", token).status_code == 200


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_postgres_goes_away_under_load(
    server: ApiServer, own_postgres: tuple[Settings, EmbeddedPostgres, str], how: str
) -> None:
    """What was acknowledged is there once; what was not may be there once; the server says 503 and goes on by itself."""
    _, postgres, dsn = own_postgres
    token = server.token()
    acknowledged: list[str] = []
    statuses: set[int] = set()
    stop = threading.Event()

    def write(writer: int) -> None:
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
            for number in range(100_000):
                if stop.is_set():
                    return
                value = f"{how} {writer} {number}"
                answer = client.post("/api/sql", json={"sql": "INSERT INTO app.t (v) VALUES (?)", "params": [value]})
                statuses.add(answer.status_code)
                if answer.status_code == 200:
                    acknowledged.append(value)
                else:
                    assert answer.json()["error"]["message"]
                    time.sleep(0.05)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    if how == "killed":
        with psycopg.connect(dsn) as connection:
            pids = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            ).fetchall()
        os.kill(pids[0][0], signal.SIGKILL)
    else:
        postgres.stop()
        time.sleep(0.5)
        assert httpx.get(f"{server.url}/health").status_code == 503
        refused = server.post("SELECT * FROM app.t", token)
        assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
        postgres.start()
    before = len(acknowledged)
    deadline = time.monotonic() + 30
    while len(acknowledged) < before + 30:
        assert time.monotonic() < deadline, f"no write for 30 s: {statuses}"
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses <= {200, 500, 503}
    answer = server.post("SELECT v FROM app.t", token)
    while answer.status_code == 503 and time.monotonic() < deadline:  # connections of reads are replaced one by one
        time.sleep(0.1)
        answer = server.post("SELECT v FROM app.t", token)
    rows = [row[0] for row in answer.json()["results"][0]["rows"]]
    assert len(rows) == len(set(rows))
    assert set(acknowledged) <= set(rows)


def test_a_postgres_that_hangs_does_not_make_the_server_hang(
    server: ApiServer, own_postgres: tuple[Settings, EmbeddedPostgres, str]
) -> None:
    """Clients that go away, /health and a stop are served, though Postgres answers nothing, not even cancellations."""
    settings, postgres, dsn = own_postgres
    hanging = Server(settings, postgres, dsn)
    token = server.token()
    assert [server.post("SELECT * FROM app.t", token).status_code for _ in range(8)] == [200] * 8
    everything = descendants(server)
    hanging.send(signal.SIGSTOP)
    try:
        waiting = [in_background(lambda: server.post("SELECT * FROM app.t", token)) for _ in range(2)]
        for _ in range(8):
            with pytest.raises(httpx.ReadTimeout):
                headers = {"Authorization": f"Bearer {token}"}
                httpx.post(f"{server.url}/api/sql", json={"sql": "SELECT * FROM app.t"}, headers=headers, timeout=0.5)
        answers = [httpx.get(f"{server.url}/health", timeout=60) for _ in range(8)]
        assert {answer.status_code for answer in answers} == {503}
        assert httpx.get(f"{server.url}/", timeout=60).status_code == 200
        assert server.stop(60) == 0
        assert gone(everything, 30)
        for thread, found in waiting:
            thread.join()
            assert isinstance(found[0], httpx.HTTPError) or found[0].status_code in (503, 504)
    finally:
        hanging.send(signal.SIGCONT)


def start(settings: Settings, dsn: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    port = environment.pop("PORT", "0")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    given = {**clean, "LAKEFORK_DSN": dsn, "LAKEFORK_HOME": str(settings.home), **environment}
    command = [sys.executable, "-m", "lakefork.cli.main", "serve", "--port", port]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=60)


def test_start_up_says_in_one_line_what_is_wrong(
    own_postgres: tuple[Settings, EmbeddedPostgres, str], tmp_path: Path
) -> None:
    settings, postgres, dsn = own_postgres
    postgres.start()
    wrong = {
        "server.tls_key": {"LAKEFORK_SERVER__TLS_CERTIFICATE": "/nowhere"},
        "cannot be read": {"LAKEFORK_SERVER__TLS_CERTIFICATE": "/nowhere", "LAKEFORK_SERVER__TLS_KEY": "/nowhere"},
        "fewer than 32": {"LAKEFORK_SERVER__TOKEN_KEY": "short"},
        "cannot connect to Postgres": {"LAKEFORK_DSN": "postgresql://nobody@127.0.0.1:9/x"},
        "server.workers": {"LAKEFORK_SERVER__WORKERS": "0"},
        "cannot listen": {"PORT": dsn.rpartition(":")[2].partition("/")[0]},
    }
    for about, environment in wrong.items():
        done = start(settings, dsn, environment)
        assert (done.returncode, done.stdout) == (1, "")
        assert about in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
