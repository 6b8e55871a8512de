"""Airflow's services under one parent, as `airflow standalone` does, but without its log servers on all addresses."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

AIRFLOW = Path(sys.executable).parent / "airflow"
STARTS = 3  # of a service that stops again and again
LONG_ENOUGH = 30.0  # seconds; one that ran for so long is worth starting again
SERVICES = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"], ["triggerer", "--skip-serve-logs"])


def main() -> int:
    """Runs until it is told to stop; a service that is killed is started again."""
    signal.signal(signal.SIGTERM, _stop)
    migrated = subprocess.run([AIRFLOW, "db", "migrate"], check=False)
    if migrated.returncode != 0:
        print("Error: Airflow could not set up its tables", flush=True)
        return 1
    services = [_Service(arguments) for arguments in SERVICES]
    try:
        while all(service.keep_up() for service in services):
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

    def keep_up(self) -> bool:
        """False when starting it again does not help."""
        if self.process.poll() is None:
            return True
        print(f"Error: Airflow's {self._arguments[0]} stopped with {self.process.returncode}", flush=True)
        if time.monotonic() - self._started > LONG_ENOUGH:
            self._starts = 0
        if self._starts >= STARTS:
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
