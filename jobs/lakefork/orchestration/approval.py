"""Jobs that can wait for approval: Airflow shows the plan, and exactly that plan is carried out."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import task

from lakefork.orchestration.defaults import DUE_CHECK_TIMEOUT
from lakefork.orchestration.spark_job import LakeforkJobOperator

DAYS_TO_ANSWER = 7


def job_with_approval(job: str, *, is_due: Callable[[Any], bool] = lambda _: True, **arguments: Any) -> None:
    """Adds one task that does everything and, for require_approval, tasks that plan, wait for approval and carry out.

    is_due: whether this run has anything to do; if not, all tasks are skipped.
    """

    @task.branch(execution_timeout=DUE_CHECK_TIMEOUT)  # type: ignore[untyped-decorator]  # Airflow is not typed for us
    def choose(params: dict[str, Any], dag_run: Any) -> str | None:
        if not is_due(dag_run):
            return None
        return "plan" if params["require_approval"] and not params["dry_run"] else job

    plan = LakeforkJobOperator(
        task_id="plan", job=job, job_params="{{ dict(params, dry_run=True, require_approval=False) | tojson }}"
    )
    approve = ApprovalOperator(
        task_id="approve",
        subject=f"Carry out this plan of {job}?",
        body="```\n{{ ti.xcom_pull(task_ids='plan')['plan'] }}\n```",
        response_timeout=timedelta(days=DAYS_TO_ANSWER),
        fail_on_reject=False,
    )
    carry_out = LakeforkJobOperator(
        task_id="carry_out",
        job=job,
        job_params="{{ {'plan_id': ti.xcom_pull(task_ids='plan')['plan_id']} | tojson }}",
        **arguments,
    )
    run_directly = LakeforkJobOperator(task_id=job, job=job, **arguments)
    chosen = choose()
    chosen >> run_directly
    chosen >> plan >> approve >> carry_out
