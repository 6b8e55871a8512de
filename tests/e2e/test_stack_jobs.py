"""system.jobs under a real scheduler: what becomes of an attempt that is killed."""

import httpx
import psutil
import pytest

from stack import Stack, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_driver_that_is_killed_has_failed_and_is_tried_again(stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.token()}"}
    runs = f"{stack.url}/api/v2/dags/catalog_fsck/dagRuns"
    started = httpx.post(
        runs, headers=headers, json={"logical_date": None, "conf": {"catalog": "demo", "deep": True}}, trust_env=False
    ).json()
    run_id = started["dag_run_id"]
    first = wait_until(lambda: stack.jobs(run_id), "begun")[0]
    assert (first["status"], first["end_time"], first["retries"]) == ("running", None, 0)
    assert sorted(first["parameters"]) == ["catalog=demo", "deep=true"], "also before the job itself could say so"
    reported = wait_until(lambda: [one for one in stack.jobs(run_id) if one["memory_used_mb"]], "reported")[0]
    assert reported["status"] == "running" and reported["job_id"].startswith(f"catalog_fsck/{run_id}/")
    for process in drivers(stack, run_id):
        process.kill()
    row = wait_until(lambda: [one for one in stack.jobs(run_id) if one["status"] == "failed"], "failed", 60)[0]
    assert row["retries"] == 0 and row["end_time"] is not None
    assert row["error_message"] == "the process stopped reporting" and row["memory_used_mb"] > 100, (
        "as far as it is known"
    )
    assert [one["status"] for one in stack.jobs(run_id)] == ["failed"], "the next attempt waits"
    task = f"{runs}/{run_id}/taskInstances/catalog_fsck"
    state = httpx.get(task, headers=headers, trust_env=False).json()["state"]
    assert state == "up_for_retry"
    httpx.patch(f"{runs}/{run_id}", headers=headers, json={"state": "failed"}, trust_env=False).raise_for_status()


def drivers(stack: Stack, run_id: str) -> list[psutil.Process]:
    """The JVM of spark-submit and the Python driver below it."""
    return [one for one in stack.processes() if f"--run-id {run_id}" in " ".join(one.cmdline())]
