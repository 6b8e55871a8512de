"""The Lakefork page as people use it: in a browser, logged in, and only as far as they may."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from lakefork.model.params import JOBS
from support.browser import CHROMIUM, Page, open_page
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
VIEWS = {
    "overview": ("", "demo"),
    "catalogs": ("catalogs", "demo"),
    "catalog": ("catalog/demo", "web.messages"),
    "table": ("table/demo/web/messages", "AT (VERSION =>"),
    "forks": ("forks", "own"),
    "runs": ("runs", "catalog_fsck"),
    "audits": ("audits", "passed"),
    "gc": ("gc", "No files deleted yet"),
}
DRAWN = {"overview": ("rect.bars", "circle.dot"), "table": ("rect.batch",)}  # what pictures are made of
READY = "document.getElementById('view')?.getAttribute('aria-busy') === 'false'"


@pytest.fixture(scope="module", autouse=True)
def history(stack: Stack) -> str:
    """Started again, as `make up` does it: the demo gets forks, merged batches and a backlog."""
    up = stack.lakefork("stack", "up")
    assert up.returncode == 0, up.stdout + up.stderr
    return up.stdout


def test_a_newcomer_finds_tenants_forks_a_backlog_and_a_history(stack: Stack, history: str) -> None:
    assert f"you can log in at {stack.url} as admin" in history and "demo: some rows wait for the next flush" in history
    assert "[###############.....]  75% snapshot_dedup, DAG run 4 of 4" in history
    overview = stack.get("/lakefork/api/overview").json()
    assert overview["totals"]["catalogs"] >= 7 and overview["totals"]["forks"] >= 3
    assert {row["catalog"] for row in overview["waiting"]} >= {"shop", "sensors"}
    for job in ("flush", "fork_provision", "snapshot_dedup"):
        assert stack.get(f"/lakefork/api/runs?job={job}&status=completed").json()["rows"], job
    again = stack.lakefork("stack", "up")
    assert "login: admin" in again.stdout and "DAG run" not in again.stdout, "made once"


def test_nobody_sees_anything_without_a_login(stack: Stack) -> None:
    for path in (
        "",
        "web/app.js",
        "api/me",
        "api/overview",
        "api/table?catalog=demo&namespace=web&table=views",
        "metrics",
        "openapi.json",
    ):
        answer = stack.get(f"/lakefork/{path}", user=None)
        assert answer.status_code == 401, path
        assert "demo" not in answer.text
    wrong = httpx.get(f"{stack.url}/lakefork/metrics", headers={"Authorization": "Bearer wrong"}, trust_env=False)
    assert wrong.status_code in (401, 403) and "lakefork_" not in wrong.text
    page = stack.get("/lakefork/", user=None, Accept="text/html")
    assert page.status_code == 401 and "/auth/login?next=/lakefork/" in page.text


def test_a_viewer_looks_and_starts_nothing(stack: Stack) -> None:
    assert stack.get("/lakefork/api/me", "viewer").json()["may_trigger"] == []
    assert set(stack.get("/lakefork/api/me").json()["may_trigger"]) == set(JOBS)
    assert stack.get("/lakefork/api/overview", "viewer").status_code == 200
    path = "/lakefork/api/table?catalog=demo&namespace=web&table=messages"
    assert {batch["low"] for batch in stack.get(path, "viewer").json()["batches"]} == {None}, "keys are of rows"
    assert None not in {batch["low"] for batch in stack.get(path).json()["batches"]}
    refused = httpx.post(
        f"{stack.url}/api/v2/dags/flush/dagRuns", json={"logical_date": None, "conf": {}},
        headers={"Authorization": f"Bearer {stack.token('viewer')}"}, trust_env=False,
    )  # fmt: skip
    assert refused.status_code == 403


def test_the_answers_are_right_and_hold_no_secret(stack: Stack) -> None:
    overview = stack.get("/lakefork/api/overview").json()
    assert overview["totals"]["catalogs"] >= 2 and {row["job"] for row in overview["jobs"]} == set(JOBS)
    assert [row["next_run"] for row in overview["jobs"] if row["job"] == "flush"] != [None], "as Airflow planned it"
    status = stack.get("/lakefork/api/status").json()
    assert {"demo", "main"} <= {catalog["name"] for catalog in status["catalogs"]}
    table = stack.get("/lakefork/api/table?catalog=demo&namespace=web&table=messages").json()
    assert {batch["user_id"] for batch in table["batches"]} == {"ada", "bob", "eve"}
    assert [point for point in stack.get("/lakefork/api/flushed?span=6h").json()["points"] if point["waited_seconds"]]
    metrics = stack.get("/lakefork/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'lakefork_job_attempts{job="flush",status="completed"}' in metrics.text
    for text in (str(overview), str(status), str(table), metrics.text):
        assert not [name for name, secret in stack.secrets.items() if secret in text]
    pool = stack.get("/api/v2/pools/lakefork_spark").json()
    assert pool["slots"] == 1
    assert {dag["dag_id"] for dag in stack.get("/api/v2/dags").json()["dags"]} == set(JOBS), "ours and no examples"


@pytest.mark.parametrize(
    "path",
    [
        "api/table?catalog=nope&namespace=a&table=b", "api/table?catalog=demo&namespace=web&table=nope", "api/table",
        "api/tables?catalog=%00", "api/table?catalog=demo&namespace=web&table=views&snapshot=-1", "api/flushed?span=1y",
        "api/table?catalog=demo&namespace=web&table=views&snapshot=99999999999999999999", "api/runs?before=yesterday",
        "api/catalogs?search=" + "x" * 301, "web/..%2Fapp.py", "web/nope.js", "api/reclaim?catalog='; DROP TABLE x; --",
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_politely(stack: Stack, path: str) -> None:
    answer = stack.get(f"/lakefork/{path}")
    assert 400 <= answer.status_code < 500, answer.text
    assert "Traceback" not in answer.text


def test_no_question_breaks_it(stack: Stack) -> None:
    description = schemathesis.openapi.from_dict(stack.get("/lakefork/openapi.json").json())
    operations = [found.ok() for found in description.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/api/overview", "/api/table", "/metrics"}
    for operation in operations:
        _ask_anything(stack, operation)


def _ask_anything(stack: Stack, operation: Any) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(
            base_url=f"{stack.url}/lakefork",
            headers={"Authorization": f"Bearer {stack.token('admin')}"},
            checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance],
        )

    ask()


def test_a_task_has_a_button_that_leads_to_the_page(stack: Stack) -> None:
    tasks = stack.get("/api/v2/dags/flush/dagRuns/~/taskInstances?state=success&task_id=flush").json()["task_instances"]
    run_id = tasks[0]["dag_run_id"]
    links = stack.get(f"/api/v2/dags/flush/dagRuns/{run_id}/taskInstances/flush/links").json()["extra_links"]
    assert links["Audits"].startswith(f"{stack.url}/lakefork/#/audits?run=")
    assert links["Lakefork"].startswith(f"{stack.url}/lakefork/#/")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are kept; SCREENSHOT_DIR says where else."""
    path = Path(os.environ.get("SCREENSHOT_DIR") or tmp_path_factory.mktemp("screenshots"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def show(page: Page, stack: Stack, view: str, user: str = "admin") -> None:
    page.cookie(stack.url, "_token", stack.token(user))
    page.open("about:blank")
    page.open(f"{stack.url}/lakefork/#/{view}")
    page.wait_for(READY)


@needs_chromium
@pytest.mark.parametrize("name", VIEWS)
def test_each_view_is_complete(stack: Stack, page: Page, screenshots: Path, name: str) -> None:
    view, expected = VIEWS[name]
    page.size(1280, 1000)
    page.prefer("light")
    show(page, stack, view)
    assert expected in page.text("main")
    assert page.evaluate("document.querySelectorAll('.problem').length") == 0
    for mark in DRAWN.get(name, ()):
        assert page.evaluate(f"document.querySelectorAll('svg {mark}').length") >= 1, mark
    assert len(page.screenshot(screenshots / f"{name}.png")) > 10_000, "an empty page is smaller"
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith((stack.url, "data:", "about:"))] == [], (
        "nothing from elsewhere"
    )


@needs_chromium
def test_errors_are_shown_on_the_page(stack: Stack, page: Page) -> None:
    for view, words in {
        "catalog/%": "This address is malformed.",
        "catalog/nobody": "catalog 'nobody' does not exist",
    }.items():
        show(page, stack, view)
        assert words in page.text(".problem")
    show(page, stack, "catalogs")
    page.evaluate("window.fetch = () => Promise.reject(new Error('the network is away'))")
    page.evaluate("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
    page.wait_for("document.querySelector('.problem')?.innerText === 'the network is away'")
    assert page.evaluate("document.querySelectorAll('tbody tr').length") >= 1, "what was there stays"
    page.problems.clear()


@needs_chromium
def test_forks_are_found_by_name_and_a_new_one_gets_a_free_name(stack: Stack, page: Page) -> None:
    show(page, stack, "forks?search=AGENT")
    assert "from demo" in page.text("main") and "shop" not in page.text("main")
    show(page, stack, "catalog/demo")
    page.evaluate("[...document.querySelectorAll('button')].find((one) => one.innerText === 'Fork').click()")
    prefix = page.wait_for("document.querySelector('dialog[open] #start-name_prefix')?.value")
    assert re.fullmatch(r"demo_\d{8}T\d{6}_", prefix)
    assert page.problems == []


@needs_chromium
def test_it_is_usable_on_a_telephone_in_the_dark_and_by_keyboard(stack: Stack, page: Page, screenshots: Path) -> None:
    page.size(390, 800)
    page.prefer("light")
    show(page, stack, "")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "only tables scroll sideways"
    page.prefer("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.screenshot(screenshots / "narrow-dark.png")
    page.key("2")
    page.wait_for("document.title.startsWith('catalogs')")
    page.key("/")
    assert page.evaluate("document.activeElement.type") in ("search", "text")
    for key in "dem":
        page.key(key)
    page.wait_for("document.querySelectorAll('tbody tr').length >= 1 && !document.body.innerText.includes('main')")
    assert page.problems == []


@needs_chromium
def test_a_button_starts_a_run_with_its_parameters(stack: Stack, page: Page, screenshots: Path) -> None:
    page.size(1280, 800)
    page.prefer("light")
    show(page, stack, "catalog/main", "viewer")
    assert page.evaluate("document.querySelectorAll('main button').length") == 0 and "read only" in page.text("header")
    show(page, stack, "catalog/main")
    page.evaluate("[...document.querySelectorAll('button')].find((one) => one.innerText === 'Check').click()")
    page.wait_for("document.querySelector('dialog[open]') !== null")
    page.screenshot(screenshots / "start.png")
    page.click("dialog button.main")
    run_id = page.wait_for("document.querySelector('dialog a[href*=runs]')?.innerText")
    run = stack.get(f"/api/v2/dags/catalog_fsck/dagRuns/{run_id}").json()
    assert run["conf"] == {"catalog": "main", "deep": True}
    assert run["triggering_user_name"] == "admin"
    assert page.problems == []


@needs_chromium
def test_it_is_a_page_of_airflow(stack: Stack, page: Page, screenshots: Path) -> None:
    page.size(1280, 800)
    page.cookie(stack.url, "_token", stack.token())
    page.open(f"{stack.url}/plugin/lakefork")
    page.wait_for(
        "document.querySelector('iframe')?.contentDocument?.body?.innerText.includes('Waiting for a flush')", 30
    )
    page.screenshot(screenshots / "airflow.png")
    page.evaluate("document.querySelector('iframe').contentWindow.location.hash = '#/runs'")
    page.wait_for("document.querySelector('iframe').contentDocument.querySelector('td.buttons a') !== null")
    page.evaluate("document.querySelector('iframe').contentDocument.querySelector('td.buttons a').click()")
    page.wait_for("location.pathname.includes('/tasks/')")
