"""Finds out whether the server of a Postgres data directory runs, from postmaster.pid and the process list."""

import enum
from dataclasses import dataclass
from pathlib import Path

from psycopg import pq

UNUSED_PID = 2**31 - 1  # higher than any system assigns


class ServerState(enum.Enum):
    STOPPED = "is not running"
    STARTING = "is starting, or recovering after a crash"
    READY = "accepts connections"
    STOPPING = "is still shutting down"


@dataclass(frozen=True)
class PidFile:
    """The content of postmaster.pid; port and status are written a moment after the pid."""

    pid: int
    port: int | None
    status: str


def read_pid_file(data: Path) -> PidFile | None:
    try:
        lines = [line.strip() for line in (data / "postmaster.pid").read_text().splitlines()]
        return PidFile(
            int(lines[0]), int(lines[3]) if len(lines) > 3 and lines[3] else None, lines[7] if len(lines) > 7 else ""
        )
    except (FileNotFoundError, ValueError, IndexError):  # ValueError, IndexError: it is being written
        return None


def server_state(data: Path) -> ServerState:
    found = read_pid_file(data)
    if found is None or not _is_postmaster(found.pid, data):
        return ServerState.STOPPED
    if found.status == "stopping":
        return ServerState.STOPPING
    if found.port is None or pq.PGconn.ping(f"host=127.0.0.1 port={found.port}".encode()) != pq.Ping.OK:
        return ServerState.STARTING
    return ServerState.READY


def replace_dead_pid(data: Path) -> None:
    """Replaces a dead server's pid if another process has it now, because Postgres would refuse to start.

    The rest of the file stays, so that Postgres notices if processes of the dead server still use its memory.
    """
    import psutil

    found = read_pid_file(data)
    if found is None or not psutil.pid_exists(found.pid) or _is_postmaster(found.pid, data):
        return
    path = data / "postmaster.pid"
    _, _, rest = path.read_text().partition("\n")
    path.write_text(f"{UNUSED_PID}\n{rest}")


def _is_postmaster(pid: int, data: Path) -> bool:
    import psutil  # imported late: most callers only read the port

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return any(_is_same(argument, data) for argument in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    except psutil.AccessDenied:
        return True  # in doubt it is alive


def _is_same(argument: str, data: Path) -> bool:
    try:
        return argument.startswith("/") and data.samefile(argument)
    except OSError:
        return False
