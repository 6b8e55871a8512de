"""What system.jobs says a flush or a dedup did, and to whom."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import Usage, finish_job, start_job
from lakefork.model.params import FlushParams, SnapshotDedupParams
from lakefork.spark.job import JobContext
from lakefork.sql.session import Role
from lakefork.upkeep.dedup.run import run_dedup
from lakefork.upkeep.flush import publish as flush_publish
from lakefork.upkeep.flush.audit import FlushAudit
from lakefork.upkeep.flush.run import run_flush
from support.flush_lake import Filled, FlushLake
from support.fork_lake import fork

BOTH = ["app.mine", "app.ours"]
OF_TABLES = "SELECT tables, users, namespace, table_name, user_id FROM system.jobs"


def report(lake: FlushLake, job: str, params: dict[str, Any], action: Callable[[JobContext], dict[str, Any]]) -> None:
    """Runs a job that reports of itself as the frame of jobs does; one that raises never says that it ended."""
    with lake.context(job=job) as context:
        context.run = replace(context.run, trace=f"cli/{context.run.job_id}")
        start_job(context.connection, context.run, params)
        finish_job(context.connection, context.run, Usage(1, 1), result=action(context))


def report_flush(lake: FlushLake, **params: Any) -> None:
    def action(context: JobContext) -> dict[str, Any]:
        return run_flush(context, FlushParams(force=True, **params), FlushAudit(context.storage, lake.expectations))

    report(lake, "flush", params, action)


def test_admins_see_which_tables_and_users_a_run_by_policy_flushed(filled: Filled) -> None:
    report_flush(filled.flush_lake)
    lake = filled.flush_lake.lake
    assert lake.rows(OF_TABLES) == [(BOTH, ["ada", "bob"], "app", None, None)]
    ((parameters, result),) = lake.rows("SELECT parameters, result FROM system.jobs")
    assert parameters == []
    found = json.loads(result)
    assert (found["rows_in"], found["files_written"], found["users"]) == (26, 3, 2)
    assert lake.rows("SELECT job_type FROM system.jobs WHERE list_contains(tables, 'app.mine')") == [("flush",)]
    assert filled.flush_lake.sql("SELECT tables, users FROM system.jobs") == [(BOTH, ["ada", "bob"])]


def test_users_see_the_runs_that_concerned_their_rows_and_nothing_of_others(filled: Filled) -> None:
    report_flush(filled.flush_lake)
    lake = filled.flush_lake.lake
    assert lake.rows(OF_TABLES, user="ada") == [(["app.mine"], ["ada"], "app", "mine", "ada")]
    assert lake.rows("SELECT result, error_message FROM system.jobs", user="ada") == [(None, None)]
    assert lake.rows(OF_TABLES, user="carl") == []


def test_one_table_of_one_user_is_named_by_itself(filled: Filled) -> None:
    report_flush(filled.flush_lake, catalog="main", user_id="bob", namespace="app", table="mine")
    lake = filled.flush_lake.lake
    assert lake.rows(OF_TABLES) == lake.rows(OF_TABLES, user="bob") == [(["app.mine"], ["bob"], "app", "mine", "bob")]
    assert json.loads(lake.rows("SELECT result FROM system.jobs", user="bob")[0][0])["users"] == 1
    assert lake.rows(OF_TABLES, user="ada") == []


def test_what_a_run_did_in_another_catalog_stays_there(filled: Filled) -> None:
    flush_lake = filled.flush_lake
    other = fork(flush_lake.lake, "other")
    other.run("INSERT INTO app.mine VALUES (100, 'x')", user="carl")
    report_flush(flush_lake)
    ((tables, users),) = flush_lake.lake.rows("SELECT tables, users FROM system.jobs")
    assert (tables, users) == (BOTH, ["ada", "bob"])
    ((tables, users),) = other.rows("SELECT tables, users FROM system.jobs")
    assert (tables, users) == (BOTH, ["ada", "bob", "carl"])
    own = json.loads(flush_lake.lake.rows("SELECT result FROM system.jobs")[0][0])
    theirs = json.loads(other.rows("SELECT result FROM system.jobs")[0][0])
    ((whole,),) = flush_lake.sql("SELECT result FROM system.jobs")
    assert own["rows_in"] == 26 and whole["rows_in"] == own["rows_in"] + theirs["rows_in"]


def test_a_flush_that_was_killed_keeps_what_it_published(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_lake = filled.flush_lake
    publish, calls = flush_publish.publish, iter((False, True))

    def publish_once(*arguments: Any) -> int | None:
        if next(calls):
            raise SystemExit(9)
        return publish(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(flush_publish, "publish", publish_once)
        with pytest.raises(SystemExit):
            report_flush(flush_lake)
    ((result, (table,)),) = flush_lake.lake.rows("SELECT result, tables FROM system.jobs")
    assert table in BOTH and json.loads(result)["rows_out"] in (5, 10)
    ((result, tables),) = flush_lake.sql("SELECT result, tables FROM system.jobs")
    assert result["rows_out"] in (5, 10) and tables == [table]


def test_dedup_says_what_it_merged(filled: Filled) -> None:
    flush_lake = filled.flush_lake
    flush_lake.flush()
    filled.write(1)
    flush_lake.flush()
    report(flush_lake, "snapshot_dedup", {}, lambda context: run_dedup(context, SnapshotDedupParams(min_batches=2)))
    assert flush_lake.lake.rows(OF_TABLES) == [(BOTH, ["ada", "bob"], "app", None, None)]
    ((result,),) = flush_lake.lake.rows("SELECT result FROM system.jobs")
    assert json.loads(result)["files_replaced"] == 6
    assert flush_lake.lake.rows(OF_TABLES, user="bob") == [(["app.mine"], ["bob"], "app", "mine", "bob")]


def test_names_stay_when_a_table_is_dropped_and_go_with_the_run(filled: Filled) -> None:
    report_flush(filled.flush_lake)
    lake = filled.flush_lake.lake
    lake.run("DROP TABLE app.mine")
    assert lake.rows("SELECT tables FROM system.jobs", role=Role.ADMIN) == [(BOTH,)]
    with connect(lake.dsn) as connection:
        connection.execute(
            "UPDATE lakefork.job_run SET started_at = now() - interval '9 days', heartbeat_at = started_at - interval '9 days'"
        )
        connection.execute("SELECT lakefork.forget_jobs('7 days')")
    assert filled.flush_lake.sql(
        "SELECT (SELECT count(*) FROM lakefork.job_table), count(*) FROM lakefork.job_user"
    ) == [(0, 0)]
