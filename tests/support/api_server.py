"""A real API server in processes of its own, on a real socket."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from lakefork.catalog.connection import connect
from lakefork.client import Client
from lakefork.server.keys import token_key
from lakefork.server.tokens import create_token
from lakefork.settings import Settings

ADDRESS = re.compile(r"Lakefork API: (\S+)")
ONE_HOUR = "1h"


@dataclass
class ApiServer:
    """What a test needs of a running server. http: a pool of connections to it."""

    url: str
    dsn: str
    settings: Settings
    process: "subprocess.Popen[bytes]"
    log_file: Path
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=60, limits=limits, verify=False)  # noqa: S501 - a test's own certificate

    def token(
        self, user: str = "alice", role: str | None = None, catalog: str = "main", expires_in: str = ONE_HOUR
    ) -> str:
        with connect(self.dsn) as connection:
            return create_token(connection, token_key(self.settings), catalog, user, role, expires_in, "tests")[0]

    def client(self, user: str = "alice", role: str | None = None, **arguments: Any) -> Client:
        return Client(self.url, self.token(user, role), **arguments)

    def post(
        self, sql: Any = None, token: str | None = None, headers: Mapping[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """One request; more: further fields of the body."""
        given: dict[str, str | bytes] = {**(headers or {})}
        if token:
            given["Authorization"] = f"Bearer {token}".encode()
        return self.http.post("/api/sql", json={"sql": sql, **more}, headers=given)  # type: ignore[arg-type]

    @property
    def address(self) -> tuple[str, int]:
        parsed = httpx.URL(self.url)
        return parsed.host, int(parsed.port or 0)

    def raw(self, content: bytes, seconds: float = 10) -> bytes:
        """What comes back for bytes as they are, until the server closes or says nothing more."""
        with socket.create_connection(self.address, timeout=seconds) as connection:
            connection.sendall(content)
            return received(connection)

    def log(self) -> list[dict[str, Any]]:
        """The lines about requests."""
        return [json.loads(line) for line in self.log_file.read_text().splitlines() if line.startswith('{"time"')]

    def workers(self) -> list[psutil.Process]:
        """The processes that serve requests."""
        return [
            child for child in psutil.Process(self.process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]

    def stop(self, seconds: float = 30) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def received(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
            head, _, body = b"".join(parts).partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if length and len(body) >= int(length[1]):
                break
    return b"".join(parts)


@contextlib.contextmanager
def running_server(
    settings: Settings, dsn: str, directory: Path, environment: Mapping[str, str] | None = None, workers: int = 1
) -> Iterator[ApiServer]:
    log_file = directory / "server.log"
    command = [sys.executable, "-m", "lakefork.cli.main", "serve", "--port", "0", "--workers", str(workers)]
    given = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")},
        "LAKEFORK_DSN": dsn, "LAKEFORK_HOME": str(settings.home), **(environment or {}),
    }  # fmt: skip
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, env=given, stdout=log, stderr=log)
    try:
        server = wait_until_ready(settings, dsn, process, log_file)
        with server.http:
            yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def wait_until_ready(
    settings: Settings, dsn: str, process: "subprocess.Popen[bytes]", log_file: Path, seconds: float = 60
) -> ApiServer:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if found := ADDRESS.search(log_file.read_text()):
            url = found[1]
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/health", trust_env=False, verify=False, timeout=5).raise_for_status()  # noqa: S501
                return ApiServer(url, dsn, settings, process, log_file)
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log_file.read_text()[-2000:]}")
