"""The audit: what it checks, what happens to failed tables, and where results are shown."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from lakefork.errors import JobFailedError
from lakefork.settings import FlushSettings
from lakefork.upkeep.flush import run as flush
from lakefork.upkeep.flush.task import run_task as real_run_task
from support.flush_lake import Filled, FlushLake

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def with_bad_metrics(environment: Any, tables: Any, task: Any) -> Any:
    report = real_run_task(environment, tables, task)
    for file in report.files:
        if file.user_id == "bob":
            file.metrics["nulls in id"] = 3
            file.metrics["rows_written"] -= 1
    return report


def test_a_failed_audit_blocks_its_table_only(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_lake = filled.flush_lake
    expected = filled.rows()
    with monkeypatch.context() as patched:
        patched.setattr(flush, "run_task", with_bad_metrics)
        with pytest.raises(JobFailedError) as caught:
            flush_lake.flush(run_id="bad")
    assert not caught.value.retryable
    said = str(caught.value)
    assert "main.app.mine was not published: " in said
    assert "the file holds the rows that were kept: 1 row(s) violate this" in said
    assert "column id is not NULL: 3 row(s) violate this" in said
    assert caught.value.result["tables"] == 1, "the other table is published"
    assert flush_lake.paths("app.mine") == [] and len(flush_lake.paths("app.ours")) == 1
    where = said.rpartition(" are in ")[2]
    quarantined = sorted(str(path.relative_to(where)) for path in Path(where).rglob("*.parquet"))
    assert quarantined == ["user_ada/batch-0.parquet", "user_bob/batch-0.parquet"]
    assert flush_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    kept = flush_lake.sql("SELECT table_name, success, files, quarantine FROM system.flush_audits ORDER BY 1")
    assert kept == [("mine", False, 2, where), ("ours", True, 1, None)]
    assert filled.rows() == expected, "nothing is lost"
    flush_lake.flush(run_id="good")
    assert filled.rows() == filled.in_files() == expected


def test_what_the_built_in_audit_looks_at(filled: Filled) -> None:
    filled.flush_lake.flush()
    ((results,),) = filled.flush_lake.sql("SELECT results FROM system.flush_audits WHERE table_name = 'mine'")
    assert results.pop(0)["about"].startswith("all waiting versions were read (")
    assert results.pop(0)["about"] == "the files hold each row that was kept exactly once"
    assert [(one["about"], one["success"]) for one in results] == [
        ("the file holds the rows that were kept", True),
        ("the columns have the types of the definition", True),
        ("keys are unique among the rows that were read together", True),
        ("versions of a key have increasing _seq", True),
        ("column _seq is not NULL", True),
        ("column id is not NULL", True),
        ("column v is not NULL", True),
    ]


def losing_a_version(environment: Any, tables: Any, task: Any) -> Any:
    report = real_run_task(environment, tables, task)
    for place in report.read:
        report.read[place] -= 1
    return report


def test_versions_that_wait_and_were_not_read_are_noticed(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would count as published, and be trimmed."""
    with monkeypatch.context() as patched:
        patched.setattr(flush, "run_task", losing_a_version)
        with pytest.raises(JobFailedError, match=r"all waiting versions were read .* row\(s\) violate this"):
            filled.flush_lake.flush()
    assert filled.flush_lake.paths("app.mine") == filled.flush_lake.paths("app.ours") == []
    filled.flush_lake.flush()
    assert filled.rows() == filled.in_files()


def losing_a_row(environment: Any, tables: Any, task: Any) -> Any:
    """Where rows are divided among files, the last of each user is left out."""
    from lakefork.cold import batch_files

    real = batch_files._parts
    batch_files._parts = lambda rows, size: real(rows.slice(0, rows.num_rows - 1), size)
    try:
        return real_run_task(environment, tables, task)
    finally:
        batch_files._parts = real


def test_rows_that_were_read_and_not_written_are_noticed(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(flush, "run_task", losing_a_row)
        with pytest.raises(JobFailedError, match=r"the files hold each row that was kept exactly once: 2 row\(s\)"):
            filled.flush_lake.flush(table="mine")
    assert filled.flush_lake.paths("app.mine") == []


def test_a_failed_audit_waits_before_it_is_tried_again_and_keeps_the_newest_files_only(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush_lake = filled.flush_lake
    expected = filled.rows()
    quarantine = Path(flush_lake.lake.catalog.data_path) / "app" / "mine" / ".quarantine"
    hurried = flush_lake.settings.model_copy(update={"flush": FlushSettings(default_rows=1)})
    with monkeypatch.context() as patched:
        patched.setattr(flush, "run_task", with_bad_metrics)
        with pytest.raises(
            JobFailedError, match=r"next try is not before .* UTC, or at once by FLUSH TABLE app\.mine; its 2"
        ):
            flush_lake.flush(run_id="first", settings=hurried, force=False)
        assert flush_lake.flush(settings=hurried, force=False)["tables"] == 0
        (said,) = [line for line in flush_lake.lines if "main.app.mine" in line]
        assert said.startswith("main.app.mine failed its audit 1 time(s) in a row: the next try is not before ")
        flush_lake.lake.run("FLUSH TABLE app.mine")
        with pytest.raises(JobFailedError):
            flush_lake.flush(run_id="second", settings=hurried, force=False)
    assert any("2 file(s) of an earlier audit were removed from" in line for line in flush_lake.lines)
    (kept,) = quarantine.iterdir()
    assert "second" in kept.name
    found = sorted(str(path.relative_to(kept)) for path in kept.rglob("*.parquet"))
    assert found == ["user_ada/batch-1.parquet", "user_bob/batch-1.parquet"]
    recorded = flush_lake.sql(
        "SELECT run_id, quarantine FROM system.flush_audits WHERE NOT success ORDER BY audited_at"
    )
    assert recorded == [("first", None), ("second", str(kept))]
    flush_lake.flush()
    assert filled.rows() == filled.in_files() == expected


def test_expectations_of_tables_with_types_that_spark_lacks(flush_lake: FlushLake) -> None:
    flush_lake.lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id UUID PRIMARY KEY, t TIME, j JSON, ids UUID[]); "
    )
    flush_lake.lake.run("INSERT INTO app.mine (t, j) VALUES ('12:00', '{}'), (NULL, NULL)", user="ada")
    lengths = {"column": "id", "value": 36}
    expect(Filled(flush_lake), {"type": "expect_column_value_lengths_to_equal", "kwargs": lengths})
    assert flush_lake.flush()["rows_out"] == 2


def expect(filled: Filled, *expectations: dict[str, Any]) -> None:
    directory = filled.flush_lake.expectations / "app"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mine.json").write_text(json.dumps({"expectations": expectations}))


def test_what_users_expect_of_their_rows_is_checked_on_the_staged_data(filled: Filled) -> None:
    flush_lake = filled.flush_lake
    lengths = {
        "type": "expect_column_value_lengths_to_be_between",
        "kwargs": {"column": "v", "min_value": 1, "max_value": 20},
    }
    even = {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "id", "value_set": [0, 2, 4]}}
    expect(filled, lengths, even)
    with pytest.raises(JobFailedError) as caught:
        flush_lake.flush()
    said = str(caught.value)
    assert "expect_column_values_to_be_in_set(column='id', value_set=[0, 2, 4]): 2 row(s) violate this" in said, (
        "id 3 of two users; id 1 is deleted, and does not count"
    )
    assert "lengths" not in said
    ((results,),) = flush_lake.sql("SELECT results FROM system.flush_audits WHERE NOT success")
    (failed,) = [one for one in results if not one["success"]]
    assert (failed["rows"], failed["examples"]) == (2, ["3", "3"])
    expect(filled, lengths)
    flush_lake.flush()
    assert filled.rows() == filled.in_files()


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", '{"expectations": [{"type": "x", "kwargs": "foo"}]}', '{"expectations": [{"type": "expect_no_such_thing"}]}',
     '{"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "nothing"}}]}'],
)  # fmt: skip
def test_expectations_that_make_no_sense_block_the_table_with_a_clear_word(filled: Filled, content: str) -> None:
    expect(filled)
    (filled.flush_lake.expectations / "app" / "mine.json").write_text(content)
    with pytest.raises(JobFailedError, match=r"main\.app\.mine was not published: ") as caught:
        filled.flush_lake.flush()
    assert caught.value.result["tables"] == 1
    assert "Traceback" not in str(caught.value)


def test_people_see_audits_on_the_command_line_and_offline(filled: Filled, tmp_path: Path) -> None:
    expect(filled, {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "v", "value_set": ["<b>"]}})
    with pytest.raises(JobFailedError):
        filled.flush_lake.flush(run_id="shown")
    page = tmp_path / "audits.html"
    done = subprocess.run(
        [Path(sys.executable).parent / "lakefork", "audits", "--run", "shown", "--failed", "--html", page],
        env={**os.environ, "LAKEFORK_DSN": filled.flush_lake.lake.dsn}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "FAILED         2  main.app.mine" in done.stdout
    assert "8 row(s) violate this (for example ada 0+" in done.stdout, done.stdout
    assert ".quarantine/" in done.stdout
    text = page.read_text()
    assert "main.app.mine: FAILED" in text and "&lt;b&gt;" in text and "http" not in text
