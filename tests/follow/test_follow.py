"""Changes of a source after its copy: each committed transaction reaches the target once, as a whole, in order."""

import random
from typing import Any

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.errors import CopyRequiredError, InvalidInputError, LakeforkError, SetupError, TargetDiffersError
from lakefork.overview.copies import list_recent_copies
from lakefork.overview.metrics import read_metrics
from lakefork.transfer.follow import into_postgres
from lakefork.transfer.follow.commands import status_line, statuses
from support.follow_lab import FollowLab

SOURCE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, v text, big text, m mood, js json, ch char(5), twice int GENERATED ALWAYS AS (2 * id) STORED);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t (id, v, big) SELECT n, 'v' || n, repeat('b', 9000) FROM generate_series(1, 20) n;
CREATE TABLE counted (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY (START 100), v text);
CREATE TABLE refers (id int PRIMARY KEY, t int REFERENCES t);
CREATE TABLE parted (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1); CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);
CREATE TABLE keyless (a int, js json, p point); INSERT INTO keyless SELECT 1, '{"a":  1}', '(1,2)' FROM generate_series(1, 3);
CREATE TABLE unique_too (id int PRIMARY KEY, v int UNIQUE); INSERT INTO unique_too VALUES (1, 1), (2, 2);
CREATE TABLE "Odd ""name'" ("a.b" int, "from" text, PRIMARY KEY ("from", "a.b"));
CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'a trigger ran'; END$$;
"""


def test_scenario_31_every_kind_of_change_arrives(lab: FollowLab) -> None:
    """Unchanged TOAST, keys that change, TRUNCATE, a table without a key, generated and identity columns, partitions, rolled back work."""
    lab.on_source(SOURCE)
    lab.begin(replica_identity_full=True)
    lab.on_target("CREATE TRIGGER fails BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fails()")
    lab.on_source("UPDATE t SET v = E'tab\\t new\\nline \\\\ \"quote\"', ch = 'ab' WHERE id = 1")
    lab.on_source(
        "UPDATE t SET id = id + 100 WHERE id IN (2, 3); DELETE FROM t WHERE id = 4; UPDATE t SET v = NULL, m = 'ok' WHERE id = 5"
    )
    lab.on_source(
        "INSERT INTO t (id, v, js) VALUES (6000, '', '{\"b\":  2}'), (6001, NULL, 'null'); UPDATE t SET big = 'small' WHERE id = 7"
    )
    lab.on_source(
        "INSERT INTO counted (v) VALUES ('a'), ('b'); UPDATE counted SET v = 'c' WHERE v = 'a'; INSERT INTO refers VALUES (1, 1)"
    )
    lab.on_source(
        "INSERT INTO parted SELECT n, 1 + n % 2 FROM generate_series(1, 9) n; UPDATE parted SET day = 3 - day WHERE id = 3"
    )
    lab.on_source(
        "UPDATE keyless SET a = 2 WHERE ctid = '(0,2)'; DELETE FROM keyless WHERE ctid = '(0,1)'; INSERT INTO keyless VALUES (NULL, NULL, NULL)"
    )
    lab.on_source(
        """INSERT INTO "Odd ""name'" VALUES (1, 'it''s {a,"b"}'); UPDATE "Odd ""name'" SET "from" = E'\\\\N'"""
    )
    lab.on_source(
        "BEGIN; UPDATE unique_too SET v = 3 WHERE id = 1; UPDATE unique_too SET v = 1 WHERE id = 2; UPDATE unique_too SET v = 2 WHERE id = 1; COMMIT"
    )
    lab.on_source(
        "BEGIN; INSERT INTO t (id) VALUES (7000); SAVEPOINT s; INSERT INTO t (id) VALUES (7001); ROLLBACK TO s; COMMIT"
    )
    lab.on_source("BEGIN; INSERT INTO t (id) VALUES (8000); ROLLBACK")
    lab.on_source("BEGIN; INSERT INTO t (id) VALUES (9000); PREPARE TRANSACTION 'p'")
    lab.on_source("COMMIT PREPARED 'p'")
    lab.on_source(
        "INSERT INTO t (id, v) VALUES (6002, 'x'); UPDATE t SET v = 'y' WHERE id = 6002; DELETE FROM t WHERE id = 6002; INSERT INTO t (id, v) VALUES (6002, 'z')"
    )
    found = lab.follow()
    assert found["transactions"] == 11
    lab.on_target("DROP TRIGGER fails ON t")
    assert lab.differences() == []
    assert lab.on_target("SELECT length(big), v FROM t WHERE id = 102") == [(9000, "v2")]
    lab.on_source("TRUNCATE refers, t CASCADE; INSERT INTO t (id) VALUES (1)")
    lab.follow()
    assert lab.differences() == [] and lab.on_target("SELECT count(*) FROM t") == [(1,)]
    assert lab.follow()["changes"] == 0, "nothing arrives twice"


def test_a_transaction_larger_than_the_buffer_is_applied_whole(lab: FollowLab, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakefork.transfer.follow import stream

    monkeypatch.setattr(stream, "PIECE_CHANGES", 100)
    monkeypatch.setattr(stream, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(stream.Buffer.__init__, "__defaults__", (20_000,))
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.begin()
    lab.on_source("INSERT INTO t SELECT n, repeat('x', 50) FROM generate_series(1, 20000) n; ")
    lab.on_source("BEGIN; UPDATE t SET v = 'y' WHERE id % 2 = 0; DELETE FROM t WHERE id % 3 = 0; COMMIT")
    assert lab.follow()["changes"] == 20000 + 10000 + 6666
    assert lab.differences() == []


CRASHES = ["begin", "apply", "finish"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", CRASHES)
def test_rows_and_position_are_one(lab: FollowLab, monkeypatch: pytest.MonkeyPatch, step: str, after: bool) -> None:
    """Whatever a run dies in, nothing is applied twice or left out."""
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY, n int)")
    lab.begin()
    lab.on_source("INSERT INTO t VALUES (1, 0); UPDATE t SET n = n + 1; INSERT INTO t VALUES (2, 5)")
    real = getattr(into_postgres.PostgresTarget, step)

    def dying(*arguments: Any) -> Any:
        if after:
            real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(into_postgres.PostgresTarget, step, dying)
        with pytest.raises(KeyboardInterrupt):
            lab.follow()
    lab.on_source("UPDATE t SET n = n + 1")
    lab.follow()
    assert lab.differences() == []
    assert lab.follow()["changes"] == 0


def test_random_changes_of_several_sessions_with_random_ends_of_connections(lab: FollowLab) -> None:
    """A model: at the end digests agree, and each committed transaction was applied once."""
    dice = random.Random(31)  # noqa: S311 - repeatable
    lab.on_source(
        "CREATE TABLE a (id int PRIMARY KEY, n int, v text); CREATE TABLE b (id int PRIMARY KEY, n int); CREATE TABLE done (id int PRIMARY KEY); "
        "INSERT INTO a SELECT n, 0, 'v' FROM generate_series(1, 30) n; INSERT INTO b SELECT n, 0 FROM generate_series(1, 30) n"
    )
    lab.begin()
    sessions = [psycopg.connect(lab.source) for _ in range(3)]
    committed = 0
    for number in range(120):
        session = dice.choice(sessions)
        key, other = dice.randrange(40), dice.randrange(40)
        try:
            with session.transaction():
                session.execute("SET LOCAL lock_timeout = '10ms'")
                session.execute(
                    "INSERT INTO a VALUES (%s, 1, 'new') ON CONFLICT (id) DO UPDATE SET n = a.n + 1", (key,)
                )
                session.execute(
                    f"UPDATE b SET n = n + 1, id = CASE WHEN id = %s THEN {1000 + number} ELSE id END WHERE id = %s",
                    (key, key),
                )
                if dice.random() < 0.4:
                    session.execute("DELETE FROM a WHERE id = %s", (other,))
                if dice.random() < 0.1:
                    session.execute("TRUNCATE b; INSERT INTO b SELECT n, 7 FROM generate_series(1, 40) n")  # type: ignore[call-overload, unused-ignore]
                session.execute("INSERT INTO done VALUES (%s)", (number,))
                if dice.random() < 0.2:
                    raise ValueError
            committed += 1
        except (ValueError, psycopg.errors.LockNotAvailable):
            pass
        if number % 15 == 0:
            if dice.random() < 0.5:
                lab.sql(
                    lab.postgres,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                    lab.target.rpartition("/")[2],
                )
            lab.follow(max_seconds=20)
    for session in sessions:
        session.close()
    lab.follow()
    assert lab.differences() == []
    assert lab.on_target("SELECT count(*) FROM done") == [(committed,)]


def test_conflicts_stop_with_the_key_and_go_on_when_they_are_put_right(lab: FollowLab) -> None:
    lab.on_source(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, 'v' FROM generate_series(1, 9) n"
    )
    lab.begin()
    lab.on_source("UPDATE t SET v = 'w'; INSERT INTO t VALUES (10, 'x'); DELETE FROM t WHERE id = 2")
    lab.on_target("DELETE FROM t WHERE id = 7")
    with pytest.raises(
        TargetDiffersError, match=r"public.t: the row with id = 7, which the source has updated, is not on target 'dst'"
    ):
        lab.follow()
    assert lab.on_target("SELECT count(*) FROM t WHERE v = 'w'") == [(0,)], "a transaction is whole"
    lab.on_target("INSERT INTO t VALUES (7, 'v'), (10, 'there')")
    with pytest.raises(
        TargetDiffersError,
        match=r"the row with id = 10, which the source has inserted, is refused by target 'dst'.*duplicate key",
    ):
        lab.follow()
    lab.on_target("DELETE FROM t WHERE id = 10")
    lab.follow()
    assert lab.differences() == []
    assert lab.follow_row("error, status") == (None, "following")
    lab.on_source("ALTER TABLE t ADD COLUMN n numeric(9,2) DEFAULT 1.5; UPDATE t SET n = 2 WHERE id = 1")
    with pytest.raises(
        TargetDiffersError, match=r'run ALTER TABLE "public"."t" ADD COLUMN "n" numeric\(9,2\) on \'dst\''
    ):
        lab.follow()
    lab.on_target("ALTER TABLE t ADD COLUMN n numeric(9,2) DEFAULT 1.5")
    lab.follow()
    assert lab.differences() == []


NEEDS = [
    ("CREATE TABLE k (a int)", "public.k has no primary key and no replica identity"),
    ("CREATE UNLOGGED TABLE u (id int PRIMARY KEY)", "public.u is unlogged, and its changes cannot be followed"),
]


@pytest.mark.parametrize(("statement", "sentence"), NEEDS)
def test_what_cannot_be_followed_is_said_before(lab: FollowLab, statement: str, sentence: str) -> None:
    lab.on_source(statement)
    with pytest.raises(SetupError, match=sentence):
        lab.begin()
    assert lab.on_source("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


def test_a_server_that_sends_no_changes_is_said_before(lab: FollowLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", lab.postgres)
    with pytest.raises(SetupError, match="'src' has wal_level replica: set wal_level = logical, and restart it"):
        lab.begin()


def test_a_lost_slot_is_copy_required_and_never_a_gap(lab: FollowLab) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY)")
    lab.begin()
    lab.on_source("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots; INSERT INTO t VALUES (1)")
    with pytest.raises(CopyRequiredError, match=r"copy required: slot lakefork_one_[0-9a-f]{8} of 'src' is gone"):
        lab.follow()
    assert lab.follow_row("status") == ("copy_required",)
    with pytest.raises(CopyRequiredError, match="changes of the source of copy one are lost, begin a new copy"):
        lab.follow()
    assert lab.on_target("SELECT count(*) FROM t") == [(0,)]
    assert "copy required" in "\n".join(status_line(row) for row in statuses(lab.dsn, None))
    assert "only a new copy makes them equal again" in lab.stop()
    assert lab.on_source("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_target_that_was_restored_to_an_earlier_time_is_noticed(lab: FollowLab) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY)")
    lab.begin()
    before = lab.follow_row("position")
    lab.on_source("INSERT INTO t VALUES (1)")
    lab.follow()
    lab.follow()
    lab.on_target("DELETE FROM t")
    lab.on_target("UPDATE lakefork_follow.position SET lsn = %s::pg_lsn", before[0])
    with pytest.raises(CopyRequiredError, match="one of them was restored to an earlier time"):
        lab.follow()


def test_a_copy_that_cannot_be_followed_does_not_stop_others(lab: FollowLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY)")
    lab.begin()
    columns = "source, target, into_catalog, source_identity, target_identity, setup, status, phase, phases_done, run_id, snapshot_name, snapshot_lsn, slot_name, started_at"
    lab.catalog(
        f"INSERT INTO lakefork.copy (copy_id, {columns}) SELECT 'a', {columns} FROM lakefork.copy; UPDATE lakefork.copy SET source = 'gone' WHERE copy_id = 'a'"
    )
    lab.catalog(
        "INSERT INTO lakefork.follow (copy_id, status, position) SELECT 'a', status, position FROM lakefork.follow"
    )
    lab.on_source("INSERT INTO t VALUES (1)")
    with pytest.raises(SetupError, match="there is no connection 'gone'"):
        lab.follow(copy_id=None)
    assert lab.on_target("SELECT count(*) FROM t") == [(1,)]


def test_one_run_at_a_time(lab: FollowLab) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY)")
    lab.begin()
    with lab.context() as other:
        other.take_lease("follow/one")
        with pytest.raises(LakeforkError, match="copy one is followed by another run"):
            lab.follow()
        assert lab.follow(copy_id=None)["copies"] == 0, "a run about all copies leaves it out"
    assert lab.follow(copy_id=None)["copies"] == 1


def test_cut_over_sets_sequences_compares_and_lets_the_source_go(lab: FollowLab) -> None:
    lab.on_source("CREATE TABLE t (id serial PRIMARY KEY, v text)")
    lab.begin()
    lab.on_source("INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 50)")
    (row,) = statuses(lab.dsn, "one")
    assert (row["lag_transactions"], row["slot"]) == (1, "reserved") and row["lag_bytes"] > 0
    assert "1 transaction(s) behind" in status_line(row)
    lab.follow()
    (row,) = statuses(lab.dsn, "one")
    assert (row["lag_transactions"], row["lag_seconds"]) == (0, 0.0)
    with connect(lab.dsn) as connection:
        (shown,) = list_recent_copies(connection)
        metrics = read_metrics(connection, lab.settings.flush)
    assert shown["follow_status"] == "following" and shown["wal_kept"] is not None and shown["error"] is None
    assert 'lakefork_follow_in_trouble{copy="one"} 0' in metrics and 'lakefork_follow_wal_bytes{copy="one"}' in metrics
    lab.on_target("UPDATE t SET v = 'y' WHERE id = 3")
    with pytest.raises(LakeforkError, match="source and target differ, and nothing was cut over"):
        lab.cut_over()
    lab.on_target("UPDATE t SET v = 'x' WHERE id = 3")
    with (
        lab.writing("INSERT INTO t (v) VALUES ('late')"),
        pytest.raises(InvalidInputError, match="the source of copy one still writes"),
    ):
        lab.cut_over()
    done = lab.cut_over()
    assert (done["sequences"], done["differences"]) == (1, [])
    assert lab.on_target("SELECT last_value FROM t_id_seq") == lab.on_source("SELECT last_value FROM t_id_seq")
    assert lab.on_source(
        "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), (SELECT count(*) FROM pg_publication)"
    ) == [(0, 0)]
    assert lab.on_target("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lakefork%%'") == [(0,)]
    with pytest.raises(InvalidInputError, match="copy one is not followed any longer: it was cut over"):
        lab.follow()


def test_until_a_position_and_no_further(lab: FollowLab) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY)")
    lab.begin()
    lab.on_source("INSERT INTO t VALUES (1)")
    ((until,),) = lab.on_source("SELECT pg_current_wal_lsn()::text")
    lab.follow(until=until)
    assert lab.on_target("SELECT count(*) FROM t") == [(1,)]
    assert lab.follow_row("transactions, changes") == (1, 1)
