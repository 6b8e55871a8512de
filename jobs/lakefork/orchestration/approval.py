"""Jobs that can wait for a person: the plan is shown in Airflow, and what is carried out is that plan and no other."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import task

from lakefork.orchestration.defaults import LOOKS_FOR
from lakefork.orchestration.spark_job import LakeforkJobOperator

DAYS_TO_ANSWER = 7


def job_with_approval(job: str, *, is_due: Callable[[Any], bool] = lambda _: True, **arguments: Any) -> None:
    """One task that does it all; or, with require_approval, one that plans, a person, and one that carries it out.

    is_due: whether this run has anything to do; without, all of them are skipped.
    """

    @task.branch(execution_timeout=LOOKS_FOR)  # type: ignore[untyped-decorator]  # Airflow is not typed for us
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
    at_once = LakeforkJobOperator(task_id=job, job=job, **arguments)
    chosen = choose()
    chosen >> at_once
    chosen >> plan >> approve >> carry_out
