"""Every status code, each with a code and a message."""

import threading
import time
from pathlib import Path

import httpx
import pytest

from lakefork.server.admission import Admission
from lakefork.server.metrics import Metrics
from lakefork.settings import ServerSettings
from support.api_server import ApiServer
from support.sql_lake import SqlLake

SLOW = "SELECT sum(sin(a.i + b.i)) FROM range(10000000) a(i), range(1000) b(i)"


def check(answer: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["status"] == "error"
    assert found["results"] == [] or status in (400, 403, 409, 504)
    assert found["error"]["code"] == code
    assert found["error"]["message"]
    assert "\n" not in found["error"]["message"]
    return dict(found)


def test_200(api: ApiServer, alice: str, ns: str) -> None:
    answer = api.post(f"INSERT INTO {ns}.mine VALUES (1, 'x'); SELECT id, v FROM {ns}.mine; SHOW NAMESPACES", alice)
    assert answer.status_code == 200
    found = answer.json()
    assert found["status"] == "success"
    insert, select, show = found["results"]
    assert insert == {"statement": f"INSERT INTO {ns}.mine VALUES (1, 'x')", "affected_rows": 1}
    assert select == {
        "statement": f"SELECT id, v FROM {ns}.mine", "columns": ["id", "v"], "rows": [[1, "x"]], "row_count": 1,
    }  # fmt: skip
    assert ns in [row[0] for row in show["rows"]]
    assert isinstance(found["execution_time_ms"], int)


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"[]", "JSON object"), (b'"x"', "JSON object"), (b"{}", "sql must be"),
        (b'{"sql": 1}', "sql must be"), (b'{"sql": null}', "sql must be"), (b'{"sql": "SELECT 1", "params": {}}', "params"),
        (b'{"sql": "SELECT 1", "namespace": 7}', "namespace"), (b'{"sql": "SELECT 1", "x": 1}', "'x'"),
        (b'{"sql": "SELECT ?", "params": [NaN]}', "NaN"), (b'{"sql": "\xff"}', "UTF-8"),
        (b'{"sql": "SELECT 1"} x', "not JSON"), ('{"sql": "SELECT 1"}'.encode("utf-16"), "UTF-8"),
    ],
)  # fmt: skip
def test_400_for_requests_that_make_no_sense(api: ApiServer, alice: str, body: bytes, about: str) -> None:
    answer = api.http.post("/api/sql", content=body, headers={"Authorization": f"Bearer {alice}"})
    assert about in check(answer, 400, "bad_request")["error"]["message"]  # type: ignore[index]


def test_400_for_mistakes_in_sql_with_their_place_and_what_was_done_before(api: ApiServer, alice: str, ns: str) -> None:
    found = check(api.post(f"INSERT INTO {ns}.mine (v) VALUES ('a');\n SELEC 1", alice), 400, "syntax_error")
    assert found["error"]["line"] == 2  # type: ignore[index]
    assert found["error"]["column"] == 2  # type: ignore[index]
    assert found["results"] == [{"statement": f"INSERT INTO {ns}.mine (v) VALUES ('a')", "affected_rows": 1}]
    check(api.post("SELECT * FROM nowhere.t", alice), 400, "not_found")
    check(api.post("SELECT ?", alice), 400, "invalid_input")
    check(api.post("SELECT 1", alice, params=[1]), 400, "invalid_input")
    check(api.post("SELECT 1", alice, headers={"Idempotency-Key": "a b"}), 400, "bad_request")


def test_401(api: ApiServer) -> None:
    answer = api.post("SELECT 1")
    check(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_403(api: ApiServer, alice: str) -> None:
    check(api.post("CREATE NAMESPACE alices", alice), 403, "permission_denied")


def test_404_and_405(api: ApiServer, alice: str) -> None:
    headers = {"Authorization": f"Bearer {alice}"}
    for path in ("/api/sql/", "/api", "/api/sql2", "/console/", "/console/../keys.py", "/console/nothing.js", "/docs"):
        check(api.http.post(path, headers=headers), 404, "not_found") if "console" not in path else None
        if "console" in path:
            check(api.http.get(path), 404, "not_found")
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = api.http.request(method, "/api/sql", headers=headers)
        check(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"
    check(api.http.post("/health"), 405, "method_not_allowed")
    check(api.http.post("/"), 405, "method_not_allowed")


def test_409(api: ApiServer, alice: str, ns: str) -> None:
    api.post(f"INSERT INTO {ns}.mine VALUES (1, 'x')", alice)
    found = check(api.post(f"INSERT INTO {ns}.mine VALUES (1, 'y')", alice), 409, "conflict")
    assert "1" in found["error"]["message"]  # type: ignore[index]


def test_413_before_all_of_it_is_sent(api: ApiServer, alice: str) -> None:
    body = b'{"sql": "SELECT 1", "params": ["' + b"x" * (1300 << 10) + b'"]}'
    headers = {"Authorization": f"Bearer {alice}"}
    answer = api.http.post("/api/sql", content=body, headers=headers)
    check(answer, 413, "too_large")
    declared = (
        f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nContent-Length: 9999999999\r\n\r\n"
    )
    assert b"413" in api.raw(declared.encode()).split(b"\r\n")[0]
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    head = f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"413" in api.raw(head.encode() + chunk * 20).split(b"\r\n")[0]


def test_408_for_a_body_that_does_not_come(api: ApiServer, alice: str) -> None:
    head = f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nContent-Length: 100\r\n\r\n{{"
    started = time.monotonic()
    assert b"408" in api.raw(head.encode()).split(b"\r\n")[0]
    assert time.monotonic() - started < 30


def test_429_says_when_to_come_again_and_others_are_served(api: ApiServer) -> None:
    """Two statements of a user run at once and three wait."""
    greedy, other = api.token("greedy"), api.token("other")
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(api.post(SLOW, greedy))) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert api.post("SELECT 1", other).status_code == 200
    for thread in threads:
        thread.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses.count(429) == 3
    assert set(statuses) == {429, 504}
    refused = next(answer for answer in answers if answer.status_code == 429)
    check(refused, 429, "too_many_requests")
    assert int(refused.headers["retry-after"]) > 0


def test_504(api: ApiServer, alice: str, ns: str) -> None:
    found = check(api.post(f"INSERT INTO {ns}.mine (v) VALUES ('a'); {SLOW}", alice), 504, "statement_timeout")
    assert len(found["results"]) == 1  # type: ignore[arg-type]


def test_a_request_of_many_statements_ends_with_its_time(api: ApiServer, alice: str) -> None:
    """Each statement would have three seconds; the request has six."""
    found = api.post("SELECT sum(sin(i)) FROM range(30000000) r(i);" * 100, alice).json()
    assert found["error"]["code"] == "statement_timeout"
    assert "server.request_seconds" in found["error"]["message"] or "sql.statement_timeout" in found["error"]["message"]
    assert len(found["results"]) < 100


def test_limits_of_rows_are_no_reason_to_try_again(api: ApiServer, admin: str, lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY)")
    check(api.post(f"INSERT INTO {ns}.t SELECT i FROM range(1000001) r(i)", admin), 400, "limit_exceeded")


def test_a_full_disk_fails_no_request(tmp_path: Path) -> None:
    """Nor does a directory for temporary files that somebody has cleaned."""
    metrics = Metrics(tmp_path / "gone", Admission(ServerSettings()))
    metrics.count("/api/sql", 200, 0.1, ["Select"], 7, 100)
    assert "lakefork_api_rows_total 7" in metrics.text()


def test_health_and_metrics(api: ApiServer, alice: str) -> None:
    assert api.http.get("/health").json() == {"status": "ok"}
    api.post("SELECT 1", alice)
    api.post("SELECT 1")
    found = api.http.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in found.text.splitlines() if not line.startswith("#"))
    assert float(values['lakefork_api_requests_total{status="200"}']) >= 1
    assert float(values["lakefork_api_refused_tokens_total"]) >= 1
    assert float(values['lakefork_api_statements_total{kind="Select"}']) >= 1
    assert values["lakefork_api_workers"] == "1"
    assert float(values['lakefork_api_sql_seconds_bucket{le="+Inf"}']) == float(
        values["lakefork_api_sql_seconds_count"]
    )
    assert "alice" not in found.text


def test_each_request_is_one_line_without_values_and_tokens(api: ApiServer, alice: str, ns: str) -> None:
    text = f"INSERT INTO {ns}.mine (v) VALUES ('sesame'); SELECT v, ? FROM {ns}.mine"
    answer = api.post(text, alice, params=["password"], headers={"X-Request-ID": f"mine-{ns}"})
    assert answer.headers["x-request-id"] == f"mine-{ns}"
    deadline = time.monotonic() + 5
    while not (found := [line for line in api.log() if line.get("request") == f"mine-{ns}"]):
        assert time.monotonic() < deadline
    assert found == [
        {
            **found[0], "method": "POST", "path": "/api/sql", "status": 200, "user": "alice", "catalog": "main",
            "statements": "Insert,Select", "rows": 2, "client": "127.0.0.1",
        }
    ]  # fmt: skip
    assert found[0]["ms"] > 0
    written = api.log_file.read_text()
    assert "sesame" not in written
    assert "password" not in written
    assert alice not in written
    answer = api.post("SELECT 1", alice, headers={"X-Request-ID": 'x"\\ {}'})
    assert answer.headers["x-request-id"].isalnum()


def test_pages_of_other_origins_need_the_setting(api: ApiServer, alice: str) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    allowed = api.http.options("/api/sql", headers={**asked, "Access-Control-Request-Headers": "authorization"})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    answer = api.post("SELECT 1", alice, headers={"Origin": "https://app.example"})
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    refused = api.http.options("/api/sql", headers={**asked, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers
    answer = api.post("SELECT 1", alice, headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
