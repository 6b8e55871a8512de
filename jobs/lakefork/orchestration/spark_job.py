"""The task that runs a Lakefork job: a SparkSubmitOperator that knows where job, library and database are."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from lakefork.durations import duration_text, seconds_of
from lakefork.orchestration.database import CONNECTION, catalog_dsn
from lakefork.orchestration.links import AuditsLink, LakeLink
from lakefork.settings import load_settings
from lakefork.spark.submit import CONF, JOBS_DIR, packaged_library, quick_start

SPARK_CONNECTION = "spark_default"
SPARK_POOL = "lakefork_spark"
NICE = 10  # on a machine that Spark shares with Airflow and Postgres, upkeep waits for those who serve people


def _timeout() -> timedelta:
    return timedelta(seconds=seconds_of(load_settings().jobs.timeout, "jobs.timeout"))


@contextmanager
def _own_environment(**variables: str) -> Iterator[None]:
    """For spark-submit, which inherits it. The hook would make arguments of YARN's and Kubernetes' env_vars."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


class LakeforkJobOperator(SparkSubmitOperator):  # type: ignore[misc]  # Airflow is not typed for us
    """Runs jobs/<job>.py with the run's params, or others; returns the result that the job reported."""

    env_vars: dict[str, str]

    def __init__(self, *, job: str, job_params: str = "{{ params | tojson }}", **arguments: Any) -> None:
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
        self.operator_extra_links = (LakeLink(), AuditsLink()) if job == "flush" else (LakeLink(),)

    def execute(self, context: Any) -> Any:
        os.nice(NICE)
        database = PostgresHook(postgres_conn_id=CONNECTION)
        self.env_vars = {**self.env_vars, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        self.py_files = str(packaged_library())
        try:
            with quick_start() as conf, _own_environment(LAKEFORK_DSN=catalog_dsn()):
                self.conf = conf
                super().execute(context)
        # The log ends with the one line that matters, not with what led to it: that is above.
        except AirflowTaskTimeout:
            raise AirflowTaskTimeout(f"{self.job} failed: {self._report_timeout(database)}") from None
        except Exception:
            report = self._report(database)
            if report is None or report["error"] is None:  # a driver that was killed could not say
                raise
            can_succeed = report["retryable"] is not False
            failure = AirflowException if can_succeed else AirflowFailException
            raise failure(f"{self.job} failed: {report['error']}") from None
        report = self._report(database)
        return report["result"] if report else None

    def _report_timeout(self, database: PostgresHook) -> str:
        """In the place of the job, which is stopped and cannot say it."""
        limit = duration_text(int(self.execution_timeout.total_seconds()))
        problem = f"it timed out after {limit} and was stopped; the setting jobs.timeout says how long it may take"
        database.run("SELECT lakefork.fail_attempt(%s, %s)", parameters=(self.env_vars["LAKEFORK_TRACE"], problem))
        return problem

    def _report(self, database: PostgresHook) -> dict[str, Any] | None:
        """What this attempt of the job said of itself."""
        row = database.get_first(
            "SELECT result, error, retryable FROM lakefork.job_run WHERE trace = %s ORDER BY started_at DESC LIMIT 1",
            parameters=(self.env_vars["LAKEFORK_TRACE"],),
        )
        return dict(zip(("result", "error", "retryable"), row, strict=True)) if row else None
