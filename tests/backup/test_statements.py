"""BACKUP, RESTORE, SHOW BACKUP, system.backups and lakefork backup."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakefork.catalog.catalogs import drop_catalog, find_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog
from lakefork.errors import InvalidInputError, LakeforkError, NotFoundError, PermissionDeniedError
from lakefork.sql.parse import statements as st
from lakefork.sql.parse.grammar import SqlSyntaxError, parse
from lakefork.sql.session import Role, Session
from support.backup_lake import BackupLake

pytestmark = pytest.mark.usefixtures("in_this_process")


def test_statements_ask_for_jobs_and_answer_at_once(backup_lake: BackupLake) -> None:
    before = backup_lake.state()
    (row,) = backup_lake.rows(f"BACKUP DATABASE app TO '{backup_lake.place}' MODE INCREMENTAL")
    job_id, status, then = row
    assert status == "requested" and then.startswith("run it with: lakefork run namespace_backup --params '{")
    jobs = "SELECT job_id, job_type, status, namespace FROM system.jobs"
    assert backup_lake.rows(jobs) == [(job_id, "namespace_backup", "requested", "app")]
    params = json.loads(then.partition("--params '")[2].removesuffix("'"))
    assert params == {
        "catalog": "main", "namespace": "app", "to": backup_lake.place, "incremental": True, "request": job_id,
    }  # fmt: skip
    done = backup_lake.backup(**{name: params[name] for name in ("incremental", "request")})
    assert backup_lake.rows(jobs) == [], "the job has begun, and reports itself"
    backups = backup_lake.rows("SELECT backup_id, namespace, file_location, table_count, status FROM system.backups")
    assert backups == [(done["backup_id"], "app", backup_lake.place, 3, "complete")]
    (row,) = backup_lake.rows(f"RESTORE DATABASE again FROM '{backup_lake.place}' REPLACE")
    params = json.loads(row[2].partition("--params '")[2].removesuffix("'"))
    assert params["replace"] is True and params["namespace"] == "again"
    backup_lake.restore(params["from"], namespace=params["namespace"], replace=True, request=params["request"])
    assert backup_lake.state("again") == before


def test_show_backup_says_what_is_in_it(backup_lake: BackupLake) -> None:
    first, second = backup_lake.backup(), backup_lake.backup(incremental=True)
    (result,) = backup_lake.run(f"SHOW BACKUP '{backup_lake.place}'")
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    assert [row["backup_id"] for row in rows] == [second["backup_id"]] * 3 + [first["backup_id"]] * 3
    assert [(row["table_name"], row["table_type"], row["rows"], row["files"]) for row in rows[:3]] == [
        ("mine", "USER", 8, 3), ("ours", "SHARED", 6, 2), ("events", "STREAM", 0, 0),
    ]  # fmt: skip
    assert rows[0]["base"] == first["backup_id"] and rows[0]["backup_bytes"] > 0 and rows[0]["taken_at"] is not None
    one = backup_lake.rows(f"SHOW BACKUP '{backup_lake.place}/backups/{first['backup_id']}'")
    assert {row[0] for row in one} == {first["backup_id"]}


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("BACKUP DATABASE nothing TO '/tmp/x'", NotFoundError, "namespace nothing does not exist"),
        ("BACKUP DATABASE app TO '/srv/x'", InvalidInputError, "is not below an allowed root"),
        ("RESTORE DATABASE app FROM '/srv/x'", InvalidInputError, "is not below an allowed root"),
        ("SHOW BACKUP '/srv/x'", InvalidInputError, "is not below an allowed root"),
        ("SHOW BACKUP '/tmp/lakefork-no-such-place'", NotFoundError, "there is no backup of catalog main at"),
        ("BACKUP DATABASE app", SqlSyntaxError, "expected TO"),
        ("BACKUP DATABASE app TO x", SqlSyntaxError, "expected a quoted path after TO"),
        ("BACKUP DATABASE app TO '/tmp/x' MODE FULL", SqlSyntaxError, "expected INCREMENTAL"),
        ("RESTORE TABLE app FROM '/tmp/x'", SqlSyntaxError, "expected DATABASE"),
    ],
)
def test_mistakes_are_one_sentence(backup_lake: BackupLake, text: str, error: type[LakeforkError], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        backup_lake.run(text)
    assert "\n" not in str(caught.value)
    assert backup_lake.sql("SELECT count(*) FROM lakefork.job_request") == [(0,)]


@pytest.mark.parametrize(
    "text",
    [
        "BACKUP DATABASE app TO '/tmp/x'",
        "RESTORE DATABASE app FROM '/tmp/x'",
        "SHOW BACKUP '/tmp/x'",
        "SELECT * FROM system.backups",
    ],
)
def test_backups_are_for_admins(backup_lake: BackupLake, text: str) -> None:
    with pytest.raises(PermissionDeniedError, match="needs role admin"):
        backup_lake.flush_lake.lake.run(text, user="ada", role=Role.SERVICE)


def test_admins_reach_backups_of_their_own_catalog_only(backup_lake: BackupLake) -> None:
    """One place can hold those of many catalogs; the operator reaches all of them."""
    backup_lake.create_catalog("other")
    with connect(backup_lake.flush_lake.lake.dsn) as connection:
        fork_catalog(connection, "main", "fork")
    named = backup_lake.backup()["backup_id"]
    for catalog in ("other", "fork"):
        for path in (backup_lake.place, f"{backup_lake.place}/backups/{named}"):
            for text in (f"SHOW BACKUP '{path}'", f"RESTORE DATABASE stolen FROM '{path}'",
                         f"RESTORE DATABASE app FROM '{path}' REPLACE BY REFERENCE"):  # fmt: skip
                with pytest.raises(NotFoundError, match=f"there is no backup.* of catalog {catalog} at") as caught:
                    backup_lake.run(text, catalog=catalog)
                assert "app" not in str(caught.value).replace(path, "") and "main" not in str(caught.value)
    own = backup_lake.backup(catalog="fork")["backup_id"]
    assert {row[0] for row in backup_lake.rows(f"SHOW BACKUP '{backup_lake.place}'", catalog="fork")} == {own}
    for catalog, expected in (("main", named), ("fork", own)):
        (row,) = backup_lake.rows(f"RESTORE DATABASE again FROM '{backup_lake.place}'", catalog=catalog)
        assert json.loads(row[2].partition("--params '")[2].removesuffix("'"))["from"].endswith(f"/backups/{expected}")
    with connect(backup_lake.flush_lake.lake.dsn) as connection:
        drop_catalog(connection, find_catalog(connection, "fork"))
        fork_catalog(connection, "main", "fork", f"{backup_lake.place}-again")
    refused = f"SHOW BACKUP '{backup_lake.place}'"
    with pytest.raises(NotFoundError, match="of catalog fork at"):
        backup_lake.run(refused, catalog="fork")
    assert backup_lake.rows("SELECT * FROM system.backups", catalog="fork") == []
    system = Session("other", "operator", Role.SYSTEM)
    engine = backup_lake.flush_lake.lake.engine
    engine.execute(
        system, f"SHOW BACKUP '{backup_lake.place}'; RESTORE DATABASE x FROM '{backup_lake.place}/backups/{named}'"
    )


def test_the_grammar_of_backups() -> None:
    def only(text: str) -> Any:
        (found,) = parse(text)
        return found

    assert only("BACKUP DATABASE * TO 's3://b/x'") == st.BackupDatabase(
        text="BACKUP DATABASE * TO 's3://b/x'", namespace=None, to="s3://b/x"
    )
    found = only("RESTORE DATABASE \"a b\" FROM '/x' REPLACE BY REFERENCE")
    assert (found.namespace, found.source, found.replace, found.by_reference) == ("a b", "/x", True, True)
    assert only("restore database a from '/x'").replace is False


def test_the_command_lists_and_verifies(backup_lake: BackupLake) -> None:
    done = backup_lake.backup()
    code, out, _ = lakefork(backup_lake, "backup", "list", backup_lake.place)
    assert code == 0 and done["backup_id"] in out and "app.mine  USER  8 rows, 3 file(s)" in out
    code, out, _ = lakefork(backup_lake, "backup", "list", "--json")
    assert json.loads(out)[0]["backup_id"] == done["backup_id"]
    code, out, _ = lakefork(backup_lake, "backup", "verify", backup_lake.place, "--sample", "10%")
    assert code == 0 and "is whole: 9 file(s), 5 of them read" in out
    assert backup_lake.sql("SELECT verified_percent, problem_count FROM system.backups") == [(55.6, 0)]
    victim = Path(backup_lake.place) / "files"
    path = next(path for path in victim.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes() + b"x")
    code, _, error = lakefork(
        backup_lake, "backup", "verify", f"{backup_lake.place}/backups/{done['backup_id']}", "--full"
    )
    assert code == 1 and error.startswith("lakefork: 1 of 1 backup(s) are damaged") and error.count("\n") == 1
    assert backup_lake.sql("SELECT problem_count > 0 FROM system.backups") == [(True,)]


def lakefork(backup_lake: BackupLake, *arguments: str) -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lakefork"), *arguments],
        env={**environment, "LAKEFORK_DSN": backup_lake.flush_lake.lake.dsn},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr
