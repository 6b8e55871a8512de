"""Several statements in one text: each is executed before the next is checked."""

import pytest

from lakefork.errors import InvalidInputError
from lakefork.sql.parse.grammar import SqlSyntaxError
from support.sql_lake import SqlLake, refuse


@pytest.mark.parametrize("wrong", ["SELEC 1", "SELECT (1", "INSERT INTO t VALUES (1,,2)", "CREATE VIEW v AS SELECT 1"])
def test_statements_before_one_that_does_not_parse_stay_executed(lake: SqlLake, table: str, wrong: str) -> None:
    text = f"INSERT INTO {table} (id) VALUES (1);\n{wrong}; INSERT INTO {table} (id) VALUES (2)"
    outcome = lake.engine.run(lake.session(), text)
    assert isinstance(outcome.error, SqlSyntaxError)
    assert outcome.error.line == 2
    assert len(outcome.results) == 1
    assert lake.rows(f"SELECT id FROM {table}") == [(1,)]


def test_a_text_that_cannot_be_split_executes_nothing(lake: SqlLake, table: str) -> None:
    refuse(lake, InvalidInputError, "never closed", f"INSERT INTO {table} (id) VALUES (1); SELECT 'x; SELECT 2")
    assert lake.rows(f"SELECT id FROM {table}") == []


def test_values_of_parameters_go_to_the_statements_before_the_wrong_one(lake: SqlLake, table: str) -> None:
    outcome = lake.engine.run(lake.session(), f"INSERT INTO {table} (id) VALUES (?); SELEC ?", [5, 6])
    assert isinstance(outcome.error, SqlSyntaxError)
    assert lake.rows(f"SELECT id FROM {table}") == [(5,)]
