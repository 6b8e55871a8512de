"""Runs Airflow's services under one parent, like `airflow standalone`, but without log servers on all addresses."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

AIRFLOW = Path(sys.executable).parent / "airflow"
MAX_STARTS = 3  # for a service that keeps stopping
STABLE_SECONDS = 30.0  # seconds; a service that ran this long is restarted
SERVICES = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"], ["triggerer", "--skip-serve-logs"])


def main() -> int:
    """Runs until it is told to stop, and restarts services that are killed."""
    signal.signal(signal.SIGTERM, _stop)
    migrated = subprocess.run([AIRFLOW, "db", "migrate"], check=False)
    if migrated.returncode != 0:
        print("Error: Airflow could not set up its tables", flush=True)
        return 1
    services = [_Service(arguments) for arguments in SERVICES]
    try:
        while all(service.supervise() for service in services):
            time.sleep(0.5)
        return 1
    finally:
        for service in services:
            service.process.terminate()
        for service in services:
            service.process.wait()


class _Service:
    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._starts = 0
        self._start()

    def supervise(self) -> bool:
        """Restarts a stopped service; returns False if it keeps stopping."""
        if self.process.poll() is None:
            return True
        print(f"Error: Airflow's {self._arguments[0]} stopped with {self.process.returncode}", flush=True)
        if time.monotonic() - self._started > STABLE_SECONDS:
            self._starts = 0
        if self._starts >= MAX_STARTS:
            return False
        self._start()
        return True

    def _start(self) -> None:
        self._starts += 1
        self._started = time.monotonic()
        self.process = subprocess.Popen([AIRFLOW, *self._arguments])


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
