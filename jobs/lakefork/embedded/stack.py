"""`make run`, `make up` and `make down`: the whole stack on one machine."""

import time
from typing import Any

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect, find_installed
from lakefork.catalog.forks import existing_catalogs
from lakefork.catalog.roots import add_root
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.airflow import USER, VIEWER, AirflowClient, EmbeddedAirflow, require_airflow
from lakefork.embedded.api import EmbeddedApi
from lakefork.embedded.demo import CATALOG, FORK_PREFIX, USERS, change_demo, load_demo, write_waiting_rows
from lakefork.embedded.home import prepare_home
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.overview.status import read_status
from lakefork.progress import bar_text
from lakefork.settings import Settings

# Rows of the demo change before the second flush, so that dedup, retention and cleanup have something to do.
FORKS = {"parent": CATALOG, "name_prefix": FORK_PREFIX, "count": 3, "if_not_exists": True}
HISTORY_RUNS: list[tuple[str, dict[str, Any]]] = [
    ("flush", {"force": True}),
    ("fork_provision", FORKS),
    ("flush", {"force": True}),
    ("snapshot_dedup", {"min_batches": 2}),
]


def dag_runs(settings: Settings) -> list[tuple[str, dict[str, Any]]]:
    """Every DAG, in a sensible order; `make run` proves that the whole pipeline works."""
    backups = str(settings.home / "data" / "backups")
    return [
        *HISTORY_RUNS,
        ("namespace_backup", {"catalog": CATALOG, "namespace": "web", "to": backups, "keep": 2, "verify": True}),
        ("namespace_restore", {"catalog": CATALOG, "from": backups, "namespace": "web_restored", "replace": True}),
        ("postgres_copy", {"source": "lakefork", "into": CATALOG, "include": ["public.ducklake_*"], "dry_run": True}),
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
        dsn, _, client, api = _start(settings)
        results = _run_dags(settings, dsn, client, dag_runs(settings))
        _report(settings, dsn, results, api, time.monotonic() - started)
    finally:
        down(settings)
    return 0


def _run_dags(
    settings: Settings, dsn: str, client: AirflowClient, runs: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, dict[str, Any]]]:
    results: list[tuple[str, dict[str, Any]]] = []
    for index, (dag_id, conf) in enumerate(runs):
        if results and dag_id == "flush":
            change_demo(dsn, settings, say)
        say(f"{bar_text(index / len(runs))} {dag_id}, DAG run {index + 1} of {len(runs)}")
        results.append((dag_id, client.run_dag(dag_id, conf, say)))
    return results


def up(settings: Settings, *, history: bool = True) -> int:
    dsn, airflow, client, api = _start(settings)
    if history and _needs_history(dsn):
        say(f"you can log in at {airflow.url} as {USER} / {airflow.password} while the demo builds a history")
        _run_dags(settings, dsn, client, HISTORY_RUNS)
        write_waiting_rows(dsn, settings, say)
    say("")
    say(f"Airflow:  {airflow.url}   login: {USER} / {airflow.password}")
    say(f"Lakefork: {airflow.url}/lakefork/   read-only login: {VIEWER} / {airflow.viewer_password}")
    say(f"API:      {api.url}/   a token for its console: lakefork token create --catalog {CATALOG} --user {USERS[0]}")
    say("`.venv/bin/lakefork status` shows the state; `make down` stops everything.")
    return 0


def addresses(settings: Settings) -> dict[str, str]:
    """Returns the address and login of the running stack."""
    airflow = EmbeddedAirflow(settings, "")
    if not airflow.session.processes():
        return {}
    return {"airflow": airflow.url, "user": USER, "password": airflow.password, "api": EmbeddedApi(settings, "").url}


def _needs_history(dsn: str) -> bool:
    with connect(dsn) as connection:
        return not existing_catalogs(connection, [f"{FORK_PREFIX}1"])


def down(settings: Settings) -> int:
    """Stops every process that the stack started, also after a crash."""
    if settings.home.is_dir():
        stopped = EmbeddedApi(settings, "").stop()
        stopped += EmbeddedAirflow(settings, "").stop()
        stopped += EmbeddedPostgres(settings).stop()
        say("stopped" if stopped else "nothing was running")
    return 0


def _start(settings: Settings) -> tuple[str, EmbeddedAirflow, AirflowClient, EmbeddedApi]:
    require_airflow()
    prepare_home(settings.home, settings.storage.min_free_mb)
    dsn = settings.dsn or EmbeddedPostgres(settings).start(say)
    say("Postgres is running" if settings.dsn is None else "using the Postgres of LAKEFORK_DSN")
    _ensure_catalog(settings, dsn)
    api = EmbeddedApi(settings, dsn)
    api.start(say)
    airflow = EmbeddedAirflow(settings, dsn, api.url)
    client = airflow.start(say)
    api.wait_until_ready(say)
    client.wait_for_dags(sorted({dag_id for dag_id, _ in dag_runs(settings)}))
    return dsn, airflow, client, api


def _ensure_catalog(settings: Settings, dsn: str) -> None:
    with connect(dsn, check_version=False) as connection:
        if find_installed(connection) is None:
            with connection.transaction():
                init_catalog(connection)
                create_catalog(connection, "main", str(settings.home / "data" / "main"))
                add_root(connection, str(settings.home / "data"))
            say("catalog 'main' created")
    with connect(dsn) as connection:
        load_demo(connection, dsn, settings, say)


def _report(
    settings: Settings, dsn: str, results: list[tuple[str, dict[str, Any]]], api: EmbeddedApi, seconds: float
) -> None:
    with connect(dsn) as connection:
        status = read_status(connection, settings.flush)
    say("\n=== Lakefork report " + "=" * 60)
    say(status.as_text())
    say("")
    for dag_id, result in results:
        shown = ", ".join(f"{key} {value}" for key, value in result.items() if key not in ("run_id", "job"))
        say(f"{dag_id}: {shown}")
    asked = api.try_out(CATALOG, USERS[0], "SELECT id, text, stars FROM web.messages ORDER BY stars DESC LIMIT 10")
    say(f"\n{asked.request}: {asked.rows} rows in {asked.milliseconds:.0f} ms, asked by {USERS[0]} with a token")
    say(f"\neverything in {seconds:.0f} s. Data: {settings.home / 'data'}   task logs: {settings.home / 'logs'}")
    say("To keep the stack running, use `make up`")
