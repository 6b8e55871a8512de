"""What STREAM tables can and cannot do."""

import pytest

from lakefork.errors import InvalidInputError
from lakefork.sql.session import Role
from support.sql_cases import newest_snapshot
from support.sql_lake import SqlLake, refuse


def test_a_stream_table_shows_its_options_and_has_no_system_columns(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE STREAM TABLE {ns}.s (kind STRING, payload JSON) WITH (retention = '10s', ephemeral = true, max_buffer = 1000)"
    )
    assert _described(lake, f"{ns}.s") == ("STREAM", "10s", "true", "1000")
    (listed,) = lake.rows(f"SHOW TABLES IN {ns}")
    assert listed[1:] == ("s", "STREAM", "N/A (ephemeral)", None)


def test_what_is_not_said_has_a_default_that_describe_shows(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE STREAM TABLE {ns}.s (kind STRING, payload JSON)")
    assert _described(lake, f"{ns}.s") == ("STREAM", "1h", "false", "10000")


def _described(lake: SqlLake, table: str) -> tuple[str, ...]:
    rows = lake.rows(f"DESCRIBE TABLE {table}")
    assert [row[1] for row in rows if row[0] == "column"] == ["kind", "payload"]
    described = {row[1]: row[2] for row in rows if row[0] == "table"}
    return tuple(described[name] for name in ("table_type", "retention", "ephemeral", "max_buffer"))


def test_only_options_of_a_stream_table_can_be_altered(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE STREAM TABLE {ns}.s (kind STRING, payload JSON) WITH (retention = '10s')")
    for action in (
        "ADD COLUMN x INT",
        "DROP COLUMN kind",
        "MODIFY COLUMN kind STRING",
        "RENAME COLUMN kind TO k",
        "SET FLUSH POLICY ROWS 5",
        "SET (max_buffer = 5), ADD COLUMN x INT",
    ):
        refuse(lake, InvalidInputError, f"{ns}.s is a STREAM table", f"ALTER TABLE {ns}.s {action}")
    lake.run(f"ALTER TABLE {ns}.s SET OPTIONS (retention = '1m'), SET (ephemeral = true)")
    assert _described(lake, f"{ns}.s") == ("STREAM", "1m", "true", "10000")
    lake.run(f"SHOW TABLE STATS {ns}.s; DROP STREAM TABLE {ns}.s")


def test_events_are_not_changed_flushed_or_read_at_a_snapshot(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE STREAM TABLE {ns}.s (kind STRING)")
    lake.run(f"INSERT INTO {ns}.s VALUES ('x')", user="ada")
    for statement in (f"UPDATE {ns}.s SET kind = 'y'", f"DELETE FROM {ns}.s", f"DELETE FROM {ns}.s WHERE kind = 'x'"):
        refuse(lake, InvalidInputError, "its events cannot be changed", statement, user="ada")
        refuse(lake, InvalidInputError, "its events cannot be changed", statement, user="x", role=Role.ADMIN)
    refuse(lake, InvalidInputError, "never written to files", f"FLUSH TABLE {ns}.s")
    then = f"SELECT * FROM {ns}.s AT (VERSION => {newest_snapshot(lake)})"
    refuse(lake, InvalidInputError, "belong to no snapshot", then, user="ada")
    assert lake.rows(f"SELECT * FROM {ns}.s", user="ada") == [("x",)]


@pytest.mark.parametrize(
    "clause",
    ["WITH (retention = 'never')", "WITH (max_buffer = 0)", "WITH (max_buffer = '5')", "WITH (ephemeral = 'yes')", "WITH (deleted_retention = '7d')",
     "FLUSH POLICY ROWS 5", "LOCATION '/tmp/x'", "WITH (colour = 'red')", "WITH (retention = '1s', retention = '2s')"],
)  # fmt: skip
def test_options_that_a_stream_table_does_not_have_are_refused(lake: SqlLake, ns: str, clause: str) -> None:
    refuse(lake, InvalidInputError, ".", f"CREATE STREAM TABLE {ns}.s (kind STRING) {clause}")
