"""A Postgres that tests stop, kill and start again."""

import os
import signal
from dataclasses import dataclass

import psutil

from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings


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
