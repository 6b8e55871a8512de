"""system.jobs over Airflow's tables, as the installed version of Airflow defines them."""

import re
import statistics
import time
from collections.abc import Iterator

import pytest
from airflow import __version__ as airflow_version

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.jobs import JobRun, Usage, finish_job, start_job
from lakefork.catalog.schema import link_airflow
from lakefork.catalog.upgrade import upgrade_catalog
from lakefork.errors import SetupError
from lakefork.resources import resource
from support.airflow_tables import add_attempt, add_run, create_airflow_tables, fill_with_runs
from support.lake import rows_of
from support.sql_lake import SqlLake

COLUMNS = [
    "job_id", "job_type", "table_name", "namespace", "user_id", "status", "start_time", "end_time", "parameters", "result",
    "trace", "memory_used_mb", "cpu_used_percent", "node_id", "error_message", "retries", "run_id", "catalog_name", "tables",
    "users",
]  # fmt: skip


@pytest.fixture(scope="module")
def linked_database(module_dsn: str) -> str:
    with connect(module_dsn) as connection:
        create_airflow_tables(connection, module_dsn)
        link_airflow(connection)
    return module_dsn


@pytest.fixture
def linked(linked_database: str) -> Iterator[Connection]:
    with connect(linked_database) as connection:
        yield connection
        connection.execute("TRUNCATE lakefork.job_run, airflow.dag_run CASCADE")
        connection.execute("DELETE FROM ducklake_metadata WHERE key = 'jobs_since'")


def report(connection: Connection, run_id: str, attempt: int = 1, job: str = "flush", **params: object) -> JobRun:
    run = JobRun(f"{job}/{run_id}/{attempt}x", job, run_id, f"{job}/{run_id}/{job}/{attempt}", "node-1")
    start_job(connection, run, params)
    return run


def silence(connection: Connection, run: JobRun) -> None:
    connection.execute(
        "UPDATE lakefork.job_run SET started_at = started_at - interval '20 minutes', "
        "heartbeat_at = heartbeat_at - interval '10 minutes', peak_memory_mb = 300, cpu_seconds = 60 WHERE job_id = %s",
        (run.job_id,),
    )


def jobs(connection: Connection, columns: str = "run_id, retries, status") -> list[tuple[object, ...]]:
    return rows_of(connection, f"SELECT {columns} FROM system.jobs ORDER BY run_id, retries")


def test_it_is_pinned_to_the_version_of_airflow_whose_tables_it_knows() -> None:
    assert airflow_version.startswith("3.3."), "schema/airflow.sql says 3.3: look at it, and change both"


def test_one_place_knows_the_tables_of_airflow() -> None:
    pattern = re.compile(
        r"""\b(from|join|into|update|table|only)\s+"?airflow"?\."?(?!sdk|api|prov|conf|trig|plug)""", re.IGNORECASE
    )
    sources = [path for room in ("jobs", "plugins", "dags", "schema") for path in resource(room).rglob("*")]
    knowing = [path for path in sources if path.suffix in (".py", ".sql") and pattern.search(path.read_text())]
    assert knowing == [resource("schema/airflow.sql")]


def test_an_upgrade_keeps_the_link(linked: Connection) -> None:
    linked.execute("UPDATE ducklake_metadata SET value = 'another' WHERE key = 'lakefork_schema'")
    done, left_to_do = upgrade_catalog(linked)
    assert (done.is_needed, left_to_do) == (True, [])
    add_run(linked, "r")
    add_attempt(linked, "r", "failed")
    assert jobs(linked, "run_id, status") == [("r", "failed")]


def test_an_upgrade_says_when_the_link_cannot_be_kept(linked: Connection) -> None:
    linked.execute("ALTER SCHEMA airflow RENAME TO elsewhere")
    linked.execute("UPDATE ducklake_metadata SET value = 'another' WHERE key = 'lakefork_schema'")
    try:
        _, left_to_do = upgrade_catalog(linked)
        assert "then run `lakefork airflow link`" in left_to_do[0]
        assert jobs(linked) == []
    finally:
        linked.execute("ALTER SCHEMA elsewhere RENAME TO airflow")
        link_airflow(linked)


def test_without_airflow_a_process_that_stopped_reporting_has_failed(connection: Connection) -> None:
    silence(connection, report(connection, "silent"))
    report(connection, "works")
    assert jobs(connection, "run_id, status, error_message, memory_used_mb, cpu_used_percent, end_time IS NULL") == [
        ("silent", "failed", "the process stopped reporting", 300, 10, False),
        ("works", "running", None, None, None, True),
    ]
    with pytest.raises(SetupError, match=r"not in schema airflow .*: let Airflow use it"):
        link_airflow(connection)
    assert len(jobs(connection)) == 2


def test_the_columns_are_those_that_people_know(linked: Connection) -> None:
    run = report(linked, "r", catalog="main", namespace="app", table="t", user_id=None, force=True)
    add_run(linked, "r")
    add_attempt(linked, "r", "success")
    finish_job(linked, run, Usage(512, 1.5), result={"rows_in": 7})
    (row,) = linked.execute("SELECT * FROM system.jobs").fetchall()
    assert list(row) == COLUMNS
    assert (row["job_type"], row["table_name"], row["namespace"], row["user_id"]) == ("flush", "t", "app", None)
    assert (row["status"], row["result"], row["memory_used_mb"]) == ("completed", {"rows_in": 7}, 512)
    assert sorted(row["parameters"]) == ["catalog=main", "force=true", "namespace=app", "table=t"]
    assert row["trace"] == "flush/r/flush/1 /dags/flush/runs/r/tasks/flush?try_number=1"
    assert (row["node_id"], row["retries"], row["error_message"]) == ("node-1", 0, None)
    assert row["end_time"] >= row["start_time"]


def test_airflow_says_how_a_silent_attempt_is_doing(linked: Connection) -> None:
    states = {
        "a-runs": ("running", 0, "running"),
        "b-success": ("success", 0, "completed"),
        "c-killed": ("failed", 0, "failed"),
        "d-nobody-there": ("running", 7, "failed"),
    }
    for run_id, (state, silent_minutes, _) in states.items():
        silence(linked, report(linked, run_id))
        add_run(linked, run_id)
        add_attempt(linked, run_id, state, silent_minutes=silent_minutes)
    assert jobs(linked, "run_id, status") == [(run_id, status) for run_id, (_, _, status) in states.items()]


def test_each_attempt_is_a_row_with_its_own_end(linked: Connection) -> None:
    silence(linked, report(linked, "again"))
    add_run(linked, "again")
    add_attempt(linked, "again", "up_for_retry")
    add_attempt(linked, "again", "failed", in_history=True)
    assert jobs(linked) == [("again", 0, "failed")], "it waits for the next attempt, and nothing runs"
    linked.execute("UPDATE airflow.task_instance SET try_number = 2, state = 'running'")
    assert jobs(linked) == [("again", 0, "failed"), ("again", 1, "running")]
    second = report(linked, "again", 2)
    assert jobs(linked, "retries, status, job_id") == [
        (0, "failed", "flush/again/1x"),
        (1, "running", "flush/again/2x"),
    ]
    finish_job(linked, second, Usage(1, 1), result={})
    linked.execute("UPDATE airflow.task_instance SET state = 'success'")
    assert jobs(linked) == [("again", 0, "failed"), ("again", 1, "completed")]


def test_attempts_that_never_reported_are_listed_too(linked: Connection) -> None:
    for run_id, state in (
        ("a", "running"),
        ("b", "failed"),
        ("c", "upstream_failed"),
        ("d", "skipped"),
        ("e", "queued"),
    ):
        add_run(linked, run_id, table="t", catalog="main")
        add_attempt(linked, run_id, state)
    add_run(linked, "f")
    add_attempt(linked, "f", "failed", operator="BashOperator")
    words = "the task failed before the job could report anything; see its log"
    assert jobs(linked, "run_id, status, error_message, table_name, parameters, node_id, end_time IS NULL")[:3] == [
        ("a", "running", None, "t", ["table=t", "catalog=main"], "worker-7", True),
        ("b", "failed", words, "t", ["table=t", "catalog=main"], "worker-7", False),
        ("c", "failed", "a task before it failed", "t", ["table=t", "catalog=main"], "worker-7", False),
    ]
    assert len(jobs(linked)) == 3
    report(linked, "the first that reports")
    assert len(jobs(linked)) == 4, "and those before it stay"


def test_a_trace_of_another_form_does_no_harm(linked: Connection) -> None:
    for trace in ("odd", "a/b", "a/b/c/d", "a/b/c/d/e/99999999999999"):
        start_job(linked, JobRun(trace, "flush", trace, trace, "node"), {})
    assert {row[1:] for row in jobs(linked)} == {(0, "running")}


def test_a_second_driver_of_the_same_attempt_takes_its_row_over(linked: Connection) -> None:
    report(linked, "twice")
    start_job(linked, JobRun("other", "flush", "twice", "flush/twice/flush/1", "node-2"), {})
    assert jobs(linked, "job_id, node_id") == [("other", "node-2")]


def test_airflow_can_change_its_tables_all_the_same(linked: Connection) -> None:
    with linked.transaction(force_rollback=True):
        linked.execute("ALTER TABLE airflow.task_instance ALTER COLUMN state TYPE text")
        linked.execute("ALTER TABLE airflow.task_instance_history DROP COLUMN hostname")
        linked.execute("DROP SCHEMA airflow CASCADE")


def test_old_jobs_are_forgotten(linked: Connection) -> None:
    for run_id, days in (("old", 31), ("new", 29)):
        run = report(linked, run_id)
        finish_job(linked, run, Usage(1, 1), result={})
        linked.execute(
            "UPDATE lakefork.job_run SET started_at = now() - make_interval(days => %(d)s), "
            "heartbeat_at = now() - make_interval(days => %(d)s) WHERE run_id = %(r)s",
            {"d": days, "r": run_id},
        )
    add_run(linked, "older")
    add_attempt(linked, "older", "failed")
    linked.execute("UPDATE airflow.task_instance SET start_date = now() - interval '40 days'")
    linked.execute("SELECT lakefork.forget_jobs('30 days')")
    assert jobs(linked, "run_id") == [("new",)]


def test_a_session_sees_the_jobs_of_its_catalog_and_a_user_their_own(lake: SqlLake) -> None:
    name = lake.catalog.name
    with connect(lake.dsn) as connection:
        report(connection, "mine", catalog=name, user_id="ada")
        report(connection, "bobs", catalog=name, user_id="bob")
        report(connection, "others", catalog="other")
        everybody = report(connection, "all", namespace="theirs", table="secret", user_id="carl")
        finish_job(connection, everybody, Usage(1, 1), result={"tables": 99}, error="other.app.t was not published")
        report(connection, "forks", job="fork_provision", parent=name)
        report(connection, "their forks", job="fork_provision", parent="other")
    columns = "run_id, status, namespace, table_name, user_id, parameters, result, error_message"
    query = f"SELECT {columns} FROM system.jobs ORDER BY run_id"
    mine = ("mine", "running", None, None, "ada", [f"catalog={name}", "user_id=ada"], None, None)
    assert [(*row[:5], sorted(row[5] or []), *row[6:]) for row in lake.rows(query)] == [
        ("all", "failed", None, None, None, [], None, "it failed; ask the operator"),
        ("bobs", "running", None, None, "bob", [f"catalog={name}", "user_id=bob"], None, None),
        ("forks", "running", None, None, None, [f"parent={name}"], None, None),
        mine,
    ]
    assert [(*row[:5], sorted(row[5]), *row[6:]) for row in lake.rows(query, user="ada")] == [mine]


def test_ten_thousand_runs_are_read_in_milliseconds(linked: Connection) -> None:
    fill_with_runs(linked, 10_000)
    for query in (
        "SELECT * FROM system.jobs ORDER BY start_time DESC LIMIT 50",
        "SELECT * FROM system.jobs WHERE status = 'running'",
        "SELECT status, count(*) FROM system.jobs GROUP BY 1",
        "SELECT * FROM system.jobs WHERE start_time > now() - interval '1 hour'",
    ):
        assert median_ms(linked, query) < 100, query  # 2 to 6 where nothing else runs


def median_ms(connection: Connection, query: str) -> float:
    times = []
    for _ in range(7):
        started = time.perf_counter()
        connection.execute(query).fetchall()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)
