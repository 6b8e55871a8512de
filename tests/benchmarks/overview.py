"""Latency of the overview: system.jobs over 10,000 runs, the page with 100,000 catalogs."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable

from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database
from tests.support.airflow_tables import create_airflow_tables, fill_with_runs
from tests.support.many_catalogs import add_catalogs

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import link_airflow
from lakefork.overview.lake import last_runs, list_catalogs, list_runs, list_waiting, read_totals
from lakefork.settings import FlushSettings

RUNS = 10_000
CATALOGS = 100_000
QUERIES = {
    "the last 50": "SELECT * FROM system.jobs ORDER BY start_time DESC LIMIT 50",
    "those that run": "SELECT * FROM system.jobs WHERE status = 'running'",
    "counts by status": "SELECT status, count(*) FROM system.jobs GROUP BY 1",
}


def measure() -> list[Figure]:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="lakefork-airflow-")
    with benchmark_database() as dsn, connect(dsn) as connection:
        create_airflow_tables(connection, dsn)
        link_airflow(connection)
        fill_with_runs(connection, RUNS)
        figures = [
            Figure(
                "overview",
                f"system.jobs over {RUNS:,} runs: {name}",
                _median(query, connection.execute),
                "ms",
                at_most=10,
            )
            for name, query in QUERIES.items()
        ]
        add_catalogs(connection, CATALOGS)
        policy = FlushSettings()

        def overview(_: str) -> None:
            read_totals(connection)
            list_catalogs(connection)
            list_waiting(connection, policy, 20)
            last_runs(connection)
            list_runs(connection, status="failed", limit=5)

        figures.append(
            Figure("overview", f"all of the overview, {CATALOGS:,} catalogs", _median("", overview), "ms", at_most=300)
        )
        search = _median("777", lambda text: list_catalogs(connection, text))
        figures.append(Figure("overview", f"a search among {CATALOGS:,} catalogs", search, "ms", at_most=100))
        return figures


def _median(query: str, action: Callable[[str], object]) -> float:
    times = []
    for _ in range(15):
        started = time.perf_counter()
        action(query)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)
