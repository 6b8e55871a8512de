"""The cost of statements, compared with plain Postgres with an equally indexed table in the same run."""

import functools
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from tests.benchmarks import points
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database
from tests.benchmarks.start_up import LAKEFORK

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.hot.seqids import PostgresNodeLease, SeqIdGenerator
from lakefork.settings import Settings
from lakefork.sql.engine import Engine, parsed
from lakefork.sql.parse.statements import Select
from lakefork.sql.session import Role, Session
from lakefork.sql.workers.duck import Duck
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.worker import run_request

AREA = "sql"
ADMIN = Session("main", None, Role.ADMIN)
ALICE = Session("main", "alice")
PLAIN = """CREATE TABLE {name} (catalog_id bigint, _user_id text COLLATE "C", _seq bigint, _deleted boolean NOT NULL,
    _xid xid8 NOT NULL DEFAULT pg_current_xact_id(), id bigint NOT NULL, content text, n integer, PRIMARY KEY (catalog_id, _user_id, _seq));
    CREATE INDEX ON {name} (catalog_id, _user_id, id, _seq)"""
BULK_ROWS = 300_000
HOT_ROWS = 1_000_000


def measure() -> list[Figure]:
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-") as data:
        with connect(dsn) as connection:
            create_catalog(connection, "main", str(Path(data) / "main"))
        with Engine(Settings(), dsn) as engine:
            engine.execute(ADMIN, "CREATE NAMESPACE app")
            figures = [
                *_inserts(engine, dsn),
                *_updates(engine),
                *_bulk(engine, dsn),
                *_reads(engine),
                *points.hot(engine, dsn, AREA),
                *_workers(engine, dsn),
                *_definitions(engine, dsn),
            ]
        return [*figures, *_ids(dsn)]


def _inserts(engine: Engine, dsn: str) -> list[Figure]:
    _create(engine, "messages")
    text = "INSERT INTO app.messages (content, n) VALUES (?, ?)"
    ours: list[float] = []
    plain: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(PLAIN.format(name="plain_insert"))
        numbers = iter(range(1_000_000))

        def insert_plain() -> None:
            number = next(numbers)
            connection.execute(
                "INSERT INTO plain_insert (catalog_id, _user_id, _seq, _deleted, id, content, n) VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (1, "alice", number, False, number, "hello", 7),
            )

        for _ in range(5):
            ours += _times(lambda: engine.execute(ALICE, text, ("hello", 7)), 200)
            plain += _times(insert_plain, 200)
    explicit = iter(range(1, 1_000_000))
    given = _times(
        lambda: engine.execute(ALICE, f"INSERT INTO app.messages (id, content) VALUES ({next(explicit)}, 'x')"), 100
    )
    return [
        Figure(AREA, "INSERT of one row, generated key, p50", statistics.median(ours), "ms", at_most=5),
        Figure(
            AREA,
            "the same with parameters: rate / plain INSERT",
            statistics.median(plain) / statistics.median(ours),
            "×",
            at_least=0.5,
        ),
        Figure(AREA, "INSERT of one row with its key, no batches, p50", statistics.median(given), "ms", at_most=25),
    ]


def _updates(engine: Engine) -> list[Figure]:
    _create(engine, "counters")
    engine.execute(
        ALICE, "INSERT INTO app.counters (id, n) VALUES " + ", ".join(f"({number}, 0)" for number in range(200))
    )
    update = _times(lambda: engine.execute(ALICE, "UPDATE app.counters SET n = n + 1 WHERE id = 7"), 100)
    keys = iter(range(200))
    delete = _times(lambda: engine.execute(ALICE, f"DELETE FROM app.counters WHERE id = {next(keys)}"), 100)
    ratios = []
    for key in range(150, 155):
        text = f"UPDATE app.counters SET n = n + 1 WHERE id = {key}"
        one = _rate(lambda text=text: engine.execute(ALICE, text), 1, 100)
        ten = _rate(lambda text=text: engine.execute(ALICE, text), 10, 20)
        ratios.append(ten / one)
    return [
        Figure(AREA, "UPDATE of one hot row, p50", statistics.median(update), "ms", at_most=10),
        Figure(AREA, "DELETE of one hot row, p50", statistics.median(delete), "ms", at_most=10),
        Figure(AREA, "10 updaters of one row: rate / one updater", statistics.median(ratios), "×", at_least=0.8),
    ]


def _bulk(engine: Engine, dsn: str) -> list[Figure]:
    ratios: dict[str, list[float]] = {"generated keys": [], "keys of their own": []}
    for attempt in range(3):
        first = attempt * BULK_ROWS + 1
        rows = pa.table(
            {
                "id": pa.array(np.arange(first, first + BULK_ROWS), pa.int64()),
                "content": [f"message number {number}" for number in range(BULK_ROWS)],
                "n": pa.array(np.arange(BULK_ROWS), pa.int32()),
            }
        )
        plain = _plain_copy(dsn, f"plain_copy_{attempt}", rows)
        for name, given in (("generated keys", rows.drop_columns(["id"])), ("keys of their own", rows)):
            table = f"bulk_{attempt}_{name[0]}"
            _create(engine, table)
            engine.execute(ALICE, f"INSERT INTO app.{table} (id) VALUES (-1)")
            started = time.perf_counter()
            assert engine.load(ALICE, f"app.{table}", given) == BULK_ROWS
            ratios[name].append(plain / (time.perf_counter() - started))
    return [
        Figure(
            AREA,
            f"bulk load of {BULK_ROWS:,} rows, {name}: rate / plain COPY",
            statistics.median(found),
            "×",
            at_least=0.7,
        )
        for name, found in ratios.items()
    ]


def _plain_copy(dsn: str, name: str, rows: pa.Table) -> float:
    """COPY from text that was made beforehand, as psql would do it."""
    lines = "\n".join(
        f"1\talice\t{row['id']}\tf\t{row['id']}\t{row['content']}\t{row['n']}" for row in rows.to_pylist()
    ).encode()
    with psycopg.connect(dsn) as connection:
        connection.execute(PLAIN.format(name=name))
        connection.commit()
        started = time.perf_counter()
        with connection.cursor().copy(
            f"COPY {name} (catalog_id, _user_id, _seq, _deleted, id, content, n) FROM STDIN"
        ) as copy:
            for place in range(0, len(lines), 1 << 20):
                copy.write(lines[place : place + (1 << 20)])
        connection.commit()
        return time.perf_counter() - started


def _reads(engine: Engine) -> list[Figure]:
    """A million hot rows of a shared table and of a hundred users; a hundred thousand users with rules."""
    engine.execute(ADMIN, "CREATE SHARED TABLE app.big (id BIGINT PRIMARY KEY, content TEXT, owner TEXT)")
    engine.execute(ADMIN, "INSERT INTO app.big VALUES (-1, 'x', 'alice')")
    engine.load(
        ADMIN,
        "app.big",
        pa.table({"id": np.arange(HOT_ROWS), "content": ["some text"] * HOT_ROWS, "owner": ["alice"] * HOT_ROWS}),
    )
    _create(engine, "own")
    for user in ("alice", *(f"user{number}" for number in range(9))):
        engine.load(
            Session("main", user), "app.own", pa.table({"id": np.arange(10_000), "content": ["some text"] * 10_000})
        )
    _create(engine, "synced")
    engine.load(ALICE, "app.synced", pa.table({"id": np.arange(100_000), "content": ["some text"] * 100_000}))
    since = engine.execute(ALICE, "SELECT max(_seq) FROM app.synced")[0].rows[0][0]
    engine.execute(ALICE, "UPDATE app.synced SET content = 'changed' WHERE id < 10000")
    with engine._resources.catalog.connection() as connection:
        connection.execute(
            "INSERT INTO lakefork.app_user (catalog_id, user_id, permissions) SELECT catalog_id, 'u' || i, ARRAY['app.big.owner = CURRENT_USER()'] "
            "FROM generate_series(1, 100000) i, ducklake_catalog WHERE end_snapshot IS NULL"
        )
        connection.execute(
            "INSERT INTO lakefork.app_user (catalog_id, user_id, permissions) SELECT catalog_id, 'alice', ARRAY['app.big.owner = CURRENT_USER()'] FROM ducklake_catalog"
        )
        connection.execute("ANALYZE")
    keys = iter(range(100, 10_000))
    point = _times(lambda: engine.execute(ADMIN, f"SELECT * FROM app.big WHERE id = {next(keys)}"), 50)
    filtered = _times(lambda: engine.execute(ALICE, f"SELECT * FROM app.big WHERE id = {next(keys)}"), 50)
    scan = _times(lambda: engine.execute(ALICE, "SELECT * FROM app.own"), 20)
    changed = engine.execute(ALICE, f"SELECT * FROM app.synced WHERE _seq > {since}")[0]
    assert len(changed.rows) == 10_000
    sync = _times(lambda: engine.execute(ALICE, f"SELECT * FROM app.synced WHERE _seq > {since}"), 20)
    return [
        Figure(AREA, "SELECT by key among 1,000,000 hot rows, p50", statistics.median(point), "ms", at_most=100),
        Figure(
            AREA,
            "row filter among 100,000 users: what it adds",
            statistics.median(filtered) - statistics.median(point),
            "ms",
            at_most=5,
        ),
        Figure(AREA, "SELECT of one user's 10,000 rows, p50", statistics.median(scan), "ms", at_most=50),
        Figure(AREA, "_seq > x: 10,000 changed of 100,000 rows, p50", statistics.median(sync), "ms", at_most=50),
    ]


def _workers(engine: Engine, dsn: str) -> list[Figure]:
    """What it costs that users' SQL runs in processes of its own: beside the same DuckDB in this process."""
    settings = Settings()
    own = Duck(engine._resources.storage, memory_mb=settings.sql.memory_mb, threads=settings.sql.threads)
    workers = engine._resources.workers
    numbers = iter(range(1_000_000))

    def request() -> Request:
        sql = f"SELECT n % 10, count(*), max(content) FROM app.own WHERE id <> {next(numbers)} GROUP BY 1"
        statement = parsed(sql)[0]
        assert isinstance(statement, Select)
        return engine._prepare(ALICE, statement.query).request()

    small = [Request(f"SELECT {next(numbers)} + 1") for _ in range(400)]
    large = [request() for _ in range(400)]
    figures = []
    for name, requests in (("SELECT of a constant", small), ("SELECT … GROUP BY over 10,000 hot rows", large)):
        given = iter(requests)
        _times(lambda given=given: (workers.run(next(given)), answer(own, next(given))), 10)
        ours = statistics.median(_times(lambda given=given: workers.run(next(given)), 190))
        alone = statistics.median(_times(lambda given=given: answer(own, next(given)), 190))
        if requests is small:
            figures.append(Figure(AREA, f"{name}: what a worker adds, p50", ours - alone, "ms", at_most=1))
        else:
            figures.append(Figure(AREA, f"{name}: in a worker / in process", ours / alone, "×", at_most=1.3))
    figures.append(Figure(AREA, "SELECT by 8 threads: rate / in process", _compare_rates(engine, own), "×", at_least=1))
    pairs = [(_cold(dsn, "SELECT 1"), _cold(dsn, "SHOW NAMESPACES")) for _ in range(7)]
    select, show = (statistics.median(times) for times in zip(*pairs, strict=True))
    figures.append(Figure(AREA, "one cold lakefork sql: SELECT 1", select, "s"))
    figures.append(Figure(AREA, "what it takes longer than one without DuckDB", select - show, "s", at_most=0.2))
    return figures


def _compare_rates(engine: Engine, own: Duck) -> float:
    """Whole statements, so that what Python does for them is part of it."""
    workers = engine._resources.workers
    in_workers = workers.run
    ratios = []
    for _ in range(5):
        rates = []
        for run in (in_workers, lambda request: answer(own, request)):
            workers.run = run  # type: ignore[method-assign]
            execute = functools.partial(engine.execute, ALICE, "SELECT n % 10, count(*) FROM app.own GROUP BY 1")
            _rate(execute, 8, 3)
            rates.append(_rate(execute, 8, 30))
        ratios.append(rates[0] / rates[1])
    workers.run = in_workers  # type: ignore[method-assign]
    return statistics.median(ratios)


def answer(duck: Duck, request: Request) -> pa.Table:
    """As a worker does it."""
    chunks: list[pa.Table] = []
    run_request(duck, request, chunks.append)
    return pa.concat_tables(chunks)


def _cold(dsn: str, text: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        [LAKEFORK, "sql", "--role", "admin", text],
        env={**os.environ, "LAKEFORK_DSN": dsn},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


def _definitions(engine: Engine, dsn: str) -> list[Figure]:
    numbers = iter(range(1_000))
    alter = _times(lambda: engine.execute(ADMIN, f"ALTER TABLE app.big ADD COLUMN c{next(numbers)} INT DEFAULT 1"), 100)
    describe = _times(lambda: engine.execute(ADMIN, "DESCRIBE TABLE app.big"), 20)
    with connect(dsn) as connection:
        connection.execute(
            "INSERT INTO ducklake_table (catalog_id, table_id, begin_snapshot, schema_id, table_name, path, path_is_relative) "
            "SELECT t.catalog_id, 1000000 + i, 1, t.schema_id, 'many' || i, 'many' || i, true FROM generate_series(1, 10000) i, "
            "ducklake_table t WHERE t.table_name = 'big'"
        )
        connection.execute(
            "INSERT INTO ducklake_tag (catalog_id, object_id, begin_snapshot, key, value) "
            "SELECT catalog_id, table_id, 1, 'kind', 'SHARED' FROM ducklake_table WHERE table_name LIKE 'many%'"
        )
        connection.execute("ANALYZE")
    tables = _times(lambda: engine.execute(ADMIN, "SHOW TABLES IN app LIMIT 50 OFFSET 5000"), 20)
    namespaces = _times(lambda: engine.execute(ADMIN, "SHOW NAMESPACES LIMIT 50"), 20)
    return [
        Figure(AREA, "ALTER TABLE of 1,000,000 rows, slowest of 100", max(alter), "ms", at_most=1000),
        Figure(AREA, "DESCRIBE TABLE with 100 versions, p50", statistics.median(describe), "ms", at_most=50),
        Figure(AREA, "SHOW TABLES, a page of 10,000 tables, p50", statistics.median(tables), "ms", at_most=10),
        Figure(AREA, "SHOW NAMESPACES with 10,000 tables, p50", statistics.median(namespaces), "ms", at_most=10),
    ]


def _ids(dsn: str) -> list[Figure]:
    with SeqIdGenerator(PostgresNodeLease(lambda: psycopg.connect(dsn, autocommit=True), "bench")) as ids:
        ids.next()
        started = time.perf_counter()
        for _ in range(100):
            ids.next_many(10_000)
        return [
            Figure(AREA, "SeqIds by next_many", 1_000_000 / (time.perf_counter() - started), "/s", at_least=1_000_000)
        ]


def _create(engine: Engine, name: str) -> None:
    engine.execute(ADMIN, f"CREATE USER TABLE app.{name} (id BIGINT PRIMARY KEY, content TEXT, n INT)")


def _times(action: Callable[[], Any], count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - started))
    return times


def _rate(action: Callable[[], Any], threads: int, each: int) -> float:
    def work() -> None:
        for _ in range(each):
            action()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - started)
