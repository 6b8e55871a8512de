"""BACKUP DATABASE and RESTORE DATABASE start their DAGs by an event, and nobody has to do anything else."""

import pytest

from lakefork.catalog.connection import connect
from support.lake import rows_of
from support.stack import Stack
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def ended(stack: Stack, job: str) -> list[tuple[object, ...]]:
    with connect(stack.dsn) as connection:
        query = f"SELECT status, trace FROM system.jobs WHERE job_type = '{job}' AND status IN ('completed', 'failed')"
        return rows_of(connection, query)


def test_the_statements_start_runs_that_do_what_they_say(stack: Stack) -> None:
    place = stack.home / "data" / "backups-by-statement"
    stack.sql(
        "CREATE NAMESPACE kept; CREATE TABLE kept.t (id BIGINT PRIMARY KEY, v TEXT); "
        f"INSERT INTO kept.t VALUES (1, 'a'), (2, 'b'); BACKUP DATABASE kept TO '{place}'"
    )
    ((status, trace),) = wait_until(lambda: ended(stack, "namespace_backup"), "backed up", 180, 0.5)
    assert status == "completed" and str(trace).startswith("namespace_backup/request__"), "by the event"
    stack.sql(f"RESTORE DATABASE again FROM '{place}'")
    ((status, trace),) = wait_until(lambda: ended(stack, "namespace_restore"), "restored", 180, 0.5)
    assert status == "completed" and str(trace).startswith("namespace_restore/request__")
    found = stack.lakefork("sql", "--role", "admin", "--format", "json", "SELECT id, v FROM again.t ORDER BY id")
    assert '[[1, "a"], [2, "b"]]' in found.stdout, found.stdout
    with connect(stack.dsn) as connection:
        assert rows_of(connection, "SELECT count(*) FROM lakefork.job_request") == [(0,)]
        runs = "SELECT DISTINCT dag_id FROM airflow.dag_run WHERE run_type = 'asset_triggered' AND dag_id IN ('namespace_backup', 'namespace_restore') ORDER BY 1"
        assert rows_of(connection, runs) == [("namespace_backup",), ("namespace_restore",)]
