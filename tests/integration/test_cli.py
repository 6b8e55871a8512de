"""The lakefork command: help at once, one line for each mistake."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakefork.catalog.connection import connect
from lakefork.cli.main import _parser
from support.lake import rows_of
from support.sql_lake import SqlLake

LAKEFORK = Path(sys.executable).parent / "lakefork"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    return subprocess.run(
        [LAKEFORK, *arguments], env={**clean, **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["db", "--help"], ["init", "--help"]])
def test_help_takes_less_than_a_second_of_processor_time(arguments: list[str]) -> None:
    before = os.times()
    done = run(*arguments)
    assert done.returncode == 0 and done.stdout.startswith("usage: lakefork")
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1


def test_init_sets_up_catalog_and_first_tenant_or_nothing(empty_dsn: str, tmp_path: Path) -> None:
    refused = run("init", "--catalog", "not ok", LAKEFORK_DSN=empty_dsn)
    assert refused.returncode == 1
    assert "catalog name 'not ok' is invalid" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert "run `lakefork init` first" in run("status", LAKEFORK_DSN=empty_dsn).stderr
    done = run("init", "--data-path", str(tmp_path / "lake"), LAKEFORK_DSN=empty_dsn)
    assert (done.returncode, done.stdout) == (0, f"catalog main is ready; its files go to {tmp_path}/lake\n")
    again = run("init", LAKEFORK_DSN=empty_dsn)
    assert again.returncode == 1 and "holds a Lakefork catalog already" in again.stderr
    with connect(empty_dsn) as connection:
        assert rows_of(connection, "SELECT catalog_name, data_path FROM system.catalogs") == [
            ("main", f"{tmp_path}/lake")
        ]


@pytest.mark.parametrize("command", [["status"], ["dump", "x.duckdb"], ["run", "catalog_fsck"]])
def test_every_command_checks_the_version(empty_dsn: str, command: list[str], tmp_path: Path) -> None:
    done = run(*command, LAKEFORK_DSN=empty_dsn)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("this database holds no Lakefork catalog: run `lakefork init` first")
    assert "Traceback" not in done.stderr


def test_without_a_database_the_way_to_one_is_named(tmp_path: Path) -> None:
    done = run("status", LAKEFORK_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert done.stderr == "lakefork: the embedded Postgres is not running: start it with `lakefork db start`\n"


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    done = run("status", LAKEFORK_SPARK__MEMORY="1g")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("lakefork: setting spark.memory is not known")


def test_errors_of_postgres_are_one_line(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute("DROP VIEW system.jobs")
    done = run("status", LAKEFORK_DSN=dsn)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("lakefork: this database lacks a part of Lakefork's catalog: ")


def test_db_url_is_that_of_the_environment_when_set() -> None:
    done = run("db", "url", LAKEFORK_DSN="postgresql://somewhere/db")
    assert done.stdout == "postgresql://somewhere/db\n"


def test_completion_knows_commands_options_choices_and_jobs(tmp_path: Path) -> None:
    script = tmp_path / "completion.sh"
    script.write_text(run("completion", "bash").stdout)
    for words, expected in {
        "lakefork st": {"status", "stack"},
        "lakefork sql --format ": {"table", "json"},
        "lakefork audits --f": {"--failed"},
        "lakefork run flu": {"flush"},
    }.items():
        parts = words.split(" ")
        typed = " ".join(f"'{part}'" for part in parts)
        code = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(parts) - 1}; _lakefork; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == expected, words
    assert "bashcompinit" in run("completion", "zsh").stdout


def test_a_missing_airflow_is_one_line(dsn: str) -> None:
    done = run("airflow", "link", LAKEFORK_DSN=dsn)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "run `airflow db migrate` first" in done.stderr


# What each command is called with here; what its answer then has.
ANSWERS: dict[str, tuple[list[str], set[str]]] = {
    "db": (["url"], {"dsn"}),
    "init": ([], {"error"}),  # there is one already
    "upgrade": ([], {"from", "to", "needed", "upgraded", "scripts"}),
    "roots": (["add", "{scratch}"], {"path", "added"}),
    "status": ([], {"totals", "catalogs", "waiting", "jobs", "schedule"}),
    "sql": (["SELECT 1"], {"status", "results", "execution_time_ms"}),
    "load": (["app.t", "{file}", "--user", "ada"], {"table", "rows", "seconds"}),
    "schemas": ([], {"catalog", "namespaces"}),
    "copy": (["status"], set()),
    "follow": (["status"], set()),
    "backup": (["list"], set()),
    "token": (["list"], set()),
    "run": (["catalog_fsck"], {"run_id", "job", "findings"}),
    "fork": (["main", "f1"], {"catalog_id", "name", "data_path"}),
    "forks": (["main", "--reclaim"], set()),
    "drop-catalog": (["--prefix", "f", "--yes"], {"dropped"}),
    "tag": (["main", "1", "first"], {"catalog", "snapshot", "name"}),
    "untag": (["main", "first"], {"catalog", "name"}),
    "retention": (["main", "--for", "7d"], {"catalog", "retain_for", "snapshots"}),
    "undelete": (["--run", "nothing"], {"run_id", "restored"}),
    "gc": ([], {"totals", "plans", "pinned", "deletions"}),
    "audits": ([], set()),
    "dump": (["{scratch}/dump.duckdb"], {"file", "tables"}),
    "export": (["main", "{scratch}/export.duckdb"], {"name", "file", "files", "attach"}),
    "client-role": (["lakefork_test_json"], {"role", "catalog", "password", "attach"}),
    "airflow": (["link"], {"error"}),  # there is none
    "stack": (["down"], {"status", "action"}),
}


def commands() -> set[str]:
    (group,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    return set(group.choices)


def test_every_command_answers_in_json(lake: SqlLake, tmp_path: Path) -> None:
    assert ANSWERS.keys() == commands() - {"completion", "serve", "subscribe"}, (
        "one prints a script, the others go on until they are stopped"
    )
    assert lake.catalog.name == "main"
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY)")
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n2\n")
    try:
        for name, (arguments, keys) in ANSWERS.items():
            filled = [one.format(file=file, scratch=tmp_path) for one in arguments]
            done = run(name, *filled, "--json", LAKEFORK_DSN=lake.dsn, LAKEFORK_HOME=str(tmp_path / "home"))
            answer = json.loads(done.stdout)
            assert keys <= (answer.keys() if isinstance(answer, dict) else set()), (name, answer)
            assert done.returncode == ("error" in keys), (name, done.stderr)
    finally:
        run("client-role", "lakefork_test_json", "--drop", LAKEFORK_DSN=lake.dsn)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fork", "nobody", "x", "--json"], "not_found", "catalog 'nobody' does not exist"),
        (["run", "flush", "--params", '{"forse": 1}', "--json"], "invalid_input", "unknown parameter 'forse'"),
        (
            ["run", "catalog_fsck", "--params", '{"catalog": "nobody"}', "--json"],
            "job_failed",
            "catalog 'nobody' does not exist",
        ),
        (["drop-catalog", "--prefix", "x", "--json"], "invalid_input", "Nothing was dropped; use --yes"),
        (["sql", "--catalog", "nobody", "--json", "SHOW TABLES"], "not_found", "catalog 'nobody' does not exist"),
    ],
)
def test_errors_are_json_too(dsn: str, arguments: list[str], code: str, words: str) -> None:
    done = run(*arguments, LAKEFORK_DSN=dsn)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["status"], answer["error"]["code"]) == (1, "error", code)
    assert words in answer["error"]["message"]
