"""Airflow's services under one parent, as `airflow standalone` does, but without its log servers on all addresses."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

AIRFLOW = Path(sys.executable).parent / "airflow"
SERVICES = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"], ["triggerer", "--skip-serve-logs"])


def main() -> int:
    """Runs until it is told to stop, or until a service stops by itself."""
    signal.signal(signal.SIGTERM, _stop)
    migrated = subprocess.run([AIRFLOW, "db", "migrate"], check=False)
    if migrated.returncode != 0:
        print("Error: Airflow could not set up its tables", flush=True)
        return 1
    running = {service[0]: subprocess.Popen([AIRFLOW, *service]) for service in SERVICES}
    try:
        while all(process.poll() is None for process in running.values()):
            time.sleep(0.5)
        stopped = [name for name, process in running.items() if process.poll() is not None]
        print(f"Error: Airflow's {', '.join(stopped)} stopped", flush=True)
        return 1
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
