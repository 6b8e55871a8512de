"""Helpers for the odd cases in tests/sql/cases."""

from pathlib import Path

import psycopg

from support.sql_lake import SqlLake, new_name


def add_user(lake: SqlLake, *rules: str, role: str = "user") -> str:
    name = new_name("user")
    lake.run("INSERT INTO system.users (user_id, role, permissions) VALUES (?, ?, ?)", name, role, list(rules))
    return name


def configs(lake: SqlLake, ns: str) -> Path:
    return Path(lake.catalog.data_path) / "configs" / ns


def newest_snapshot(lake: SqlLake) -> int:
    with psycopg.connect(lake.dsn) as connection:
        row = connection.execute("SELECT max(snapshot_id) FROM public.ducklake_snapshot").fetchone()
    assert row
    return int(row[0])
