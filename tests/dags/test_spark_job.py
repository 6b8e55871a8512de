"""The task that runs a job: where its secrets go, and its message when the job fails."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout
from psycopg.conninfo import conninfo_to_dict

from lakefork.catalog.connection import Connection
from lakefork.catalog.jobs import JobRun, start_job
from lakefork.catalog.leases import Leases
from lakefork.embedded.airflow import _connection_json
from lakefork.orchestration.spark_job import LakeforkJobOperator
from support.lake import rows_of

TRACE = "catalog_fsck/r/catalog_fsck/1"
# Stands for Spark's own: writes down what it got, and runs the driver, or does what it is told to.
SPARK_SUBMIT = """#!{python}
import os, subprocess, sys, time
seen = open({seen!r}, "w")
print(*sys.argv, sep="\\n", file=seen)
print(os.environ["LAKEFORK_DSN"], file=seen, flush=True)
print("exit code: 0", flush=True)
if {seconds}:
    time.sleep({seconds})
elif {run}:
    sys.exit(subprocess.call([sys.executable, *sys.argv[sys.argv.index("--run-id") - 1:]]))
"""
Task = Callable[..., LakeforkJobOperator]


@pytest.fixture
def task(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """A task of catalog_fsck, as rendered; nothing of it makes this process nice."""

    def make(
        *, master: str = "local[1]", params: str = "{}", seconds: int = 0, run: bool = True
    ) -> LakeforkJobOperator:
        script = tmp_path / "spark-submit"
        script.write_text(
            SPARK_SUBMIT.format(python=sys.executable, seen=str(tmp_path / "seen"), seconds=seconds, run=run)
        )
        script.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("AIRFLOW_CONN_LAKEFORK", _connection_json(dsn))
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
        monkeypatch.delenv("LAKEFORK_DSN", raising=False)
        monkeypatch.setattr(os, "nice", lambda _: 0)
        monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)  # a provider that is not installed
        task = LakeforkJobOperator(task_id="catalog_fsck", job="catalog_fsck", execution_timeout=timedelta(hours=6))
        task.application_args = ["--run-id", "r", "--params", params]
        task.env_vars = {"LAKEFORK_TRACE": TRACE}
        made.append(task)
        return task

    made: list[LakeforkJobOperator] = []
    yield make
    for one in made:
        process = one._hook._submit_sp  # the hook leaves its stream open
        process.kill()
        process.wait()
        process.stdout.close()


def reported(connection: Connection) -> list[tuple[object, ...]]:
    return rows_of(connection, "SELECT status, error, retryable FROM lakefork.job_run")


@pytest.mark.parametrize("master", ["local[1]", "spark://there:7077", "yarn", "k8s://https://there:6443"])
def test_the_password_reaches_the_driver_by_no_argument(
    task: Task, dsn: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], master: str
) -> None:
    task(master=master, run=False).execute({})
    password = str(conninfo_to_dict(dsn)["password"])
    *arguments, given = (tmp_path / "seen").read_text().splitlines()
    assert master in arguments and password in given
    assert password not in " ".join(arguments) and "LAKEFORK_DSN" not in " ".join(arguments)
    assert "LAKEFORK_DSN" not in os.environ
    assert password not in "".join(capfd.readouterr())


def test_refused_parameters_are_reported_and_not_tried_again(task: Task, connection: Connection) -> None:
    sentence = "catalog_fsck: unknown parameter 'depe'; parameters: catalog, deep"
    with pytest.raises(AirflowFailException, match=sentence):
        task(params='{"depe": true}').execute({})
    assert reported(connection) == [("failed", sentence, False)]


def test_a_lease_that_another_holds_is_reported_and_waited_for(
    task: Task, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEFORK_JOBS__LEASE_SECONDS", "5")
    Leases("somebody else", 600).take(connection, "catalog_fsck/*")
    with pytest.raises(AirflowException, match=r"^catalog_fsck failed: .* is being worked on by somebody") as failure:
        task().execute({})
    assert not isinstance(failure.value, AirflowFailException), "Airflow tries again"
    ((status, error, retryable),) = reported(connection)
    assert (status, retryable) == ("failed", True)
    assert str(error).startswith("catalog_fsck/* is being worked on by somebody else since ")


def test_a_timeout_is_reported(task: Task, connection: Connection) -> None:
    start_job(connection, JobRun("j", "catalog_fsck", "r", TRACE, "n"), {})
    slow = task(seconds=60)
    words = "it timed out after 6h and was stopped (setting jobs.timeout)"
    with pytest.raises(AirflowTaskTimeout, match=f"catalog_fsck failed: {re.escape(words)}"), timeout(2):
        slow.execute({})
    assert reported(connection) == [("failed", words, True)]


def test_connections_are_named_in_params_and_reach_the_driver_by_environment(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_1", _connection_json(dsn))
    task = LakeforkJobOperator(task_id="postgres_copy", job="postgres_copy", connections=("source", "target"))
    task.application_args = ["--params", '{"source": "shop_1", "into": "main"}']
    (variable, found), *others = task._named_dsns().items()
    assert variable == "LAKEFORK_CONNECTIONS__SHOP_1" and not others
    assert conninfo_to_dict(found)["password"] == conninfo_to_dict(dsn)["password"]
