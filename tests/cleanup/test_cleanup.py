"""file_cleanup deletes nothing that any catalog needs, records deletions first, and deletes nothing in doubt."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest

from lakefork.catalog.catalogs import create_catalog, rename_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.retention import tag_snapshot
from lakefork.errors import InvalidInputError, JobFailedError, LeaseHeldError, LeaseLostError, NotFoundError
from lakefork.model.params import FileCleanupParams
from lakefork.removal import batches, files, ledger, undelete
from lakefork.settings import CleanupSettings, Settings, StorageSettings
from lakefork.sql.engine import Engine
from lakefork.storage import StorageOptions
from lakefork.storage.markers import MARKER
from lakefork.upkeep.cleanup import run as file_cleanup
from support.cleanup_lake import age_schedule, cleanup, execute, gc, on_disk, referenced, scheduled
from support.cloned_lake import Cloned, three_flushes_and_a_dedup
from support.flush_lake import Filled, FlushLake
from support.fork_lake import fork, no_findings, upkeep
from support.lake import LOCAL
from support.sql_lake import SqlLake


@pytest.fixture
def given_up(cloned: Cloned) -> Filled:
    """Nine files that no catalog has, scheduled two days ago."""
    filled = Filled(cloned(three_flushes_and_a_dedup))
    gc(filled.flush_lake, retain_snapshots=1)
    age_schedule(filled.flush_lake)
    return filled


def root_of(lake: FlushLake) -> Path:
    return Path(lake.lake.catalog.data_path).parent


def ledger_of(lake: FlushLake) -> list[tuple[Any, ...]]:
    return lake.sql("SELECT path, outcome, removed_at IS NOT NULL FROM system.deletions ORDER BY deletion_id")


def test_every_deleted_file_is_in_the_ledger(given_up: Filled) -> None:
    lake = given_up.flush_lake
    doomed = scheduled(lake)
    sizes = {path: Path(path).stat().st_size for path in doomed}
    plan_id = lake.sql("SELECT plan_id FROM lakefork.plan WHERE job = 'retention_gc'")[0][0]
    result = cleanup(lake, "the_run")
    assert result["bytes_freed"] == sum(sizes.values())
    found = lake.sql(
        "SELECT path, size_bytes, file_id, last_catalog, last_snapshot, reason, run_id, outcome FROM system.deletions"
    )
    assert set(lake.sql("SELECT plan_id, last_table_id FROM system.deletions")) == {
        (plan_id, table_id) for (table_id,) in lake.sql("SELECT table_id FROM system.tables")
    }, "the plan that gave them up, and the tables that had them"
    assert {row[0]: row[1] for row in found} == sizes
    assert all(row[2] is not None and row[4] is not None for row in found)
    assert {row[3:4] + row[5:] for row in found} == {("main", "its last snapshot expired", "the_run", "removed")}
    assert cleanup(lake)["files_looked_at"] == 0


def test_young_files_stay(cloned: Cloned) -> None:
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


def test_files_of_a_catalog_that_was_renamed(given_up: Filled) -> None:
    lake = given_up.flush_lake
    with connect(lake.lake.dsn) as connection:
        rename_catalog(connection, lake.lake.catalog, "another")
    assert cleanup(lake, catalog="main")["files_looked_at"] == 0
    assert "  another: 9 file(s)" in cleanup(lake, catalog="another", dry_run=True)["plan"]
    assert cleanup(lake, catalog="another")["files_deleted"] == 9


@pytest.mark.parametrize("of_fork", [False, True])
def test_a_file_that_is_known_under_another_number_is_needed(given_up: Filled, of_fork: bool) -> None:
    """The list names it by a number that nobody has; a catalog has its path, relative or in full."""
    lake = given_up.flush_lake
    cleanup(lake)
    path = lake.paths("app.ours")[0]
    if of_fork:
        fork(lake.lake, "child")
        execute(lake, "DELETE FROM ducklake_data_file WHERE catalog_id = %s", lake.lake.catalog.catalog_id)
    execute(
        lake,
        "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (1, 987654, %s, false, now() - interval '3 days')",
        path.replace("/app/", "//app/"),
    )
    assert cleanup(lake)["files_still_needed"] == 1
    assert Path(path).exists()


def test_missing_files_are_fine(given_up: Filled) -> None:
    lake = given_up.flush_lake
    for path in sorted(scheduled(lake))[:3]:
        Path(path).unlink()
    result = cleanup(lake)
    assert (result["files_deleted"], result["files_missing"]) == (6, 3)


def test_a_file_that_is_needed_again_is_removed_from_the_list(cloned: Cloned) -> None:
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


def test_a_fork_made_between_the_check_and_the_removal(given_up: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 4: what is in the ledger is in no catalog, so that a fork can neither get it nor miss it."""
    lake = given_up.flush_lake
    expected = given_up.rows()
    real = batches.remove_files
    forks: list[Any] = []

    def fork_and_remove(*arguments: Any, **named: Any) -> Any:
        forks.append(fork(lake.lake, "late"))
        with pytest.raises(NotFoundError, match="no longer retained"):
            fork(lake.lake, "earlier", as_of=forks[0].catalog.begin_snapshot - 3)
        return real(*arguments, **named)

    monkeypatch.setattr(batches, "remove_files", fork_and_remove)
    assert cleanup(lake)["files_deleted"] == 9
    late = Filled(upkeep(lake, forks[0]))
    assert late.rows() == late.in_files() == given_up.rows() == expected
    assert no_findings(lake.lake)


def test_a_check_that_takes_too_long_is_aborted(given_up: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits wait for it, and so it has a limit."""
    lake = given_up.flush_lake
    doomed = scheduled(lake)
    monkeypatch.setattr(ledger, "FENCE_TIMEOUT", "300ms")
    execute(
        lake,
        "CREATE OR REPLACE FUNCTION lakefork.claims(p_paths text[], p_directories text[]) RETURNS TABLE (path text, claim text) "
        "LANGUAGE sql AS $$ SELECT pg_sleep(20)::text, 'file' $$",
    )
    with pytest.raises(psycopg.errors.QueryCanceled):
        cleanup(lake)
    assert scheduled(lake) == doomed
    assert all(Path(path).exists() for path in doomed)
    assert ledger_of(lake) == []


def test_a_role_without_access_to_all_tables_deletes_nothing(given_up: Filled) -> None:
    """Scenario 1: a guard that cannot see a table says nothing about it."""
    lake, role = given_up.flush_lake, f"cleaner_{uuid.uuid4().hex[:8]}"
    doomed = scheduled(lake)
    execute(lake, f"CREATE ROLE {role}")
    for schema in ("public", "lakefork", "lakefork_locks", "system"):
        execute(lake, f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        execute(lake, f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
    execute(lake, f"REVOKE SELECT ON ducklake_delete_file FROM {role}")
    with lake.context(job="file_cleanup") as context:
        context.leases.take(context.connection, "file_cleanup")
        context.connection.execute(f"SET ROLE {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="ducklake_delete_file"):
            file_cleanup.run_file_cleanup(context, FileCleanupParams())
        context.connection.execute("RESET ROLE")
    assert scheduled(lake) == doomed
    assert all(Path(path).exists() for path in doomed)
    execute(lake, f"DROP OWNED BY {role}")
    execute(lake, f"DROP ROLE {role}")


@pytest.mark.parametrize("broken", ["table", "timeout", "connection", "function"])
def test_a_guard_that_fails_deletes_nothing(given_up: Filled, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = given_up.flush_lake
    files, doomed = on_disk(root_of(lake)), scheduled(lake)
    holder: psycopg.Connection[Any] | None = None
    if broken == "table":
        execute(lake, "ALTER TABLE ducklake_delete_file RENAME TO hidden")
    elif broken == "timeout":
        execute(
            lake,
            "CREATE OR REPLACE FUNCTION lakefork.take_fence() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('lock_timeout', '300ms', true); LOCK TABLE lakefork_locks.fence IN EXCLUSIVE MODE; END $$",
        )
        holder = psycopg.connect(lake.lake.dsn)
        holder.execute("LOCK TABLE lakefork_locks.fence IN ROW SHARE MODE")
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

    monkeypatch.setattr(batches, "remove_files", dying)
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

    monkeypatch.setattr(batches, "finish_deletions", dying)
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
        "from lakefork.removal import batches\n"
        "from lakefork.upkeep.cleanup import run as file_cleanup\n"
        "batches.remove_files = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from lakefork.model.params import FileCleanupParams\n"
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


def test_a_file_that_cannot_be_removed_is_reported_and_retried(given_up: Filled) -> None:
    """Scenario 16: storage that refuses is said clearly, nothing is lost, the next run goes on."""
    lake = given_up.flush_lake
    victim = Path(sorted(scheduled(lake))[0])
    content = victim.read_bytes()
    victim.unlink()
    victim.mkdir()
    with pytest.raises(
        JobFailedError, match=r"1 file\(s\) could not be removed; the next run retries; the first: "
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
    assert "  main: 9 file(s)" in plan["plan"]
    assert "    app.ours: 3 file(s)" in plan["plan"]
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
    finished = "SELECT begun_at <= done_at FROM lakefork.plan WHERE plan_id = %s"
    assert lake.sql(finished, plan["plan_id"]) == [(True,)]
    with pytest.raises(NotFoundError, match="plan 'nonsense' of file_cleanup does not exist"):
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
    """Scenario 7: in batches of a bounded size."""
    monkeypatch.setattr(files, "FILES_PER_TASK", 2)
    monkeypatch.setattr(file_cleanup, "FILES_AT_ONCE", 5)
    lake = given_up.flush_lake
    assert cleanup(lake)["files_deleted"] == 9
    assert on_disk(root_of(lake)) == referenced(lake)
    assert any("file(s) checked" in line for line in lake.lines)


def test_settings_have_durations(given_up: Filled) -> None:
    lake = given_up.flush_lake
    settings = lake.settings.model_copy(update={"cleanup": CleanupSettings(older_than="30d")})
    assert cleanup(lake, settings=settings)["files_looked_at"] == 0


def stray_file(lake: FlushLake, number: int) -> Path:
    """A file that nobody knows, older than a second, with a number that was given out."""
    stray = Path(lake.lake.catalog.data_path) / f"app/ours/shared/batch-{number}.parquet"
    stray.write_bytes(b"left by somebody")
    execute(lake, "UPDATE lakefork.batch_number SET next_number = 1000 WHERE directory = %s", str(stray.parent))
    time.sleep(1.1)
    return stray


def test_orphans_are_deleted_by_the_same_steps(given_up: Filled) -> None:
    lake = given_up.flush_lake
    cleanup(lake)
    stray = stray_file(lake, 77)
    assert cleanup(lake, orphans=True)["orphans"] == 0, "it is young"
    plan = cleanup(lake, orphans=True, older_than="1s", dry_run=True)
    assert (plan["orphans"], plan["bytes_planned"]) == (1, len(b"left by somebody"))
    assert f"orphan {stray}" in plan["plan"]
    assert cleanup(lake)["orphans"] == 0
    result = cleanup(lake, plan_id=plan["plan_id"])
    assert (result["orphans"], result["files_deleted"], stray.exists()) == (1, 1, False)
    assert lake.sql("SELECT path, reason, outcome FROM system.deletions ORDER BY deletion_id DESC LIMIT 1") == [
        (str(stray), "no catalog knows it", "removed")
    ]
    assert given_up.rows() == given_up.in_files()


def test_scheduled_files_in_a_directory_of_another_installation_stay(given_up: Filled) -> None:
    """As when the wrong storage is mounted."""
    lake = given_up.flush_lake
    doomed = scheduled(lake)
    marker = Path(lake.lake.catalog.data_path) / "app/ours" / MARKER
    ours = marker.read_text()
    marker.write_text(json.dumps({**json.loads(ours), "installation": "another"}))
    with pytest.raises(JobFailedError, match="app/ours belongs to another installation of Lakefork"):
        cleanup(lake)
    left = {path for path in doomed if Path(path).exists()}
    assert left == {path for path in doomed if "/app/ours/" in path} != doomed
    marker.write_text(ours)
    cleanup(lake)
    assert not any(Path(path).exists() for path in doomed)


def test_a_plan_of_orphans_that_changed_is_refused(given_up: Filled) -> None:
    lake = given_up.flush_lake
    cleanup(lake)
    stray = stray_file(lake, 77)
    plan = cleanup(lake, orphans=True, older_than="1s", dry_run=True)
    execute(lake, "INSERT INTO lakefork.staged_file VALUES (%s, 1, 1, 'flush/x/y', now())", str(stray))
    with pytest.raises(InvalidInputError, match="has changed since"):
        cleanup(lake, plan_id=plan["plan_id"])
    assert stray.exists()


def test_an_approved_plan_removes_the_orphans_that_were_compared(
    given_up: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that appears after the comparison is not part of it."""
    lake = given_up.flush_lake
    cleanup(lake)
    stray = stray_file(lake, 77)
    plan = cleanup(lake, orphans=True, older_than="1s", dry_run=True)
    late = stray.with_name("batch-78.parquet")
    real = file_cleanup.require_same

    def compare_and_add(*arguments: Any) -> None:
        real(*arguments)
        late.write_bytes(b"later")
        os.utime(late, (0, 0))

    monkeypatch.setattr(file_cleanup, "require_same", compare_and_add)
    assert cleanup(lake, plan_id=plan["plan_id"])["orphans"] == 1
    assert (stray.exists(), late.exists()) == (False, True)


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
        assert undelete.undelete(connection, "the_run", LOCAL) == (9, [])
        assert undelete.undelete(connection, "the_run", LOCAL) == (0, [])
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


WITH_TRASH = {"cleanup": CleanupSettings(trash=True, trash_for="7d")}
AGED = "UPDATE lakefork.deletion SET removed_at = removed_at - interval '8 days'"


def test_what_cannot_be_removed_from_the_trash_stays_there(given_up: Filled) -> None:
    lake = given_up.flush_lake
    settings = lake.settings.model_copy(update=WITH_TRASH)
    cleanup(lake, "the_run", settings)
    execute(lake, AGED)
    victim = Path(sorted(on_disk(Path(lake.lake.catalog.data_path) / ".trash"))[0])
    content = victim.read_bytes()
    victim.unlink()
    victim.mkdir()
    with pytest.raises(JobFailedError, match=rf"1 file\(s\) could not be removed; .* the first: {victim}"):
        cleanup(lake, settings=settings)
    assert lake.sql("SELECT trash_path, outcome FROM system.deletions WHERE outcome <> 'removed'") == [
        (str(victim), "trashed")
    ]
    original = Path(lake.sql("SELECT path FROM system.deletions WHERE outcome = 'trashed'")[0][0])
    original.write_bytes(b"somebody else's")
    victim.rmdir()
    victim.write_bytes(content)
    cleanup(lake, settings=settings)
    assert {row[1] for row in ledger_of(lake)} == {"removed"}
    assert (victim.exists(), original.exists()) == (False, True)


@pytest.mark.parametrize("step", ["restore_from_trash", "finish_restore"])
def test_an_interrupted_undelete_loses_nothing(given_up: Filled, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    lake = given_up.flush_lake
    doomed = {path: Path(path).read_bytes() for path in scheduled(lake)}
    settings = lake.settings.model_copy(update=WITH_TRASH)
    cleanup(lake, "the_run", settings)

    def dying(*_: Any, **__: Any) -> Any:
        raise Crash

    monkeypatch.setattr(undelete, step, dying)
    with connect(lake.lake.dsn) as connection:
        with pytest.raises(Crash):
            undelete.undelete(connection, "the_run", LOCAL)
        monkeypatch.undo()
        execute(lake, AGED)
        time.sleep(1.1)
        assert cleanup(lake, settings=settings, orphans=True, older_than="1s")["orphans"] == 0
        assert undelete.undelete(connection, "the_run", LOCAL) == (9, [])
    assert {path: Path(path).read_bytes() for path in doomed} == doomed
    cleanup(lake, settings=settings, orphans=True, older_than="1s")
    assert {path: Path(path).read_bytes() for path in doomed} == doomed


def test_the_trash_is_not_emptied_and_brought_back_at_once(given_up: Filled) -> None:
    lake = given_up.flush_lake
    cleanup(lake, "the_run", lake.settings.model_copy(update=WITH_TRASH))
    week = datetime.timedelta(days=7)
    with lake.context(job="file_cleanup") as context, connect(lake.lake.dsn) as connection:
        context.leases.take(context.connection, "file_cleanup")
        with pytest.raises(LeaseHeldError, match="file_cleanup is being worked on"):
            undelete.undelete(connection, "the_run", LOCAL)
        execute(lake, AGED)
        job_id = context.run.job_id
        taken = ledger.take_old_trash(context.connection, job_id, week, 0, 4)
        others = ledger.take_for_restore(context.connection, job_id, "the_run", 0, 100)
        assert (len(taken), len(others)) == (4, 5)
        assert not set(taken) & {one.deletion_id for one in others}
        assert set(ledger.take_old_trash(context.connection, job_id, week, 0, 100)) == set(taken)
        with pytest.raises(LeaseLostError):
            ledger.take_old_trash(context.connection, "nobody", week, 0, 100)


@pytest.fixture
def on_s3(flush_lake: FlushLake, s3: str, make_settings: Callable[..., Settings]) -> Iterator[tuple[FlushLake, Any]]:
    """A lake on S3 with two files that were given up two days ago, and its keys."""
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with connect(flush_lake.lake.dsn) as connection:
        catalog = create_catalog(connection, "cloud", "s3://lake/cloud")
    with Engine(settings, flush_lake.lake.dsn) as engine:
        lake = FlushLake(SqlLake(engine, flush_lake.lake.dsn, catalog), settings, flush_lake.expectations)
        lake.lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY)")
        for number in range(2):
            lake.lake.run(f"INSERT INTO app.t VALUES ({number})")
            lake.flush()
        lake.dedup()
        gc(lake, retain_snapshots=1)
        age_schedule(lake)

        def batches() -> set[str]:
            found = client.list_objects_v2(Bucket="lake").get("Contents", [])
            return {f"s3://lake/{one['Key']}" for one in found if one["Key"].endswith(".parquet")}

        yield lake, batches


def test_cleanup_on_s3_continues_after_throttling(
    on_s3: tuple[FlushLake, Any], make_settings: Callable[..., Settings]
) -> None:
    """Scenario 16: an S3 that answers 503 is one clear error, nothing is lost, the next run goes on."""
    lake, batches = on_s3
    doomed = scheduled(lake)
    assert len(doomed) == 2 and doomed < batches()

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    busy = make_settings(storage=StorageSettings(s3_endpoint=f"http://127.0.0.1:{server.server_port}"))
    with pytest.raises(JobFailedError, match=r"2 file\(s\) could not be removed; the next run retries"):
        cleanup(lake, settings=busy)
    server.shutdown()
    server.server_close()
    assert doomed < batches()
    assert cleanup(lake)["files_deleted"] == 2
    assert batches() == referenced(lake)
    assert lake.lake.rows("SELECT id FROM app.t ORDER BY id") == [(0,), (1,)]


def test_trash_and_undelete_on_s3(on_s3: tuple[FlushLake, Any]) -> None:
    """Files stay where they are: restoring them removes them from the list of files to delete."""
    lake, batches = on_s3
    doomed, settings = scheduled(lake), lake.settings.model_copy(update=WITH_TRASH)
    assert cleanup(lake, "the_run", settings)["files_deleted"] == 2
    assert doomed < batches()
    storage = StorageOptions(settings.storage.s3_endpoint, settings.storage.s3_region)
    with connect(lake.lake.dsn) as connection:
        assert undelete.undelete(connection, "the_run", storage) == (2, [])
    execute(lake, AGED)
    assert cleanup(lake, settings=settings, orphans=True, older_than="1s")["orphans"] == 0
    assert doomed < batches()
    execute(lake, "UPDATE lakefork.deletion SET restored_at = NULL")
    cleanup(lake, settings=settings)
    assert batches() == referenced(lake)
