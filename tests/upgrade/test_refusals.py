"""When an upgrade is refused, and what all other commands say of a schema that is not theirs."""

import argparse
import json
from pathlib import Path

import pytest

from lakefork import __version__
from lakefork.catalog import upgrade
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.schema import init_catalog
from lakefork.catalog.scripts import SCHEMA_FILE, UpgradeScript, upgrade_scripts
from lakefork.catalog.upgrade import upgrade_catalog
from lakefork.cli.main import _parser
from lakefork.errors import CatalogVersionError, LeaseHeldError, SetupError
from lakefork.settings import load_settings
from support.duckdb_client import run
from support.lake import rows_of
from support.schema_description import describe_schema
from upgrade.conftest import OldCatalog

COMMANDS = [
    "init", "roots", "status", "sql x", "load app.t x.csv", "schemas", "run flush", "fork main x", "forks",
    "drop-catalog main", "tag main 1 x", "untag main x", "retention main", "undelete --run x", "gc", "audits", "dump x",
    "export main x", "client-role x", "airflow link", "stack up", "serve", "token list", "copy status", "follow status",
    "backup list", "subscribe x --user ada",
]  # fmt: skip
WITHOUT_A_CATALOG = {"db", "upgrade", "completion"}


@pytest.fixture
def at_old(old: OldCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKEFORK_DSN", old.dsn)
    monkeypatch.setenv("LAKEFORK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    load_settings.cache_clear()
    (tmp_path / "x.csv").write_text("id\n1\n")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("at_old")
def test_every_command_names_the_upgrade(command: str) -> None:
    arguments = _parser().parse_args(command.split())
    expected = (
        "holds a Lakefork catalog already"
        if command == "init"
        else "before 0.2, and this is .*: run `lakefork upgrade`"
    )
    with pytest.raises(SetupError, match=expected):
        arguments.run(arguments)
    load_settings.cache_clear()


def test_no_command_is_forgotten() -> None:
    parts = [action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert {command.split()[0] for command in COMMANDS} | WITHOUT_A_CATALOG == set(parts[0].choices)


def test_a_dry_run_prints_and_changes_nothing(old: OldCatalog, old_connection: Connection) -> None:
    before = _description(old_connection)
    done = run("upgrade", "--dry-run", dsn=old.dsn)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  0001_upgrades: Keep which of these scripts a database has had.\n" in done.stdout
    assert _description(old_connection) == before
    done = run("upgrade", "--json", dsn=old.dsn)
    assert json.loads(done.stdout) == {
        "from": None, "to": __version__, "needed": True, "upgraded": True, "leases": [],
        "scripts": [script.name for script in upgrade_scripts()],
    }  # fmt: skip
    assert "nothing to do" in run("upgrade", dsn=old.dsn).stdout


def _description(connection: Connection) -> dict[str, list[str]]:
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE TABLE lakefork.schema_upgrade (name text)")
        return describe_schema(connection)


def test_jobs_at_work_are_not_disturbed(old: OldCatalog, old_connection: Connection) -> None:
    old_connection.execute("SELECT lakefork.take_lease('flush/main', 'flush/nightly', 60)")
    with pytest.raises(
        LeaseHeldError, match=r"flush/main is being worked on by flush/nightly since .* UTC: run `lakefork"
    ):
        upgrade_catalog(old_connection)
    assert "wait for flush/main" in run("upgrade", "--dry-run", dsn=old.dsn).stdout
    old_connection.execute("SELECT lakefork.release_leases('flush/nightly')")
    upgrade_catalog(old_connection)


def test_a_commit_in_the_way_is_waited_for(
    old: OldCatalog, old_connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "LOCK_TIMEOUT", "200ms")
    with connect(old.dsn, check_version=False, autocommit=False) as committing:
        committing.execute("LOCK TABLE lakefork_locks.fence IN ROW SHARE MODE")
        with pytest.raises(LeaseHeldError, match="in use for 200ms, and nothing was changed"):
            upgrade_catalog(old_connection)
    upgrade_catalog(old_connection)


def test_a_script_that_fails_changes_nothing(
    old_connection: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "0009_bad.sql").write_text(
        "-- Divide.\nALTER TABLE lakefork.plan ADD COLUMN more INT;\nSELECT 1 / 0;\n"
    )
    scripts = [*upgrade_scripts(), UpgradeScript(tmp_path / "0009_bad.sql")]
    monkeypatch.setattr(upgrade, "upgrade_scripts", lambda: scripts)
    before = _description(old_connection)
    with pytest.raises(SetupError, match="the upgrade failed, and nothing was changed: division by zero"):
        upgrade_catalog(old_connection)
    assert _description(old_connection) == before


@pytest.mark.parametrize(
    "newer",
    [
        "UPDATE ducklake_metadata SET value = '9.0' WHERE key = 'lakefork_version'",
        "INSERT INTO lakefork.schema_upgrade VALUES ('9999_later', now(), '9.0')",
    ],
)
def test_the_schema_of_a_newer_lakefork_is_left_alone(connection: Connection, dsn: str, newer: str) -> None:
    connection.execute("UPDATE ducklake_metadata SET value = 'another' WHERE key = 'lakefork_schema'")
    connection.execute(newer)
    with pytest.raises(CatalogVersionError, match=r"newer than this Lakefork .*: install that version, or a newer one"):
        connect(dsn)
    with pytest.raises(CatalogVersionError, match="install that version"):
        upgrade_catalog(connection)


def test_a_database_without_a_catalog_is_left_alone(empty_dsn: str) -> None:
    with connect(empty_dsn, check_version=False) as connection:
        with pytest.raises(CatalogVersionError, match="run `lakefork init` first"):
            upgrade_catalog(connection)
        assert rows_of(connection, "SELECT count(*) FROM pg_namespace WHERE nspname = 'lakefork'") == [(0,)]


def test_the_owner_stays_the_owner(empty_dsn: str) -> None:
    """The views for stock DuckDB read with their owner's rights."""
    with connect(empty_dsn, check_version=False) as connection:
        connection.execute("CREATE ROLE keeper")
        try:
            connection.execute(f"ALTER DATABASE {connection.info.dbname} OWNER TO keeper")
            connection.execute("SET ROLE keeper")
            init_catalog(connection)
            connection.execute("RESET ROLE")
            connection.execute("UPDATE ducklake_metadata SET value = 'another' WHERE key = 'lakefork_schema'")
            upgrade_catalog(connection)
            owners = "SELECT DISTINCT r.rolname FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.relnamespace IN {}"
            schemas = "('lakefork'::regnamespace, 'system'::regnamespace, 'ducklake_client'::regnamespace)"
            assert rows_of(connection, owners.format(schemas)) == [("keeper",)]
        finally:
            connection.execute("REASSIGN OWNED BY keeper TO CURRENT_USER; DROP OWNED BY keeper; DROP ROLE keeper")


def test_psql_alone_leaves_a_schema_that_is_recognised_by_its_version(dsn: str, connection: Connection) -> None:
    connection.execute("DELETE FROM ducklake_metadata WHERE key = 'lakefork_schema'")
    connect(dsn).close()
    connection.execute("UPDATE ducklake_metadata SET value = '0.1.9' WHERE key = 'lakefork_version'")
    with pytest.raises(CatalogVersionError, match=r"that of Lakefork 0\.1\.9, and this is"):
        connect(dsn)


def test_the_schema_file_has_the_version_and_every_script(connection: Connection) -> None:
    text = SCHEMA_FILE.read_text()
    assert f"('lakefork_version', '{__version__}')" in text
    applied = rows_of(connection, "SELECT name FROM lakefork.schema_upgrade ORDER BY name")
    assert [name for (name,) in applied] == [script.name for script in upgrade_scripts()]
    assert all(script.path.read_text().startswith("-- ") for script in upgrade_scripts())
