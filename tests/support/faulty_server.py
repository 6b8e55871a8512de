"""A Postgres that tests stop, kill and start again, and what is said meanwhile."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings
from lakefork.sql.engine import Engine

INSIDE = [
    "PGRES", "psycopg", "adbc", "libpq", "duckdb", "SELECT", "relation_", "max_expression_depth", "Traceback", "couldn't get",
    "hot.", "ducklake_", "FATAL", "IO:", "Error:",
]  # fmt: skip
CLASS_NAME = re.compile(r"\b[A-Z][a-z]\w*(Error|Exception)\b")
STATEMENTS = [
    "SELECT * FROM app.t",
    "INSERT INTO app.t (id, v) VALUES (100, 'x')",
    "UPDATE app.t SET v = 'y' WHERE id = 2",
    "DELETE FROM app.t WHERE id = 1",
    "SHOW TABLES",
    "CREATE NAMESPACE other",
    "ALTER TABLE app.t ADD COLUMN w TEXT",
    "FLUSH TABLE app.t",
    "INSERT INTO system.users (user_id, role) VALUES ('eve', 'user')",
]


@dataclass(frozen=True)
class Server:
    settings: Settings
    postgres: EmbeddedPostgres
    dsn: str

    def processes(self) -> list[psutil.Process]:
        """The postmaster first: nobody is left to start others."""
        lines = (self.settings.home / "postgres/data/postmaster.pid").read_text().splitlines()
        leader = psutil.Process(int(lines[0]))
        return [leader, *leader.children(recursive=True)]

    def send(self, number: signal.Signals) -> None:
        for process in self.processes():
            os.kill(process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)


def check(message: str, *expected: str) -> None:
    assert "\n" not in message and message
    for fragment in INSIDE:
        assert fragment not in message, message
    assert not CLASS_NAME.search(message), message
    assert not message.endswith(":"), message
    assert not expected or any(one in message for one in expected), message


@contextmanager
def engine_with(server: Server, **sql: Any) -> Iterator[Engine]:
    settings: Settings = server.settings.model_copy(update={"sql": server.settings.sql.model_copy(update=sql)})
    with Engine(settings, server.dsn) as engine:
        yield engine
