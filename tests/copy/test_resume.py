"""Copies that are interrupted: what the source may do meanwhile, what is copied again, and what is refused."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, InvalidInputError, LeaseLostError, SetupError, SnapshotLostError
from lakefork.transfer.postgres_copy.inventory import require_lock_room
from lakefork.transfer.postgres_copy.sessions import find_endpoint
from lakefork.transfer.postgres_copy.state import next_steps
from support.copy_lab import CopyLab, until

PAD = "repeat('x', 400)"
# An index that cannot be built on the target until somebody allows it.
SOURCE = f"""
CREATE FUNCTION allowed(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN IF current_setting('test.is_target', true) = 'yes' THEN RAISE EXCEPTION 'not yet'; END IF; RETURN n; END$$;
CREATE TABLE keyed (id int PRIMARY KEY, v text); INSERT INTO keyed SELECT n, {PAD} FROM generate_series(1, 4000) n;
CREATE TABLE keyless (n int, v text); INSERT INTO keyless SELECT n, {PAD} FROM generate_series(1, 4000) n;
CREATE TABLE small (id int PRIMARY KEY, v text); INSERT INTO small VALUES (1, 'a'), (2, 'b');
CREATE TABLE same (id int PRIMARY KEY); INSERT INTO same VALUES (1); CREATE TABLE refers (id int REFERENCES same); INSERT INTO refers VALUES (1);
CREATE TABLE fails (id int); INSERT INTO fails VALUES (1); CREATE INDEX late ON fails (allowed(id));
SELECT lo_from_bytea(9001, 'one'); ANALYZE;
"""


def fail_at_the_index(lab: CopyLab) -> None:
    """All rows are copied, one index is missing."""
    lab.on_source(SOURCE)
    name = lab.target.rpartition("/")[2]
    lab.on_target(f"ALTER DATABASE {name} SET test.is_target = 'yes'")
    with pytest.raises(InvalidInputError, match=r"'dst', public\.late: not yet"):
        lab.copy(copy_id="one", split_larger_than="500KB")
    lab.on_target(f"ALTER DATABASE {name} RESET test.is_target")


def finished(lab: CopyLab) -> dict[str, object]:
    """When each part was copied."""
    return dict(lab.catalog("SELECT name, finished_at FROM lakefork.copy_step WHERE kind = 'part' AND status = 'done'"))  # type: ignore[arg-type]


def resume(lab: CopyLab, **params: object) -> None:
    lab.copy(copy_id="one", resume=True, split_larger_than="500KB", **params)


def test_scenario_29_the_source_cannot_be_altered_meanwhile_and_a_lost_snapshot_is_said(lab: CopyLab) -> None:
    fail_at_the_index(lab)
    before = finished(lab)
    for statement in ("VACUUM FULL keyed", "TRUNCATE small", "ALTER TABLE small DROP COLUMN v", "DROP TABLE refers"):
        with (
            psycopg.connect(lab.source, autocommit=True, options="-c lock_timeout=100ms") as source,
            pytest.raises(psycopg.errors.LockNotAvailable),
        ):
            source.execute(statement)
    lab.on_source("UPDATE small SET v = 'changed'; INSERT INTO keyless VALUES (0, 'new')")
    lab.end_holder("one")
    until(lambda: lab.catalog("SELECT snapshot_held FROM system.copies") == [(False,)])
    with pytest.raises(SnapshotLostError, match="the snapshot of the copy is lost"):
        resume(lab)
    assert lab.catalog("SELECT status FROM system.copies") == [("failed",)]
    lab.on_source("UPDATE keyed SET v = 'changed' WHERE id = 4000; SELECT lo_put(9001, 0, 'two')")
    resume(lab, not_consistent=True)
    assert lab.on_target("SELECT v FROM small WHERE id = 1") == [("changed",)]
    assert lab.on_target(
        "SELECT (SELECT count(*) FROM keyless), (SELECT count(*) FROM keyed), (SELECT count(*) FROM keyed WHERE v = 'changed')"
    ) == [(4001, 4000, 1)]
    assert lab.on_target("SELECT lo_get(9001)") == [(b"two",)]
    after = finished(lab)
    kept = {name for name in before if before[name] == after[name]}
    assert {"public.same", "public.refers"} <= kept and "public.small" not in kept
    assert not any("keyless" in name for name in kept), "by block nobody knows whose rows they are"
    keyed = [name for name in before if "keyed" in name]
    assert len(kept.intersection(keyed)) == len(keyed) - 1
    assert lab.catalog("SELECT status, snapshots, differences FROM system.copies") == [("completed", 2, [])]


def test_a_resumed_copy_does_nothing_again_and_is_the_same_copy(lab: CopyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at_the_index(lab)
    before = finished(lab)
    monkeypatch.setenv("LAKEFORK_CONNECTIONS__OTHER", lab.postgres)
    for params, what in (
        ({"split_larger_than": "1MB"}, "another split_larger_than"), ({"exclude": ["public.small"]}, "another exclude"),
        ({"target": "other"}, "another target"), ({"source": "other"}, "another source"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=f"copy one was begun with {what}"):
            lab.copy(**{"copy_id": "one", "resume": True, "split_larger_than": "500KB", **params})
    with pytest.raises(ConflictError, match="copy 'one' already exists"):
        lab.copy(copy_id="one", split_larger_than="500KB", drop_if_exists=True)
    lab.on_source("UPDATE small SET v = 'changed'")
    resume(lab)
    assert finished(lab) == before
    assert lab.on_target("SELECT v FROM small WHERE id = 1") == [("a",)], "as it was at the snapshot"
    assert lab.on_target("SELECT count(*) FROM pg_indexes WHERE indexname = 'late'") == [(1,)]
    with pytest.raises(ConflictError, match="copy one is completed"):
        resume(lab)


def test_what_a_crash_of_the_target_lost_is_copied_again(lab: CopyLab) -> None:
    """Commits to the target do not wait for the disk: rows go with their mark."""
    fail_at_the_index(lab)
    lab.on_target("TRUNCATE small")
    lab.on_target(
        "DELETE FROM lakefork_copy.mark WHERE step_id = %s",
        lab.catalog("SELECT step_id FROM lakefork.copy_step WHERE kind = 'part' AND name = 'public.small'")[0][0],
    )
    resume(lab)
    assert lab.on_target("SELECT count(*) FROM small") == [(2,)]


def test_steps_whose_answer_got_lost_are_given_out_again_and_limits_hold(lab: CopyLab) -> None:
    lab.on_source(
        f"CREATE TABLE a (v text); CREATE TABLE b (v text); INSERT INTO a SELECT {PAD} FROM generate_series(1, 9000); INSERT INTO b SELECT * FROM a"
    )
    lab.copy(copy_id="one", compare=False)
    lab.catalog(
        "UPDATE lakefork.copy SET status = 'running'; UPDATE lakefork.copy_step SET status = 'ready' WHERE kind = 'part'"
    )
    lab.catalog("UPDATE lakefork.lease SET holder = 'run', expires_at = now() + '1 hour' WHERE name = 'copy/one'")

    def take(worker: str, done: list[int], most: int) -> list[int]:
        with connect(lab.dsn) as connection:
            steps, _ = next_steps(
                connection, "one", "run", worker, [{"step_id": one} for one in done], {"table": most}, 0, 1
            )
        return [step["step_id"] for step in steps]

    (first,) = take("x", [], 1)
    assert take("x", [], 1) == [first] and take("y", [], 1) == []
    (second,) = take("y", [], 2)
    assert take("z", [], 9) == [] and take("x", [first], 9) == []
    assert take("y", [second], 9) == [] and second != first
    with pytest.raises(LeaseLostError), connect(lab.dsn) as connection:
        next_steps(connection, "one", "another run", "x", [], {"table": 1}, 0, 1)


@pytest.mark.parametrize("size", ["500KB", "6MB"])
def test_connections_that_break_are_opened_again(lab: CopyLab, size: str) -> None:
    """Of source and target, in the middle of a part, small or so large that psql reads it."""
    lab.on_source(
        f"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, {PAD} FROM generate_series(1, 30000) n; ANALYZE"
    )
    over, ended = threading.Event(), []

    def end_connections() -> None:
        with psycopg.connect(lab.postgres, autocommit=True) as admin:
            while not over.is_set() and len(ended) < 4:
                ended.extend(
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ANY (%s) AND query LIKE 'COPY%%' AND state = 'active' LIMIT 1",
                        ([lab.source.rpartition("/")[2], lab.target.rpartition("/")[2]],),
                    ).fetchall()
                )
                over.wait(0.02)

    thread = threading.Thread(target=end_connections)
    thread.start()
    try:
        lab.copy(split_larger_than=size)
    finally:
        over.set()
        thread.join()
    assert ended
    assert lab.on_target("SELECT count(*), count(DISTINCT id) FROM t") == [(30000, 30000)]


def test_scenario_30_a_killed_run_is_resumed(lab: CopyLab, tmp_path: Path) -> None:
    """Driver and JVM are killed, its Python workers live on for a while: no row is missing or twice, and little is copied again."""
    lab.on_source(
        f"CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, {PAD} FROM generate_series(1, 60000) n; CREATE INDEX ON t (v); ANALYZE"
    )
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_") or "CONNECTIONS" in name
    }
    params = '{"source": "src", "target": "dst", "copy_id": "one", "split_larger_than": "300KB"}'
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "jobs/postgres_copy.py", "--params", params],
            env={**clean, "LAKEFORK_DSN": lab.dsn, "LAKEFORK_JOBS__LEASE_SECONDS": "5", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=Path(__file__).parents[2], stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    until(lambda: process.poll() is not None or len(finished(lab)) >= 5, 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = finished(lab)
    parts = lab.catalog("SELECT count(*) FROM lakefork.copy_step WHERE kind = 'part'")[0][0]
    assert 5 <= len(before) < parts, (tmp_path / "log").read_text()[-2000:]
    lab.copy(copy_id="one", resume=True, split_larger_than="300KB")
    after = finished(lab)
    assert {name for name in before if before[name] != after[name]} == set()
    assert lab.on_target("SELECT count(*), count(DISTINCT id) FROM t") == [(60000, 60000)]
    assert lab.catalog("SELECT status, differences, snapshots FROM system.copies") == [("completed", [], 1)]


def test_locks_that_do_not_fit_are_said_before(lab: CopyLab) -> None:
    endpoint, _ = find_endpoint("src")
    with (
        endpoint.open_source(None) as session,
        pytest.raises(SetupError, match=r"set its max_locks_per_transaction to [0-9,]+ or more"),
    ):
        require_lock_room(session, "src", 1_000_000)


def test_a_copy_can_be_given_up_and_lets_the_source_go(lab: CopyLab) -> None:
    fail_at_the_index(lab)
    lab.abandon("one")
    lab.on_source("TRUNCATE small")
    with pytest.raises(InvalidInputError, match="copy one was abandoned"):
        resume(lab)


def test_another_major_version_is_copied(lab: CopyLab, older: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the older server of the wheel to the one of the suite."""
    monkeypatch.setenv("LAKEFORK_CONNECTIONS__OLD", older)
    lab.sql(older, "CREATE TABLE t (id int PRIMARY KEY, at timestamptz DEFAULT now(), n numeric, v text CHECK (v <> '')); "
                   "INSERT INTO t (id, n, v) SELECT g, g / 3.0, 'v' || g FROM generate_series(1, 100) g; CREATE INDEX ON t (v)")  # fmt: skip
    lab.copy(source="old", copy_id="old")
    assert lab.on_target("SELECT count(*), sum(id) FROM t") == [(100, 5050)]


def test_a_followed_copy_keeps_a_slot_that_begins_at_its_snapshot(
    lab: CopyLab, older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEFORK_CONNECTIONS__OLD", older)
    lab.sql(older, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    lab.copy(source="old", copy_id="Old-1", follow=True)
    lab.sql(older, "INSERT INTO t VALUES (2)")
    ((slot, published),) = lab.sql(
        older, "SELECT slot_name::text, (SELECT count(*) FROM pg_publication_tables) FROM pg_replication_slots"
    )
    assert (
        slot.startswith("lakefork_old_1_")
        and published == 1
        and lab.catalog("SELECT slot_name FROM system.copies") == [(slot,)]
    )
    changes = lab.sql(
        older,
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
        slot,
        slot,
    )
    assert [bytes(data)[:1] for (data,) in changes] == [b"B", b"R", b"I", b"C"], "one insert, which the copy has not"
    assert lab.on_target("SELECT id FROM t") == [(1,)]
    assert lab.on_target("SELECT count(*) FROM pg_publication") == [(0,)]
