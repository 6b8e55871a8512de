"""Odd cases of namespaces."""

import datetime
import json
from pathlib import Path

from lakefork.errors import ConflictError, InvalidInputError, NotFoundError
from support.sql_lake import SqlLake, refuse


def test_a_namespace_is_listed_with_creation_date_table_count_and_options(lake: SqlLake, ns: str) -> None:
    lake.run(f"ALTER NAMESPACE {ns} SET OPTIONS (retention_days = 90, flush_rows = 7)")
    lake.run(f"CREATE SHARED TABLE {ns}.a (id BIGINT PRIMARY KEY); CREATE USER TABLE {ns}.b (id BIGINT PRIMARY KEY)")
    (row,) = [row for row in lake.rows("SHOW NAMESPACES") if row[0] == ns]
    assert isinstance(row[1], datetime.datetime)
    assert row[2] == 2
    assert json.loads(row[3]) == {"retention_days": 90, "flush_rows": 7}
    lake.run(f"ALTER NAMESPACE {ns} SET OPTIONS (retention_days = 30)")
    (row,) = [row for row in lake.rows("SHOW NAMESPACES") if row[0] == ns]
    assert json.loads(row[3]) == {"retention_days": 30, "flush_rows": 7}


def test_a_namespace_with_tables_cannot_be_dropped_and_the_error_lists_them(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY); CREATE STREAM TABLE {ns}.a (x INT)")
    assert "a, b" in refuse(lake, ConflictError, "tables", f"DROP NAMESPACE {ns}")
    lake.run(f"DROP TABLE {ns}.a; DROP SHARED TABLE {ns}.b; DROP NAMESPACE {ns}")
    refuse(lake, NotFoundError, ns, f"DROP NAMESPACE {ns}")
    lake.run(f"DROP NAMESPACE IF EXISTS {ns}")


def test_a_namespace_name_is_unique_whatever_its_case(lake: SqlLake, ns: str) -> None:
    refuse(lake, ConflictError, "already", f"CREATE NAMESPACE {ns.upper()}")
    lake.run(f"CREATE NAMESPACE IF NOT EXISTS {ns.upper()}")
    refuse(lake, InvalidInputError, "reserved", "CREATE NAMESPACE System")
    refuse(lake, InvalidInputError, "reserved", "CREATE NAMESPACE INFORMATION_SCHEMA")


def test_tables_of_a_missing_namespace_are_an_error_that_names_it(lake: SqlLake, ns: str) -> None:
    refuse(lake, NotFoundError, "nosuch", "SHOW TABLES IN nosuch")
    assert lake.rows(f"SHOW TABLES IN {ns.upper()}") == []


def test_options_of_a_namespace_are_defaults_of_its_new_tables(lake: SqlLake, ns: str, tmp_path: Path) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.before (id BIGINT PRIMARY KEY)")
    lake.run(
        f"ALTER NAMESPACE {ns} SET OPTIONS (flush_rows = 500, flush_interval = '10m', deleted_retention = '30d', "
        f"location = '{tmp_path}/elsewhere')"
    )
    lake.run(
        f"CREATE USER TABLE {ns}.mine (id BIGINT PRIMARY KEY); CREATE STREAM TABLE {ns}.events (x INT); "
        f"CREATE SHARED TABLE {ns}.own (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/own' FLUSH POLICY ROWS 9 "
        "WITH (deleted_retention = 'off')"
    )
    shown = {row[1]: row[3:] for row in lake.rows(f"SHOW TABLES IN {ns}")}
    assert shown["mine"] == (f"{tmp_path}/elsewhere/mine", "ROWS 500 INTERVAL '10m'")
    assert shown["own"] == (f"{tmp_path}/own", "ROWS 9")
    assert shown["events"] == ("N/A (ephemeral)", None)
    assert shown["before"][1] is None and not shown["before"][0].startswith(f"{tmp_path}/elsewhere")
    retention = {
        table: {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {ns}.{table}")}["deleted_retention"]
        for table in ("before", "mine", "own")
    }
    assert retention == {"before": "7d", "mine": "30d", "own": "off"}


def test_options_that_a_namespace_does_not_have_are_refused(lake: SqlLake, ns: str) -> None:
    for option, words in (
        ("retention_dys = 90", "has no option retention_dys; it has deleted_retention, flush_interval, flush_rows"),
        ("retention_days = 0", "retention_days"),
        ("retention_days = '1 week'", "retention_days"),
        ("flush_rows = 100000000", "flush_rows"),
        ("flush_interval = '1s ago'", "flush_interval"),
        ("deleted_retention = 'soon'", "deleted_retention"),
        ("location = 'relative/path'", "must be absolute"),
        ("location = '/a/${user_id}'", "without variables"),
    ):
        refuse(lake, InvalidInputError, words, f"ALTER NAMESPACE {ns} SET OPTIONS ({option})")
        refuse(lake, InvalidInputError, words, f"CREATE NAMESPACE {ns}2 WITH OPTIONS ({option})")
