"""The real thing: Postgres, Airflow's scheduler and Spark, started and stopped as a newcomer does it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from lake import rows_of
from lakefork.catalog.connection import connect
from lakefork.embedded.airflow import AirflowClient
from lakefork.errors import JobFailedError, SetupError
from lakefork.params import JOBS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
LAKEFORK = Path(sys.executable).parent / "lakefork"


class Stack:
    def __init__(self, home: Path) -> None:
        self.home = home

    def lakefork(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEFORK_", "AIRFLOW"))}
        return subprocess.run(
            [LAKEFORK, *arguments], env={**clean, "LAKEFORK_HOME": str(self.home)}, capture_output=True, text=True,
            timeout=400,
        )  # fmt: skip

    @property
    def dsn(self) -> str:
        return self.lakefork("db", "url").stdout.strip()

    @property
    def secrets(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.home / "secrets").iterdir()}

    @property
    def client(self) -> AirflowClient:
        port = json.loads((self.home / "ports.json").read_text())["airflow"]
        return AirflowClient(f"http://127.0.0.1:{port}", self.secrets["airflow-login"])

    def processes(self) -> list[psutil.Process]:
        """Everything that still runs in this home, found without the stack's own book-keeping."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return str(self.home) in " ".join(process.cmdline()) or process.cwd().startswith(str(self.home))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def task_log(self, run_id: str, task_id: str = "*") -> str:
        (log,) = (self.home / "logs").glob(f"dag_id=*/run_id={run_id}/task_id={task_id}/attempt=1.log")
        return log.read_text()

    def sql(self, text: str, *arguments: str) -> None:
        done = self.lakefork("sql", *(arguments or ("--role", "admin")), text)
        assert done.returncode == 0, done.stdout + done.stderr

    def event_runs(self) -> list[tuple[str, float]]:
        """Runs of flush that an event started: their ids, and when they were queued."""
        with connect(self.dsn) as connection:
            return rows_of(
                connection,
                "SELECT run_id, extract(epoch FROM queued_at)::float FROM airflow.dag_run "
                "WHERE dag_id = 'flush' AND run_type = 'asset_triggered'",
            )  # type: ignore[return-value]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack") / "home")
    up = stack.lakefork("stack", "up")
    assert up.returncode == 0, up.stdout + up.stderr
    assert "Airflow:   0 s, waiting for" in up.stdout and "Airflow is up after" in up.stdout
    assert f"login: admin / {stack.secrets['airflow-login']}" in up.stdout
    yield stack
    stack.lakefork("stack", "down")
    assert stack.processes() == []


def run_ids(stack: Stack) -> list[str]:
    with connect(stack.dsn) as connection:
        return [row["run_id"] for row in connection.execute("SELECT run_id FROM system.jobs ORDER BY start_time")]


def test_the_demo_is_flushed_through_the_scheduler(stack: Stack) -> None:
    result = stack.client.run_dag("flush", {"force": True, "catalog": "demo"}, lambda _: None)
    assert (result["job"], result["tables"], result["users"], result["files_written"]) == ("flush", 2, 3, 4)
    assert (result["rows_in"], result["rows_out"]) == (30_000 + 3 * 111, 30_000 + 3 * 100)
    log = stack.task_log(result["run_id"], "flush")
    assert "flush: demo.web.messages: 333 versions of 3 user(s) published as 300 rows in 3 file(s)" in log
    assert not [name for name, secret in stack.secrets.items() if secret in log], "no secret in the task's log"
    again = stack.client.run_dag("flush", {"catalog": "demo"}, lambda _: None)
    assert again == {}, "nothing is due: the Spark task is skipped"
    with connect(stack.dsn) as connection:
        assert rows_of(connection, "SELECT count(*) FROM system.jobs WHERE job_type = 'flush'") == [(1,)]


def test_a_row_limit_that_is_reached_and_flush_table_start_a_run_within_seconds(stack: Stack) -> None:
    stack.sql("CREATE NAMESPACE ev; CREATE USER TABLE ev.t (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 5; "
              "CREATE SHARED TABLE ev.asked (id BIGINT PRIMARY KEY)")  # fmt: skip
    stack.sql("INSERT INTO ev.t VALUES (1), (2), (3), (4)", "--user", "ada")
    for statement, arguments in [
        ("INSERT INTO ev.t VALUES (5)", ("--user", "ada")),
        ("INSERT INTO ev.asked VALUES (1); FLUSH TABLE ev.asked", ()),
    ]:
        before = set(stack.event_runs())
        started = time.time()
        stack.sql(statement, *arguments)
        while not (new := set(stack.event_runs()) - before):
            assert time.time() < started + 20, "no run was queued"
            time.sleep(0.1)
        ((run_id, queued_at),) = new
        assert queued_at - started < 8, "with the start of a process for the statement"
        stack.client.wait_for_run("flush", run_id, lambda _: None)
    with connect(stack.dsn) as connection:
        files = rows_of(connection, "SELECT table_name, files FROM system.tables WHERE namespace = 'ev' ORDER BY 1")
    assert files == [("asked", 1), ("t", 1)]


def test_a_dag_runs_through_the_scheduler_and_returns_its_result(stack: Stack) -> None:
    lines: list[str] = []
    result = stack.client.run_dag("catalog_fsck", {"deep": True, "catalog": "demo"}, lines.append)
    assert (result["job"], result["files"], result["findings"], result["catalogs"]) == ("catalog_fsck", 4, 0, 1)
    assert lines[-1].startswith("catalog_fsck: success after")
    with connect(stack.dsn) as connection:
        row = connection.execute("SELECT * FROM system.jobs WHERE run_id = %s", (result["run_id"],)).fetchone()
    assert row is not None
    assert (row["status"], sorted(row["parameters"])) == ("completed", ["catalog=demo", "deep=true"])
    assert row["trace"].split()[0] == f"catalog_fsck/{result['run_id']}/catalog_fsck/1"
    log = stack.task_log(result["run_id"])
    assert "catalog_fsck: 4 of 4 file(s) checked" in log
    assert not [name for name, secret in stack.secrets.items() if secret in log], "no secret in the task's log"


def test_wrong_params_are_refused_by_the_form(stack: Stack) -> None:
    for conf in ({"deep": "yes"}, {"catalog": "a b"}):
        with pytest.raises(SetupError, match=r"Airflow refused POST .*: 400"):
            stack.client.run_dag("catalog_fsck", conf, lambda _: None)


def test_damage_fails_the_run_at_once_with_one_clear_line(stack: Stack) -> None:
    victim = next((stack.home / "data/demo").rglob("batch-0.parquet"))
    content = victim.read_bytes()
    victim.unlink()
    try:
        with pytest.raises(JobFailedError):
            stack.client.run_dag("catalog_fsck", {}, lambda _: None)
    finally:
        victim.write_bytes(content)
    log = stack.task_log(run_ids(stack)[-1])
    assert f"{victim}: it does not exist" in log
    assert "catalog_fsck failed: 1 finding(s) in demo (1): 1× file; each is listed above" in log
    assert "UP_FOR_RETRY" not in log


def test_airflow_keeps_to_its_schema_its_address_and_its_login(stack: Stack) -> None:
    with psycopg.connect(stack.dsn) as connection:
        tables = dict(connection.execute("SELECT schemaname, count(*) FROM pg_tables GROUP BY 1").fetchall())
        owners = connection.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'airflow'").fetchall()
        assert tables["airflow"] > 40 and owners == [("airflow",)]
        assert connection.execute("SELECT to_regclass('public.dag_run')").fetchone() == (None,)
    listening = {
        connection.laddr.ip
        for process in stack.processes()
        for connection in process.net_connections("tcp")
        if connection.status == "LISTEN"
    }
    assert listening and listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    url = f"http://127.0.0.1:{json.loads((stack.home / 'ports.json').read_text())['airflow']}"
    assert httpx.get(f"{url}/api/v2/dags", trust_env=False).status_code == 401
    assert (
        httpx.post(f"{url}/auth/token", json={"username": "admin", "password": "x"}, trust_env=False).status_code == 401
    )
    arguments = " ".join(" ".join(process.cmdline()) for process in stack.processes())
    assert not [name for name, secret in stack.secrets.items() if secret in arguments], "no secret in ps"


def test_the_page_shows_the_lake_to_those_who_may_see_it(stack: Stack) -> None:
    url = f"http://127.0.0.1:{json.loads((stack.home / 'ports.json').read_text())['airflow']}"
    for path in ("/lakefork/", "/lakefork/status.json"):
        assert httpx.get(url + path, trust_env=False).status_code == 401
    login = httpx.post(
        f"{url}/auth/token", json={"username": "admin", "password": stack.secrets["airflow-login"]}, trust_env=False
    )
    allowed = {"Authorization": f"Bearer {login.json()['access_token']}"}
    page = httpx.get(f"{url}/lakefork/", headers=allowed, trust_env=False)
    assert page.status_code == 200
    assert "<td>demo</td>" in page.text and "30,300" in page.text and "catalog_fsck" in page.text
    assert not [name for name, secret in stack.secrets.items() if secret in page.text]
    dags = httpx.get(f"{url}/api/v2/dags", headers=allowed, trust_env=False).json()
    assert {dag["dag_id"] for dag in dags["dags"]} == set(JOBS), "ours and no examples"
    pool = httpx.get(f"{url}/api/v2/pools/lakefork_spark", headers=allowed, trust_env=False)
    assert (pool.status_code, pool.json()["slots"]) == (200, 1)
    status = httpx.get(f"{url}/lakefork/status.json", headers=allowed, trust_env=False).json()
    assert [catalog["name"] for catalog in status["catalogs"]] == ["demo", "main"]


def test_down_leaves_nothing_behind_even_after_a_crash(stack: Stack) -> None:
    """Kills the parent of all Airflow processes with −9 first; what it leaves must be found all the same."""
    session = json.loads((stack.home / "airflow.session").read_text())["session"]
    os.kill(session, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(session)] if psutil.pid_exists(session) else [], timeout=5)
    assert len(stack.processes()) > 3, "the crash left orphans"
    down = stack.lakefork("stack", "down")
    assert down.returncode == 0, down.stderr
    assert stack.processes() == []
    again = stack.lakefork("stack", "down")
    assert (again.returncode, again.stdout) == (0, "nothing was running\n")
