"""Runs a job in a process of its own that is killed (kill −9) right after a step."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import importlib, os, signal, sys
job, step, params = sys.argv[1:]
module, name = step.rsplit(".", 1)
owner = importlib.import_module(f"lakefork.{module}" if module.startswith("transfer.") else f"lakefork.upkeep.{module}")
real = getattr(owner, name)
def killing(*arguments, **named):
    real(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, killing)
sys.argv = [f"{job}.py", "--params", params, "--run-id", "killed"]
import runpy
runpy.run_path(f"jobs/{job}.py", run_name="__main__")
"""


def run_until_killed(job: str, step: str, dsn: str, **params: Any) -> None:
    """step: module.function below lakefork.upkeep (or transfer.module.function); its leases are those of a run that lives."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_") or "CONNECTIONS" in name
    }
    clean |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, job, step, json.dumps(params)],
        env={**clean, "LAKEFORK_DSN": dsn, "LAKEFORK_JOBS__LEASE_SECONDS": "5"},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
