"""Odd cases of namespaces."""

import datetime
import json

from lakefork.errors import ConflictError, InvalidInputError, NotFoundError
from sql_lake import SqlLake, refuse


def test_a_namespace_is_listed_with_creation_date_table_count_and_options(lake: SqlLake, ns: str) -> None:
    lake.run(f"ALTER NAMESPACE {ns} SET OPTIONS (retention_days = 90, owner = 'ops')")
    lake.run(f"CREATE SHARED TABLE {ns}.a (id BIGINT PRIMARY KEY); CREATE USER TABLE {ns}.b (id BIGINT PRIMARY KEY)")
    (row,) = [row for row in lake.rows("SHOW NAMESPACES") if row[0] == ns]
    assert isinstance(row[1], datetime.datetime)
    assert row[2] == 2
    assert json.loads(row[3]) == {"retention_days": 90, "owner": "ops"}
    lake.run(f"ALTER NAMESPACE {ns} SET OPTIONS (retention_days = 30)")
    (row,) = [row for row in lake.rows("SHOW NAMESPACES") if row[0] == ns]
    assert json.loads(row[3]) == {"retention_days": 30, "owner": "ops"}


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
