"""system.jobs under a real scheduler: what becomes of attempts that are killed, take too long, or lose their scheduler."""

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from lakefork.catalog.connection import connect
from support.stack import JOB_TIMEOUT_SECONDS, Stack
from support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_driver_that_is_killed_has_failed_and_is_tried_again(stack: Stack) -> None:
    with check_blocked(stack):
        run_id = start_fsck(stack)
        first = wait_until(lambda: stack.jobs(run_id), "begun")[0]
        assert (first["status"], first["end_time"], first["retries"]) == ("running", None, 0)
        assert sorted(first["parameters"]) == ["catalog=demo", "deep=true"], "also before the job itself could say so"
        reported = wait_until(lambda: [one for one in stack.jobs(run_id) if one["memory_used_mb"]], "reported")[0]
        assert reported["status"] == "running" and reported["job_id"].startswith(f"catalog_fsck/{run_id}/")
        seen = [" ".join(process.cmdline()) for process in stack.processes()]
        assert any(run_id in command for command in seen), "the driver is among them"
        assert not [name for name, secret in stack.secrets.items() if secret in " ".join(seen)], "no secret in ps"
        for process in drivers(stack, run_id):
            process.kill()
    row = wait_until(lambda: [one for one in stack.jobs(run_id) if one["status"] == "failed"], "failed", 60)[0]
    assert row["retries"] == 0 and row["end_time"] is not None
    assert row["error_message"] == "the process stopped reporting" and row["memory_used_mb"] > 100, (
        "as far as it is known"
    )
    assert [one["status"] for one in stack.jobs(run_id)] == ["failed"], "the next attempt waits"
    assert ask(stack, "GET", f"/{run_id}/taskInstances/catalog_fsck")["state"] == "up_for_retry"
    ask(stack, "PATCH", f"/{run_id}", {"state": "failed"})


def test_a_job_that_takes_too_long_is_stopped_and_has_failed(stack: Stack) -> None:
    with check_blocked(stack):
        run_id = start_fsck(stack, "main")
        wait_until(lambda: [one for one in stack.jobs(run_id) if one["memory_used_mb"]], "reported")
        (row,) = wait_until(
            lambda: [one for one in stack.jobs(run_id) if one["status"] == "failed"], "failed", JOB_TIMEOUT_SECONDS + 60
        )
        assert row["retries"] == 0 and row["memory_used_mb"] > 50
        assert row["error_message"].startswith(f"it timed out after {JOB_TIMEOUT_SECONDS}s and was stopped")
        wait_until(lambda: not drivers(stack, run_id), "gone: no driver goes on without its JVM", 20)
    assert "Timeout" in stack.task_log(run_id)
    ask(stack, "PATCH", f"/{run_id}", {"state": "failed"})


def test_a_scheduler_that_is_killed_comes_back_and_the_work_gets_done(stack: Stack) -> None:
    with check_blocked(stack):
        run_id = start_fsck(stack, "shop")
        wait_until(lambda: [one for one in stack.jobs(run_id) if one["memory_used_mb"]], "reported")
        schedulers = stack.processes("airflow scheduler")
        assert schedulers
        for process in schedulers:
            process.kill()
        wait_until(lambda: stack.client.missing_components() == [], "a scheduler again", 120)
    wait_until(lambda: ask(stack, "GET", f"/{run_id}")["state"] in ("success", "failed"), "ended", 240)
    statuses = [one["status"] for one in stack.jobs(run_id)]
    assert statuses.count("completed") == 1 and "running" not in statuses, statuses
    wait_until(lambda: not drivers(stack, run_id), "gone", 20)


def start_fsck(stack: Stack, catalog: str = "demo") -> str:
    """Of another catalog in each test: a driver that was killed keeps its lease for a minute."""
    conf = {"catalog": catalog, "deep": True}
    return str(ask(stack, "POST", "", {"logical_date": None, "conf": conf})["dag_run_id"])


def ask(stack: Stack, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Airflow's API, about runs of catalog_fsck."""
    url = f"{stack.url}/api/v2/dags/catalog_fsck/dagRuns{path}"
    headers = {"Authorization": f"Bearer {stack.token()}"}
    return httpx.request(method, url, headers=headers, json=body, trust_env=False).raise_for_status().json()


@contextlib.contextmanager
def check_blocked(stack: Stack) -> Iterator[None]:
    """As long as this lasts, a check of the catalog does not end; other jobs need no views."""
    with connect(stack.dsn) as connection, connection.transaction():
        connection.execute("LOCK TABLE public.ducklake_view IN ACCESS EXCLUSIVE MODE")
        yield


def drivers(stack: Stack, run_id: str) -> list[psutil.Process]:
    """The JVM of spark-submit and the Python driver below it."""
    return stack.processes(f"--run-id {run_id}")
