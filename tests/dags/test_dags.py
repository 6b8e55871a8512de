"""Policy for every DAG: it loads, explains itself, has safe defaults, and its form agrees with its job."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError
from airflow.timetables.base import TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from lakefork.catalog.connection import connect
from lakefork.embedded.airflow import EmbeddedAirflow, _connection_json
from lakefork.errors import InvalidInputError
from lakefork.model.params import JOBS, parse_params
from lakefork.orchestration.cleanup import is_cleanup_due
from lakefork.orchestration.dedup import is_dedup_due
from lakefork.orchestration.links import AuditsLink, LakeLink
from lakefork.orchestration.manifests import cron_of
from lakefork.orchestration.params import trigger_form
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.settings import Settings

ROOT = Path(__file__).parents[2]
RUNS_AT_ONCE = {
    "flush": 4,
    "fork_provision": 16,
    "postgres_copy": 4,
    "namespace_backup": 4,
    "namespace_restore": 4,
}  # they share tables by leases, and names by the catalog
BY_HAND = {"fork_provision", "postgres_copy", "namespace_restore"}


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(str(ROOT / "dags"), load_op_links=False)


def test_all_dags_load_quickly_and_are_those_of_the_jobs(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert set(bag.dags) == set(JOBS) == {path.stem for path in (ROOT / "dags").glob("*.py")}
    assert {path.stem for path in (ROOT / "jobs").glob("*.py")} == set(JOBS)
    started = time.process_time()
    DagBag(str(ROOT / "dags"), load_op_links=False)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("dag_id", JOBS)
def test_a_dag_explains_itself(bag: DagBag, dag_id: str) -> None:
    dag = bag.dags[dag_id]
    for word in ("**When:**", "**Params:**", "**When it fails:**"):
        assert word in dag.doc_md, word
    assert dag.description and "lakefork" in dag.tags
    assert len(dag.description) < 100


@pytest.mark.parametrize("dag_id", JOBS)
def test_a_dag_has_safe_defaults(bag: DagBag, dag_id: str) -> None:
    dag = bag.dags[dag_id]
    assert dag.catchup is False
    assert dag.max_active_runs == RUNS_AT_ONCE.get(dag_id, 1)
    for task in dag.tasks:
        assert task.owner == "lakefork"
        assert task.retries >= 1 and task.retry_exponential_backoff
        assert task.execution_timeout is not None or task.task_id not in (dag_id, "due")
        if isinstance(task, LakeforkJobOperator):
            assert task.pool == "lakefork_spark"
            assert Path(task.application).is_file()
            assert all(isinstance(argument, str) for argument in task.application_args)


@pytest.mark.parametrize("dag_id", JOBS)
def test_the_form_agrees_with_the_job(bag: DagBag, dag_id: str) -> None:
    dag = bag.dags[dag_id]
    fields = JOBS[dag_id].model_fields
    assert set(dag.params) == {field.alias or name for name, field in fields.items()}
    for name, field in fields.items():
        assert dag.params.get_param(field.alias or name).description == field.description
    if not any(field.is_required() for field in fields.values()):
        assert parse_params(dag_id, json.dumps(dag.params.dump())) == JOBS[dag_id]()


def test_the_form_refuses_what_the_job_refuses() -> None:
    form = trigger_form(JOBS["catalog_fsck"])
    assert form["catalog"].resolve("main") == "main"
    assert form["catalog"].resolve(None) is None
    assert form["deep"].resolve(True) is True
    for name, value in [("catalog", "a b"), ("catalog", 7), ("deep", "yes"), ("deep", None)]:
        with pytest.raises(ParamValidationError):
            form[name].resolve(value)


@pytest.mark.parametrize(
    ("job", "name", "wrong", "right", "sentence"),
    [
        ("file_cleanup", "older_than", "soon", " 36 Hours", "older_than = 'soon' is not a duration"),
        ("retention_gc", "retain_for", "0d", "7d", "retain_for = '0d' is not a duration"),
        ("fork_provision", "expires_after", "5 parsecs", "5 minutes", "expires_after = '5 parsecs' is not a duration"),
    ],
)
def test_what_is_mistyped_is_refused_before_spark_starts(
    job: str, name: str, wrong: object, right: object, sentence: str
) -> None:
    field = trigger_form(JOBS[job])[name]
    assert field.resolve(right) == right and field.resolve(None) is None
    with pytest.raises(ParamValidationError):
        field.resolve(wrong)
    with pytest.raises(InvalidInputError, match=f"^{job}: {sentence}"):
        parse_params(job, json.dumps({"parent": "p", name: wrong} if job == "fork_provision" else {name: wrong}))


def test_names_of_forks_are_names_of_catalogs() -> None:
    field = trigger_form(JOBS["fork_provision"])["names"]
    assert field.resolve(["ok", "a-b"]) == ["ok", "a-b"]
    with pytest.raises(ParamValidationError):
        field.resolve(["ok", "a b"])


@pytest.mark.parametrize("dag_id", sorted(JOBS.keys() - BY_HAND))
def test_the_first_scheduled_run_is_the_next_one(bag: DagBag, dag_id: str) -> None:
    """A newcomer's stack must not begin with a run that was due before it existed, however shortly."""
    dag = bag.dags[dag_id]
    timetable = getattr(dag.timetable, "timetable", dag.timetable)
    assert dag.start_date is None and timetable.run_immediately == timedelta(0)
    minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    just_missed = CronTriggerTimetable(
        f"{minute_ago.minute} {minute_ago.hour} * * *", timezone="UTC", run_immediately=timetable.run_immediately
    )
    first = just_missed.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(earliest=None, latest=None, catchup=False)
    )
    assert first is not None and first.run_after > datetime.now(UTC) + timedelta(hours=23)


def test_dedup_follows_flush(bag: DagBag) -> None:
    (outlet,) = bag.dags["flush"].get_task("flush").outlets
    assert outlet in bag.dags["snapshot_dedup"].timetable.asset_condition.objects
    assert is_dedup_due(SimpleNamespace(run_type="manual")) and is_dedup_due(SimpleNamespace(run_type="scheduled"))


def test_cleanup_follows_retention(bag: DagBag) -> None:
    for task in ("retention_gc", "carry_out"):
        (outlet,) = bag.dags["retention_gc"].get_task(task).outlets
        assert outlet in bag.dags["file_cleanup"].timetable.asset_condition.objects
    assert bag.dags["retention_gc"].get_task("plan").outlets == []
    assert is_cleanup_due(SimpleNamespace(run_type="manual")) and is_cleanup_due(SimpleNamespace(run_type="scheduled"))


def test_after_retention_cleanup_runs_if_something_is_old_enough(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKEFORK", _connection_json(dsn))
    event = SimpleNamespace(run_type="asset_triggered")
    with connect(dsn) as connection:
        assert not is_cleanup_due(event)
        connection.execute(
            "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (0, 1, 'a', true, now() - interval '23 hours')"
        )
        assert not is_cleanup_due(event), "a reader may still open it"
        connection.execute(
            "UPDATE ducklake_files_scheduled_for_deletion SET schedule_start = now() - interval '25 hours'"
        )
        assert is_cleanup_due(event)


@pytest.mark.parametrize(
    ("params", "address"),
    [
        ({}, ""),
        ({"catalog": "a b", "table": None}, "catalog/a%20b"),
        ({"parent": "demo"}, "catalog/demo"),
        ({"catalog": "demo", "namespace": "web", "table": "x/y"}, "table/demo/web/x%2Fy"),
    ],
)
def test_a_task_links_to_what_it_is_about(params: dict[str, str], address: str) -> None:
    operator = SimpleNamespace(application_args=["--run-id", "r", "--params", json.dumps(params)])
    key = SimpleNamespace(run_id="manual__2026-01-01T00:00:00+00:00")
    assert LakeLink().get_link(operator, ti_key=key).endswith(f"/lakefork/#/{address}")
    assert (
        AuditsLink().get_link(operator, ti_key=key).endswith("#/audits?run=manual__2026-01-01T00%3A00%3A00%2B00%3A00")
    )


@pytest.mark.parametrize(
    ("seconds", "cron"),
    [
        (1, "*/1 * * * *"), (300, "*/5 * * * *"), (301, "*/6 * * * *"), (3600, "0 */1 * * *"), (5000, "0 */2 * * *"),
        (10**6, "0 0 * * *"),
    ],
)  # fmt: skip
def test_eviction_runs_at_its_interval(seconds: int, cron: str) -> None:
    assert cron_of(seconds) == cron


@pytest.mark.parametrize("dag_id", ["retention_gc", "file_cleanup"])
def test_a_person_can_be_asked_first(bag: DagBag, dag_id: str) -> None:
    """The plan is shown, and what is carried out afterwards is that plan."""
    tasks = bag.dags[dag_id].task_dict
    assert tasks["choose"].downstream_task_ids == {dag_id, "plan"}
    assert tasks["plan"].downstream_task_ids == {"approve"}
    assert tasks["approve"].downstream_task_ids == {"carry_out"}
    assert "xcom_pull(task_ids='plan')['plan']" in tasks["approve"].body
    assert "plan_id" in tasks["carry_out"].application_args[-1]
    assert "dry_run=True" in tasks["plan"].application_args[-1]


def test_the_stack_passes_on_where_metrics_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"AIRFLOW__METRICS__STATSD_ON": "True", "LAKEFORK_METRICS__TOKEN": "t", "OTEL_SERVICE_NAME": "lake"}
    for name, value in {**given, "AIRFLOW__CORE__EXECUTOR": "x", "LAKEFORK_DSN": "x"}.items():
        monkeypatch.setenv(name, value)
    stack = EmbeddedAirflow(Settings(home=tmp_path), "host=there port=1 dbname=d")
    environment = stack._environment(8080)
    assert given.items() <= environment.items()
    assert not {"AIRFLOW__CORE__EXECUTOR", "LAKEFORK_DSN"} & environment.keys()
