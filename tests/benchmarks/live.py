"""Live queries over real sockets, with the clients in a process of their own: delays, memory, and what writers pay."""

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database
from tests.support.api_server import ApiServer, running_server

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.server.keys import token_key
from lakefork.server.tokens import create_token
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session

AREA = "live"
USERS, TABLES = 1_000, 100
PACE, SECONDS = 200, 6.0
ADMIN = Session("main", "root", Role.ADMIN)
_values = itertools.count()
Subscriptions = Sequence[tuple[str, Sequence[str]]]  # of each socket: its user, and its queries


@dataclass(frozen=True)
class Bench:
    engine: Engine
    server: ApiServer
    dsn: str

    def run(self, sql: str, user: str | None = None, *parameters: Any) -> Any:
        session = ADMIN if user is None else Session("main", user)
        return self.engine.execute(session, sql, parameters)

    def tokens(self, users: Sequence[str]) -> dict[str, str]:
        key = token_key(self.server.settings)
        with connect(self.dsn) as connection, connection.transaction():
            return {
                user: create_token(connection, key, "main", user, "service" if user == "all" else None, "1h", "bench")[
                    0
                ]
                for user in dict.fromkeys(users)
            }

    def seconds_of_processor(self) -> float:
        return sum(sum(worker.cpu_times()[:2]) for worker in self.server.workers())

    def memory_mb(self) -> float:
        return sum(worker.memory_info().rss for worker in self.server.workers()) / 2**20


class Clients:
    """The process of the clients, with all subscriptions established."""

    def __init__(self, bench: Bench, sockets: Subscriptions, **options: Any) -> None:
        tokens = bench.tokens([user for user, _ in sockets])
        task = {
            "url": bench.server.url.replace("http", "ws", 1),
            "sockets": [
                {
                    "token": tokens[user],
                    "subscriptions": [
                        {"id": str(n), "sql": sql, "options": options} for n, sql in enumerate(queries)
                    ],
                }
                for user, queries in sockets
            ],
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.benchmarks.live_client"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        self.subscribe: list[float] = self._answer()["subscribe"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))

    def stop(self) -> dict[str, list[float]]:
        """When each value first and last arrived, and how often."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        found = self._answer()["arrived"]
        self._process.wait(30)
        return dict(found)


def measure() -> list[Figure]:
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory:
        home = Path(directory)
        with connect(dsn) as connection:
            create_catalog(connection, "main", str(home / "main"))
        settings = Settings.model_construct(**{**dict(Settings()), "dsn": dsn, "home": home})
        with Engine(settings, dsn) as engine, running_server(settings, dsn, home, {}, 1) as server:
            bench = Bench(engine, server, dsn)
            bench.run("CREATE NAMESPACE app")
            parts: list[Callable[[Bench], list[Figure]]] = [
                _one_table,
                _shared,
                _streams,
                _initial,
                _filters,
                _writers,
                _many,
            ]
            return [figure for part in parts for figure in _figures(part, bench)]


def _figures(part: Callable[[Bench], list[Figure]], bench: Bench) -> list[Figure]:
    """The figures of a part; one that fails is told, and the others go on."""
    name, started = part.__name__.strip("_"), time.monotonic()
    if name not in os.environ.get("BENCH_LIVE_PARTS", name):
        return []
    try:
        found = part(bench)
    except Exception:
        traceback.print_exc()
        found = [Figure(AREA, f"{name}: failed", 1, "", at_most=0)]
    print(*found, f"    {name}: {time.monotonic() - started:.0f} s", sep="\n", flush=True)
    return found


def paced(
    bench: Bench, writes: Callable[[int], tuple[str, str | None]], seconds: float, pace: float, threads: int = 4
) -> dict[str, tuple[float, float]]:
    """Inserts values at a pace; returns by value how long the write took, and when it was acknowledged."""
    found: dict[str, tuple[float, float]] = {}
    end = time.monotonic() + seconds

    def writer(number: int) -> None:
        due = time.monotonic() + number / pace
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            value = next(_values)
            table, user = writes(value)
            started = time.monotonic()
            bench.run(f"INSERT INTO {table} (v) VALUES (?)", user, f"v{value}")
            now = time.monotonic()
            found[f"v{value}"] = (now - started, now)
            due += threads / pace

    running = [threading.Thread(target=writer, args=(number,)) for number in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return found


def delays(written: dict[str, tuple[float, float]], arrived: dict[str, list[float]]) -> list[float]:
    """Milliseconds from the acknowledgement to the last arrival of each value; every one has arrived."""
    missing = [value for value in written if value not in arrived]
    assert not missing, f"{len(missing)} of {len(written)} never arrived"
    return [max(0.0, (arrived[value][1] - acknowledged) * 1000) for value, (_, acknowledged) in written.items()]


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[18]


@contextlib.contextmanager
def table(bench: Bench, name: str, kind: str = "USER", more: str = "") -> Iterator[str]:
    key = "" if kind == "STREAM" else "id BIGINT PRIMARY KEY, "
    bench.run(f"CREATE {kind} TABLE app.{name} ({key}v STRING){more}")
    yield f"app.{name}"


def _one_table(bench: Bench) -> list[Figure]:
    users = [f"u{n}" for n in range(USERS)]
    with table(bench, "one") as name:
        clients = Clients(bench, [(user, [f"SELECT v FROM {name}"]) for user in users])
        paced(bench, lambda n: (name, users[n % USERS]), 1, PACE)
        written = paced(bench, lambda n: (name, users[n % USERS]), SECONDS, PACE)
        time.sleep(0.5)
        late = delays(written, clients.stop())
    return [
        Figure(AREA, f"{USERS} users of a table, {PACE} commits/s: delay, p50", statistics.median(late), "ms"),
        Figure(AREA, f"{USERS} users of a table, {PACE} commits/s: delay, p95", p95(late), "ms", at_most=20),
        Figure(
            AREA, f"{USERS} users of a table: commits a second that were acknowledged", len(written) / SECONDS, "/s"
        ),
        Figure(AREA, "Subscribe, p95 with 16 at once", p95(clients.subscribe) * 1000, "ms"),
    ]


def _shared(bench: Bench) -> list[Figure]:
    with table(bench, "everybody", "SHARED") as name:
        clients = Clients(bench, [("all", [f"SELECT v FROM {name}"]) for _ in range(USERS)])
        written = paced(bench, lambda _: (name, None), 4, 5, 1)
        time.sleep(0.5)
        late = delays(written, arrived := clients.stop())
        assert all(arrived[value][2] == USERS for value in written)
    return [Figure(AREA, f"A change of a SHARED table reaches the last of {USERS}, p95", p95(late), "ms", at_most=100)]


def _streams(bench: Bench) -> list[Figure]:
    with table(bench, "events", "STREAM", " WITH (retention = '10s', max_buffer = 100000)") as name:
        clients = Clients(bench, [("ada", [f"SELECT v FROM {name}"])], last_rows=0)
        paced(bench, lambda _: (name, "ada"), 1, 50, 1)
        written = paced(bench, lambda _: (name, "ada"), 4, 50, 1)
        time.sleep(0.3)
        late = delays(written, clients.stop())
        took = [seconds * 1000 for seconds, _ in written.values()]
        rate = _batches(bench, name)
        evicted = _eviction(bench)
        ephemeral = _ephemeral(bench)
    return [
        Figure(AREA, "STREAM: INSERT of an event, p50", statistics.median(took), "ms", at_most=2),
        Figure(AREA, "STREAM: delay, p95", p95(late), "ms", at_most=10),
        Figure(AREA, "STREAM: events a second in batches of 1,000, delivered", rate, "/s", at_least=10_000),
        Figure(AREA, "STREAM: evicted after the end of retention", evicted, "s", at_most=1),
        Figure(AREA, "STREAM: ephemeral without subscribers adds", ephemeral, "ms", at_most=1),
    ]


def _batches(bench: Bench, name: str) -> float:
    """Events a second that arrive while so many are written."""
    clients = Clients(bench, [("ada", [f"SELECT v FROM {name}"])], last_rows=0)
    count, started = 48, time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started + number / 12 - time.monotonic()))
        bench.run(f"INSERT INTO {name} (v) SELECT 'b{number}' FROM range(1000)", "ada")
    time.sleep(1.5)
    arrived = clients.stop()
    assert [arrived[f"b{number}"][2] for number in range(count)] == [1_000] * count, arrived
    return 1_000 * count / (max(found[1] for found in arrived.values()) - started)


def _eviction(bench: Bench) -> float:
    """How long after the end of retention the last event is gone from Postgres."""
    with table(bench, "short", "STREAM", " WITH (retention = '1s')") as name:
        bench.run(f"INSERT INTO {name} (v) VALUES ('x')", "ada")
        written = time.monotonic()
        with bench.engine.resources.readers.transaction() as connection:
            ref = bench.engine.resources.lookup.find(connection, ADMIN, _name(name)).definition.table_id
        with connect(bench.dsn) as connection:
            while connection.execute(f"SELECT count(*) AS n FROM stream.t{ref}").fetchone() != {"n": 0}:
                time.sleep(0.01)
        return time.monotonic() - written - 1


def _name(full: str) -> Any:
    from lakefork.sql.parse.statements import TableName

    return TableName(*full.split("."))


def _ephemeral(bench: Bench) -> float:
    """An INSERT that nobody gets, beside one that is kept."""
    times = {}
    for name, more in (("kept", ""), ("lost", " WITH (ephemeral = true)")):
        with table(bench, name, "STREAM", more) as full:
            paced(bench, lambda _, full=full: (full, "ada"), 0.5, 100, 1)
            written = paced(bench, lambda _, full=full: (full, "ada"), 2, 100, 1)
            times[name] = statistics.median(seconds for seconds, _ in written.values())
    return max(0.0, (times["lost"] - times["kept"]) * 1000)


def _initial(bench: Bench) -> list[Figure]:
    with table(bench, "thousand") as name:
        bench.run(f"INSERT INTO {name} (v) SELECT 'r' || range FROM range(1000)", "ada")
        sql = f"SELECT v FROM {name}"
        single = [_once(bench, [("ada", [sql])], last_rows=1) for _ in range(5)]
        full = [_once(bench, [("ada", [sql])]) for _ in range(5)]
    return [
        Figure(AREA, "Subscribe, with one row of initial data", statistics.median(single) * 1000, "ms", at_most=200),
        Figure(AREA, "Subscribe, with 1,000 rows of initial data", statistics.median(full) * 1000, "ms", at_most=500),
    ]


def _once(bench: Bench, sockets: Subscriptions, **options: Any) -> float:
    clients = Clients(bench, sockets, **options)
    clients.stop()
    return max(clients.subscribe)


def _filters(bench: Bench) -> list[Figure]:
    """Processor time of the server for changes that no filter lets through, and for ten subscriptions on one socket."""
    with table(bench, "filtered") as name:
        sql = f"SELECT v FROM {name} WHERE v = 'never'"
        used = []
        for count in (1, USERS):
            clients = Clients(bench, [("ada", [sql] * min(count, 100))] * max(1, count // 100))
            used.append(_processor(bench, name))
            clients.stop()
        every = f"SELECT v FROM {name}"
        apart = Clients(bench, [("ada", [every])] * 10)
        ten_sockets = _processor(bench, name)
        apart.stop()
        together = Clients(bench, [("ada", [every] * 10)])
        one_socket = _processor(bench, name)
        together.stop()
    return [
        Figure(AREA, f"{USERS} subscriptions with one filter, of one", used[1] / used[0], "x", at_most=1.2),
        Figure(AREA, "10 subscriptions on one socket, of 10 sockets", one_socket / ten_sockets, "x", at_most=1.1),
    ]


def _processor(bench: Bench, name: str) -> float:
    before = bench.seconds_of_processor()
    paced(bench, lambda _: (name, "ada"), 4, PACE)
    return bench.seconds_of_processor() - before


def _writers(bench: Bench) -> list[Figure]:
    with table(bench, "others") as others, table(bench, "mine") as mine:
        alone, beside = [], []
        sockets = [("all", [f"SELECT v FROM {others}"] * 100)] * (USERS // 100)
        for _ in range(2):
            alone.append(_fastest(bench, mine))
            clients = Clients(bench, sockets, last_rows=0)
            beside.append(_fastest(bench, mine))
            clients.stop()
        pace = max(alone) / 2
        before = [seconds for seconds, _ in paced(bench, lambda _: (mine, "ada"), 3, pace).values()]
        clients = Clients(bench, [(f"u{n}", [f"SELECT v FROM {mine}"]) for n in range(USERS)], last_rows=0)
        written = paced(bench, lambda n: (mine, f"u{n % USERS}"), 4, pace)
        clients.stop()
        took = [seconds for seconds, _ in written.values()]
    return [
        Figure(
            AREA,
            f"INSERT rate beside {USERS} subscriptions on another table",
            max(beside) / max(alone),
            "x",
            at_least=0.95,
        ),
        Figure(
            AREA,
            f"INSERT at half of the maximum ({pace:.0f}/s), of the pace, with {USERS} subscriptions",
            len(took) / 4 / pace,
            "x",
            at_least=0.95,
        ),
        Figure(
            AREA,
            "INSERT at half of the maximum, p95 with subscriptions, of without",
            p95(took) / p95(before),
            "x",
            at_most=2,
        ),
    ]


def _fastest(bench: Bench, name: str) -> float:
    return len(paced(bench, lambda _: (name, "ada"), 2, 100_000)) / 2


def _many(bench: Bench) -> list[Figure]:
    """10,000 subscriptions on 1,000 sockets over 100 tables."""
    for n in range(TABLES):
        bench.run(f"CREATE USER TABLE app.many{n} (id BIGINT PRIMARY KEY, v STRING)")
        bench.run(f"INSERT INTO app.many{n} (v) VALUES ('first')", "nobody")
    users = [f"u{n}" for n in range(USERS)]
    sockets = [
        (user, [f"SELECT v FROM app.many{(n * 7 + k * 10) % TABLES}" for k in range(10)])
        for n, user in enumerate(users)
    ]
    clients = Clients(bench, sockets, last_rows=0)
    listed = []
    for _ in range(5):
        started = time.monotonic()
        bench.run("SELECT count(*), sum(bandwidth) FROM system.live_queries")
        listed.append(time.monotonic() - started)
    before, started = bench.seconds_of_processor(), time.monotonic()
    time.sleep(6)
    idle = (bench.seconds_of_processor() - before) / (time.monotonic() - started)
    written = paced(bench, lambda n: (f"app.many{(n * 7) % TABLES}", users[n % USERS]), SECONDS, PACE)
    memory = bench.memory_mb()
    time.sleep(0.5)
    late = delays(written, clients.stop())
    return [
        Figure(AREA, "10,000 subscriptions, 100 tables: delay, p95", p95(late), "ms", at_most=50),
        Figure(AREA, "10,000 subscriptions: memory of the server", memory, "MB", at_most=1024),
        Figure(AREA, "10,000 quiet subscriptions: of a core", idle, "x", at_most=0.05),
        Figure(AREA, "system.live_queries with 10,000, best of 5", min(listed) * 1000, "ms", at_most=10),
    ]
