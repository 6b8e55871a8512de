"""Texts that are deep, long, wide or strange."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefork.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from lakefork.sql import engine as engine_module
from support.sql_hostile import SECRET, refuse, survives
from support.sql_lake import SqlLake


def test_statements_after_the_first_error_are_not_done(lake: SqlLake) -> None:
    outcome = lake.engine.run(
        lake.session("mallory"),
        "INSERT INTO app.mine VALUES (60, 'a'); SELECT * FROM app.secret; DELETE FROM app.mine; INSERT INTO app.mine VALUES (61, 'b')",
    )
    assert len(outcome.results) == 1
    assert isinstance(outcome.error, PermissionDeniedError)
    assert lake.rows("SELECT id FROM app.mine ORDER BY id", user="mallory") == [(1,), (60,)]
    lake.run("DELETE FROM app.mine WHERE id = 60", user="mallory")
    refuse(lake, "INSERT INTO app.mine VALUES (62, 'a'); DROP TABLE app.mine; SELEC 1", user="mallory")
    refuse(lake, "INSERT INTO app.mine VALUES (63, 'a'); SELECT 'open", user="mallory")
    done = [(1,), (62,)]  # what comes before a mistake is done; where tokens end in the middle, nothing is
    assert lake.rows("SELECT id FROM app.mine ORDER BY id", user="mallory") == done
    lake.run("DELETE FROM app.mine WHERE id > 1", user="mallory")
    for text in ("", ";", ";;;", "-- nothing", "/* nothing */", " \n\t "):
        assert lake.run(text) == []


NESTED = {
    "brackets": "SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "subqueries": "SELECT " + "(SELECT " * 2_000 + "1" + ")" * 2_000, "from": "SELECT * FROM " + "(SELECT * FROM " * 500 + "app.open" + ")" * 500,
    "not": "SELECT " + "NOT " * 20_000 + "true", "minus": "SELECT " + "- " * 20_000 + "1", "case": "SELECT " + "CASE WHEN true THEN " * 2_000 + "1" + " END" * 2_000, "arrays": "SELECT " + "[" * 5_000 + "]" * 5_000,
    "structs": "SELECT " + "{'a': " * 3_000 + "1" + "}" * 3_000, "functions": "SELECT " + "abs(" * 3_000 + "1" + ")" * 3_000, "casts": "SELECT 1" + "::INT" * 20_000, "sum": "SELECT 1" + " + 1" * 10_000, "mixed": "SELECT 1" + " + 1 - 1 * 2" * 4_000,
    "concat": "SELECT 'a'" + " || 'a'" * 10_000, "or": "SELECT id FROM app.open WHERE " + " OR ".join(f"id = {i}" for i in range(10_000)), "and": "SELECT id FROM app.open WHERE " + " AND ".join(f"id <> {i}" for i in range(10_000)),
    "in": f"SELECT id FROM app.open WHERE id IN ({','.join(map(str, range(20_000)))})", "unions": " UNION ALL ".join(["SELECT 1"] * 2_000), "excepts": " EXCEPT ".join(["SELECT 1"] * 1_000), "ctes": "WITH " + ", ".join(f"c{i} AS (SELECT {i})" for i in range(1_000)) + " SELECT 1",
    "chain": "WITH c0 AS (SELECT 1 AS x), " + ", ".join(f"c{i} AS (SELECT * FROM c{i - 1})" for i in range(1, 1_000)) + " SELECT * FROM c999", "joins": "SELECT 1 FROM range(1) " + "".join(f", range(1) r{i}" for i in range(2_000)), "columns": "SELECT " + ", ".join(["1"] * 20_000),
    "dots": "SELECT a" + ".a" * 5_000, "members": "SELECT 'a'" + ".upper()" * 1_000, "index": "SELECT [1]" + "[1]" * 1_000, "arrows": "SELECT '{}'" + "->'a'" * 10_000, "between": "SELECT 1" + " BETWEEN 1 AND 1" * 5_000, "lambda": "SELECT " + "list_transform([1], lambda x: " * 500 + "1" + ")" * 500,
    "parameters": "SELECT " + ", ".join(["?"] * 10_000), "statements": "SELECT 1;" * 300, "comments": "/*" * 100_000 + "*/" * 100_000, "quotes": "SELECT '" + "''" * 200_000 + "'", "types": "SELECT CAST(NULL AS " + "STRUCT(a " * 2_000 + "INT" + ")" * 2_000 + ")",
    "arraytypes": "SELECT CAST(NULL AS INT" + "[]" * 20_000 + ")", "interval": "SELECT " + "INTERVAL 1 DAY + " * 5_000 + "INTERVAL 1 DAY", "is": "SELECT 1" + " IS NULL" * 10_000, "tables": " UNION ALL ".join(["SELECT id FROM app.open"] * 60), "windows": "SELECT " + ", ".join(["sum(1) OVER ()"] * 1_000),
    "folded list": "SELECT len(range(40000000))", "digits of an interval": "SELECT INTERVAL '" + "9" * 500_000 + "' DAY", "digits without unit": "SELECT INTERVAL '" + "9" * 500_000 + "'",
    "times": "SELECT " + ", ".join(f"{function}('" + ":11" * 60_000 + "')" for function in ("unix_seconds", "unix_date")), "date difference": "SELECT date_diff('day', x, '" + ":11" * 300_000 + "')",
}  # fmt: skip


DEADLINE = 50  # seconds: before the statement timeout, which no text may need, and long enough for a busy machine


class Victim:
    """An engine in a process of its own, which a text could kill; a new one takes its place."""

    CODE = """
import json, sys
from lakefork.errors import LakeforkError
from lakefork.settings import Settings
from lakefork.sql import engine as engine_module
from lakefork.sql.engine import Engine
from lakefork.sql.session import Session
with Engine(Settings(), sys.argv[1]) as engine:
    for line in sys.stdin:
        try:
            for result in engine.execute(Session("main", "mallory"), json.loads(line)):
                json.dumps(result.as_json(), allow_nan=False)
            answer = "answered"
        except LakeforkError as error:
            answer = "one line" if "\\n" not in str(error) else "several lines: " + str(error)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(answer), flush=True)
"""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._process: subprocess.Popen[str] | None = None

    def run(self, text: str) -> str:
        process = self._process
        if process is None:
            paths = os.pathsep.join([str(Path(engine_module.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", self.CODE, self._dsn],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": paths},
            )
        assert process.stdin
        assert process.stdout
        deadline = threading.Timer(DEADLINE, process.kill)
        deadline.start()
        try:
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            deadline.cancel()
        if line:
            return str(json.loads(line))
        code = self.close()
        return f"the process died: {code}"

    def close(self) -> int | None:
        if self._process is None:
            return None
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=30)
        code = self._process.returncode
        self._process = None
        return code


@pytest.fixture(scope="module")
def victim(lake: SqlLake) -> Iterator[Victim]:
    victim = Victim(lake.dsn)
    yield victim
    victim.close()


@pytest.mark.parametrize("name", NESTED)
def test_deep_long_and_wide_texts_are_answered_or_refused(lake: SqlLake, victim: Victim, name: str) -> None:
    assert victim.run(NESTED[name]) in ("answered", "one line")
    if name in ("sum", "in", "unions", "from", "tables", "case"):
        assert victim.run(
            f"INSERT INTO app.mine SELECT 1, CAST(x AS VARCHAR) FROM ({NESTED[name]}) q (x) WHERE false"
        ) in ("answered", "one line")
    assert lake.rows("SELECT count(*) FROM app.mine", user="mallory") == [(1,)]


def test_a_text_of_one_megabyte_is_read_and_a_longer_one_refused(lake: SqlLake) -> None:
    big = "ü" * 1_000_000
    assert lake.rows(f"SELECT length('{big}')") == [(1_000_000,)]
    assert lake.count(f"INSERT INTO app.mine VALUES (70, '{big}')", user="mallory") == 1
    assert lake.count("UPDATE app.mine SET v = ? WHERE id = 70", big * 3, user="mallory") == 1
    assert lake.rows("SELECT length(v) FROM app.mine WHERE id = 70", user="mallory") == [(3_000_000,)]
    lake.run("DELETE FROM app.mine WHERE id = 70", user="mallory")
    refuse(lake, f"SELECT '{'x' * 1_048_576}'", kind=InvalidInputError)
    name = "n" * 100_000
    refuse(lake, f'SELECT "{name}" FROM app.open')
    refuse(lake, f"SELECT * FROM app.{name}", kind=NotFoundError)
    refuse(lake, f"CREATE NAMESPACE {name}", kind=InvalidInputError)
    survives(lake, f'SELECT 1 AS "{name}"')


@pytest.mark.parametrize("text", ["SELECT 'a\0b'", "SELECT 1 \0; DROP TABLE app.open", "SELECT '\ud800'", 'SELECT * FROM app."a\0"', "\0", "\ufeffSELECT 1", "SELECT\u00a01", "SELECT ‘a’", "ＳＥＬＥＣＴ 1", "SELECT \u202e1", "SELECT '\u2028'",
                                  "SELECT U&'\\0000'", "SELECT E'\\000'", "SELECT x'zz'", "SELECT $$a$$", "SELECT $a$ x $a$", "SELECT 1 -- '\n; DROP TABLE app.secret", "SELECT 1 /* ; */ ; DROP TABLE app.secret", "SELECT '\\'; DROP TABLE app.secret; --'",
                                  "SELECT E'\\'; DROP TABLE app.secret; --'", "SELECT {# ' #} 1; DROP TABLE app.secret", "SELECT @x", "SELECT :x", "SELECT #1", "SELECT %s", "SELECT {x}", "SELECT * FROM IDENTIFIER('app.secret')", "SELECT 1 AS \"a\nb\", error('c\nd')"])  # fmt: skip
def test_strange_characters_and_quotes_do_no_harm(lake: SqlLake, text: str) -> None:
    survives(lake, text, user="mallory")
    assert lake.rows("SELECT count(*) FROM app.secret") == [(2,)]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("text", ["SELECT * FROM app.\"a\nb\"", "SELECT * FROM \"a\nb\".t", "SELECT \"a\nb\" FROM app.open", "SELECT error('a\nb')", "SELECT CAST('a\nb' AS INT)", "CREATE SHARED TABLE \"a\nb\".t (id BIGINT PRIMARY KEY)", "DROP TABLE app.\"a\nb\"",
                                  "ALTER TABLE app.open DROP COLUMN \"a\nb\"", "INSERT INTO app.open (\"a\nb\") VALUES (1)", "UPDATE app.open SET \"a\nb\" = 1", "INSERT INTO system.users (user_id, role) VALUES ('x', 'a\nb')", "DESCRIBE TABLE app.\"a\nb\"",
                                  "CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) LOCATION 'a\nb'", "CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) WITH (\"a\nb\" = 1)", "CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'a\nb'",
                                  "SELECT * FROM app.open AT (VERSION => 'a\nb')", "SELECT \"a\nb\"(1)", "DROP NAMESPACE \"a\nb\"", "INSERT INTO app.open VALUES (1, 'x'), (1, 'a\nb')"])  # fmt: skip
def test_a_message_stays_one_line_whatever_the_names_in_it(lake: SqlLake, text: str) -> None:
    refuse(lake, text)


def test_a_duplicate_key_with_a_line_break_is_reported_in_one_line(lake: SqlLake) -> None:
    lake.run("CREATE SHARED TABLE app.lines (k STRING PRIMARY KEY); INSERT INTO app.lines VALUES ('a\nb')")
    refuse(lake, "INSERT INTO app.lines VALUES ('a\nb')")
    refuse(lake, "INSERT INTO app.lines VALUES ('c\nd'), ('c\nd')")
    lake.run("DROP TABLE app.lines")


def test_texts_of_users_are_not_written_to_the_log(lake: SqlLake, caplog: pytest.LogCaptureFixture) -> None:
    for text in (
        f"SELECT week('2020-01-01', {SECRET}.x)",
        f"SELECT compress('{SECRET}\n')",
        f"SELECT array_insert([1], '{SECRET}', 1)",
    ):
        survives(lake, text, user="mallory")
    assert caplog.records == []


def test_a_message_is_not_as_long_as_what_it_is_about(lake: SqlLake) -> None:
    for text in (
        f"SELECT {'x' * 100_000}(1)",
        f"SELECT CAST('{'9' * 100_000}' AS INT)",
        f'SELECT * FROM app."{"x" * 100_000}"',
        f"SELECT error('{'x' * 100_000}')",
    ):
        assert len(refuse(lake, text, user="mallory")) < 2_100
