"""The delay between reaching a row limit and a queued run of flush, with a real Airflow."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.report import Figure

from lakefork.catalog.connection import Connection, connect
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session

EVENTS = 12
LAKEFORK = Path(sys.executable).parent / "lakefork"
RUNS = """SELECT extract(epoch FROM queued_at)::float AS queued_at FROM airflow.dag_run
          WHERE dag_id = 'flush' AND run_type = 'asset_triggered' AND queued_at > to_timestamp(%s) ORDER BY 1 LIMIT 1"""


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as home:
        environment = {**os.environ, "LAKEFORK_HOME": f"{home}/home"}
        try:
            subprocess.run([LAKEFORK, "stack", "up"], env=environment, check=True, stdout=subprocess.DEVNULL)
            url = subprocess.run([LAKEFORK, "db", "url"], env=environment, check=True, capture_output=True, text=True)
            waits = _waits(url.stdout.strip())
        finally:
            subprocess.run([LAKEFORK, "stack", "down"], env=environment, check=True, stdout=subprocess.DEVNULL)
    p95 = statistics.quantiles(waits, n=20)[-1]
    return [
        Figure("flush_events", f"row limit reached → run queued, median of {EVENTS}", statistics.median(waits), "s"),
        Figure("flush_events", "the same, 95th percentile", p95, "s", at_most=5),
    ]


def _wait_until_idle(connection: Connection) -> None:
    """More events than runs can be worked off are put together into fewer runs, which is not what is measured."""
    while connection.execute(
        "SELECT 1 FROM airflow.dag_run WHERE dag_id = 'flush' AND state IN ('queued', 'running')"
    ).fetchone():
        time.sleep(0.5)


def _waits(dsn: str) -> list[float]:
    admin = Session("main", None, Role.ADMIN)
    waits = []
    with Engine(Settings(), dsn) as engine, connect(dsn) as connection:
        engine.execute(admin, "CREATE NAMESPACE ev")
        for number in range(EVENTS):
            engine.execute(admin, f"CREATE SHARED TABLE ev.t{number} (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 10")
            engine.execute(admin, f"INSERT INTO ev.t{number} SELECT i FROM range(0, 9) r(i)")
            _wait_until_idle(connection)
            crossed = time.time()
            engine.execute(admin, f"INSERT INTO ev.t{number} VALUES (10)")
            while (row := connection.execute(RUNS, (crossed,)).fetchone()) is None:
                if time.time() > crossed + 60:
                    raise RuntimeError("no run was queued within a minute")
                time.sleep(0.05)
            waits.append(row["queued_at"] - crossed)
    return waits
