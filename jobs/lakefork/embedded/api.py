"""The API server of the laptop stack."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from lakefork.catalog.connection import connect as connect_database
from lakefork.client import connect
from lakefork.embedded.home import load_or_choose_port
from lakefork.embedded.processes import ProcessSession
from lakefork.errors import SetupError
from lakefork.server.keys import token_key
from lakefork.server.tokens import create_token
from lakefork.settings import Settings

START_SECONDS = 60
PORT_NAME = "server"


@dataclass(frozen=True)
class Answer:
    """A request that was really made."""

    request: str
    rows: int
    milliseconds: float


class EmbeddedApi:
    def __init__(self, settings: Settings, dsn: str) -> None:
        self._settings, self._dsn = settings, dsn
        self.log = settings.home / "server.log"
        self.session = ProcessSession(settings.home / "server.session")

    @property
    def url(self) -> str:
        ports = json.loads((self._settings.home / "ports.json").read_text())
        scheme = "https" if self._settings.server.tls_certificate else "http"
        return f"{scheme}://{self._settings.server.host}:{ports[PORT_NAME]}"

    def start(self, progress: Callable[[str], None]) -> None:
        """Starts it, unless it runs; wait_until_ready returns when it answers."""
        if self.session.has_leader():
            progress("the API server is running already")
            return
        self.session.stop()
        port = load_or_choose_port(self._settings.home, PORT_NAME, _chosen_port())
        command = [sys.executable, "-m", "lakefork.cli.main", "serve", "--port", str(port)]
        environment = {**os.environ, "LAKEFORK_DSN": self._dsn, "LAKEFORK_HOME": str(self._settings.home)}
        self.session.start(command, environment, self._settings.home, self.log)

    def wait_until_ready(self, progress: Callable[[str], None]) -> None:
        started = time.monotonic()
        while not self._is_healthy():
            if not self.session.processes():
                raise SetupError(f"the API server stopped while starting: {self._last_line()}; see {self.log}")
            if time.monotonic() - started > START_SECONDS:
                raise SetupError(f"the API server does not answer after {START_SECONDS} s: see {self.log}")
            time.sleep(0.2)
        progress(f"the API server is up: {self.url}")

    def stop(self) -> int:
        return self.session.stop()

    def try_out(self, catalog: str, user: str, sql: str) -> Answer:
        """Asks as a user would, with a token of theirs."""
        with connect_database(self._dsn) as connection:
            token, _ = create_token(connection, token_key(self._settings), catalog, user, None, "5m", "lakefork")
        started = time.monotonic()
        with connect(self.url, token, verify=False) as client:
            rows = client.rows(sql)
        return Answer(f"POST {self.url}/api/sql {sql}", len(rows), (time.monotonic() - started) * 1000)

    def _is_healthy(self) -> bool:
        try:
            answer = httpx.get(f"{self.url}/health", timeout=5, trust_env=False, verify=False)  # noqa: S501 - our own
        except httpx.HTTPError:
            return False
        return answer.is_success

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"


def _chosen_port() -> int:
    """What the environment says; the file's default is for servers that are started by hand."""
    return int(os.environ.get("LAKEFORK_SERVER__PORT", "0"))
