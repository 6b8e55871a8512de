"""`make run`, `make up` and `make down`: the whole stack on one machine."""

import time
from typing import Any

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect, found_version
from lakefork.catalog.forks import existing_catalogs
from lakefork.catalog.roots import add_root
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.airflow import USER, VIEWER, AirflowClient, EmbeddedAirflow
from lakefork.embedded.demo import CATALOG, FORK_PREFIX, change_demo, leave_a_backlog, load_demo
from lakefork.embedded.home import prepare_home
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.overview.status import read_status
from lakefork.progress import bar_text
from lakefork.settings import Settings

# Before the second flush rows of the demo are changed, so that there is something to merge, to give up and to free.
FORKS = {"parent": CATALOG, "name_prefix": FORK_PREFIX, "count": 3, "if_not_exists": True}
HISTORY: list[tuple[str, dict[str, Any]]] = [
    ("flush", {"force": True}),
    ("fork_provision", FORKS),
    ("flush", {"force": True}),
    ("snapshot_dedup", {"min_batches": 2}),
]
# Every DAG, in an order that makes sense; `make run` proves that the whole pipeline works.
DAG_RUNS: list[tuple[str, dict[str, Any]]] = [
    *HISTORY,
    ("manifest_rebuild", {}),
    ("manifest_eviction", {}),
    ("retention_gc", {"retain_snapshots": 1}),
    ("file_cleanup", {"older_than": "1s", "orphans": True}),
    ("catalog_fsck", {"deep": True}),
]


def say(line: str) -> None:
    print(line, flush=True)


def run(settings: Settings) -> int:
    """Starts everything, runs every DAG once, reports, and stops what it started."""
    started = time.monotonic()
    try:
        dsn, _, client = _start(settings)
        results = _run_dags(settings, dsn, client, DAG_RUNS)
        _report(settings, dsn, results, time.monotonic() - started)
    finally:
        down(settings)
    return 0


def _run_dags(
    settings: Settings, dsn: str, client: AirflowClient, runs: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, dict[str, Any]]]:
    results: list[tuple[str, dict[str, Any]]] = []
    for place, (dag_id, conf) in enumerate(runs):
        if results and dag_id == "flush":
            change_demo(dsn, settings, say)
        say(f"{bar_text(place / len(runs))} {dag_id}, DAG run {place + 1} of {len(runs)}")
        results.append((dag_id, client.run_dag(dag_id, conf, say)))
    return results


def up(settings: Settings, *, history: bool = True) -> int:
    dsn, airflow, client = _start(settings)
    if history and _has_no_history(dsn):
        say(f"you can log in at {airflow.url} as {USER} / {airflow.password} while the demo gets a history")
        _run_dags(settings, dsn, client, HISTORY)
        leave_a_backlog(dsn, settings, say)
    say("")
    say(f"Airflow:  {airflow.url}   login: {USER} / {airflow.password}")
    say(f"Lakefork: {airflow.url}/lakefork/   to look only: {VIEWER} / {airflow.viewer_password}")
    say("Look around with `.venv/bin/lakefork status`; stop everything with `make down`.")
    return 0


def addresses(settings: Settings) -> dict[str, str]:
    """Where to log in while it runs."""
    airflow = EmbeddedAirflow(settings, "")
    if not airflow.session.processes():
        return {}
    return {"airflow": airflow.url, "user": USER, "password": airflow.password}


def _has_no_history(dsn: str) -> bool:
    with connect(dsn) as connection:
        return not existing_catalogs(connection, [f"{FORK_PREFIX}1"])


def down(settings: Settings) -> int:
    """Stops every process that the stack started, also after a crash."""
    if settings.home.is_dir():
        stopped = EmbeddedAirflow(settings, "").stop()
        stopped += EmbeddedPostgres(settings).stop()
        say("stopped" if stopped else "nothing was running")
    return 0


def _start(settings: Settings) -> tuple[str, EmbeddedAirflow, AirflowClient]:
    prepare_home(settings.home, settings.storage.min_free_mb)
    dsn = settings.dsn or EmbeddedPostgres(settings).start(say)
    say("Postgres is up" if settings.dsn is None else "using the Postgres of LAKEFORK_DSN")
    _ensure_catalog(settings, dsn)
    airflow = EmbeddedAirflow(settings, dsn)
    client = airflow.start(say)
    client.wait_for_dags(sorted({dag_id for dag_id, _ in DAG_RUNS}))
    return dsn, airflow, client


def _ensure_catalog(settings: Settings, dsn: str) -> None:
    with connect(dsn, check_version=False) as connection:
        if found_version(connection) is None:
            with connection.transaction():
                init_catalog(connection)
                create_catalog(connection, "main", str(settings.home / "data" / "main"))
                add_root(connection, str(settings.home / "data"))
            say("catalog 'main' created")
    with connect(dsn) as connection:
        load_demo(connection, dsn, settings, say)


def _report(settings: Settings, dsn: str, results: list[tuple[str, dict[str, Any]]], seconds: float) -> None:
    with connect(dsn) as connection:
        status = read_status(connection, settings.flush)
    say("\n=== Lakefork report " + "=" * 60)
    say(status.as_text())
    say("")
    for dag_id, result in results:
        shown = ", ".join(f"{key} {value}" for key, value in result.items() if key not in ("run_id", "job"))
        say(f"{dag_id}: {shown}")
    say(f"\neverything in {seconds:.0f} s. Data: {settings.home / 'data'}   task logs: {settings.home / 'logs'}")
    say("To keep the stack running and see it in Airflow: make up")
