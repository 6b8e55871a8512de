"""Flush concurrent with everything else: late commits, writers, other flushes, DROP and ALTER, retried tasks."""

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark import cloudpickle

from lakefork.catalog.connection import connect
from lakefork.catalog.leases import Leases
from lakefork.errors import LeaseHeldError, StorageError
from lakefork.upkeep.flush import run as flush
from lakefork.upkeep.flush.task import run_task as real_run_task
from support.flush_lake import Filled, FlushLake

# Functions of this module travel to Spark's workers, which cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def hot_table(flush_lake: FlushLake, name: str) -> str:
    ((hot,),) = flush_lake.sql(
        "SELECT 'hot.' || i.table_name FROM ducklake_inlined_data_tables i JOIN ducklake_table t USING (table_id) "
        "WHERE t.table_name = %s",
        name,
    )
    return str(hot)


def test_a_row_that_commits_after_a_flush_read_past_it_is_kept(filled: Filled) -> None:
    """Its _seq is lower than everything that was flushed, and only its transaction says that it was not."""
    flush_lake = filled.flush_lake
    hot = hot_table(flush_lake, "ours")
    ((table_id,),) = flush_lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = 'ours'")
    catalog_id = flush_lake.lake.catalog.catalog_id
    with psycopg.connect(flush_lake.lake.dsn) as late:
        late.execute(
            f"INSERT INTO {hot} (catalog_id, _seq, _deleted, c4, c5) VALUES ({catalog_id}, 1, false, 77, 'late')"
        )
        late.execute(f"INSERT INTO lakefork.hot_delta VALUES ({catalog_id}, {table_id}, '', 1, now())")
        flush_lake.flush()
        late.commit()
    expected = filled.rows()
    assert ("", 77, "late") in expected
    assert ("", 77, "late") not in filled.in_files()
    assert flush_lake.waiting() == {"": 1}
    result = flush_lake.flush()
    assert (result["rows_in"], result["rows_out"]) == (1, 1), "and not what was flushed before"
    filled.check_nothing_lost_or_left(expected)
    filled.write(1)
    flush_lake.flush()
    assert flush_lake.sql(f"SELECT count(*) FROM {hot} WHERE c4 = 77") == [(0,)]
    assert ("", 77, "late") in filled.rows()


def test_acknowledged_rows_are_visible_at_every_moment_exactly_once(filled: Filled) -> None:
    """Writers count up their rows and a reader looks, while flushes publish and trim."""
    lake = filled.flush_lake.lake
    acknowledged: dict[int, int] = {}
    over = threading.Event()

    def write(first: int) -> None:
        number = first
        lake.run("INSERT INTO app.ours VALUES (?, '0')", number)
        acknowledged[number] = 0
        while not over.is_set():
            lake.run("UPDATE app.ours SET v = CAST(CAST(v AS INT) + 1 AS TEXT) WHERE id = ?", number)
            acknowledged[number] += 1
            if acknowledged[number] == 20:
                number += 10
                lake.run("INSERT INTO app.ours VALUES (?, '0')", number)
                acknowledged[number] = 0

    def read() -> int:
        looked = 0
        while not over.is_set():
            before = dict(acknowledged)
            seen = lake.rows("SELECT id, CAST(v AS INT) FROM app.ours WHERE id >= 1000")
            assert len({key for key, _ in seen}) == len(seen), "a row is there once"
            values = dict(seen)
            assert {key: values.get(key, -1) for key in before if values.get(key, -1) < before[key]} == {}
            looked += 1
        return looked

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, first) for first in (1000, 1001)]
        readers = [pool.submit(read) for _ in range(2)]
        try:
            published = [filled.flush_lake.flush()["rows_in"] for _ in range(5)]
        finally:
            over.set()
        for writer in writers:
            writer.result()
        assert min(reader.result() for reader in readers) > 5
    assert sum(published) > 50
    filled.flush_lake.flush()
    expected = filled.rows()
    assert {row[1]: int(row[2]) for row in expected if row[0] == "" and row[1] >= 1000} == acknowledged
    filled.check_nothing_lost_or_left(expected)


def failing_first(environment: Any, tables: Any, task: Any) -> Any:
    """The first attempt of each task writes everything and then dies."""
    from pyspark import TaskContext

    report = real_run_task(environment, tables, task)
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("this attempt does not count")
    return report


def test_a_task_that_spark_tries_again_leaves_one_file_not_two(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = filled.rows()
    monkeypatch.setattr(flush, "run_task", failing_first)
    result = filled.flush_lake.flush()
    assert (result["rows_in"], result["files_written"]) == (26, 3)
    assert any("of task attempts that did not count were removed" in line for line in filled.flush_lake.lines)
    filled.check_nothing_lost_or_left(expected)
    assert {path.rpartition("-")[2] for path in filled.flush_lake.files_on_disk()} == {"1.parquet"}, (
        "a number is used once"
    )


def broken_at(name: str, stand_in: Any, environment: Any, tables: Any, task: Any) -> Any:
    """A task for which a call of the system does what a broken storage does."""
    import lakefork.storage

    real = getattr(lakefork.storage.os, name)
    setattr(lakefork.storage.os, name, stand_in)
    try:
        return real_run_task(environment, tables, task)
    finally:
        setattr(lakefork.storage.os, name, real)


def full_at_link(environment: Any, tables: Any, task: Any) -> Any:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return broken_at("link", fail, environment, tables, task)


def full_at_write(environment: Any, tables: Any, task: Any) -> Any:
    """What is written goes to a device that is always full."""
    write = os.write
    device = os.open("/dev/full", os.O_WRONLY)
    return broken_at("write", lambda _, content: write(device, content), environment, tables, task)


def read_only(environment: Any, tables: Any, task: Any) -> Any:
    def fail(path: str, **_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    return broken_at("makedirs", fail, environment, tables, task)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (full_at_link, "No space left on device"),
        (full_at_write, "No space left on device"),
        (read_only, "Read-only file system"),
    ],
)
def test_a_full_or_read_only_disk_is_one_clear_error_and_the_next_run_succeeds(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, broken: Any, problem: str
) -> None:
    """Scenario 16."""
    expected = filled.rows()
    with monkeypatch.context() as patched:
        patched.setattr(flush, "run_task", broken)
        with pytest.raises(StorageError, match=rf"batch-0\.parquet cannot be written: .*{problem}") as caught:
            filled.flush_lake.flush()
    assert caught.value.retryable
    assert list(Path(filled.flush_lake.lake.catalog.data_path).rglob("*batch*")) == [], "no part is left"
    assert filled.rows() == expected
    filled.flush_lake.flush()
    filled.check_nothing_lost_or_left(expected)


def test_two_flushes_at_once_share_the_tables(filled: Filled) -> None:
    expected = filled.rows()
    lakes = [
        FlushLake(filled.flush_lake.lake, filled.flush_lake.settings, filled.flush_lake.expectations) for _ in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda one: one.flush(), lakes))
    assert sum(result["tables"] for result in results) == 2
    assert sum(result["rows_in"] for result in results) == 26
    filled.check_nothing_lost_or_left(expected)


@pytest.fixture
def held(filled: Filled) -> Iterator[Callable[[float], Leases]]:
    """Takes the lease of app.mine for so many seconds, as a run that does not renew it."""
    ((catalog_id, table_id),) = filled.flush_lake.sql(
        "SELECT catalog_id, table_id FROM ducklake_table WHERE table_name = 'mine'"
    )
    with connect(filled.flush_lake.lake.dsn) as connection:

        def take(seconds: float) -> Leases:
            leases = Leases("flush/other/1", seconds)
            leases.take(connection, f"table/{catalog_id}/{table_id}")
            return leases

        yield take


def test_a_due_table_that_another_run_works_on_is_left_to_it(filled: Filled, held: Callable[[float], Leases]) -> None:
    flush_lake = filled.flush_lake
    held(60)
    policy = flush_lake.settings.flush.model_copy(update={"default_rows": 1})
    due = flush_lake.settings.model_copy(update={"flush": policy})
    assert flush_lake.flush(settings=due, force=False)["tables"] == 1
    assert "main.app.mine is being worked on by another run: skipped" in flush_lake.lines


@pytest.mark.parametrize("params", [{}, {"table": "mine"}, {"force": False}], ids=["all", "named", "requested"])
def test_a_requested_table_waits_for_the_lease_of_a_dead_run(
    filled: Filled, held: Callable[[float], Leases], params: dict[str, Any]
) -> None:
    """The others are flushed before."""
    flush_lake = filled.flush_lake
    expected = filled.rows()
    if params == {"force": False}:
        flush_lake.lake.run("FLUSH TABLE app.mine; FLUSH TABLE app.ours")
    held(2)
    result = flush_lake.flush(**params)
    assert result["tables"] == (1 if "table" in params else 2)
    waiting = [place for place, line in enumerate(flush_lake.lines) if "waiting for it" in line]
    assert flush_lake.lines[waiting[0]].startswith("main.app.mine is being worked on by flush/other/1 since ")
    if "table" not in params:
        assert any("to flush: " in line for line in flush_lake.lines[: waiting[0]])
    assert flush_lake.waiting().get("ada", 0) == 0
    flush_lake.flush()
    filled.check_nothing_lost_or_left(expected)


def test_a_requested_table_held_by_a_living_run_is_no_success(filled: Filled, held: Callable[[float], Leases]) -> None:
    """The rest is done all the same."""
    flush_lake = filled.flush_lake
    living = held(1.5)
    over = threading.Event()

    def live() -> None:
        with connect(flush_lake.lake.dsn) as connection:
            while not over.wait(0.2):
                living.renew(connection)

    with ThreadPoolExecutor() as pool:
        beating = pool.submit(live)
        with pytest.raises(
            LeaseHeldError, match=r"^main\.app\.mine is being worked on by flush/other/1 since .* UTC"
        ) as caught:
            flush_lake.flush()
        over.set()
        beating.result()
    assert caught.value.retryable
    assert flush_lake.paths("app.mine") == [] and len(flush_lake.paths("app.ours")) == 1


def test_a_run_that_waited_in_vain_for_another_that_did_the_work_succeeds(
    filled: Filled, held: Callable[[float], Leases]
) -> None:
    """Several forced runs wait for one dead one; one of them does it."""
    expected = filled.rows()
    held(2)
    lakes = [
        FlushLake(filled.flush_lake.lake, filled.flush_lake.settings, filled.flush_lake.expectations) for _ in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda one: one.flush(), lakes))
    assert sum(result["tables"] for result in results) == 2
    filled.check_nothing_lost_or_left(expected)


def test_a_driver_that_lost_its_lease_publishes_nothing(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its last look at the lease and the commit another driver takes over, and finishes first."""
    from lakefork.errors import LeaseLostError
    from lakefork.upkeep.flush import publish as flush_publish

    flush_lake = filled.flush_lake
    expected = filled.rows()
    real = flush_publish.publish

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(flush_publish, "publish", real)
        flush_lake.sql("UPDATE lakefork.lease SET expires_at = '-infinity' RETURNING 1")
        other = FlushLake(flush_lake.lake, flush_lake.settings, flush_lake.expectations)
        assert other.flush()["tables"] == 2
        return real(*arguments)

    monkeypatch.setattr(flush_publish, "publish", overtaken)
    with pytest.raises(LeaseLostError, match=r"lost its lease on table/\d+/\d+ and stops"):
        flush_lake.flush()
    filled.check_nothing_lost_or_left(expected)
    assert flush_lake.sql("SELECT count(*) FROM lakefork.flush_log") == [(2,)]


def test_files_that_another_run_took_are_not_published(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever thinks that a run is dead discards what it staged: that run must not publish what is gone."""
    from lakefork.errors import LeaseLostError

    expected = filled.rows()
    before_publishing(monkeypatch, lambda: filled.flush_lake.sql("DELETE FROM lakefork.staged_file RETURNING 1"))
    with pytest.raises(LeaseLostError, match=r"files that flush/.* staged are no longer its own"):
        filled.flush_lake.flush()
    assert filled.flush_lake.paths("app.mine") == []
    monkeypatch.undo()
    filled.flush_lake.flush()
    assert filled.rows() == filled.in_files() == expected


def test_files_that_another_run_stages_are_left_alone(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_lake = filled.flush_lake
    foreign = f"{flush_lake.lake.catalog.data_path}/app/mine/user_ada/batch-99.parquet"
    stage = (
        "INSERT INTO lakefork.staged_file SELECT %s, catalog_id, table_id, 'another job', now() "
        "FROM ducklake_table WHERE table_name = 'mine' RETURNING 1"
    )
    before_publishing(monkeypatch, lambda: flush_lake.sql(stage, foreign))
    flush_lake.flush()
    assert flush_lake.sql("SELECT path FROM lakefork.staged_file") == [(foreign,)]


def test_a_table_that_cannot_be_written_does_not_keep_the_others(filled: Filled) -> None:
    expected = filled.rows()
    obstacle = Path(filled.flush_lake.lake.catalog.data_path) / "app" / "mine"
    shutil.rmtree(obstacle)
    obstacle.write_text("a file where a directory should be")
    with pytest.raises(
        StorageError, match=r"main\.app\.mine was not published: .*app/mine cannot be written to: .*Not a directory"
    ):
        filled.flush_lake.flush()
    assert len(filled.flush_lake.paths("app.ours")) == 1
    obstacle.unlink()
    filled.flush_lake.flush()
    filled.check_nothing_lost_or_left(expected)


def before_publishing(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Does something when all files are written and nothing is published."""
    real = flush.publish_all

    def publish_all(*arguments: Any) -> Any:
        work()
        return real(*arguments)

    monkeypatch.setattr(flush, "publish_all", publish_all)


def test_a_table_that_is_dropped_meanwhile_leaves_no_file(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_lake = filled.flush_lake
    before_publishing(monkeypatch, lambda: flush_lake.lake.run("DROP TABLE app.mine"))
    result = flush_lake.flush()
    assert result["tables"] == 1
    assert "main.app.mine was dropped during the flush: its 2 staged file(s) were removed" in flush_lake.lines
    assert flush_lake.files_on_disk() == flush_lake.paths("app.ours")
    assert flush_lake.flush()["tables"] == 0


def test_a_table_that_is_dropped_before_it_is_read_is_left_out(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_lake = filled.flush_lake
    real = flush.plan_flush

    def dropped_before(*arguments: Any) -> Any:
        flush_lake.lake.run("DROP TABLE app.mine")
        return real(*arguments)

    monkeypatch.setattr(flush, "plan_flush", dropped_before)
    assert flush_lake.flush()["tables"] == 1
    assert flush_lake.files_on_disk() == flush_lake.paths("app.ours")
    assert len(flush_lake.newest_in_files("app.ours")) == 5


def test_columns_that_are_dropped_and_widened_meanwhile_read_right(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush_lake = filled.flush_lake
    lake = flush_lake.lake
    lake.run("ALTER TABLE app.ours ADD COLUMN n INT DEFAULT 7; UPDATE app.ours SET n = 8 WHERE id = 1")

    def alter() -> None:
        lake.run(
            "ALTER TABLE app.ours DROP COLUMN v; ALTER TABLE app.ours MODIFY COLUMN n BIGINT; "
            "INSERT INTO app.ours VALUES (50, 9000000000)"
        )

    before_publishing(monkeypatch, alter)
    flush_lake.flush()
    monkeypatch.undo()
    expected = [(0, 7), (1, 8), (2, 7), (3, 7), (4, 7), (50, 9_000_000_000)]
    assert lake.rows("SELECT id, n FROM app.ours ORDER BY id") == expected
    lake.run("UPDATE app.ours SET n = n + 1 WHERE id = 0")
    flush_lake.flush()
    expected[0] = (0, 8)
    assert lake.rows("SELECT id, n FROM app.ours ORDER BY id") == expected
    found = [(row["id"], row["n"]) for row in flush_lake.newest_by_field_ids("app.ours")]
    assert sorted(found) == expected


def test_a_table_that_is_altered_meanwhile_reads_right(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_lake = filled.flush_lake
    lake = flush_lake.lake

    def alter() -> None:
        lake.run(
            "ALTER TABLE app.ours RENAME COLUMN v TO w; ALTER TABLE app.ours ADD COLUMN n INT DEFAULT 7; "
            "INSERT INTO app.ours VALUES (50, 'new', 1)"
        )

    before_publishing(monkeypatch, alter)
    flush_lake.flush()
    expected = [
        (0, "ours 0+", 7),
        (1, "ours 1", 7),
        (2, "ours 2+", 7),
        (3, "ours 3", 7),
        (4, "ours 4+", 7),
        (50, "new", 1),
    ]
    assert lake.rows("SELECT id, w, n FROM app.ours ORDER BY id") == expected
    monkeypatch.undo()
    lake.run("UPDATE app.ours SET w = w || '!' WHERE id < 2")
    flush_lake.flush()
    expected[0], expected[1] = (0, "ours 0+!", 7), (1, "ours 1!", 7)
    assert lake.rows("SELECT id, w, n FROM app.ours ORDER BY id") == expected
    flush_lake.flush()


def test_rows_written_under_several_definitions_are_flushed_as_one(filled: Filled) -> None:
    """Each definition has a hot table of its own; the newest version wins, wherever it is."""
    flush_lake = filled.flush_lake
    lake = flush_lake.lake
    lake.run("ALTER TABLE app.ours ADD COLUMN n INT DEFAULT 7")
    lake.run("UPDATE app.ours SET v = 'second', n = 8 WHERE id = 1")
    lake.run("ALTER TABLE app.ours MODIFY COLUMN n BIGINT; ALTER TABLE app.ours DROP COLUMN v")
    lake.run("UPDATE app.ours SET n = 9000000000 WHERE id = 2")
    expected = [(0, 7), (1, 8), (2, 9_000_000_000), (3, 7), (4, 7)]
    assert lake.rows("SELECT id, n FROM app.ours ORDER BY id") == expected
    result = flush_lake.flush(table="ours")
    assert (result["rows_in"], result["rows_out"], result["files_written"]) == (10, 5, 1)
    assert flush_lake.newest_in_files("app.ours") == expected
    assert lake.rows("SELECT id, n FROM app.ours ORDER BY id") == expected
    lake.run("INSERT INTO app.ours VALUES (9, 9)")
    flush_lake.flush(table="ours")
    assert lake.rows("SELECT id, n FROM app.ours ORDER BY id") == [*expected, (9, 9)]
