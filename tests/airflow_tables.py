"""Airflow's own tables in a test's database, as the installed version defines them, and rows as its scheduler leaves them."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy
from airflow.models import import_all_models
from airflow.models.base import Base
from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection


def create_airflow_tables(connection: Connection, dsn: str) -> None:
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
