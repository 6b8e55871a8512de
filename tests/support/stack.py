"""The whole stack, started once as a newcomer does it, for all end-to-end tests."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

from lakefork.catalog.connection import connect
from lakefork.embedded.airflow import AirflowClient
from support.lake import rows_of

LAKEFORK = Path(sys.executable).parent / "lakefork"
JOB_TIMEOUT_SECONDS = 90  # more than any job of these tests takes


class Stack:
    def __init__(self, home: Path) -> None:
        self.home = home
        self._tokens: dict[str, str] = {}

    def lakefork(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEFORK_", "AIRFLOW"))}
        return subprocess.run(
            [LAKEFORK, *arguments],
            env={**clean, "LAKEFORK_HOME": str(self.home), "LAKEFORK_JOBS__TIMEOUT": f"{JOB_TIMEOUT_SECONDS}s"},
            capture_output=True, text=True, timeout=400,
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

    def processes(self, called: str = "") -> list[psutil.Process]:
        """Everything that still runs in this home, found without the stack's own book-keeping; called: with such words."""
        return [process for process in psutil.process_iter() if self._is_ours(process, called)]

    def _is_ours(self, process: psutil.Process, called: str) -> bool:
        try:
            command = " ".join(process.cmdline())
            if process.status() == psutil.STATUS_ZOMBIE or called not in command:
                return False
            return str(self.home) in command or process.cwd().startswith(str(self.home))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def task_log(self, run_id: str, task_id: str = "*") -> str:
        (log,) = (self.home / "logs").glob(f"dag_id=*/run_id={run_id}/task_id={task_id}/attempt=1.log")
        return log.read_text()

    @staticmethod
    def last_error(log: str) -> str:
        """What the last error in a task's log says; of an exception with causes, the last of these."""
        entries = [json.loads(line) for line in log.splitlines() if '"level":"error"' in line.replace(" ", "")]
        details = entries[-1].get("error_detail") or [{"exc_value": entries[-1]["event"]}]
        return str(details[-1]["exc_value"])

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
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{json.loads((self.home / 'ports.json').read_text())['airflow']}"

    def token(self, user: str = "admin") -> str:
        if user not in self._tokens:
            secret = self.secrets["airflow-login" if user == "admin" else "airflow-viewer"]
            login = httpx.post(f"{self.url}/auth/token", json={"username": user, "password": secret}, trust_env=False)
            self._tokens[user] = login.json()["access_token"]
        return self._tokens[user]

    def get(self, path: str, user: str | None = "admin", **headers: str) -> httpx.Response:
        known = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.get(self.url + path, headers={**known, **headers}, trust_env=False, timeout=30)

    def jobs(self, run_id: str) -> list[dict[str, Any]]:
        """What system.jobs says of the attempts of a run."""
        with connect(self.dsn) as connection:
            return connection.execute(
                "SELECT * FROM system.jobs WHERE run_id = %s ORDER BY retries", (run_id,)
            ).fetchall()
