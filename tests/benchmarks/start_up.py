"""Start-up times: --help, and `make run` on a set-up clone."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.report import Figure

LAKEFORK = Path(sys.executable).parent / "lakefork"


def measure() -> list[Figure]:
    helps = statistics.median(_seconds("--help") for _ in range(7))
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as home:
        run = _seconds("stack", "run", LAKEFORK_HOME=f"{home}/home")
    return [
        Figure("start_up", "lakefork --help", helps, "s", at_most=1),
        Figure("start_up", "make run from nothing, with all its DAGs", run, "s", at_most=180),
    ]


def _seconds(*arguments: str, **environment: str) -> float:
    started = time.perf_counter()
    subprocess.run([LAKEFORK, *arguments], env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
