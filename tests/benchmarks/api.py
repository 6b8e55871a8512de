"""SQL over HTTP, beside a hand-written FastAPI + psycopg service in the same run: rates, latencies, streams, fairness."""

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import psycopg
from tests.benchmarks.api_peer import KEY, TABLE
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database
from tests.support.api_server import ApiServer, running_server

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session

AREA = "api"
WORKERS = 2
CLIENTS = 16
SECONDS = 6.0
ROWS = 2_000
STREAMED = 1_000_000
SLOW = "SELECT sum(sin(a.i + b.i)) FROM range(10000000) a(i), range(1000) b(i)"
ROUNDS = 2
Ask = Callable[["Connection", int], Awaitable[float]]


def measure() -> list[Figure]:
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory:
        home = Path(directory)
        with connect(dsn) as connection:
            create_catalog(connection, "main", str(home / "main"))
        settings = Settings.model_construct(**{**dict(Settings()), "dsn": dsn, "home": home})
        with Engine(settings, dsn) as engine:
            _fill(engine, dsn)
            rate = _engine_rate(engine)
        limits = {"LAKEFORK_SERVER__STATEMENTS_PER_USER": "16"}
        with running_server(settings, dsn, home, limits, WORKERS) as server, _peer(dsn) as peer:
            figures = [*_rates(server, peer), *_many(server), *_stream(server, rate)]
        with running_server(settings, dsn, home, {}, WORKERS) as server:
            return [*figures, *_beside_slow(server)]


def _fill(engine: Engine, dsn: str) -> None:
    admin = Session("main", None, Role.ADMIN)
    engine.execute(admin, "CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, content STRING)")
    rows = f"SELECT i, 'content ' || i FROM range({ROWS}) r(i)"
    engine.execute(Session("main", "ada"), f"INSERT INTO app.t {rows}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(
            "INSERT INTO plain_api (catalog_id, _user_id, id, content) "
            f"SELECT 1, 'ada', i, 'content ' || i FROM generate_series(0, {ROWS - 1}) i"
        )
        connection.execute("VACUUM ANALYZE plain_api")


def _engine_rate(engine: Engine) -> float:
    """Rows a second of the same SELECT in the engine, in Arrow."""
    session, times = Session("main", "ada"), []
    for _ in range(3):
        started = time.monotonic()
        engine.execute(session, _streamed_sql())
        times.append(time.monotonic() - started)
    return STREAMED / min(times)


def _streamed_sql() -> str:
    return f"SELECT i AS id, 'content ' || i AS content, i * 0.5 AS n FROM range({STREAMED}) r(i)"


@contextlib.contextmanager
def _peer(dsn: str) -> Iterator[tuple[str, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "uvicorn", "tests.benchmarks.api_peer:app", "--port", str(port), "--workers", str(WORKERS), "--log-level", "error", "--no-access-log"]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "PEER_DSN": dsn}, cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(3)
        yield "127.0.0.1", port
    finally:
        process.terminate()
        process.wait(20)


class Connection:
    """One keep-alive connection, as cheap as a client can be, so that the servers are what is measured."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def open(self, address: tuple[str, int]) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection(*address)
        return self

    async def post(self, path: str, body: Any) -> float:
        """Seconds until the whole answer was there."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        started = time.perf_counter()
        self._writer.write(head.encode() + content)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        text = await self._reader.readexactly(length)
        assert answer.startswith(b"HTTP/1.1 200"), answer + text
        return time.perf_counter() - started

    def close(self) -> None:
        self._writer.close()


async def _load(
    address: tuple[str, int], token: str, ask: Ask, clients: int, seconds: float
) -> tuple[float, list[float]]:
    """Requests a second, and the seconds that each took."""
    connections = [await Connection(token).open(address) for _ in range(clients)]
    times: list[float] = []
    deadline = time.monotonic() + seconds

    async def client(number: int, connection: Connection) -> None:
        count = 0
        while time.monotonic() < deadline:
            times.append(await ask(connection, number * 7919 + count))
            count += 1

    started = time.monotonic()
    await asyncio.gather(*(client(number, one) for number, one in enumerate(connections)))
    elapsed = time.monotonic() - started
    for one in connections:
        one.close()
    return len(times) / elapsed, times


def _rates(server: ApiServer, peer: tuple[str, int]) -> list[Figure]:
    token, plain = server.token("ada"), jwt.encode({"sub": "ada"}, KEY, algorithm="HS256")
    cases: dict[str, tuple[Ask, Ask]] = {
        "SELECT by key": (
            lambda c, i: c.post(
                "/api/sql", {"sql": "SELECT id, content FROM app.t WHERE id = ?", "params": [i % ROWS]}
            ),
            lambda c, i: c.post("/select", {"id": i % ROWS}),
        ),
        "INSERT of a row": (
            lambda c, i: c.post("/api/sql", {"sql": "INSERT INTO app.t (content) VALUES (?)", "params": [f"x{i}"]}),
            lambda c, i: c.post("/insert", {"content": f"x{i}"}),
        ),
    }
    figures = []
    for name, (ours, theirs) in cases.items():
        best = plain_best = 0.0
        times: list[float] = []
        for _ in range(ROUNDS):
            rate, took = asyncio.run(_load(server.address, token, ours, CLIENTS, SECONDS))
            plain_rate, _ = asyncio.run(_load(peer, plain, theirs, CLIENTS, SECONDS))
            best, plain_best = max(best, rate), max(plain_best, plain_rate)
            times += took
        p50, p99 = _percentiles(times)
        figures += [
            Figure(AREA, f"{name}, {CLIENTS} clients, requests a second", best, "/s"),
            Figure(
                AREA,
                f"{name}, of the rate of FastAPI + psycopg ({plain_best:.0f}/s)",
                best / plain_best,
                "x",
                at_least=0.5,
            ),
            Figure(AREA, f"{name}, p99 of p50 ({p50 * 1000:.1f} ms)", p99 / p50, "x", at_most=10),
        ]
    return figures


def _percentiles(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def _many(server: ApiServer) -> list[Figure]:
    """A thousand clients at once: each asks until the time is over, and every answer is 200."""
    before = _memory(server)
    rate, times = asyncio.run(
        _load(
            server.address, server.token("ada"), lambda c, i: c.post("/api/sql", {"sql": "SHOW NAMESPACES"}), 1_000, 8
        )
    )
    return [
        Figure(AREA, "1,000 clients at once, requests a second without an error", rate, "/s"),
        Figure(AREA, "1,000 clients at once, longest answer", max(times), "s", at_most=30),
        Figure(
            AREA,
            "1,000 clients at once, memory of the server grows by",
            (_memory(server) - before) / 2**20,
            "MB",
            at_most=200,
        ),
    ]


def _memory(server: ApiServer) -> int:
    return sum(int(worker.memory_info().rss) for worker in server.workers())


def _stream(server: ApiServer, engine_rate: float) -> list[Figure]:
    figures, before, most = [], _memory(server), 0
    for name, accept, wanted in (
        ("Arrow", "application/vnd.apache.arrow.stream", 0.5),
        ("JSON", "application/json", None),
    ):
        best, first = 0.0, []
        for _ in range(3):
            headers = {"Authorization": f"Bearer {server.token('ada')}", "Accept": accept}
            started = time.monotonic()
            with server.http.stream("POST", "/api/sql", json={"sql": _streamed_sql()}, headers=headers) as answer:
                for place, _ in enumerate(answer.iter_raw()):
                    if not place:
                        first.append(time.monotonic() - started)
                    elif place % 200 == 0:
                        most = max(most, _memory(server))
            best = max(best, STREAMED / (time.monotonic() - started))
        figures += [
            Figure(
                AREA,
                f"SELECT of {STREAMED:,} rows as {name}, of the engine's rate in Arrow",
                best / engine_rate,
                "x",
                at_least=wanted,
            ),
            Figure(AREA, f"SELECT of {STREAMED:,} rows as {name}, first byte", min(first) * 1000, "ms", at_most=100),
        ]
    return [
        *figures,
        Figure(AREA, "Streams, memory of the server grows by", (most - before) / 2**20, "MB", at_most=100),
    ]


def _beside_slow(server: ApiServer) -> list[Figure]:
    """Point reads of one user, alone and while another user runs a statement that takes all cores."""
    ask: Ask = lambda c, i: c.post("/api/sql", {"sql": "SELECT content FROM app.t WHERE id = ?", "params": [i % ROWS]})  # noqa: E731
    token, slow = server.token("ada"), server.token("slow")
    asyncio.run(_load(server.address, token, ask, 1, 2))
    _, idle = asyncio.run(_load(server.address, token, ask, 1, SECONDS))
    busy = subprocess.Popen(
        [sys.executable, "-c", f"import lakefork; lakefork.connect({server.url!r}, {slow!r}).rows({SLOW!r})"],
        stderr=subprocess.DEVNULL,
    )
    time.sleep(2)
    _, beside = asyncio.run(_load(server.address, token, ask, 1, SECONDS))
    busy.kill()
    busy.wait()
    ratio = _percentiles(beside)[1] / _percentiles(idle)[1]
    return [Figure(AREA, "p99 of point reads beside another user's slow statement, of idle", ratio, "x", at_most=3)]
