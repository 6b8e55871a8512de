"""lakefork sql, load and schemas, as people and scripts call them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.sql_lake import SqlLake

LAKEFORK = Path(sys.executable).parent / "lakefork"


def run(lake: SqlLake, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    return subprocess.run(
        [LAKEFORK, *arguments],
        env={**clean, "LAKEFORK_DSN": lake.dsn},
        capture_output=True,
        text=True,
        timeout=60,
        input=text,
    )


def as_json(lake: SqlLake, *arguments: str) -> dict[str, Any]:
    done = run(lake, "sql", "--format", "json", *arguments)
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if answer["status"] == "success" else 1)
    return answer


@pytest.fixture
def app(lake: SqlLake) -> SqlLake:
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    return lake


def test_json_has_one_result_per_statement(app: SqlLake) -> None:
    answer = as_json(
        app,
        "--user",
        "ada",
        "INSERT INTO app.t VALUES (1, 'x'), (9007199254740993, NULL); SELECT id, v FROM app.t ORDER BY id",
    )
    assert isinstance(answer.pop("execution_time_ms"), int)
    assert answer == {
        "status": "success",
        "results": [
            {"statement": "INSERT INTO app.t VALUES (1, 'x'), (9007199254740993, NULL)", "affected_rows": 2},
            {
                "statement": "SELECT id, v FROM app.t ORDER BY id",
                "columns": ["id", "v"],
                "rows": [[1, "x"], ["9007199254740993", None]],
                "row_count": 2,
            },
        ],
    }
    done = as_json(app, "CREATE NAMESPACE other")
    assert done["results"] == [{"statement": "CREATE NAMESPACE other", "status": "success"}]


def test_an_error_includes_earlier_results(app: SqlLake) -> None:
    answer = as_json(
        app, "--user", "ada", "INSERT INTO app.t VALUES (1, 'x'); SELECT * FROM app.missing; DELETE FROM app.t"
    )
    assert answer["status"] == "error"
    assert [one["affected_rows"] for one in answer["results"]] == [1]
    assert answer["error"] == {
        "code": "not_found",
        "message": "table app.missing does not exist; SHOW TABLES lists tables",
    }
    done = run(app, "sql", "--user", "ada", "SELECT * FROM app.t; SELEC 1")
    assert done.returncode == 1
    assert done.stdout.endswith("(1 row)\n"), "what came before is done and told"
    assert done.stderr.startswith("lakefork: SELEC is not supported;") and "(line 1, column 22)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tables_are_drawn_for_people_and_text_comes_from_stdin(app: SqlLake) -> None:
    done = run(
        app, "sql", "--user", "ada", text="INSERT INTO app.t VALUES (1, 'two\nlines');\nSELECT id, v FROM app.t;"
    )
    assert done.stdout == "1 row affected\nid  v\n--  ----------\n1   two\\nlines\n(1 row)\n"
    assert done.returncode == 0


def test_the_role_is_that_of_the_user_and_admin_without_one(app: SqlLake) -> None:
    app.run("INSERT INTO system.users (user_id, role) VALUES ('boss', 'admin')")
    create = "CREATE NAMESPACE {}"
    assert as_json(app, create.format("a"))["status"] == "success"
    assert as_json(app, "--user", "boss", create.format("b"))["status"] == "success"
    assert as_json(app, "--user", "ada", create.format("c"))["error"]["code"] == "permission_denied"
    assert as_json(app, "--user", "boss", "--role", "user", create.format("d"))["error"]["code"] == "permission_denied"
    assert as_json(app, "--user", "ada", "--role", "admin", create.format("e"))["status"] == "success"
    assert as_json(app, "--catalog", "none", "SHOW TABLES")["error"]["code"] == "not_found"


def test_files_are_loaded(app: SqlLake, tmp_path: Path) -> None:
    pq.write_table(pa.table({"ID": [1, 2], "v": ["a", None]}), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("v,id\nb,3\n,4\n")
    app.run("INSERT INTO system.users (user_id) VALUES ('ada')")
    for name, options in (("rows.parquet", ["--user", "ada"]), ("rows.csv", ["--as-user", "ada"])):
        done = run(app, "load", *options, "app.t", str(tmp_path / name))
        assert done.stdout.startswith("2 rows into app.t in "), done.stderr
    assert app.rows("SELECT id, v FROM app.t ORDER BY id", user="ada") == [(1, "a"), (2, None), (3, "b"), (4, "")]
    again = run(app, "load", "--user", "ada", "app.t", str(tmp_path / "rows.parquet"))
    assert (again.returncode, again.stderr) == (1, "lakefork: app.t: a row with this key already exists (id = 1)\n")
    missing = run(app, "load", "--user", "ada", "app.t", str(tmp_path / "none.parquet"))
    assert missing.returncode == 1 and "none.parquet cannot be read" in missing.stderr


def test_schema_files_can_be_written_again(app: SqlLake) -> None:
    app.run("ALTER TABLE app.t ADD COLUMN n INT DEFAULT 7")
    configs = Path(app.catalog.data_path) / "configs" / "app"
    before = {path.name: path.read_bytes() for path in configs.rglob("*.json")}
    assert sorted(before) == ["current.json", "manifest.json", "schema_v1.json", "schema_v2.json"]
    for path in configs.rglob("*.json"):
        path.write_text("{")
    assert run(app, "schemas").stdout == "schema files of 1 namespaces were written\n"
    assert {path.name: path.read_bytes() for path in configs.rglob("*.json")} == before
    schema = json.loads(before["current.json"])
    assert [field["name"] for field in schema["arrow_schema"]["fields"]] == [
        "id",
        "v",
        "n",
        "_seq",
        "_deleted",
        "_user_id",
    ]
    assert schema["version"] == 2 and schema["primary_key"] == ["id"]
    added = schema["arrow_schema"]["fields"][2]
    assert added["metadata"] == {"column_id": "6", "type": "int32", "default": "7", "initial_default": "7"}


def test_stored_text_cannot_control_the_terminal(app: SqlLake) -> None:
    stored = "\x1b]0;owned\x07\x9b2J\u202etxt\n"
    app.run("INSERT INTO app.t VALUES (1, ?)", stored, user="ada")
    done = run(app, "sql", 'SELECT v AS "\x1b[31mred" FROM app.t')
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if not line.isprintable()] == []
    assert done.stdout.splitlines()[2] == r"\x1b]0;owned\x07\x9b2J\u202etxt\n"
