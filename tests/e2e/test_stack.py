"""The whole stack: Postgres, Airflow's scheduler and Spark, started and stopped as a new user does."""

import contextlib
import time

import httpx
import psutil
import psycopg
import pytest

import lakefork
from lakefork.catalog.connection import connect
from lakefork.errors import JobFailedError, SetupError
from support.lake import rows_of
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def run_ids(stack: Stack) -> list[str]:
    with connect(stack.dsn) as connection:
        return [row["run_id"] for row in connection.execute("SELECT run_id FROM system.jobs ORDER BY start_time")]


def test_the_demo_is_flushed_through_the_scheduler(stack: Stack) -> None:
    result = stack.client.run_dag("flush", {"force": True, "catalog": "demo"}, lambda _: None)
    assert (result["job"], result["tables"], result["users"], result["files_written"]) == ("flush", 2, 3, 4)
    assert (result["rows_in"], result["rows_out"]) == (30_000 + 3 * 111, 30_000 + 3 * 100)
    log = stack.task_log(result["run_id"], "flush")
    assert "flush: demo.web.messages: 333 versions of 3 user(s) published as 300 rows in 3 file(s)" in log
    assert not [name for name, secret in stack.secrets.items() if secret in log], "no secret in the task's log"
    again = stack.client.run_dag("flush", {"catalog": "demo"}, lambda _: None)
    assert again == {}, "nothing is due: the Spark task is skipped"
    with connect(stack.dsn) as connection:
        assert rows_of(connection, "SELECT count(*) FROM system.jobs WHERE job_type = 'flush'") == [(1,)]


def test_the_api_answers_to_tokens_and_the_page_links_to_its_console(stack: Stack) -> None:
    """Started with the stack; the second statement sees what the first one wrote."""
    done = stack.lakefork("token", "create", "--catalog", "demo", "--user", "ada")
    url = stack.get("/lakefork/api/me").json()["console"]
    with lakefork.connect(url, done.stdout.splitlines()[-1]) as client:
        inserted, counted = client.execute(
            "INSERT INTO web.messages (text) VALUES ('by the API'); SELECT count(*) FROM web.messages WHERE text = 'by the API'"
        )
        assert (inserted.affected_rows, counted.rows) == (1, [[1]])
        assert client.execute("DELETE FROM web.messages WHERE text = 'by the API'")[0].affected_rows == 1
    assert httpx.get(url, trust_env=False).headers["content-type"].startswith("text/html")
    assert "user=ada" not in (stack.home / "server.log").read_text()


def test_a_row_limit_that_is_reached_and_flush_table_start_a_run_within_seconds(stack: Stack) -> None:
    stack.sql("CREATE NAMESPACE ev; CREATE USER TABLE ev.t (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 5; "
              "CREATE SHARED TABLE ev.asked (id BIGINT PRIMARY KEY)")  # fmt: skip
    stack.sql("INSERT INTO ev.t VALUES (1), (2), (3), (4)", "--user", "ada")
    for statement, arguments in [
        ("INSERT INTO ev.t VALUES (5)", ("--user", "ada")),
        ("INSERT INTO ev.asked VALUES (1); FLUSH TABLE ev.asked", ()),
    ]:
        before = set(stack.event_runs())
        started = time.time()
        stack.sql(statement, *arguments)
        while not (new := set(stack.event_runs()) - before):
            assert time.time() < started + 20, "no run was queued"
            time.sleep(0.1)
        ((run_id, queued_at),) = new
        assert queued_at - started < 8, "with the start of a process for the statement"
        stack.client.wait_for_run("flush", run_id, lambda _: None)
    with connect(stack.dsn) as connection:
        files = rows_of(connection, "SELECT table_name, files FROM system.tables WHERE namespace = 'ev' ORDER BY 1")
    assert files == [("asked", 1), ("t", 1)]


def test_a_dag_runs_through_the_scheduler_and_returns_its_result(stack: Stack) -> None:
    lines: list[str] = []
    result = stack.client.run_dag("catalog_fsck", {"deep": True, "catalog": "demo"}, lines.append)
    assert (result["job"], result["files"], result["findings"], result["catalogs"]) == ("catalog_fsck", 4, 0, 1)
    assert lines[-1].startswith("catalog_fsck: success after")
    with connect(stack.dsn) as connection:
        row = connection.execute("SELECT * FROM system.jobs WHERE run_id = %s", (result["run_id"],)).fetchone()
    assert row is not None
    assert (row["status"], sorted(row["parameters"])) == ("completed", ["catalog=demo", "deep=true"])
    assert row["trace"].split()[0] == f"catalog_fsck/{result['run_id']}/catalog_fsck/1"
    log = stack.task_log(result["run_id"])
    assert "[####################] 100% 4 of 4 file(s) checked" in log
    assert not [name for name, secret in stack.secrets.items() if secret in log], "no secret in the task's log"


def test_wrong_params_are_refused_by_the_form(stack: Stack) -> None:
    for conf in ({"deep": "yes"}, {"catalog": "a b"}):
        with pytest.raises(SetupError, match=r"Airflow refused POST .*: 400"):
            stack.client.run_dag("catalog_fsck", conf, lambda _: None)
    with connect(stack.dsn) as connection:
        assert rows_of(connection, "SELECT count(*) FROM system.jobs WHERE job_type = 'catalog_fsck'") == [(1,)]


def test_damage_fails_the_run_at_once_with_one_clear_line(stack: Stack) -> None:
    victim = next((stack.home / "data/demo").rglob("batch-0.parquet"))
    content = victim.read_bytes()
    victim.unlink()
    try:
        with pytest.raises(JobFailedError):
            stack.client.run_dag("catalog_fsck", {}, lambda _: None)
    finally:
        victim.write_bytes(content)
    (row,) = stack.jobs(run_ids(stack)[-1])
    assert (row["status"], row["retries"]) == ("failed", 0)
    assert row["error_message"] == "1 finding(s) in demo (1): 1× file; each is listed above"
    assert row["result"]["findings"] == 1 and row["memory_used_mb"] > 100 and row["cpu_used_percent"] > 0
    log = stack.task_log(run_ids(stack)[-1])
    assert f"{victim}: it does not exist" in log
    reason = "catalog_fsck failed: 1 finding(s) in demo (1): 1× file; each is listed above"
    assert stack.last_error(log) == reason
    assert "UP_FOR_RETRY" not in log


def test_nothing_that_airflow_keeps_of_tasks_holds_a_secret(stack: Stack) -> None:
    with psycopg.connect(stack.dsn) as connection:
        kept = {
            table: str(connection.execute(f"SELECT * FROM airflow.{table}").fetchall())
            for table in ("rendered_task_instance_fields", "xcom", "log", "dag_run", "serialized_dag")
        }
    assert "catalog_fsck" in kept["rendered_task_instance_fields"] and "rows_out" in kept["xcom"]
    leaks = [(table, name) for table, text in kept.items() for name, secret in stack.secrets.items() if secret in text]
    assert leaks == []


def test_airflow_keeps_to_its_schema_its_address_and_its_login(stack: Stack) -> None:
    with psycopg.connect(stack.dsn) as connection:
        tables = dict(connection.execute("SELECT schemaname, count(*) FROM pg_tables GROUP BY 1").fetchall())
        owners = connection.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'airflow'").fetchall()
        assert tables["airflow"] > 40 and owners == [("airflow",)]
        assert connection.execute("SELECT to_regclass('public.dag_run')").fetchone() == (None,)
    listening = set()
    for process in stack.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # Airflow's come and go
            listening |= {one.laddr.ip for one in process.net_connections("tcp") if one.status == "LISTEN"}
    assert listening and listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    url = stack.url
    assert httpx.get(f"{url}/api/v2/dags", trust_env=False).status_code == 401
    assert (
        httpx.post(f"{url}/auth/token", json={"username": "admin", "password": "x"}, trust_env=False).status_code == 401
    )
    arguments = ""
    for process in stack.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            arguments += " ".join(process.cmdline())
    assert not [name for name, secret in stack.secrets.items() if secret in arguments], "no secret in ps"
