"""Airflow on the same Postgres: its own role and schema, 127.0.0.1, a generated login."""

import base64
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import link_airflow, restrict_public
from lakefork.embedded.home import load_or_choose_port, load_or_create_secret, write_private
from lakefork.embedded.processes import ProcessSession
from lakefork.errors import JobFailedError, SetupError
from lakefork.resources import resource
from lakefork.settings import Settings

USER = "admin"
VIEWER = "viewer"  # read-only
ROLE = "airflow"
SPARK_POOL = "lakefork_spark"
OWN_VARIABLES = ("AIRFLOW", "LAKEFORK_DSN")  # variables for another Airflow or another database must not leak in …
INHERITED_VARIABLES = "AIRFLOW__METRICS__"  # … but the operator decides where metrics go
COMPONENTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


def require_airflow() -> None:
    if importlib.util.find_spec("airflow") is None:
        raise SetupError("Airflow is not installed: run `pip install 'lakefork[airflow]'`")


class EmbeddedAirflow:
    def __init__(self, settings: Settings, dsn: str, console_url: str = "") -> None:
        self._settings = settings
        self._dsn = dsn
        self._console_url = console_url
        self.home = settings.home / "airflow"
        self.log = settings.home / "airflow.log"
        self.session = ProcessSession(settings.home / "airflow.session")

    @property
    def password(self) -> str:
        return load_or_create_secret(self._settings.home, "airflow-login")

    @property
    def viewer_password(self) -> str:
        return load_or_create_secret(self._settings.home, "airflow-viewer")

    @property
    def url(self) -> str:
        ports = json.loads((self._settings.home / "ports.json").read_text())
        return f"http://127.0.0.1:{ports['airflow']}"

    def start(self, progress: Callable[[str], None]) -> "AirflowClient":
        """Starts Airflow and waits until it can run DAGs."""
        if self.session.has_leader():
            progress("Airflow is already running")
            return self.wait_until_ready(progress)
        if left := self.session.stop():
            progress(f"Airflow: {left} process(es) left by a crash were stopped")
        self.home.mkdir(mode=0o700, exist_ok=True)
        port = load_or_choose_port(self._settings.home, "airflow", self._settings.airflow.port)
        self._create_role()
        passwords = {USER: self.password, VIEWER: self.viewer_password}
        write_private(self.home / "passwords.json", json.dumps(passwords))
        services = [sys.executable, "-m", "lakefork.embedded.airflow_services"]
        self.session.start(services, self._environment(port), self.home, self.log)
        return self.wait_until_ready(progress)

    def wait_until_ready(self, progress: Callable[[str], None]) -> "AirflowClient":
        """Waits, and reports every few seconds what is still missing."""
        started = time.monotonic()
        client = AirflowClient(self.url, self.password)
        said = ""
        while missing := client.missing_components():
            waited = time.monotonic() - started
            if not self.session.processes():
                raise SetupError(f"Airflow stopped while starting: {_last_error(self.log)}; see {self.log}")
            if waited > self._settings.airflow.start_timeout_seconds:
                raise SetupError(f"Airflow is not ready after {waited:.0f} s (no {', '.join(missing)}): see {self.log}")
            line = f"waiting for {', '.join(missing)}"
            if line != said or int(waited) % 10 == 0:
                progress(f"Airflow: {waited:3.0f} s, {line}")
                said = line
            time.sleep(1)
        client.set_pool(SPARK_POOL, self._settings.airflow.spark_slots)
        with connect(self._dsn) as connection:
            link_airflow(connection)
        progress(f"Airflow is ready after {time.monotonic() - started:.0f} s")
        return client

    def stop(self) -> int:
        return self.session.stop()

    def _create_role(self) -> None:
        """Creates the role and the schema for Airflow's tables in the same database."""
        password = load_or_create_secret(self._settings.home, "airflow-database")
        role, database = sql.Identifier(ROLE), sql.Identifier(str(conninfo_to_dict(self._dsn)["dbname"]))
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone()
            verb = sql.SQL("ALTER" if known else "CREATE")
            connection.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, role, sql.Literal(password)))
            connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(role, role))
            connection.execute(
                sql.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = {}").format(role, database, role)
            )
            restrict_public(connection)  # PUBLIC has lost these rights; Airflow needs them

    def _database_url(self) -> str:
        parts = conninfo_to_dict(self._dsn)
        password = load_or_create_secret(self._settings.home, "airflow-database")
        return f"postgresql+psycopg2://{ROLE}:{password}@{parts['host']}:{parts.get('port', 5432)}/{parts['dbname']}"

    def _environment(self, port: int) -> dict[str, str]:
        keep = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(INHERITED_VARIABLES) or not name.startswith(OWN_VARIABLES)
        }
        fernet = base64.urlsafe_b64encode(
            hashlib.sha256(load_or_create_secret(self._settings.home, "airflow-fernet").encode()).digest()
        )
        configuration = {
            "CORE__DAGS_FOLDER": resource("dags"),
            "CORE__PLUGINS_FOLDER": resource("plugins"),
            "CORE__LOAD_EXAMPLES": False,
            "CORE__PARALLELISM": self._settings.airflow.parallelism,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__FERNET_KEY": fernet.decode(),
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin,{VIEWER}:viewer",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": self.home / "passwords.json",
            "DATABASE__SQL_ALCHEMY_CONN": self._database_url(),
            "API__HOST": "127.0.0.1",
            "API__PORT": port,
            "API__BASE_URL": f"http://127.0.0.1:{port}",
            "API__WORKERS": 1,
            "API__SECRET_KEY": load_or_create_secret(self._settings.home, "airflow-api"),
            "API_AUTH__JWT_SECRET": load_or_create_secret(self._settings.home, "airflow-jwt"),
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.5,  # makes runs from events sooner
            "TRIGGERER__CAPACITY": 20,
            "LOGGING__BASE_LOG_FOLDER": self._settings.home / "logs",
        }
        return {
            **keep,
            **{f"AIRFLOW__{key}": str(value) for key, value in configuration.items()},
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": self._settings.spark.master}),
            "AIRFLOW_CONN_LAKEFORK": _connection_json(self._dsn),
            "LAKEFORK_HOME": str(self._settings.home),
            "LAKEFORK_SERVER__PUBLIC_URL": self._settings.server.public_url or self._console_url,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
        }


def _connection_json(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    known = {"host": "host", "port": "port", "user": "login", "password": "password", "dbname": "schema"}
    extra = {key: value for key, value in parts.items() if key not in known and key != "options"}
    return json.dumps(
        {"conn_type": "postgres", **{to: parts[key] for key, to in known.items() if key in parts}, "extra": extra}
    )


def _last_error(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "rror" in line] if log.exists() else []
    return lines[-1].strip() if lines else "no error was logged"


class AirflowClient:
    """The few calls of Airflow's REST API that the stack needs."""

    def __init__(self, url: str, password: str) -> None:
        self._url = url
        self._password = password
        self._headers: dict[str, str] = {}

    def missing_components(self) -> list[str]:
        try:
            health = self._request("GET", "/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return ["api server"]
        return [name for name in COMPONENTS if (health.get(name) or {}).get("status") != "healthy"]

    def set_pool(self, name: str, slots: int) -> None:
        pool = {"name": name, "slots": slots, "description": "Spark jobs at once", "include_deferred": False}
        if self._call("PATCH", f"/api/v2/pools/{name}", json=pool, missing_is_ok=True) is None:
            self._call("POST", "/api/v2/pools", json=pool)

    def wait_for_dags(self, dag_ids: list[str], timeout_seconds: float = 120) -> None:
        deadline = time.monotonic() + timeout_seconds
        while missing := [
            dag_id for dag_id in dag_ids if self._call("GET", f"/api/v2/dags/{dag_id}", missing_is_ok=True) is None
        ]:
            if time.monotonic() > deadline:
                errors = (self._call("GET", "/api/v2/importErrors") or {}).get("import_errors", [])
                raise SetupError(f"Airflow did not load {', '.join(missing)}: {errors or 'no import errors'}")
            time.sleep(1)

    def run_dag(self, dag_id: str, conf: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
        """Triggers a DAG, waits until it ends, and returns what its job reported."""
        run = self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf})
        return self.wait_for_run(dag_id, run["dag_run_id"], progress)

    def wait_for_run(self, dag_id: str, run_id: str, progress: Callable[[str], None]) -> dict[str, Any]:
        """Returns what the run's job reported; empty if it had nothing to do."""
        run_path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"
        started, state = time.monotonic(), ""
        while (now := self._call("GET", run_path)["state"]) not in ("success", "failed"):
            if now != state:
                progress(f"{dag_id}: {now}")
                state = now
            time.sleep(1)
        progress(f"{dag_id}: {now} after {time.monotonic() - started:.0f} s")
        if now == "failed":
            raise JobFailedError(f"{dag_id} failed: {run_path}", {"run": run_path})
        found = self._call("GET", f"{run_path}/taskInstances/{dag_id}/xcomEntries/return_value", missing_is_ok=True)
        value = (found or {}).get("value")
        return json.loads(value) if isinstance(value, str) else (value or {})

    def _call(self, method: str, path: str, *, missing_is_ok: bool = False, **arguments: Any) -> Any:
        if not self._headers:
            answer = self._request("POST", "/auth/token", json={"username": USER, "password": self._password})
            answer.raise_for_status()
            self._headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        answer = self._request(method, path, **arguments)
        if answer.status_code == httpx.codes.NOT_FOUND and missing_is_ok:
            return None
        if answer.is_error:
            raise SetupError(f"Airflow refused {method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else {}

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return httpx.request(method, self._url + path, headers=self._headers, timeout=20, trust_env=False, **arguments)
