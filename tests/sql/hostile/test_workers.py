"""Statements that would crash, stall or exhaust a process fail with one message and affect nobody else."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from lakefork.errors import CancelledError, InvalidInputError, LakeforkError, LimitError, PermissionDeniedError
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.engine import Engine
from lakefork.sql.workers.duck import _own_error
from lakefork.sql.workers.functions import reviewed_functions
from lakefork.sql.workers.launch import Zygote
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.pool import Cancellation, EngineCrashedError, WorkerLostError
from lakefork.sql.write import write
from support.sql_hostile import refuse
from support.sql_lake import SqlLake

MEMORY_MB = 128
DEEP = "repeat('[', 300000) || repeat(']', 300000)"
DEEP_OBJECT = """repeat('{"a":', 200000) || '1' || repeat('}', 200000)"""


@pytest.fixture(scope="module")
def limited(lake: SqlLake, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    settings = make_settings(sql=SqlSettings(statement_timeout_seconds=2, memory_mb=MEMORY_MB, workers=2, threads=1))
    with Engine(settings, lake.dsn) as engine:
        lake.run("CREATE SHARED TABLE app.docs (id BIGINT PRIMARY KEY, doc JSON, n BIGINT, s STRING)")
        lake.run("INSERT INTO app.docs VALUES (1, '{}', 0, 'x'), (2, '[]', 0, 'y')")
        yield SqlLake(engine, lake.dsn, lake.catalog)
        lake.run("DROP TABLE app.docs")


def workers_of_this_process() -> list[psutil.Process]:
    zygote = Zygote._current
    assert zygote is not None
    return psutil.Process(zygote._process.pid).children()


class PeakMemory(threading.Thread):
    """The most that this process and its workers had together, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_now = threading.Event()
        self.megabytes = 0

    def run(self) -> None:
        while not self._stop_now.wait(0.02):
            total = 0
            for process in (psutil.Process(), *workers_of_this_process()):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            self.megabytes = max(self.megabytes, total >> 20)

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()


CRASHES = [
    f"json_contains({DEEP}, '7')", f"json_structure({DEEP})", f"json_merge_patch({DEEP_OBJECT}, {DEEP_OBJECT})",
    f"json_transform({DEEP}, '\"JSON\"')", f"CAST(CAST({DEEP} AS JSON) AS VARIANT)", f"json_structure({DEEP_OBJECT})",
    f"json_pretty({DEEP})", f"json_keys({DEEP_OBJECT})", f"from_json({DEEP}, '[\"JSON\"]')", f"({DEEP})::JSON = '1'::JSON",
]  # fmt: skip


@pytest.mark.parametrize("value", CRASHES)
def test_a_crash_of_the_engine_ends_one_statement(limited: SqlLake, value: str) -> None:
    """Whether it crashes depends on DuckDB; that nothing else does, on us."""
    for text in (
        f"SELECT {value}", f"SELECT id FROM app.open WHERE ({value}) IS NULL",
        f"INSERT INTO app.mine (id, v) VALUES (77, CASE WHEN ({value}) IS NULL THEN error('x') ELSE error('y') END)",
    ):  # fmt: skip
        with contextlib.suppress(LakeforkError):
            limited.run(text, user="mallory")
    assert limited.rows("SELECT id FROM app.open ORDER BY id", user="mallory") == [(1,), (2,)]


def test_crashes_of_the_engine_are_reported(limited: SqlLake) -> None:
    assert "crashed the query engine" in refuse(
        limited, f"SELECT {CRASHES[0]}", kind=EngineCrashedError, user="mallory"
    )
    for text in (
        f"UPDATE app.docs SET n = CAST({CRASHES[0]} AS BIGINT)", f"DELETE FROM app.docs WHERE {CRASHES[0]}",
        f"INSERT INTO app.docs SELECT 9, NULL, CAST({CRASHES[0]} AS BIGINT), NULL",
        f"CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY, v BOOLEAN DEFAULT {CRASHES[0]})",
        f"UPDATE system.users SET role = 'user' WHERE {CRASHES[0]}", f"SELECT * FROM app.docs AT (VERSION => {CRASHES[0]}::BIGINT)",
    ):  # fmt: skip
        assert "crashed the query engine" in refuse(limited, text, kind=EngineCrashedError)
    assert limited.rows("SELECT id, n FROM app.docs ORDER BY id") == [(1, 0), (2, 0)]


FAILURES = [
    "SELECT reservoir_quantile(x, 0.5, 1000000000) FROM range(10) t(x)", "SELECT reservoir_quantile(id, 0.5, 1000000000) FROM app.open",
    "SELECT CAST(NULL AS INT[10000][10000][10000])",
]  # fmt: skip


@pytest.mark.parametrize("text", FAILURES)
def test_a_failure_inside_the_engine_does_not_affect_the_next_statement(limited: SqlLake, text: str) -> None:
    """After some, DuckDB refuses all that comes later in the same process."""
    for _ in range(3):
        refuse(limited, text, user="mallory")
        assert limited.rows("SELECT id FROM app.open ORDER BY id", user="mallory") == [(1,), (2,)]
        assert limited.rows("SELECT 1 + 1", user="mallory") == [(2,)]


def test_documents_that_are_nested_too_deeply_are_not_stored(limited: SqlLake) -> None:
    """Else every reader of the table would meet them."""
    for text in (
        f"INSERT INTO app.docs (id, doc) VALUES (3, {DEEP})", f"UPDATE app.docs SET doc = {DEEP} WHERE id = 1",
        f"INSERT INTO app.docs (id, doc) SELECT 3, {DEEP_OBJECT}",
    ):  # fmt: skip
        refuse(limited, text)
    refuse(limited, "INSERT INTO app.docs (id, doc) VALUES (3, ?)", "[" * 300_000 + "]" * 300_000)
    assert limited.rows("SELECT id, doc FROM app.docs ORDER BY id") == [(1, "{}"), (2, "[]")]


SLOW = [
    "levenshtein(repeat('ab', 200000), repeat('ba', 200000))", "jaro_similarity(repeat('ab', 200000), repeat('ba', 200000))",
    "(SELECT count(*) FROM generate_series(TIMESTAMP '2000-01-01', TIMESTAMP '2025-01-01', INTERVAL 1 MILLISECOND))",
    "len(generate_series(TIMESTAMP '2000-01-01', TIMESTAMP '2025-01-01', INTERVAL 1 MILLISECOND))",
    "jaro_winkler_similarity(repeat('ab', 200000), repeat('ba', 200000))",
    "regexp_matches(repeat('a', 30000), repeat('a?', 800) || repeat('a', 800))",
    "(SELECT max(i) FROM (WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i FROM r))",
    "list_reduce(range(100000000), (x, y) -> x + y)", "factorial(1000000000)", "gcd(1, 2) + len(array_sort(range(200000000)))",
]  # fmt: skip


@pytest.mark.parametrize("value", SLOW)
def test_a_statement_ends_at_its_limit_whatever_it_computes(limited: SqlLake, value: str) -> None:
    started = time.monotonic()
    with contextlib.suppress(LakeforkError):  # some are refused for memory, or just done
        limited.run(f"SELECT {value}", user="mallory")
    assert time.monotonic() - started < 20, "2.5 where nothing else runs; minutes without the limit"
    assert len(workers_of_this_process()) < 20


def test_too_many_terms_are_refused_before_they_are_planned(limited: SqlLake) -> None:
    started = time.process_time()
    with PeakMemory() as peak:
        for text in (
            "SELECT 1" + " UNION ALL SELECT 1" * 20_000, "SELECT " + ", ".join(["(SELECT 1)"] * 20_000),
            "WITH " + ", ".join(f"c{number} AS (SELECT 1)" for number in range(10_000)) + " SELECT 1",
            "SELECT 1 FROM " + ", ".join(f"app.open t{number}" for number in range(10_000)),
            "SELECT 1 EXCEPT SELECT 1" + " INTERSECT SELECT 2" * 20_000,
        ):  # fmt: skip
            refuse(limited, text, kind=InvalidInputError, user="mallory")
    assert time.process_time() - started < 20
    assert peak.megabytes < 2_000


@pytest.mark.parametrize("statement", ["UPDATE app.docs SET n = {}", "DELETE FROM app.docs WHERE n = {}"])
def test_no_lock_is_held_while_an_expression_takes_long(limited: SqlLake, lake: SqlLake, statement: str) -> None:
    text = statement.format(SLOW[0])
    failed: list[Exception] = []

    def change() -> None:
        try:
            limited.run(text)
        except LakeforkError as error:
            failed.append(error)

    changing = threading.Thread(target=change)
    changing.start()
    time.sleep(0.3)
    started = time.monotonic()
    lake.run("UPDATE app.docs SET s = s || '!' WHERE id = 1; ALTER TABLE app.docs ADD COLUMN extra INT")
    waited = time.monotonic() - started
    lake.run("ALTER TABLE app.docs DROP COLUMN extra")
    changing.join()
    assert waited < 2.5, "a statement holds its locks for one second at most while it computes"
    assert isinstance(failed[0], LimitError)


def test_long_changes_are_applied_only_to_unchanged_rows(
    limited: SqlLake, lake: SqlLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "SECONDS_IN_TRANSACTION", 0.001)  # nothing is quick enough
    lake.run("UPDATE app.docs SET n = 0")
    computed, computations = write.Writer._computed, []

    def disturbed(writer: Any, target: Any, current: Any, **limits: Any) -> Any:
        rows = computed(writer, target, current, **limits)
        computations.append(rows)
        if len(computations) == 1:
            lake.run("UPDATE app.docs SET n = n + 100 WHERE id = 1")
        return rows

    monkeypatch.setattr(write.Writer, "_computed", disturbed)
    assert limited.count("UPDATE app.docs SET n = n + 1 WHERE id IN (1, 2)") == 2
    assert lake.rows("SELECT id, n FROM app.docs ORDER BY id") == [(1, 101), (2, 1)]
    assert limited.count("DELETE FROM app.docs WHERE n = 12345") == 0


def test_slow_updates_of_one_row_lose_nothing(limited: SqlLake, lake: SqlLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "SECONDS_IN_TRANSACTION", 0.001)
    lake.run("UPDATE app.docs SET n = 0 WHERE id = 2")

    def increment() -> None:
        for _ in range(3):
            lake.run("UPDATE app.docs SET n = n + 1 WHERE id = 2")

    threads = [threading.Thread(target=increment) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lake.rows("SELECT n FROM app.docs WHERE id = 2") == [(9,)]


LARGE = [
    "repeat('x', CAST('3000000000' AS BIGINT))", "repeat(repeat(repeat('x', 1000), 1000), 1000)", "lpad('x', 1000000000, 'y')",
    "format('{:1000000000}', 'x')", "printf('%1000000000d', 1)", "replace(repeat('a', 100000), 'a', repeat('b', 10000))",
    "damerau_levenshtein(repeat('ab', 100000), repeat('ba', 100000))", "list_transform(range(10000), x -> repeat('x', 1000000))",
    "rpad('x', 2000000000, 'y')", "list_resize([1], 1000000000)", "string_agg(repeat('x', 1000000), '') FROM range(2000)",
    "array_to_string(list_transform(range(100000), x -> repeat('x', 100000)), '')", "range(1000000000)",
    "regexp_replace(repeat('a', 1000000), 'a', repeat('b', 10000), 'g')", "translate(repeat('a', 1000000000), 'a', 'b')",
    "to_json(list_transform(range(10000), x -> repeat('x', 1000000)))", "concat(repeat('x', 500000000), repeat('x', 500000000))",
    "bitstring('1', 2000000000)", "hex(repeat('x', 400000000))", "json_group_array(repeat('x', 1000000)) FROM range(2000)",
]  # fmt: skip


@pytest.mark.parametrize("value", LARGE)
def test_a_statement_gets_the_memory_that_is_set_and_no_more(limited: SqlLake, value: str) -> None:
    before = psutil.Process().memory_info().rss >> 20
    workers = sum(worker.memory_info().rss >> 20 for worker in workers_of_this_process())
    with PeakMemory() as peak:
        refuse(limited, f"SELECT {value}", kind=LimitError, user="mallory")
    assert peak.megabytes < before + workers + 1.5 * MEMORY_MB + 200


AROUND = [
    "SELECT * FROM (SELECT count(*) FROM app.open) x, LATERAL histogram_values('duckdb_views', sql) h",
    "SELECT * FROM app.open, LATERAL (SELECT * FROM repeat_row(1, num_rows = 3)) h",
    "SELECT * FROM app.open, truncate_duckdb_logs()", "SELECT * FROM icu_calendar_names()",
    "SELECT * FROM app.open o, LATERAL (SELECT * FROM histogram('duckdb_views', sql)) h",
    "SELECT * FROM app.open JOIN LATERAL duckdb_tables() t ON true", "SELECT current_query()", "SELECT [current_query() FOR x IN [1]]",
    "SELECT list_transform([1], x -> current_setting('threads'))", "SELECT count(*) FILTER (WHERE current_query() <> '') FROM app.open",
    "SELECT sum(1) OVER (ORDER BY current_query()) FROM app.open", "SELECT 1 ORDER BY current_query()", "SELECT 1 LIMIT getvariable('x')",
    "SELECT * FROM app.open WHERE EXISTS (SELECT * FROM duckdb_views())", "WITH duckdb_views AS (SELECT 1) SELECT * FROM duckdb_views",
    "SELECT * FROM duckdb_columns, (WITH duckdb_columns AS (SELECT 1 AS a) SELECT a FROM duckdb_columns) x",
    "SELECT stats(id) FROM app.open", "SELECT * FROM app.open USING SAMPLE 1 ROWS, pragma_version()", "SELECT setseed(0.5)",
    "SELECT 'duckdb_views'.query_table()", "SELECT * FROM pg_timezone_names()", "SELECT * FROM summary((SELECT 1))",
    "SELECT m FROM (SELECT max(sql) AS m FROM duckdb_views) t", "SELECT nextval('x')", "SELECT sleep_ms(10)", "SELECT write_log('x')",
    "SELECT json_serialize_plan('SELECT 1')", "SELECT * FROM app.open PIVOT (count(*) FOR v IN (SELECT sql FROM duckdb_views))",
    "INSERT INTO app.mine SELECT 5, sql FROM duckdb_views() LIMIT 1", "UPDATE app.mine SET v = current_query()",
]  # fmt: skip


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("text", AROUND)
def test_unlisted_functions_are_refused_everywhere(limited: SqlLake, text: str) -> None:
    message = refuse(limited, text, kind=LakeforkError, user="mallory")
    assert "relation_" not in message and "batch-" not in message


@pytest.mark.parametrize(
    "text",
    [
        "SELECT (SELECT max(id) FROM app.open)", "SELECT EXISTS (SELECT * FROM app.open)", "SELECT 1 IN (SELECT id FROM app.open)",
        "SELECT * FROM (SELECT (SELECT min(v) FROM app.open), 2)", "SELECT app.open.id + 1 FROM app.open", "SELECT o FROM app.open o",
        "SELECT (SELECT (SELECT max(id) FROM app.open)) + 1 UNION ALL SELECT 2", "SELECT array(SELECT id FROM app.open)",
    ],
)  # fmt: skip
def test_titles_of_columns_show_no_internal_names(limited: SqlLake, text: str) -> None:
    (result,) = limited.run(text, user="mallory")
    assert not any("relation_" in title for title in result.columns)
    assert "relation_" not in str(result.rows)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT nothing FROM app.open", "SELECT open.nothing FROM app.open", "SELECT id FROM app.open GROUP BY v", "SELECT id + v FROM app.open",
        "SELECT id FROM app.open a, app.open b", "SELECT relation.id FROM app.open", "SELECT (SELECT id FROM app.open)", "SELECT max(nothing) FROM app.open",
        "SELECT * FROM app.open WHERE (SELECT id, v FROM app.open) = 1", "SELECT unknown_function(id) FROM app.open",
    ],
)  # fmt: skip
def test_errors_show_no_internal_names(limited: SqlLake, text: str) -> None:
    assert "relation_" not in refuse(limited, text, kind=LakeforkError, user="mallory")


def test_every_function_of_the_installed_duckdb_was_reviewed() -> None:
    """A new DuckDB's functions are off until somebody has put them in one of the lists of functions.txt."""
    with duckdb.connect() as connection:
        found = connection.execute("SELECT DISTINCT function_name, function_type FROM duckdb_functions()").fetchall()
    values = {name for name, kind in found if kind in ("scalar", "aggregate", "macro")}
    tables = {name for name, kind in found if kind in ("table", "table_macro")}
    reviewed = reviewed_functions()
    assert values - reviewed["values"] == reviewed["off"]
    assert tables - reviewed["from"] == reviewed["off in from"]
    assert reviewed["values"] - values == {"unnest", "->"}, "what DuckDB's grammar makes without listing it"
    assert not reviewed["values"] & reviewed["off"]


def test_an_unreviewed_function_is_refused(limited: SqlLake) -> None:
    refuse(limited, "SELECT brand_new_function(1)", kind=PermissionDeniedError)


def test_another_thread_can_cancel_a_statement(limited: SqlLake) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(0.5, cancellation.cancel)
    timer.start()
    started = time.monotonic()
    outcome = limited.engine.run(limited.session("mallory"), f"SELECT {SLOW[0]}; SELECT 1", (), cancellation)
    assert time.monotonic() - started < 15
    assert isinstance(outcome.error, CancelledError) and not outcome.results


def test_a_worker_that_dies_is_replaced(limited: SqlLake) -> None:
    for _ in range(3):
        for worker in workers_of_this_process():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        assert limited.rows("SELECT 1 + 1") == [(2,)]
    zygote = Zygote._current
    assert zygote is not None
    os.kill(zygote._process.pid, signal.SIGKILL)
    zygote._process.wait()
    assert limited.rows("SELECT id FROM app.open ORDER BY id") == [(1,), (2,)]


def test_a_worker_that_is_killed_while_it_answers_has_not_crashed(limited: SqlLake) -> None:
    """Rows were handed over, so that it cannot be repeated on another one; the statement is not to blame."""
    text = "SELECT i, repeat('x', 1000) AS v FROM range(1000000) t(i)"
    answer = limited.engine._resources.workers.stream(Request(text, max_rows=10**9, cut=True))
    assert next(answer).num_rows
    for process in workers_of_this_process():
        process.kill()
    with pytest.raises(WorkerLostError, match="was killed from outside; try again"):
        for _ in answer:
            pass
    assert limited.rows("SELECT 1") == [(1,)]


def test_users_who_wait_for_workers_get_an_error_and_writers_are_not_blocked(limited: SqlLake, lake: SqlLake) -> None:
    def stall() -> None:
        with contextlib.suppress(LakeforkError):
            limited.run(f"SELECT {SLOW[0]}")

    stalled = [threading.Thread(target=stall) for _ in range(2)]
    for thread in stalled:
        thread.start()
    time.sleep(0.3)
    assert limited.count("INSERT INTO app.docs (id, n) VALUES (50, 1)") == 1, "needs no worker of users"
    assert limited.count("DELETE FROM app.docs WHERE id = 50") == 1
    started = time.monotonic()
    assert limited.rows("SELECT 1 + 1") == [(2,)], "the workers that were killed are replaced, and serve whoever waits"
    assert time.monotonic() - started < 20
    for thread in stalled:
        thread.join()


SCRIPT = """
import sys
from lakefork.settings import Settings, SqlSettings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Session
with Engine(Settings(sql=SqlSettings(statement_timeout_seconds=60)), sys.argv[1]) as engine:
    print("ready", flush=True)
    engine.execute(Session("main", "mallory"), "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE (i * j) % 7 = 8")
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_query_ends_with_its_client(lake: SqlLake, tmp_path: Path, sent: signal.Signals) -> None:
    script = tmp_path / "ask.py"
    script.write_text(textwrap.dedent(SCRIPT))
    process = subprocess.Popen(
        [sys.executable, str(script), lake.dsn], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(1.5)
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) >= 2, "what workers are forked from, and a worker"
    process.send_signal(sent)
    process.wait(10)
    process.stdout.close()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive


def test_the_error_of_a_thread_is_reported_not_that_others_were_stopped_for_it() -> None:
    """About one stream in fifty of a busy machine ends by what DuckDB tells the threads that it stops."""
    failed = pytest.raises(duckdb.ConversionException, match="Could not convert string 'x'")
    query = "SELECT CAST(x AS INTEGER) FROM (VALUES ('x')) v(x)"
    with duckdb.connect() as database, failed, _own_error(database, query):
        raise OSError("INTERRUPT Error: Interrupted!")
