"""A flush that dies after any step, and is tried again: nothing is lost, published twice or left unreadable."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from lakefork.catalog.catalogs import drop_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import DatabaseError, SnapshotLostError
from lakefork.hot.connections import ArrowConnection
from lakefork.manifests import write as manifest_task
from lakefork.upkeep import staging
from lakefork.upkeep.flush import publish as flush_publish
from lakefork.upkeep.flush import run as flush
from lakefork.upkeep.flush import trim
from lakefork.upkeep.flush.audit import FlushAudit
from support.flush_lake import Filled
from support.killed import run_until_killed


class Crash(BaseException):
    """Nobody catches it, as nobody catches kill −9."""


def before(owner: Any, name: str, call: int = 1) -> Callable[[pytest.MonkeyPatch], None]:
    return _crash(owner, name, call, after=False)


def after(owner: Any, name: str, call: int = 1) -> Callable[[pytest.MonkeyPatch], None]:
    return _crash(owner, name, call, after=True)


def _crash(owner: Any, name: str, call: int, *, after: bool) -> Callable[[pytest.MonkeyPatch], None]:
    """At the n-th call of a function, before it does anything or after it did all."""

    def install(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)
        calls = itertools.count(1)

        def dying(*arguments: Any, **named: Any) -> Any:
            dies = next(calls) == call
            if dies and not after:
                raise Crash(name)
            result = real(*arguments, **named)
            if dies:
                raise Crash(name)
            return result

        monkeypatch.setattr(owner, name, dying)

    return install


STEPS = {
    "before the rows are read": before(flush, "plan_flush"),
    "when tasks have written all files": before(flush, "publish_all"),
    "before the audit": before(FlushAudit, "judge"),
    "after the audit": after(FlushAudit, "judge"),
    "before the first commit": before(flush_publish, "publish"),
    "after the first commit": after(flush_publish, "publish"),
    "after the second commit": after(flush_publish, "publish", 2),
    "before the manifests": before(flush, "sync_manifests"),
    "after one manifest": after(manifest_task, "replace_file"),
    "before manifests are cached": before(manifest_task, "_build", 2),
    "after the manifests": after(flush, "sync_manifests"),
}


@pytest.mark.parametrize("same_run", [True, False], ids=["the same run again", "another run"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_is_repaired_by_the_next_attempt(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, step: str, same_run: bool
) -> None:
    filled.flush_lake.flush()
    filled.write(1)
    expected = filled.rows()
    with monkeypatch.context() as patched:
        STEPS[step](patched)
        with pytest.raises(Crash):
            filled.flush_lake.flush(run_id="one")
    assert filled.rows() == expected, "readers see no difference"
    result = filled.flush_lake.flush(run_id="one" if same_run else "two")
    filled.check_nothing_lost_or_left(expected)
    assert len(filled.flush_lake.paths("app.mine")) == 4 and len(filled.flush_lake.paths("app.ours")) == 2
    if same_run:
        assert (result["tables"], result["users"], result["files_written"]) == (2, 2, 3), "as if nothing had happened"
    assert filled.flush_lake.flush()["tables"] == 0


def test_a_crash_while_trimming_is_repaired(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.flush_lake.flush()
    filled.write(1)
    expected = filled.rows()
    monkeypatch.setattr(trim, "TRIM_ROWS", 3)
    with monkeypatch.context() as patched:
        after(trim, "_trim_some", 2)(patched)
        with pytest.raises(Crash):
            filled.flush_lake.flush()
    assert filled.rows() == expected
    filled.flush_lake.flush()
    filled.check_nothing_lost_or_left(expected)


@pytest.mark.parametrize("happened", [True, False], ids=["it happened", "it did not"])
def test_a_connection_that_breaks_at_commit(filled: Filled, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    expected = filled.rows()
    real = flush_publish.publish
    broken = []

    def breaking(connection: Any, *arguments: Any) -> Any:
        if not broken:
            broken.append(True)
            if happened:
                real(connection, *arguments)
            with connect(filled.flush_lake.lake.dsn) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            connection.execute("SELECT 1")
        return real(connection, *arguments)

    monkeypatch.setattr(flush_publish, "publish", breaking)
    result = filled.flush_lake.flush()
    assert any("retrying after a problem while publishing: " in line for line in filled.flush_lake.lines)
    assert (result["tables"], result["files_written"]) == (2, 3)
    filled.check_nothing_lost_or_left(expected)
    assert filled.flush_lake.sql("SELECT count(*) FROM lakefork.flush_log") == [(2,)]


def test_a_driver_whose_connection_broke_during_tasks_continues(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = filled.rows()
    real = flush._run_tasks

    def idle_for_too_long(context: Any, *arguments: Any) -> Any:
        reports = real(context, *arguments)
        with connect(filled.flush_lake.lake.dsn) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (context.connection.info.backend_pid,))
        return reports

    monkeypatch.setattr(flush, "_run_tasks", idle_for_too_long)
    assert filled.flush_lake.flush()["tables"] == 2
    assert any("retrying after a problem while renewing its leases: " in line for line in filled.flush_lake.lines)
    filled.check_nothing_lost_or_left(expected)


def test_a_postgres_that_takes_no_connection_of_a_task_is_tried_again() -> None:
    with pytest.raises(DatabaseError, match="cannot connect to Postgres: ") as caught:
        ArrowConnection("postgresql://nobody@127.0.0.1:1/db", read_only=True, timeout_seconds=0, max_bytes=0)
    assert caught.value.retryable


@pytest.mark.parametrize("dropped", ["table", "catalog", "nothing"])
def test_files_of_a_dead_run_are_removed_even_if_their_table_is_gone(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, dropped: str
) -> None:
    """Nothing is due: the rows were dropped, or the run that died was forced."""
    flush_lake = filled.flush_lake
    expected = filled.rows()
    with monkeypatch.context() as patched:
        before(flush, "publish_all")(patched)
        with pytest.raises(Crash):
            flush_lake.flush(run_id="dead")
    assert len(flush_lake.files_on_disk()) == 3
    if dropped == "table":
        flush_lake.lake.run("DROP TABLE app.mine; DROP TABLE app.ours")
    elif dropped == "catalog":
        with connect(flush_lake.lake.dsn) as connection:
            drop_catalog(connection, flush_lake.lake.catalog)
    monkeypatch.setattr(staging, "FILES_AT_ONCE", 2)
    transactions = []
    real = staging.forget_staged

    def forget(connection: Any, paths: Any) -> None:
        transactions.append((connection.execute("SELECT pg_current_xact_id()").fetchone(), len(paths)))
        real(connection, paths)

    monkeypatch.setattr(staging, "forget_staged", forget)
    assert flush_lake.flush(force=False)["tables"] == 0
    (said,) = [line for line in flush_lake.lines if "discarded" in line]
    assert said.startswith("3 file(s) that flush/dead/")
    assert flush_lake.files_on_disk() == []
    assert flush_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    assert [files for _, files in transactions] == [2, 1], "the lease can be renewed between"
    assert len({str(transaction) for transaction, _ in transactions}) == 2
    if dropped == "nothing":
        assert flush_lake.flush()["tables"] == 2
        filled.check_nothing_lost_or_left(expected)


def test_a_lost_snapshot_ends_the_run_cleanly(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that come too late for it never read under another one."""
    expected = filled.rows()
    real = flush._run_tasks

    def without_exporter(*arguments: Any) -> Any:
        with connect(filled.flush_lake.lake.dsn) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'")
        return real(*arguments)

    monkeypatch.setattr(flush, "_run_tasks", without_exporter)
    with pytest.raises((SnapshotLostError, psycopg.OperationalError)) as caught:
        filled.flush_lake.flush()
    assert isinstance(caught.value, SnapshotLostError) and caught.value.retryable
    assert filled.flush_lake.paths("app.mine") == []
    monkeypatch.undo()
    filled.flush_lake.flush()
    filled.check_nothing_lost_or_left(expected)


@pytest.mark.parametrize("step", ["flush.run._run_tasks", "flush.publish.publish", "flush.run.sync_manifests"])
def test_a_process_that_is_killed_for_real(filled: Filled, step: str) -> None:
    """kill −9 after the files, after the first commit, after the manifests; its leases run out, as they do."""
    expected = filled.rows()
    dsn = filled.flush_lake.lake.dsn
    run_until_killed("flush", step, dsn, force=True)
    assert filled.rows() == expected
    filled.flush_lake.flush(run_id="next")
    waited = [line for line in filled.flush_lake.lines if "waiting for it" in line]
    assert bool(waited) == (step != "flush.run.sync_manifests"), "its leases are still held, where it left work"
    assert all(
        re.search(r"^main\.app\.\w+ is being worked on by flush/killed/\w+ since .* UTC: waiting", one)
        for one in waited
    )
    filled.check_nothing_lost_or_left(expected)
