"""The task that runs a Lakefork job: a SparkSubmitOperator with the paths of job and library, and the DSN."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from lakefork.model.durations import duration_text, seconds_of
from lakefork.orchestration.database import CONNECTION, catalog_dsn, named_dsns
from lakefork.orchestration.links import AuditsLink, LakeLink
from lakefork.settings import load_settings
from lakefork.spark.submit import CONF, JOBS_DIR, packaged_library, quick_start

SPARK_CONNECTION = "spark_default"
SPARK_POOL = "lakefork_spark"
NICE = 10  # Airflow and Postgres, which serve people, go first on a shared machine


def _timeout() -> timedelta:
    return timedelta(seconds=seconds_of(load_settings().jobs.timeout, "jobs.timeout"))


@contextmanager
def _own_environment(**variables: str) -> Iterator[None]:
    """Sets variables for spark-submit, which inherits them; the hook would pass env_vars as arguments on YARN and
    Kubernetes.
    """
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


class LakeforkJobOperator(SparkSubmitOperator):  # type: ignore[misc]  # Airflow is not typed for us
    """Runs jobs/<job>.py with the run's params or with job_params, and returns the result that the job reported."""

    env_vars: dict[str, str]

    def __init__(
        self,
        *,
        job: str,
        job_params: str = "{{ params | tojson }}",
        connections: Iterable[str] = (),
        **arguments: Any,
    ) -> None:
        """connections: params that name Airflow connections, which the job finds in its environment."""
        super().__init__(
            application=str(JOBS_DIR / f"{job}.py"),
            name=f"{job} {{{{ run_id }}}}",
            conn_id=SPARK_CONNECTION,
            pool=SPARK_POOL,
            conf=dict(CONF),
            application_args=["--run-id", "{{ run_id }}", "--params", job_params],
            env_vars={"LAKEFORK_TRACE": "{{ dag.dag_id }}/{{ run_id }}/{{ task.task_id }}/{{ ti.try_number }}"},
            **{"execution_timeout": _timeout(), **arguments},
        )
        self.job = job
        self.connections = tuple(connections)
        self.operator_extra_links = (LakeLink(), AuditsLink()) if job == "flush" else (LakeLink(),)

    def execute(self, context: Any) -> Any:
        os.nice(NICE)
        database = PostgresHook(postgres_conn_id=CONNECTION)
        self.env_vars = {**self.env_vars, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        self.py_files = str(packaged_library())
        try:
            with quick_start() as conf, _own_environment(LAKEFORK_DSN=catalog_dsn(), **self._named_dsns()):
                self.conf = conf
                super().execute(context)
        # The log ends with the one line that matters; the details are above it.
        except AirflowTaskTimeout:
            raise AirflowTaskTimeout(f"{self.job} failed: {self._report_timeout(database)}") from None
        except Exception:
            report = self._report(database)
            if report is None or report["error"] is None:  # a killed driver cannot report
                raise
            can_succeed = report["retryable"] is not False
            failure = AirflowException if can_succeed else AirflowFailException
            raise failure(f"{self.job} failed: {report['error']}") from None
        report = self._report(database)
        return report["result"] if report else None

    def _named_dsns(self) -> dict[str, str]:
        params = json.loads(self.application_args[-1])
        return named_dsns(name for name in (params.get(param) for param in self.connections) if name)

    def _report_timeout(self, database: PostgresHook) -> str:
        """Records the timeout on behalf of the stopped job."""
        limit = duration_text(int(self.execution_timeout.total_seconds()))
        problem = f"it timed out after {limit} and was stopped (setting jobs.timeout)"
        database.run("SELECT lakefork.fail_attempt(%s, %s)", parameters=(self.env_vars["LAKEFORK_TRACE"], problem))
        return problem

    def _report(self, database: PostgresHook) -> dict[str, Any] | None:
        """Returns what this attempt of the job reported."""
        row = database.get_first(
            "SELECT result, error, retryable FROM lakefork.job_run WHERE trace = %s ORDER BY started_at DESC LIMIT 1",
            parameters=(self.env_vars["LAKEFORK_TRACE"],),
        )
        return dict(zip(("result", "error", "retryable"), row, strict=True)) if row else None
