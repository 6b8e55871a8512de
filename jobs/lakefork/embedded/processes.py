"""Groups of processes that can be found and stopped after their parent has gone."""

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from lakefork.embedded.home import write_private


class ProcessSession:
    """One session of processes (see setsid); its id is kept in a file."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def start(self, command: list[str], environment: Mapping[str, str], cwd: Path, log: Path) -> psutil.Process:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        leader = psutil.Process(process.pid)
        write_private(self._record, json.dumps({"session": leader.pid, "created": leader.create_time()}))
        return leader

    def has_leader(self) -> bool:
        """Tells whether the leader still runs; without it, the others are not supervised."""
        if not self._record.exists():
            return False
        leader = json.loads(self._record.read_text())["session"]
        return any(process.pid == leader for process in self.processes())

    def processes(self) -> list[psutil.Process]:
        """Returns all running processes of the session; zombies do not count."""
        if not self._record.exists():
            return []
        record = json.loads(self._record.read_text())
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(record["session"]).create_time() != record["created"]:
                return []  # the number belongs to another program now, which happens only when none of ours is left
        return [process for process in psutil.process_iter() if _runs_in(process, record["session"])]

    def stop(self, patience_seconds: float = 15) -> int:
        """Terminates the processes, kills the rest after a while, and returns how many there were."""
        found = self.processes()
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(found, timeout=patience_seconds)
        while remaining := self.processes():
            for process in remaining:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(remaining, timeout=5)
        self._record.unlink(missing_ok=True)
        return len(found)


def _runs_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False
