"""What STREAM tables can and cannot do."""

import pytest

from lakefork.errors import InvalidInputError
from lakefork.sql.session import Role
from support.sql_lake import SqlLake, refuse


def test_a_stream_table_shows_its_options_and_has_no_system_columns(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE STREAM TABLE {ns}.s (kind STRING, payload JSON) WITH (retention = '10s', ephemeral = true, max_buffer = 1000)"
    )
    rows = lake.rows(f"DESCRIBE TABLE {ns}.s")
    assert [row[1] for row in rows if row[0] == "column"] == ["kind", "payload"]
    described = {row[1]: row[2] for row in rows if row[0] == "table"}
    assert (described["table_type"], described["retention"], described["ephemeral"], described["max_buffer"]) == (
        "STREAM",
        "10s",
        "true",
        "1000",
    )
    (listed,) = lake.rows(f"SHOW TABLES IN {ns}")
    assert listed[1:4] == ("s", "STREAM", "N/A (ephemeral)")


def test_a_stream_table_cannot_be_altered_written_to_or_selected_from(lake: SqlLake, ns: str, user: str) -> None:
    lake.run(f"CREATE STREAM TABLE {ns}.s (kind STRING) WITH (retention = '10s')")
    for action in (
        "ADD COLUMN x INT",
        "DROP COLUMN kind",
        "MODIFY COLUMN kind STRING",
        "RENAME COLUMN kind TO k",
        "SET OPTIONS (retention = '1m')",
    ):
        refuse(lake, InvalidInputError, "STREAM", f"ALTER TABLE {ns}.s {action}")
    one = {
        refuse(lake, InvalidInputError, "STREAM", f"INSERT INTO {ns}.s VALUES ('x')", **who)
        for who in ({}, {"user": user}, {"user": "x", "role": Role.SERVICE})
    }
    one.add(refuse(lake, InvalidInputError, "STREAM", f"INSERT INTO {ns}.s AS USER '{user}' VALUES ('x')"))
    assert len(one) == 1
    refuse(lake, InvalidInputError, "STREAM", f"UPDATE {ns}.s SET kind = 'x'")
    refuse(lake, InvalidInputError, "STREAM", f"DELETE FROM {ns}.s")
    refuse(lake, InvalidInputError, "STREAM", f"SELECT * FROM {ns}.s")
    lake.run(f"SHOW TABLE STATS {ns}.s; DROP STREAM TABLE {ns}.s")


@pytest.mark.parametrize(
    "clause",
    ["WITH (retention = 'never')", "WITH (max_buffer = 0)", "WITH (max_buffer = '5')", "WITH (ephemeral = 'yes')", "WITH (deleted_retention = '7d')",
     "FLUSH POLICY ROWS 5", "LOCATION '/tmp/x'", "WITH (colour = 'red')", "WITH (retention = '1s', retention = '2s')"],
)  # fmt: skip
def test_options_that_a_stream_table_does_not_have_are_refused(lake: SqlLake, ns: str, clause: str) -> None:
    refuse(lake, InvalidInputError, ".", f"CREATE STREAM TABLE {ns}.s (kind STRING) {clause}")
