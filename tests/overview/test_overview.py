"""What people see of the lake: right, the same everywhere, and quick with very many catalogs."""

import json
import re
import time

import pytest

from lakefork.catalog.catalogs import find_catalog, newest_snapshot
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.forks import drop_catalogs, fork_catalog
from lakefork.catalog.jobs import JobRun, Usage, finish_job, start_job
from lakefork.catalog.retention import tag_snapshot
from lakefork.errors import NotFoundError
from lakefork.model.params import JOBS
from lakefork.overview.forks import list_children, reclaimable
from lakefork.overview.gc import gc_text, list_deletions, read_gc
from lakefork.overview.lake import last_runs, list_catalogs, list_runs, list_waiting, read_flushed, read_totals
from lakefork.overview.metrics import read_metrics
from lakefork.overview.status import read_status
from lakefork.overview.superseded import with_superseded_share
from lakefork.overview.tables import list_tables, read_table
from lakefork.resources import resource
from lakefork.settings import FlushSettings
from support.lake import rows_of
from support.many_catalogs import FILES, add_catalogs
from support.sql_lake import SqlLake

POLICY = FlushSettings(default_rows=20, default_interval_seconds=3600)


@pytest.fixture
def filled(lake: SqlLake) -> SqlLake:
    """A table with batches of two users, a second version of its schema, and rows that wait."""
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, name TEXT) FLUSH POLICY ROWS 5")
    for user, rows in (("ada", "(1, 'a'), (9, 'b')"), ("bob", "(5, 'c')")):
        lake.run(f"INSERT INTO app.t VALUES {rows}", user=user)
        lake.flush_by_hand("app.t", user)
    lake.run("ALTER TABLE app.t ADD COLUMN note TEXT")
    lake.run("CREATE SHARED TABLE app.s (id BIGINT PRIMARY KEY)")
    lake.run("INSERT INTO app.s VALUES (1), (2), (3)")
    return lake


def test_a_catalog_a_table_and_what_waits(filled: SqlLake) -> None:
    with connect(filled.dsn) as connection:
        (catalog,) = list_catalogs(connection).rows
        assert (catalog["name"], catalog["tables"], catalog["files"]) == (filled.catalog.name, 2, 2)
        tables = list_tables(connection, filled.catalog.name).rows
        assert [(row["namespace"], row["table"], row["kind"], row["files"], row["rows"]) for row in tables] == [
            ("app", "s", "SHARED", 0, 0), ("app", "t", "USER", 2, 3),
        ]  # fmt: skip
        waiting = {row["table"]: row for row in list_waiting(connection, POLICY)}
        assert (waiting["s"]["versions"], waiting["s"]["max_versions"], waiting["s"]["is_due"]) == (3, 20, False)
        assert waiting["s"]["max_seconds"] == 3600
        connection.execute("UPDATE lakefork.hot_delta SET counted_at = now() - interval '2 hours'")
        assert {row["table"]: row for row in list_waiting(connection, POLICY)}["s"]["is_due"]


def test_the_page_of_a_table_has_its_schemas_batches_and_commits(filled: SqlLake) -> None:
    with connect(filled.dsn) as connection:
        table = read_table(connection, filled.catalog.name, "app", "T", POLICY)
        assert [[column["name"] for column in version["columns"]][:3] for version in table["versions"]] == [
            ["id", "name", "note"], ["id", "name", "_seq"],
        ]  # fmt: skip
        assert table["key"] == {"name": "id", "type": "int64"}
        assert [(file["user_id"], file["low"], file["high"], file["rows"]) for file in table["batches"]] == [
            ("ada", "1", "9", 2), ("bob", "5", "5", 1),
        ]  # fmt: skip
        assert table["superseded_share"] == 0
        commits = table["snapshots"]
        assert [(commit["files_added"], commit["rows"]) for commit in commits] == [(1, 1), (1, 2)]
        before = read_table(connection, filled.catalog.name, "app", "t", POLICY, snapshot=commits[1]["snapshot_id"])
        assert [file["user_id"] for file in before["batches"]] == ["ada"], "as it was before the second flush"
        one = read_table(connection, filled.catalog.name, "app", "t", POLICY, user="bob")
        assert [file["user_id"] for file in one["batches"]] == ["bob"]
        with pytest.raises(NotFoundError, match=r"table app\.nope does not exist"):
            read_table(connection, filled.catalog.name, "app", "nope", POLICY)


def test_runs_are_listed_by_job_status_and_page(connection: Connection) -> None:
    for number in range(5):
        run = JobRun(f"j{number}", "flush" if number % 2 else "catalog_fsck", f"r{number}", f"cli/j{number}", "n")
        start_job(connection, run, {})
        failure = "it broke" if number == 3 else None
        finish_job(connection, run, Usage(1, 1), result=None, error=failure, retryable=False)
    first = list_runs(connection, limit=2)
    second = list_runs(connection, before=first.next, limit=2)
    assert [row["run_id"] for row in first.rows + second.rows] == ["r4", "r3", "r2", "r1"]
    assert list_runs(connection, before=second.next, limit=2).next is None
    assert [row["run_id"] for row in list_runs(connection, job="flush").rows] == ["r3", "r1"]
    assert [row["error_message"] for row in list_runs(connection, status="failed").rows] == ["it broke"]
    runs = {row["job"]: row for row in last_runs(connection)}
    assert set(runs) == set(JOBS) and runs["flush"]["status"] == "failed"


def test_what_flushes_published_is_summed_by_time(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO lakefork.flush_log SELECT 'r' || i, 1, i, 'j', now() - make_interval(hours => i / 2), 'k' || i, "
        "jsonb_build_object('rows_in', 10, 'bytes_written', 100, 'files_written', 1, 'waited_seconds', i) FROM generate_series(0, 99) i"
    )
    day, week = read_flushed(connection, "24h"), read_flushed(connection, "7d")
    assert sum(row["rows"] for row in week) == 1000 and 470 <= sum(row["rows"] for row in day) <= 500
    assert max(row["waited_seconds"] for row in week) == 99
    assert sum(row["rows"] for row in read_flushed(connection, "7d", table_id=7)) == 10


def test_metrics_are_what_prometheus_reads(filled: SqlLake) -> None:
    filled.run('CREATE NAMESPACE "od""d"; CREATE SHARED TABLE "od""d".t (id BIGINT PRIMARY KEY)')
    filled.run('INSERT INTO "od""d".t VALUES (1)')
    with connect(filled.dsn) as connection:
        lines = read_metrics(connection, POLICY).splitlines()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert values["lakefork_catalogs"] == 1 and values["lakefork_tables"] == 3 and values["lakefork_files"] == 2
    name = filled.catalog.name
    assert values[f'lakefork_table_hot_rows{{catalog="{name}",namespace="app",table="s"}}'] == 3
    assert f'lakefork_table_hot_rows{{catalog="{name}",namespace="od\\"d",table="t"}}' in values
    assert values["lakefork_oldest_hot_seconds"] > 0
    described = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    documented = resource("docs/operations.md").read_text()
    assert set(re.findall(r"\blakefork_[a-z_]+", documented)) == described, "the table and the alerts in the docs"
    assert {key.partition("{")[0] for key in values} <= described


def test_status_is_text_and_json(filled: SqlLake) -> None:
    with connect(filled.dsn) as connection:
        status = read_status(connection, POLICY)
    found = json.loads(json.dumps(status.as_json()))
    assert found["catalogs"] == [
        {"name": filled.catalog.name, "tables": 2, "hot": found["totals"]["hot"], "files": 2, "rows": 3,
         "bytes": found["totals"]["bytes"]}
    ]  # fmt: skip
    assert f"{filled.catalog.name}.app.s" in status.as_text() and "20 rows or 1 h" in status.as_text()


def test_a_plan_of_cleanup_has_what_its_runs_reported(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params) VALUES ('c', 'file_cleanup', 'r', now(), '{}')"
    )
    plans = [JobRun("a", "file_cleanup", "r", "cli/a", "n"), JobRun("b", "file_cleanup", "s", "cli/b", "n")]
    start_job(connection, plans[0], {"dry_run": True})
    planned = {"plan_id": "c", "files_planned": 4, "orphans": 1, "bytes_planned": 500}
    finish_job(connection, plans[0], Usage(1, 1), result=planned)
    (plan,) = read_gc(connection)["plans"]
    assert (plan["job"], plan["files"], plan["bytes"], plan["freed_files"]) == ("file_cleanup", 5, 500, None)
    assert (plan["begun_at"], plan["done_at"]) == (None, None)
    start_job(connection, plans[1], {"plan_id": "c"})
    finish_job(connection, plans[1], Usage(1, 1), result={"files_deleted": 3, "bytes_freed": 300})
    (plan,) = read_gc(connection)["plans"]
    assert (plan["files"], plan["freed_files"], plan["freed_bytes"]) == (5, 3, 300)
    assert plan["done_at"] >= plan["begun_at"]
    text = gc_text({**read_gc(connection), "deletions": []})
    assert "file_cleanup: 5 file(s), 3 freed (300 B)" in text


def test_status_says_when_jobs_run_next(connection: Connection) -> None:
    assert "next runs" not in read_status(connection, POLICY).as_text(), "nobody plans them without Airflow"
    connection.execute(
        "CREATE OR REPLACE FUNCTION lakefork.airflow_schedule() RETURNS TABLE (job_type varchar, next_run timestamptz, is_paused boolean) "
        "LANGUAGE sql STABLE AS $$ VALUES ('flush'::varchar, '2026-01-02 03:04 UTC'::timestamptz, false), ('file_cleanup', NULL, true) $$"
    )
    (_, schedule) = read_status(connection, POLICY).as_text().split("next runs", 1)
    assert schedule.split() == ["at", "(UTC)", "flush", "2026-01-02", "03:04:00", "file_cleanup", "paused"]


def test_a_hundred_thousand_catalogs_are_looked_through_page_by_page(connection: Connection) -> None:
    add_catalogs(connection, 100_000)
    started = time.perf_counter()
    totals = read_totals(connection)
    page = list_catalogs(connection)
    waiting = list_waiting(connection, POLICY)
    took = time.perf_counter() - started
    assert (totals["catalogs"], totals["tables"], totals["files"]) == (100_000, 100_000, 100_000 * FILES)
    assert len(page.rows) == len(waiting) == 50 and waiting[0]["oldest_seconds"] >= waiting[-1]["oldest_seconds"]
    assert took < 15, "0.3 where nothing else runs"
    started = time.perf_counter()
    with_superseded_share(connection, waiting)
    assert time.perf_counter() - started < 5
    following = list_catalogs(connection, after=page.next)
    assert following.rows[0]["name"] == "tenant-0001050"
    found = list_catalogs(connection, search="TENANT-00777")
    assert [row["name"] for row in found.rows[:2]] == ["tenant-0077700", "tenant-0077701"]
    assert rows_of(connection, "SELECT count(*) FROM system.waiting WHERE catalog_name = 'tenant-0077700'") == [(1,)]


def test_rows_that_may_be_superseded_are_counted_by_owner(filled: SqlLake) -> None:
    filled.run("UPDATE app.t SET name = 'x' WHERE id = 1", user="ada")
    filled.flush_by_hand("app.t", "ada")
    with connect(filled.dsn) as connection:
        table = read_table(connection, filled.catalog.name, "app", "t", POLICY)
        assert (len(table["batches"]), table["superseded_share"]) == (3, 0.4), "two of five rows, at most"
        for chosen in ({"user": "bob"}, {"snapshot": table["snapshots"][-1]["snapshot_id"]}):
            other = read_table(connection, filled.catalog.name, "app", "t", POLICY, **chosen)
            assert other["superseded_share"] == table["superseded_share"], "that of the table, whatever is shown of it"
        filled.run("INSERT INTO app.t VALUES (7, 'z', 'n')", user="ada")
        waiting = with_superseded_share(connection, list_waiting(connection, POLICY))
        assert {row["table"]: row["superseded_share"] for row in waiting} == {"s": None, "t": 0.4}


def test_forks_are_listed_level_by_level(filled: SqlLake) -> None:
    name = filled.catalog.name
    with connect(filled.dsn) as connection:
        for fork in ("b", "a"):
            fork_catalog(connection, name, fork, None)
        fork_catalog(connection, "a", "a1", None)
        (root,) = list_children(connection, None).rows
        assert (root["name"], root["forks"], root["own_files"], root["shared_files"]) == (name, 2, 2, 0)
        first = list_children(connection, name, limit=1)
        assert [(row["name"], row["forks"], row["shared_files"]) for row in first.rows] == [("a", 1, 2)]
        assert [row["name"] for row in list_children(connection, name, after=first.next).rows] == ["b"]
        assert [row["name"] for row in list_children(connection, "a").rows] == ["a1"]
        found = list_children(connection, None, search="A")
        assert [(row["name"], row["parent"]) for row in found.rows] == [("a", name), ("a1", "a"), (name, None)]
        assert len(reclaimable(connection, name, 2)) == 2 and len(reclaimable(connection, name)) == 3
        drop_catalogs(connection, [find_catalog(connection, "a").catalog_id])
        assert [row["name"] for row in list_children(connection, None).rows] == ["a1", name], "its parent is gone"


def test_plans_pinned_snapshots_and_the_ledger(filled: SqlLake) -> None:
    with connect(filled.dsn) as connection:
        catalog_id, snapshot = filled.catalog.catalog_id, newest_snapshot(connection)
        tag_snapshot(connection, filled.catalog.name, snapshot, "audit-2026")
        connection.execute(
            "INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params) VALUES ('p', 'retention_gc', 'r', now(), '{}')"
        )
        connection.execute(
            "INSERT INTO lakefork.gc_count (plan_id, catalog_id, table_id, snapshots, files, bytes, freed_files, freed_bytes) "
            "SELECT 'p', %s, t, 2, 3, 400, 1, 100 FROM generate_series(0, 1) t",
            (catalog_id,),
        )
        connection.execute(
            "INSERT INTO lakefork.deletion (run_id, job_id, path, size_bytes, reason, decided_at, removed_at, outcome) "
            "SELECT 'r', 'j', '/lake/' || i, 100, 'why', now(), now(), 'removed' FROM generate_series(1, 3) i"
        )
        found = read_gc(connection)
        (plan,) = found["plans"]
        assert (plan["catalogs"], plan["files"], plan["freed_files"], plan["freed_bytes"]) == (1, 6, 2, 200)
        assert [(row["name"], row["snapshot_id"]) for row in found["pinned"]] == [("audit-2026", snapshot)]
        assert (found["totals"]["removed_files"], found["totals"]["removed_bytes"], found["totals"]["files"]) == (
            3,
            300,
            0,
        )
        text = gc_text({**found, "deletions": list_deletions(connection).rows})
        assert "retention_gc: 4 snapshot(s) of 1 catalog(s), 6 file(s), 2 freed (200 B)" in text
        assert f"{filled.catalog.name} snapshot {snapshot} as audit-2026, " in text and "/lake/3" in text
        first = list_deletions(connection, limit=2)
        assert [row["path"] for row in first.rows + list_deletions(connection, first.next).rows] == [
            "/lake/3",
            "/lake/2",
            "/lake/1",
        ]
        assert "lakefork_freed_bytes 300" in read_metrics(connection, POLICY)
