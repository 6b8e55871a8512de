"""file_cleanup: nothing goes that any catalog needs; what goes is written down first; in doubt nothing goes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cleanup_lake import age_schedule, cleanup, execute, gc, on_disk, referenced, scheduled
from cloned_lake import Cloned, three_flushes_and_a_dedup
from flush_lake import Filled, FlushLake
from fork_lake import fork, no_findings, upkeep
from lake import LOCAL
from lakefork.catalog import cleanup as ledger
from lakefork.catalog.connection import connect
from lakefork.catalog.retention import tag_snapshot
from lakefork.errors import InvalidInputError, JobFailedError, LeaseLostError, NotFoundError
from lakefork.settings import CleanupSettings
from lakefork.spark import file_cleanup


@pytest.fixture
def given_up(cloned: Cloned) -> Filled:
    """Nine files that no catalog has any more, scheduled two days ago."""
    filled = Filled(cloned(three_flushes_and_a_dedup))
    gc(filled.flush_lake, retain_snapshots=1)
    age_schedule(filled.flush_lake)
    return filled


def root_of(lake: FlushLake) -> Path:
    return Path(lake.lake.catalog.data_path).parent


def ledger_of(lake: FlushLake) -> list[tuple[Any, ...]]:
    return lake.sql("SELECT path, outcome, removed_at IS NOT NULL FROM system.deletions ORDER BY deletion_id")


def test_every_file_that_goes_is_in_the_ledger(given_up: Filled) -> None:
    lake = given_up.flush_lake
    doomed = scheduled(lake)
    sizes = {path: Path(path).stat().st_size for path in doomed}
    plan_id = lake.sql("SELECT plan_id FROM lakefork.plan WHERE job = 'retention_gc'")[0][0]
    result = cleanup(lake, "the_run")
    assert result["bytes_freed"] == sum(sizes.values())
    found = lake.sql(
        "SELECT path, size_bytes, file_id, last_catalog, last_snapshot, reason, run_id, outcome FROM system.deletions"
    )
    assert {row[0]: row[1] for row in found} == sizes
    assert all(row[2] is not None and row[4] is not None for row in found)
    assert {row[3:4] + row[5:] for row in found} == {("main", "its last snapshot expired", "the_run", "removed")}
    assert plan_id
    assert cleanup(lake)["files_looked_at"] == 0


def test_what_is_young_stays(cloned: Cloned) -> None:
    lake = cloned(three_flushes_and_a_dedup)
    gc(lake, retain_snapshots=1)
    assert cleanup(lake)["files_looked_at"] == 0, "a query planned before may still read them"
    assert cleanup(lake, older_than="1h")["files_looked_at"] == 0
    execute(lake, "UPDATE ducklake_files_scheduled_for_deletion SET schedule_start = now() - interval '2 hours'")
    assert cleanup(lake, older_than="1h", dry_run=True)["files_planned"] == 9
    assert cleanup(lake, older_than="1h", catalog="main")["files_deleted"] == 9


def test_files_of_one_catalog_only(given_up: Filled) -> None:
    assert cleanup(given_up.flush_lake, catalog="other")["files_looked_at"] == 0
    assert cleanup(given_up.flush_lake, catalog="main")["files_deleted"] == 9


def test_missing_files_are_fine(given_up: Filled) -> None:
    lake = given_up.flush_lake
    for path in sorted(scheduled(lake))[:3]:
        Path(path).unlink()
    result = cleanup(lake)
    assert (result["files_deleted"], result["files_missing"]) == (6, 3)


def test_a_file_that_somebody_came_to_need_is_taken_off_the_list(cloned: Cloned) -> None:
    """A fork made in every gap between plan, schedule, check and removal; scenario 4."""
    lake = cloned(three_flushes_and_a_dedup)
    early = lake.sql("SELECT max(snapshot_id) - 4 FROM ducklake_snapshot")[0][0]
    with connect(lake.lake.dsn) as connection:
        tag_snapshot(connection, "main", early, "early")
    first = fork(lake.lake, "first", as_of=early)
    expected = first.rows("SELECT * FROM app.ours ORDER BY id")
    execute(lake, "DELETE FROM lakefork.snapshot_tag")
    gc(lake, retain_snapshots=1, catalog="main", dry_run=True)
    second = fork(first, "second")
    gc(lake, retain_snapshots=1, catalog="main")
    third = fork(first, "third")
    # As if the decision had been made before the forks were there.
    execute(
        lake,
        "INSERT INTO ducklake_files_scheduled_for_deletion SELECT DISTINCT ON (file_id) catalog_id, file_id, path, false, now() - interval '3 days' "
        "FROM lakefork.file_reference ON CONFLICT DO NOTHING",
    )
    age_schedule(lake)
    result = cleanup(lake)
    assert result["files_still_needed"] > 0
    assert scheduled(lake) == set()
    for child in (first, second, third):
        assert child.rows("SELECT * FROM app.ours ORDER BY id") == expected
    assert on_disk(root_of(lake)) == referenced(lake)


def test_a_fork_that_begins_before_the_check_is_waited_for(given_up: Filled) -> None:
    """The fork copied rows of a file, and did not commit yet: cleanup cannot decide before it did."""
    lake = given_up.flush_lake
    victim = lake.paths("app.ours")[0]
    with psycopg.connect(lake.lake.dsn) as forking:
        forking.execute("SELECT * FROM ducklake_fork_catalog('main', 'child')")
        execute(
            lake,
            "INSERT INTO ducklake_files_scheduled_for_deletion SELECT catalog_id, file_id, path, false, now() - interval '3 days' FROM lakefork.file_reference WHERE path = %s",
            victim,
        )
        execute(lake, "DELETE FROM ducklake_data_file WHERE catalog_id = %s", lake.lake.catalog.catalog_id)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(cleanup(lake)))
        thread.start()
        time.sleep(1.0)
        assert results == []
        assert Path(victim).exists()
        forking.commit()
        thread.join()
    assert results[0]["files_still_needed"] == 1
    assert Path(victim).exists()


@pytest.mark.parametrize("broken", ["permission", "timeout", "connection", "function"])
def test_a_guard_that_fails_deletes_nothing(given_up: Filled, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = given_up.flush_lake
    files, doomed = on_disk(root_of(lake)), scheduled(lake)
    holder: psycopg.Connection[Any] | None = None
    if broken == "permission":
        execute(lake, "ALTER TABLE ducklake_delete_file RENAME TO hidden")
    elif broken == "timeout":
        execute(
            lake,
            "CREATE OR REPLACE FUNCTION lakefork.take_fence() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('lock_timeout', '300ms', true); PERFORM pg_advisory_xact_lock(lakefork.fence_lock()); END $$",
        )
        holder = psycopg.connect(lake.lake.dsn)
        holder.execute("SELECT pg_advisory_xact_lock_shared(lakefork.fence_lock())")
    elif broken == "connection":
        execute(
            lake,
            "CREATE OR REPLACE FUNCTION lakefork.take_fence() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); END $$",
        )
    else:
        execute(
            lake,
            "CREATE OR REPLACE FUNCTION lakefork.take_fence() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken'; END $$",
        )
    with pytest.raises(psycopg.Error):
        cleanup(lake)
    if holder is not None:
        holder.close()
    assert on_disk(root_of(lake)) == files
    assert scheduled(lake) == doomed
    assert ledger_of(lake) == []


class Crash(BaseException):
    pass


def test_a_crash_between_evidence_and_removal_is_finished_by_the_next_run(
    given_up: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = given_up.flush_lake
    doomed = scheduled(lake)

    def dying(*_: Any, **__: Any) -> Any:
        raise Crash

    monkeypatch.setattr(file_cleanup, "_remove_all", dying)
    with pytest.raises(Crash):
        cleanup(lake)
    monkeypatch.undo()
    assert {(path, outcome, done) for path, outcome, done in ledger_of(lake)} == {
        (path, None, False) for path in doomed
    }
    assert all(Path(path).exists() for path in doomed)
    cleanup(lake)
    assert {outcome for _, outcome, _ in ledger_of(lake)} == {"removed"}
    assert on_disk(root_of(lake)) == referenced(lake)


def test_a_crash_between_removal_and_record_is_finished_by_the_next_run(
    given_up: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = given_up.flush_lake

    def dying(*_: Any, **__: Any) -> Any:
        raise Crash

    monkeypatch.setattr(file_cleanup, "finish_deletions", dying)
    with pytest.raises(Crash):
        cleanup(lake)
    monkeypatch.undo()
    assert on_disk(root_of(lake)) == referenced(lake)
    cleanup(lake)
    assert {outcome for _, outcome, _ in ledger_of(lake)} == {"missing"}


def test_a_real_kill_between_evidence_and_removal(given_up: Filled, tmp_path: Path) -> None:
    lake = given_up.flush_lake
    doomed = scheduled(lake)
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, sys\n"
        "from lakefork.spark import file_cleanup\n"
        "file_cleanup._remove_all = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from lakefork.params import FileCleanupParams\n"
        "from lakefork.spark.job import run_job\n"
        "run_job(FileCleanupParams, file_cleanup.run_file_cleanup)\n"
    )
    environment = {
        **os.environ,
        "LAKEFORK_DSN": lake.lake.dsn,
        "LAKEFORK_JOBS__LEASE_SECONDS": "5",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(ledger_of(lake)) == 9
    assert all(Path(path).exists() for path in doomed)
    deadline = time.monotonic() + 30
    while True:
        try:
            cleanup(lake)
            break
        except Exception:  # its lease has to run out first
            assert time.monotonic() < deadline
            time.sleep(1)
    assert not any(Path(path).exists() for path in doomed)
    assert given_up.rows() == given_up.in_files()


def test_a_run_that_lost_its_lease_removes_nothing_more(given_up: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = given_up.flush_lake
    files = on_disk(root_of(lake))
    real = ledger.take_for_deletion

    def take_and_lose(connection: Any, *arguments: Any) -> Any:
        taken = real(connection, *arguments)
        execute(lake, "UPDATE lakefork.lease SET expires_at = '-infinity'")
        return taken

    monkeypatch.setattr(file_cleanup, "take_for_deletion", take_and_lose)
    with pytest.raises(LeaseLostError):
        cleanup(lake)
    assert on_disk(root_of(lake)) == files
    monkeypatch.undo()
    cleanup(lake)
    assert on_disk(root_of(lake)) == referenced(lake)


def test_a_file_that_cannot_be_removed_is_said_and_tried_again(given_up: Filled) -> None:
    lake = given_up.flush_lake
    victim = Path(sorted(scheduled(lake))[0])
    content = victim.read_bytes()
    victim.unlink()
    victim.mkdir()
    with pytest.raises(
        JobFailedError, match=r"1 file\(s\) could not be removed, the next run tries again; the first: "
    ) as caught:
        cleanup(lake)
    assert caught.value.result["files_deleted"] == 8
    victim.rmdir()
    victim.write_bytes(content)
    assert cleanup(lake)["files_deleted"] == 1
    assert not victim.exists()


def test_staged_files_are_spared(given_up: Filled) -> None:
    lake = given_up.flush_lake
    path = sorted(scheduled(lake))[0]
    execute(lake, "INSERT INTO lakefork.staged_file VALUES (%s, 1, 1, 'flush/x/y', now())", path)
    assert cleanup(lake)["files_still_needed"] == 1
    assert Path(path).exists()


def test_an_approved_plan_and_one_that_changed(given_up: Filled) -> None:
    lake = given_up.flush_lake
    plan = cleanup(lake, dry_run=True)
    assert plan["files_planned"] == 9
    assert any("main: 9 file(s)" in line for line in lake.lines), lake.lines
    execute(
        lake,
        "DELETE FROM ducklake_files_scheduled_for_deletion WHERE data_file_id = (SELECT min(data_file_id) FROM ducklake_files_scheduled_for_deletion)",
    )
    with pytest.raises(InvalidInputError, match=r"has changed since .*: make a new one"):
        cleanup(lake, plan_id=plan["plan_id"])
    assert ledger_of(lake) == []
    plan = cleanup(lake, dry_run=True)
    assert cleanup(lake, plan_id=plan["plan_id"])["files_deleted"] == 8
    assert {row[0] for row in lake.sql("SELECT plan_id FROM system.deletions")} == {plan["plan_id"]}
    with pytest.raises(NotFoundError, match="there is no plan 'nonsense' of file_cleanup"):
        cleanup(lake, plan_id="nonsense")


def test_dropping_in_a_fork_does_not_touch_what_the_parent_has(cloned: Cloned) -> None:
    """The forking document: DROP TABLE and cleanup in a fork delete no shared file."""
    filled = Filled(cloned(three_flushes_and_a_dedup))
    lake = filled.flush_lake
    child = fork(lake.lake, "child")
    child.run("INSERT INTO app.ours VALUES (77, 'own')")
    upkeep(lake, child).flush(catalog="child")
    own = on_disk(Path(child.catalog.data_path))
    shared = {path: Path(path).read_bytes() for path in on_disk(Path(lake.lake.catalog.data_path))}
    child.run("DROP TABLE app.ours; DROP TABLE app.mine; DROP NAMESPACE app")
    gc(lake, retain_snapshots=1, catalog="child")
    age_schedule(lake)
    assert cleanup(lake)["files_deleted"] == len(own) == 1
    assert {path: Path(path).read_bytes() for path in on_disk(Path(lake.lake.catalog.data_path))} == shared
    assert filled.rows() == filled.in_files()
    assert no_findings(lake.lake)


def test_many_files_are_removed_by_spark(given_up: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cleanup, "FILES_PER_TASK", 2)
    monkeypatch.setattr(file_cleanup, "FILES_AT_ONCE", 5)
    lake = given_up.flush_lake
    assert cleanup(lake)["files_deleted"] == 9
    assert on_disk(root_of(lake)) == referenced(lake)
    assert any("looked at" in line for line in lake.lines)


def test_settings_have_durations(given_up: Filled) -> None:
    lake = given_up.flush_lake
    settings = lake.settings.model_copy(update={"cleanup": CleanupSettings(older_than="30d")})
    assert cleanup(lake, settings=settings)["files_looked_at"] == 0


def stray_file(lake: FlushLake, number: int) -> Path:
    """A file that nobody knows, older than a second."""
    stray = Path(lake.lake.catalog.data_path) / f"app/ours/shared/batch-{number}.parquet"
    stray.write_bytes(b"left by somebody")
    time.sleep(1.1)
    return stray


def test_orphans_go_by_the_same_steps(given_up: Filled) -> None:
    lake = given_up.flush_lake
    cleanup(lake)
    stray = stray_file(lake, 77)
    assert cleanup(lake, orphans=True)["orphans"] == 0, "it is young"
    plan = cleanup(lake, orphans=True, older_than="1s", dry_run=True)
    assert (plan["orphans"], plan["bytes_planned"]) == (1, len(b"left by somebody"))
    assert f"no catalog knows {stray}" in plan["plan"]
    assert cleanup(lake)["orphans"] == 0
    result = cleanup(lake, plan_id=plan["plan_id"])
    assert (result["orphans"], result["files_deleted"], stray.exists()) == (1, 1, False)
    assert lake.sql("SELECT path, reason, outcome FROM system.deletions ORDER BY deletion_id DESC LIMIT 1") == [
        (str(stray), "no catalog knows it", "removed")
    ]
    assert given_up.rows() == given_up.in_files()


def test_a_plan_of_orphans_that_changed_is_refused(given_up: Filled) -> None:
    lake = given_up.flush_lake
    cleanup(lake)
    stray = stray_file(lake, 77)
    plan = cleanup(lake, orphans=True, older_than="1s", dry_run=True)
    execute(lake, "INSERT INTO lakefork.staged_file VALUES (%s, 1, 1, 'flush/x/y', now())", str(stray))
    with pytest.raises(InvalidInputError, match="has changed since"):
        cleanup(lake, plan_id=plan["plan_id"])
    assert stray.exists()


def test_an_orphan_that_becomes_known_before_the_check_stays(given_up: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = given_up.flush_lake
    cleanup(lake)
    stray = stray_file(lake, 77)
    real = file_cleanup.find_orphans

    def find_and_publish(*arguments: Any) -> Any:
        found = list(real(*arguments))
        execute(lake, "INSERT INTO lakefork.staged_file VALUES (%s, 1, 1, 'flush/x/y', now())", str(stray))
        return iter(found)

    monkeypatch.setattr(file_cleanup, "find_orphans", find_and_publish)
    result = cleanup(lake, orphans=True, older_than="1s")
    assert (result["orphans"], result["files_still_needed"]) == (0, 1)
    assert stray.exists()


def test_trash_and_undelete(given_up: Filled) -> None:
    lake = given_up.flush_lake
    doomed = {path: Path(path).read_bytes() for path in scheduled(lake)}
    settings = lake.settings.model_copy(update={"cleanup": CleanupSettings(trash=True)})
    assert cleanup(lake, "the_run", settings)["files_deleted"] == 9
    trash = Path(lake.lake.catalog.data_path) / ".trash"
    assert not any(Path(path).exists() for path in doomed)
    assert len(on_disk(trash)) == 9
    assert {row[1] for row in ledger_of(lake)} == {"trashed"}
    with connect(lake.lake.dsn) as connection:
        assert file_cleanup.undelete(connection, "the_run", LOCAL) == (9, [])
        assert file_cleanup.undelete(connection, "the_run", LOCAL) == (0, [])
    assert {path: Path(path).read_bytes() for path in doomed} == doomed
    assert lake.sql("SELECT count(*) FROM system.deletions WHERE restored_at IS NOT NULL") == [(9,)]
    time.sleep(1.1)
    assert cleanup(lake, orphans=True, older_than="1s")["orphans"] == 0, "what was brought back stays"


def test_the_trash_is_emptied_after_a_time(given_up: Filled) -> None:
    lake = given_up.flush_lake
    settings = lake.settings.model_copy(update={"cleanup": CleanupSettings(trash=True, trash_for="7d")})
    cleanup(lake, "the_run", settings)
    trash = Path(lake.lake.catalog.data_path) / ".trash"
    cleanup(lake, settings=settings, orphans=True)
    assert len(on_disk(trash)) == 9
    execute(lake, "UPDATE lakefork.deletion SET removed_at = removed_at - interval '8 days'")
    cleanup(lake, settings=settings)
    assert on_disk(trash) == set()
    assert {row[1] for row in ledger_of(lake)} == {"removed"}
