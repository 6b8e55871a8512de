"""Requests that are made to hurt: every one is refused or answered, in JSON, and the server goes on."""

import json
import re
import socket
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.api_server import ApiServer, received

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@pytest.fixture(autouse=True)
def still_there(api: ApiServer, alice: str) -> None:
    """Before each test; the last test checks after it."""
    assert api.post("SELECT 1", alice).status_code == 200


def statuses(content: bytes) -> list[int]:
    return [int(code) for code in STATUS.findall(content)]


def test_nesting_and_huge_numbers(api: ApiServer, alice: str) -> None:
    deep = "[" * 500_000 + "]" * 500_000
    bodies = [
        deep, f'{{"sql": "SELECT ?", "params": {deep}}}', '{"sql":' * 100_000, f'{{"sql": {"9" * 100_000}}}',
        f'{{"sql": "SELECT ?", "params": [{"9" * 5000}]}}', '{"sql": "SELECT ?", "params": [1e999]}', '{"sql": "SELECT ?", "params": [' + "9" * 50 + "]}",
        '{"sql": "\\ud800"}', '{"sql": "SELECT ?", "params": ["\\udfff"]}', '{"sql": "SELECT 1", "namespace": "\\ud800"}', '{"sql": "\\u0000"}',
        json.dumps({"sql": "(" * 100_000}), json.dumps({"sql": "SELECT " + "-" * 100_001 + "1"}), json.dumps({"sql": "SELECT 1;" * 60_000 + "x"}),
        json.dumps({"sql": "SELECT " + ",".join("?" * 50_000), "params": [1] * 49_999}),
    ]  # fmt: skip
    for body in bodies:
        started = time.monotonic()
        answer = api.http.post("/api/sql", content=body.encode(), headers={"Authorization": f"Bearer {alice}"})
        found = answer.json()
        assert answer.status_code in (200, 400, 413, 504), (body[:80], answer.text[:300])
        assert found["status"] == "error" or answer.status_code == 200
        assert "Traceback" not in answer.text
        assert time.monotonic() - started < 20, body[:80]


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"POST /api/sql\r\n\r\n", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 9\r\n\r\nabcd",
        b"POST /api/sql HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"POST /api/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /api/sql HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST /api/sql HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /api/sql HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n",
        b"POST /api/sql HTTP/1.1\r\nHost: x\r\nFoo : bar\r\n\r\n", b"POST /api/sql HTTP/1.1\r\nHost: x\r\nA: b\r\n c: d\r\n\r\n",
        b"POST /api/sql HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", b"POST /api/sql HTTP/1.1\r\nX\x00Y: z\r\n\r\n",
        b"POST http://evil/api/sql HTTP/1.1\r\nHost: x\r\n\r\n", b"POST //api/sql HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_and_shapes_of_smuggling(api: ApiServer, content: bytes) -> None:
    """Never a success, and at most one answer for what one side may take for two requests."""
    answer = api.raw(content, 3)
    assert all(status in (400, 401, 404, 405) for status in statuses(answer)), answer
    assert len(statuses(answer)) <= 1
    if answer:
        assert b"application/json" in answer


def test_a_second_request_in_the_body_of_the_first_is_data(api: ApiServer, alice: str) -> None:
    inner = b"POST /api/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    head = f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nContent-Length: {len(inner)}\r\nConnection: close\r\n\r\n"
    answer = api.raw(head.encode() + inner, 3)
    assert statuses(answer) == [400]


def test_heads_that_are_too_large_or_never_end(api: ApiServer) -> None:
    endless = b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(300))
    assert statuses(api.raw(endless, 5)) == [400]


def test_requests_in_a_row_on_one_connection(api: ApiServer, alice: str) -> None:
    body = b'{"sql": "SELECT 1"}'
    one = (
        f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    with socket.create_connection(api.address, timeout=10) as connection:
        connection.sendall(one * 3)
        content = b""
        while len(statuses(content)) < 3:
            content += connection.recv(65_536)
    assert statuses(content) == [200, 200, 200]


def test_clients_that_go_away_leave_nothing_running(api: ApiServer, alice: str) -> None:
    body = b'{"sql": "SELECT sum(sin(a.i + b.i)) FROM range(10000000) a(i), range(1000) b(i)"}'
    head = f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(2):
        with socket.create_connection(api.address, timeout=10) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.3)
    deadline = time.monotonic() + 2.5
    while "lakefork_api_running 0" not in api.http.get("/metrics").text:
        assert time.monotonic() < deadline, "a statement still runs for nobody"
        time.sleep(0.05)


def test_a_client_that_reads_nothing_is_given_up(api: ApiServer, alice: str) -> None:
    """Its statement ends with its time, and the server's memory does not grow by the answer."""
    body = b"""{"sql": "SELECT i, repeat('x', 1000) FROM range(199999) r(i)"}"""
    head = f"POST /api/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {alice}\r\nContent-Length: {len(body)}\r\n\r\n"
    (worker,) = api.workers()
    before = worker.memory_info().rss
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(api.address)
        connection.sendall(head.encode() + body)
        deadline = time.monotonic() + 12
        while "lakefork_api_running 0" not in api.http.get("/metrics").text or time.monotonic() < deadline - 11:
            assert time.monotonic() < deadline
            assert worker.memory_info().rss - before < 150 << 20
            time.sleep(0.1)
        content = received(connection)
    assert not content.endswith(b'"status":"success"}\r\n0\r\n\r\n')


@settings(max_examples=80, deadline=None)
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["sql", "params", "namespace", "x"]), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_any_json_gets_an_answer_in_json(api: ApiServer, alice: str, body: object) -> None:
    answer = api.http.post(
        "/api/sql",
        content=json.dumps(body).encode("utf-8", "surrogatepass"),
        headers={"Authorization": f"Bearer {alice}"},
    )
    assert answer.status_code in (200, 400), answer.text
    assert answer.json()["status"] in ("success", "error")


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=300))
def test_any_bytes_get_an_answer_in_json(api: ApiServer, alice: str, content: bytes) -> None:
    answer = api.http.post("/api/sql", content=content, headers={"Authorization": f"Bearer {alice}"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_request"
