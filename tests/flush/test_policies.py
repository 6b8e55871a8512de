"""What is due: limits, intervals, defaults, requests and notifications."""

from typing import Any

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.flushes import find_due
from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.sql.session import Role
from lakefork.upkeep.flush import run as flush
from support.flush_lake import FlushLake


def due(flush_lake: FlushLake, **params: Any) -> list[tuple[str, str, int, str]]:
    wanted = {
        "catalog": None,
        "namespace": None,
        "table": None,
        "user_id": None,
        "force": False,
        "default_rows": 100_000,
        "default_seconds": 3600,
    }
    with connect(flush_lake.lake.dsn) as connection:
        found = find_due(connection, **{**wanted, **params})
    return [(one.table_name, one.user_id, one.versions, one.reason) for one in found]


def age(flush_lake: FlushLake, seconds: int) -> None:
    """Makes all rows look older."""
    flush_lake.waiting()
    flush_lake.sql(f"UPDATE lakefork.hot_count SET oldest_at = oldest_at - interval '{seconds} s' RETURNING 1")


@pytest.fixture
def tables(flush_lake: FlushLake) -> FlushLake:
    flush_lake.lake.run(
        "CREATE NAMESPACE app; "
        "CREATE USER TABLE app.by_rows (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 3; "
        "CREATE USER TABLE app.by_time (id BIGINT PRIMARY KEY) FLUSH POLICY INTERVAL '5 minutes'; "
        "CREATE SHARED TABLE app.both (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 3 INTERVAL '5 minutes'; "
        "CREATE SHARED TABLE app.neither (id BIGINT PRIMARY KEY)"
    )
    return flush_lake


def test_a_row_limit_is_reached_by_one_user_and_not_by_the_other(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2)", user="ada")
    tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2)", user="bob")
    assert due(tables) == []
    tables.lake.run("DELETE FROM app.by_rows WHERE id = 1", user="bob")
    assert due(tables) == [("by_rows", "bob", 3, "rows")]
    assert tables.flush(force=False)["users"] == 1
    assert tables.waiting() == {"ada": 2}
    age(tables, 10_000)
    assert due(tables) == [], "there is no interval"


def test_an_interval_flushes_every_user_that_is_overdue(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.by_time VALUES (1)", user="ada")
    age(tables, 200)
    tables.lake.run("INSERT INTO app.by_time VALUES (1)", user="bob")
    assert due(tables) == []
    age(tables, 200)
    assert due(tables) == [("by_time", "ada", 1, "interval")]
    tables.lake.run("INSERT INTO app.by_time VALUES (2)", user="ada")
    assert due(tables) == [("by_time", "ada", 2, "interval")], "the oldest row counts"
    tables.flush(force=False)
    tables.lake.run("INSERT INTO app.by_time VALUES (3)", user="ada")
    age(tables, 200)
    assert due(tables) == [("by_time", "bob", 1, "interval")], "ada's rows were flushed, the new one is young"


def test_whichever_comes_first(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.both VALUES (1), (2), (3)")
    assert due(tables) == [("both", "", 3, "rows")]
    tables.flush(force=False)
    tables.lake.run("INSERT INTO app.both VALUES (4)")
    assert due(tables) == []
    age(tables, 301)
    assert due(tables) == [("both", "", 1, "interval")]


def test_tables_without_a_policy_have_the_default_one(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.neither VALUES (1), (2)")
    assert due(tables) == []
    assert due(tables, default_rows=2) == [("neither", "", 2, "rows")]
    age(tables, 4000)
    assert due(tables) == [("neither", "", 2, "interval")]


def test_altering_a_policy_holds_at_once(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2)", user="ada")
    tables.lake.run("ALTER TABLE app.by_rows SET FLUSH POLICY ROWS 2")
    assert due(tables) == [("by_rows", "ada", 2, "rows")]


def test_force_and_the_other_params_narrow_it_down(tables: FlushLake) -> None:
    for user in ("ada", "bob"):
        tables.lake.run("INSERT INTO app.by_rows VALUES (1); INSERT INTO app.by_time VALUES (1)", user=user)
    everything = due(tables, force=True)
    assert everything == [(table, user, 1, "forced") for table in ("by_rows", "by_time") for user in ("ada", "bob")]
    assert due(tables, force=True, table="BY_ROWS", user_id="bob") == [("by_rows", "bob", 1, "forced")]
    assert due(tables, force=True, namespace="other") == due(tables, force=True, catalog="other") == []
    assert tables.flush(table="by_time", user_id="ada")["users"] == 1
    assert tables.waiting() == {"ada": 1, "bob": 1} or len(tables.sql("SELECT 1 FROM lakefork.hot_count")) == 3


def test_flush_table_asks_for_it_and_the_trigger_hears(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.neither VALUES (1)")
    with psycopg.connect(tables.lake.dsn, autocommit=True) as listening:
        listening.execute("LISTEN lakefork_flush")
        tables.lake.run("FLUSH TABLE app.neither", role=Role.SERVICE)
        assert len(list(listening.notifies(timeout=5, stop_after=1))) == 1
    assert due(tables) == [("neither", "", 1, "requested")]
    tables.flush(force=False)
    tables.lake.run("INSERT INTO app.neither VALUES (2)")
    assert due(tables) == [], "a request is for what was there"
    with pytest.raises(PermissionDeniedError):
        tables.lake.run("FLUSH TABLE app.neither", user="ada")
    tables.lake.run("CREATE STREAM TABLE app.events (id BIGINT) WITH (retention = '10s')")
    with pytest.raises(InvalidInputError, match=r"app\.events is a STREAM table"):
        tables.lake.run("FLUSH TABLE app.events")


def test_a_request_is_answered_by_a_flush_of_everything_only(
    tables: FlushLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2), (3)", user="ada")
    tables.lake.run("INSERT INTO app.by_rows VALUES (1)", user="bob")
    tables.lake.run("FLUSH TABLE app.by_rows")
    tables.flush(user_id="ada")
    assert due(tables) == [("by_rows", "bob", 1, "requested")], "a flush of one user is no answer"
    tables.flush(force=False)
    tables.lake.run("INSERT INTO app.by_rows VALUES (4), (5), (6)", user="ada")
    tables.lake.run("INSERT INTO app.by_rows VALUES (2)", user="bob")
    real = flush.plan_flush

    def asked_meanwhile(*arguments: Any) -> Any:
        tables.lake.run("FLUSH TABLE app.by_rows")
        return real(*arguments)

    monkeypatch.setattr(flush, "plan_flush", asked_meanwhile)
    assert tables.flush(force=False)["users"] == 1
    assert due(tables) == [("by_rows", "bob", 1, "requested")], "nor one that had begun"


def test_a_request_for_a_table_without_rows_is_forgotten(tables: FlushLake) -> None:
    tables.lake.run("FLUSH TABLE app.neither")
    assert due(tables) == []
    tables.lake.run("INSERT INTO app.neither VALUES (1)")
    assert due(tables) == []


def test_a_request_for_rows_that_come_while_counts_are_folded_is_kept(tables: FlushLake) -> None:
    tables.lake.run("FLUSH TABLE app.neither")
    with connect(tables.lake.dsn) as connection:
        connection.execute(
            "ALTER FUNCTION lakefork.fold_counts(bigint) RENAME TO real_fold; "
            "CREATE FUNCTION lakefork.fold_counts(bigint) RETURNS void LANGUAGE sql AS $$ SELECT lakefork.real_fold($1); "
            "INSERT INTO lakefork.hot_delta SELECT catalog_id, table_id, '', 1, now() FROM ducklake_table "
            "WHERE table_name = 'neither' $$"
        )
    assert due(tables) == [], "the row comes too late for this look"
    assert due(tables) == [("neither", "", 1, "requested")]


def fail_audit(tables: FlushLake, *, success: bool = False) -> None:
    tables.sql(
        "INSERT INTO lakefork.flush_audit SELECT gen_random_uuid()::text, 'run', catalog_id, table_id, clock_timestamp(), %s, 0, "
        "'[]', NULL FROM ducklake_table WHERE table_name = 'by_rows' RETURNING 1",
        success,
    )


def pause(tables: FlushLake) -> int:
    """Minutes."""
    found = tables.sql("SELECT extract(epoch FROM paused_until - failed_at)::int / 60 FROM lakefork.paused_flushes()")
    return int(found[0][0]) if found else 0


def test_a_table_whose_audits_fail_pauses_for_longer_each_time(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2), (3)", user="ada")
    tables.lake.run("INSERT INTO app.both VALUES (1), (2), (3)")
    other = ("both", "", 3, "rows")
    for minutes in (5, 10, 20, 40, 80, 160, 320, 360, 360):
        fail_audit(tables)
        assert pause(tables) == minutes
        assert due(tables) == [other], "other tables are"
    assert due(tables, force=True, table="by_rows") == [("by_rows", "ada", 3, "forced")]
    tables.lake.run("FLUSH TABLE app.by_rows")
    assert due(tables, table="by_rows") == [("by_rows", "ada", 3, "requested")]
    fail_audit(tables)
    assert due(tables) == [other], "a request is for one try"
    tables.sql("UPDATE lakefork.flush_audit SET audited_at = audited_at - interval '361 minutes' RETURNING 1")
    assert due(tables, table="by_rows") == [("by_rows", "ada", 3, "requested")]
    fail_audit(tables, success=True)
    assert pause(tables) == 0
    fail_audit(tables)
    assert pause(tables) == 5, "after a success it starts over"


def test_a_reached_limit_is_notified_once(tables: FlushLake) -> None:
    with psycopg.connect(tables.lake.dsn, autocommit=True) as listening:
        listening.execute("LISTEN lakefork_flush")

        def heard() -> int:
            listening.execute("SELECT lakefork.fold_counts(100000)")
            return len(list(listening.notifies(timeout=0.2)))

        tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2)", user="ada")
        assert heard() == 0
        tables.lake.run("INSERT INTO app.by_rows VALUES (3)", user="ada")
        assert heard() == 1
        tables.lake.run("INSERT INTO app.by_rows VALUES (4)", user="ada")
        assert heard() == 0
        tables.flush(force=False)
        tables.lake.run("INSERT INTO app.by_rows VALUES (5), (6), (7)", user="ada")
        assert heard() == 1, "and again after a flush"


def test_counts_of_dropped_tables_are_ignored(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.both VALUES (1), (2), (3); DROP TABLE app.both")
    assert due(tables, force=True) == []
    assert tables.flush()["tables"] == 0


def test_counts_can_be_recomputed(tables: FlushLake) -> None:
    tables.lake.run("INSERT INTO app.by_rows VALUES (1), (2), (3)", user="ada")
    tables.flush()
    tables.lake.run("INSERT INTO app.by_rows VALUES (4)", user="ada")
    tables.lake.run("INSERT INTO app.neither VALUES (4)")
    expected = tables.waiting()
    tables.sql("DELETE FROM lakefork.hot_count RETURNING 1")
    tables.sql("SELECT lakefork.recount_hot_rows()")
    assert tables.waiting() == expected == {"ada": 1, "": 1}


def test_watermarks_of_another_postgres_are_refused_with_the_way_out(tables: FlushLake) -> None:
    """As after a dump and a restore: transaction ids of there mean nothing here."""
    tables.lake.run("INSERT INTO app.neither VALUES (1), (2)")
    tables.flush()
    tables.lake.run("INSERT INTO app.neither VALUES (3)")
    tables.sql("UPDATE lakefork.watermark SET cluster_id = 7 RETURNING 1")
    with pytest.raises(InvalidInputError, match=r"call lakefork\.adopt_hot_rows\(\) once"):
        tables.flush()
    tables.sql("SELECT lakefork.adopt_hot_rows()")
    assert tables.flush()["rows_in"] == 3
    assert tables.lake.rows("SELECT id FROM app.neither ORDER BY id") == [(1,), (2,), (3,)]
    assert tables.newest_in_files("app.neither") == [(1,), (2,), (3,)]
