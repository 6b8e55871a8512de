"""Values that no column can hold, as parameters, as literals and in answers."""

import datetime
import time
from decimal import Decimal
from typing import Any

import pytest
from sqlglot import exp

from lakefork.errors import InvalidInputError, LakeforkError
from lakefork.sql.expressions import bind
from lakefork.sql.parse.grammar import parse
from lakefork.sql.parse.statements import Select
from support.sql_hostile import refuse, survives
from support.sql_lake import SqlLake, new_name


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "surrogate": "\ud800", "nul": "a\0b", "huge integer": 10**5_000, "small huge integer": -(10**5_000), "integer": 2**64, "decimal": Decimal("1E+5000"), "nan": Decimal("NaN"), "infinity": Decimal("-Infinity"), "float": float("nan"), "set": {1}, "object": object(), "dictionary": {"a": {1}},
    "surrogate key": {"\ud800": "\0"}, "mixed list": [1, "x", None, [2]], "list": [], "nested list": nested_list(5_000), "nul bytes": b"\0", "duration": datetime.timedelta(days=1), "range": range(3), "quote": "'; DROP TABLE app.secret; --", "backslash": "\\'; DROP TABLE app.secret; --",
    "type": int, "zone": datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14))), "last": datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.timezone(-datetime.timedelta(hours=12))), "surrogate list": ["\ud800"], "nul list": ["\0"],
}  # fmt: skip


@pytest.mark.usefixtures("own_rows")
@pytest.mark.parametrize("name", VALUES)
def test_any_value_can_be_a_parameter_or_is_refused(lake: SqlLake, name: str) -> None:
    value = VALUES[name]
    for text in ("SELECT ?", "SELECT id FROM app.mine WHERE id = ? OR v = $1".replace("$1", "'x'"), "SELECT id FROM app.mine WHERE v = ?", "UPDATE app.mine SET v = v WHERE v = ?", "DELETE FROM app.mine WHERE id = ?",
                 "SELECT id FROM app.mine AT (VERSION => ?)", "SELECT id FROM app.mine LIMIT ?"):  # fmt: skip
        survives(lake, text, value, user="mallory")
    for _ in range(2):
        survives(lake, "INSERT INTO app.mine (v) VALUES (?)", value, user="mallory")
        survives(lake, "INSERT INTO app.mine (id, v) VALUES (?, 'x')", value, user="mallory")
    survives(lake, "INSERT INTO system.users (user_id, username, permissions) VALUES ('never', ?, ['x'])", value)
    assert lake.rows("SELECT count(*) FROM app.secret") == [(2,)]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("text", "parameters"), [("SELECT ?, ?", [1]), ("SELECT $2", [1]), ("SELECT ?", []), ("INSERT INTO app.mine VALUES (?, ?)", [7]), ("UPDATE app.mine SET v = ? WHERE id = ?", ["x"]), ("DELETE FROM app.mine WHERE id = ? OR id = ?", [1]),
                                                  ("INSERT INTO app.mine (v) VALUES ($3)", ["x"]), ("SELECT $0", [1]), ("SELECT $99999", [1]), ("SELECT ?, $1", [1, 2]), ("SELECT $x", [1])])  # fmt: skip
def test_too_few_parameters_are_refused(lake: SqlLake, text: str, parameters: list[Any]) -> None:
    refuse(lake, text, *parameters, user="mallory", kind=InvalidInputError)


@pytest.mark.usefixtures("unchanged")
def test_many_parameters_are_bound_in_linear_time(lake: SqlLake) -> None:
    (statement,) = parse("SELECT [" + ", ".join(["?"] * 20_000) + "]")
    assert isinstance(statement, Select)
    started = time.process_time()
    bound = bind(statement.query, range(20_000), lake.session("mallory"))
    assert time.process_time() - started < 5, "20 seconds when each one looks at all others"
    assert bound.sql("duckdb").endswith("19998, 19999]")
    assert statement.query.find(exp.Placeholder), "a statement that is kept is not changed"


def test_too_many_parameters_are_refused(lake: SqlLake) -> None:
    refuse(lake, "SELECT ?", 1, 2, kind=InvalidInputError)
    refuse(lake, "DELETE FROM app.mine", 1, user="mallory", kind=InvalidInputError)


DIGITS = "9" * 5_000
LITERALS = [
    f"SELECT {DIGITS}", f"INSERT INTO app.mine VALUES ({DIGITS}, 'x')", f"INSERT INTO app.mine VALUES (-{DIGITS}, 'x')", f"INSERT INTO app.mine (v) VALUES ({DIGITS})", f"SELECT * FROM app.mine WHERE id = {DIGITS}", f"UPDATE app.mine SET v = {DIGITS} WHERE id = {DIGITS}",
    f"DELETE FROM app.mine WHERE id IN (7, {DIGITS})", f"SELECT * FROM app.mine LIMIT {DIGITS}", f"SELECT * FROM app.mine AT (VERSION => {DIGITS})", "SELECT 1e999999", f"SELECT {DIGITS}.{DIGITS}", f"SHOW TABLES LIMIT {DIGITS}", "SELECT * FROM app.mine WHERE id = ١",
    "SELECT * FROM app.mine AT (TIMESTAMP => 'infinity')", "SELECT * FROM app.mine AT (TIMESTAMP => '-infinity')", "SELECT * FROM app.mine AT (TIMESTAMP => '290000-01-01')", "SELECT * FROM app.mine AT (VERSION => -1)", "SELECT * FROM app.mine AT (VERSION => NULL)",
    "SELECT * FROM app.mine AT (VERSION => id)", "SELECT * FROM app.mine AT (TIMESTAMP => 'x')", "SELECT * FROM app.mine AT (VERSION => unnest([1, 2]))", "SELECT * FROM app.mine AT (VERSION => (SELECT 1 WHERE false))", "SELECT * FROM app.mine LIMIT -1",
    "SELECT unnest([1, 2]), * FROM app.mine WHERE unnest([true])", "SELECT repeat('x', -1)", "SELECT range(0, 10, 0)", "SELECT * FROM range(0, 10, 0)", "SELECT 1 // 0, 1 / 0, 1 % 0", "SELECT chr(0)", "SELECT chr(55296)", "SELECT chr(-1)", "SELECT current_query()", "SELECT 'a' COLLATE x",
]  # fmt: skip


@pytest.mark.usefixtures("own_rows")
@pytest.mark.parametrize("text", LITERALS)
def test_literals_beyond_all_bounds_are_answered_or_refused(lake: SqlLake, text: str) -> None:
    survives(lake, text, user="mallory")


ANSWERS = ["TIMESTAMP 'infinity'", "TIMESTAMPTZ '-infinity'", "DATE 'infinity'", "DATE '5877642-06-25 (BC)'", "TIMESTAMP '290000-01-01'", "TIME '24:00:00'", "TIMETZ '12:00:00+15'", "INTERVAL 1 MONTH", "170141183460469231731687303715884105727::HUGEINT", "1::UHUGEINT", "18446744073709551615::UBIGINT",
           "1::UTINYINT", "'101'::BIT", "'a'::ENUM('a', 'b')", "{'a': 1, 'b': [NULL]}", "MAP {'a': 1}", "union_value(a := 1)", "[]", "NULL", "[[1], NULL]", "'\\xFF'::BLOB", "uuid()", "'{}'::JSON", "1.5::DECIMAL(38, 10)", "'nan'::DOUBLE", "TIMESTAMP_NS '2020-01-01 00:00:00.123456789'",
           "TIMESTAMP_S '2020-01-01'", "1::BIGNUM", "[1, 2]::INT[2]", "sum(1)", "[TIMESTAMP 'infinity']", "{'a': TIMESTAMP 'infinity'}", "MAP {DATE 'infinity': 1}", "x'ff'", "row(1, 'a')", "[170141183460469231731687303715884105727::HUGEINT]", "current_date", "now()"]  # fmt: skip


@pytest.mark.parametrize("value", ANSWERS)
def test_every_answer_can_be_shown(lake: SqlLake, value: str) -> None:
    results = survives(lake, f"SELECT {value} AS x, 1 AS x")
    if results is not None:
        assert isinstance(results[0].rows, list)


UNHOLDABLE = [("STRING[]", "[chr(0)]"), ("STRING[]", "['a', NULL, 'b' || chr(0)]"), ("JSON[]", "['\"' || chr(0) || '\"']"), ("DATE[]", "[DATE 'infinity']"), ("DATE[]", "[DATE '0044-03-15 (BC)']"), ("TIMESTAMP[]", "[TIMESTAMP 'infinity']"), ("TIMESTAMPTZ[]", "[TIMESTAMPTZ '290000-01-01']"),
              ("TIME", "'24:00:00'"), ("TIME[]", "[TIME '24:00:00']"), ("STRING", "chr(55296)"), ("STRING", "chr(0)"), ("JSON", "'\"' || chr(0) || '\"'"), ("TIMESTAMPTZ", "'infinity'"), ("UUID", "''"), ("BYTES", "'\\x'"), ("BIGINT[]", "[[1]]"), ("DECIMAL(4,2)", "'nan'"), ("DOUBLE", "'x'")]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), UNHOLDABLE)
def test_values_that_the_store_cannot_hold_are_refused_in_arrays_too(lake: SqlLake, kind: str, value: str) -> None:
    name = new_name("app.v")
    lake.run(f"CREATE SHARED TABLE {name} (id BIGINT PRIMARY KEY, v {kind})")
    refuse_insert(lake, name, value)
    lake.run(f"DROP TABLE {name}")


def refuse_insert(lake: SqlLake, table: str, value: str) -> None:
    """The first write makes the hot table, which is all that may remain."""
    with pytest.raises(LakeforkError) as caught:
        lake.run(f"INSERT INTO {table} VALUES (1, NULL), (2, {value})")
    assert "\n" not in str(caught.value)
    assert lake.rows(f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("column", ["user_id", "username", "permissions"])
def test_characters_that_postgres_cannot_hold_are_refused_in_system_users(lake: SqlLake, column: str) -> None:
    values = {"user_id": "'never'", "username": "'x'", "permissions": "['a.b']"}
    for bad in ("chr(0)", "'a' || chr(0)"):
        values[column] = f"[{bad}]" if column == "permissions" else bad
        refuse(lake, f"INSERT INTO system.users (user_id, username, permissions) VALUES ({', '.join(values.values())})")


def test_an_alias_of_a_system_table_may_hold_quotes(lake: SqlLake) -> None:
    before = lake.rows("SELECT * FROM system.users")
    for alias in ('a""b', "x WHERE true --", "a b", "a;b"):
        survives(lake, f"UPDATE system.users AS \"{alias}\" SET username = 'x' WHERE user_id = 'nobody'")
        survives(lake, f"DELETE FROM system.users \"{alias}\" WHERE user_id = 'nobody'")
    assert lake.rows("SELECT * FROM system.users") == before
