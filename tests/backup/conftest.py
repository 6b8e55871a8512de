"""A lake with a USER and a SHARED table, hot and cold rows, and an empty place for backups."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefork.settings import Settings
from lakefork.transfer.backup import restore_run
from lakefork.transfer.backup import run as backup_run
from support.backup_lake import BackupLake
from support.cloned_lake import Cloned
from support.flush_lake import FlushLake
from support.sql_lake import open_lake


def app_with_rows(lake: FlushLake) -> None:
    """Each table has batches, and rows that wait; some are deleted."""
    lake.lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT NOT NULL DEFAULT 'x'); "
        "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT, n INT DEFAULT 7) "
        "FLUSH POLICY ROWS 500 INTERVAL '1 hour' WITH (deleted_retention = '30d'); "
        "CREATE STREAM TABLE app.events (what TEXT) WITH (retention = '10s')"
    )
    for user in ("ada", "bob/../x"):
        lake.lake.run(
            "INSERT INTO app.mine VALUES (1, 'a'), (2, 'b'), (3, 'c'); DELETE FROM app.mine WHERE id = 3", user=user
        )
    lake.lake.run("INSERT INTO app.ours (id, v) VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    lake.flush()
    lake.lake.run("UPDATE app.ours SET v = 'TWO' WHERE id = 2; DELETE FROM app.ours WHERE id = 3")
    lake.lake.run("INSERT INTO app.ours (id) VALUES (4)")
    lake.lake.run("UPDATE app.mine SET v = v || '+'", user="ada")


@pytest.fixture
def backup_lake(cloned: Cloned, tmp_path: Path) -> BackupLake:
    return BackupLake(cloned(app_with_rows), str(tmp_path / "backups"))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run without Spark, where tests look at what they do."""

    def run(context: Any, tasks: Any, work: Any, *_: Any) -> list[Any]:
        return [work(task) for task in tasks]

    monkeypatch.setattr(backup_run, "run_on_executors", run)
    monkeypatch.setattr(restore_run, "run_on_executors", run)


@pytest.fixture
def other_lake(
    postgres: str, template: str, tmp_path: Path, make_settings: Callable[..., Settings]
) -> Iterator[BackupLake]:
    """Another installation, with an empty catalog."""
    name = "another_installation"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        dsn = f"{postgres.rpartition('/')[0]}/{name}"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE ducklake_metadata SET value = gen_random_uuid()::text WHERE key = 'installation'"
            )
        with open_lake(dsn, tmp_path / "elsewhere", make_settings()) as lake:
            yield BackupLake(FlushLake(lake, make_settings(), tmp_path / "expectations"), str(tmp_path / "backups2"))
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
