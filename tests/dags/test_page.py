"""The page's app alone: its answers to users who are not logged in."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakefork.embedded.airflow import _connection_json
from lakefork.settings import load_settings
from support.sql_lake import open_lake

pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx`")  # what Airflow does with Starlette
Get = Callable[..., httpx.Response]
HOSTILE = "/web/%22%3E%3Cimg%20src=x%20onerror=alert(1)%3E"


@pytest.fixture(scope="module")
def get() -> Get:
    sys.path.append(str(Path(__file__).parents[2] / "plugins"))
    from lakefork_page.app import app

    async def ask(path: str, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client:
            return await client.get(path, headers=headers)

    return lambda path, **headers: asyncio.run(ask(path, headers))


@pytest.mark.parametrize("path", ["/", HOSTILE, "/web/app.js", "/api/me", "/metrics", "/nothing"])
def test_no_answer_can_run_a_script_from_elsewhere(get: Get, path: str) -> None:
    for accept in ("text/html", "application/json"):
        answer = get(path, Accept=accept)
        assert answer.status_code in (401, 404)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_scraper_has_a_token(get: Get, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakefork_page.database import _pool

    monkeypatch.setenv("AIRFLOW_CONN_LAKEFORK", _connection_json(dsn))
    monkeypatch.setenv("LAKEFORK_METRICS__TOKEN", "let-me-in")
    load_settings.cache_clear()
    right = get("/metrics", Authorization="Bearer let-me-in")
    load_settings.cache_clear()
    _pool().close()
    _pool.cache_clear()
    assert right.status_code == 200 and "lakefork_catalogs 0" in right.text
    assert get("/metrics").status_code == 401


def test_the_way_to_the_login_holds_nothing_but_an_address(get: Get) -> None:
    answer = get(HOSTILE, Accept="text/html")
    assert answer.status_code == 401 and "<img" not in answer.text
    assert 'login?next=/web/%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E"' in answer.text


@pytest.fixture
def ask_as(get: Get, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """Asks as somebody with a role of Airflow's own user management."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    from lakefork_page.app import app
    from lakefork_page.database import _pool

    monkeypatch.setenv("AIRFLOW_CONN_LAKEFORK", _connection_json(dsn))
    create_auth_manager()

    def ask(role: str, path: str) -> Any:
        app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username=role, role=role)
        answer = get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    with open_lake(dsn, tmp_path, load_settings()) as lake:
        lake.run(
            "CREATE NAMESPACE app; CREATE TABLE app.t (id TEXT PRIMARY KEY); INSERT INTO app.t VALUES ('least-key'), ('most-key')"
        )
        lake.flush_by_hand("app.t")
        yield ask
    app.dependency_overrides.clear()
    _pool().close()
    _pool.cache_clear()


@pytest.mark.parametrize(
    ("role", "bounds"),
    [
        ("VIEWER", (None, None)),
        ("USER", (None, None)),
        ("OP", ("least-key", "most-key")),
        ("ADMIN", ("least-key", "most-key")),
    ],
)
def test_keys_of_rows_are_shown_to_those_who_may_read_rows(
    ask_as: Callable[[str, str], Any], role: str, bounds: tuple[str | None, str | None]
) -> None:
    found = ask_as(role, "/api/table?catalog=main&namespace=app&table=t")
    assert [(batch["low"], batch["high"], batch["rows"]) for batch in found["batches"]] == [(*bounds, 2)]
    assert found["shows_bounds"] is (bounds[0] is not None)
    if bounds[0] is None:
        for path in (
            "/api/status",
            "/api/overview",
            "/api/tables?catalog=main",
            "/api/catalogs",
            "/api/runs",
            "/api/gc",
            "/api/copies",
        ):
            assert "least-key" not in str(ask_as(role, path))
