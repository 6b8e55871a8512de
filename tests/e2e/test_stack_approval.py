"""A person approves a plan in Airflow, and that plan is carried out."""

from typing import Any

import httpx
import pytest

from lakefork.catalog.connection import connect
from support.lake import rows_of
from support.stack import Stack
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_retention_waits_for_approval(stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.token()}"}
    runs = f"{stack.url}/api/v2/dags/retention_gc/dagRuns"
    conf = {"catalog": "demo", "retain_snapshots": 1, "require_approval": True}
    run_id = httpx.post(runs, headers=headers, json={"logical_date": None, "conf": conf}, trust_env=False).json()[
        "dag_run_id"
    ]
    asked = f"{runs}/{run_id}/taskInstances/approve/-1/hitlDetails"

    def question() -> dict[str, Any] | None:
        found = httpx.get(asked, headers=headers, trust_env=False)
        return found.json() if found.is_success else None

    detail = wait_until(question, "asked", 240)
    assert detail["subject"] == "Carry out this plan of retention_gc?"
    assert "demo: keeps snapshots from" in detail["body"]
    with connect(stack.dsn) as connection:
        assert rows_of(connection, "SELECT begun_at FROM lakefork.plan") == [(None,)], "nothing happens before"
    answer = {"chosen_options": ["Approve"], "params_input": {}}
    httpx.patch(asked, headers=headers, json=answer, trust_env=False).raise_for_status()
    stack.client.wait_for_run("retention_gc", run_id, lambda _: None)
    with connect(stack.dsn) as connection:
        ((plan_id, done),) = rows_of(connection, "SELECT plan_id, done_at IS NOT NULL FROM lakefork.plan")
        assert done and plan_id in detail["body"]
        assert rows_of(connection, "SELECT count(*) FROM lakefork.retained_from") == [(1,)]
