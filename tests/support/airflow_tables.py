"""Airflow's own tables in a test's database, as the installed version defines them, and rows as its scheduler leaves them."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy
from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection


def create_airflow_tables(connection: Connection, dsn: str) -> None:
    from airflow.models import import_all_models  # not at the top: it reads AIRFLOW_HOME
    from airflow.models.base import Base

    import_all_models()
    connection.execute("CREATE SCHEMA airflow")
    engine = sqlalchemy.create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg2://"), connect_args={"options": "-csearch_path=airflow"}
    )
    Base.metadata.create_all(engine)
    engine.dispose()


def add_run(connection: Connection, run_id: str, job: str = "flush", **conf: Any) -> None:
    connection.execute(
        "INSERT INTO airflow.dag_run (dag_id, run_id, state, run_type, run_after, conf, clear_number, span_status) "
        "VALUES (%s, %s, 'running', 'manual', now(), %s, 0, 'not_started')",
        (job, run_id, Jsonb(conf)),
    )


def add_attempt(
    connection: Connection,
    run_id: str,
    state: str,
    job: str = "flush",
    attempt: int = 1,
    silent_minutes: float = 0,
    *,
    in_history: bool = False,
    operator: str = "LakeforkJobOperator",
) -> None:
    now = datetime.now(UTC)
    row = {
        "task_instance_id" if in_history else "id": uuid.uuid4(), "dag_id": job, "task_id": job, "run_id": run_id,
        "state": state, "try_number": attempt, "max_tries": 1, "pool": "lakefork_spark", "pool_slots": 1,
        "operator": operator, "start_date": now - timedelta(minutes=10), "hostname": "worker-7",
        "end_date": now if state not in ("running", "deferred") else None, "span_status": "not_started",
    }  # fmt: skip
    if not in_history:
        row["last_heartbeat_at"] = now - timedelta(minutes=silent_minutes)
    table = "task_instance_history" if in_history else "task_instance"
    places = ", ".join(f"%({name})s" for name in row)
    connection.execute(f"INSERT INTO airflow.{table} ({', '.join(row)}) VALUES ({places})", row)


def fill_with_runs(connection: Connection, count: int) -> None:
    """Runs of flush, one a minute; of a hundred one failed, and one is silent."""
    for statement in (
        "INSERT INTO airflow.dag_run (dag_id, run_id, state, run_type, run_after, conf, clear_number, span_status) "
        "SELECT 'flush', 'run' || i, 'success', 'scheduled', now(), '{}', 0, 'ended' FROM generate_series(1, %s) i",
        "INSERT INTO airflow.task_instance (id, dag_id, task_id, run_id, state, try_number, max_tries, pool, pool_slots, "
        "operator, start_date, end_date, last_heartbeat_at, span_status) "
        "SELECT gen_random_uuid(), 'flush', task, 'run' || i, CASE WHEN i %% 100 < 2 THEN 'failed' ELSE 'success' END, 1, 1, "
        "'lakefork_spark', 1, operator, t, t, t, 'ended' "
        "FROM generate_series(1, %s) i, (VALUES ('due', '@task'), ('flush', 'LakeforkJobOperator')) o (task, operator), "
        "LATERAL (SELECT now() - make_interval(mins => i) AS t) x",
        "INSERT INTO lakefork.job_run SELECT 'flush/' || i, 'flush', 'run' || i, 'flush/run' || i || '/flush/1', "
        "'{\"force\": true}', CASE WHEN i %% 100 = 1 THEN 'running' ELSE 'completed' END, t, t, t, '{\"rows_in\": 1}', NULL, NULL, 500, "
        "3.3, 'host' FROM generate_series(1, %s) i, LATERAL (SELECT now() - make_interval(mins => i) AS t) x",
    ):
        connection.execute(statement, (count,))
        connection.execute("ANALYZE airflow.dag_run, airflow.task_instance, lakefork.job_run")
