"""A catalog of the schema from before the first upgrade, with rows, forks and files in it, is upgraded and stays what it was."""

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.upgrade import upgrade_catalog
from lakefork.model.params import CatalogFsckParams
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.upkeep.fsck.run import run_fsck
from support.flush_lake import FlushLake
from support.lake import rows_of
from support.old_catalog import expectations
from support.schema_description import describe_schema
from support.sql_lake import SqlLake
from upgrade.conftest import OldCatalog


def test_the_upgraded_schema_is_that_of_a_new_database(old_connection: Connection, connection: Connection) -> None:
    upgrade_catalog(old_connection)
    upgraded, new = describe_schema(old_connection), describe_schema(connection)
    for kind, lines in new.items():
        assert [_as_dumped(line) for line in upgraded[kind]] == [_as_dumped(line) for line in lines], kind


def _as_dumped(line: str) -> str:
    """A dump that was restored puts casts and brackets elsewhere."""
    return re.sub(r"::(text|character varying)(\[\])?|[()]", "", line)


def test_everything_in_it_is_readable_and_can_be_written(
    old: OldCatalog,
    old_connection: Connection,
    make_settings: Callable[..., Settings],
    spark: SparkContext,
    tmp_path: Path,
) -> None:
    upgrade_catalog(old_connection)
    settings = make_settings()
    with Engine(settings, old.dsn) as engine:
        for expected in expectations(old.data):
            assert expected.found(engine) == expected.result, expected.sql
        lake = SqlLake(engine, old.dsn, find_catalog(old_connection, "main"))
        trial = SqlLake(engine, old.dsn, find_catalog(old_connection, "trial"))
        lake.run("INSERT INTO app.notes (id, body) VALUES (400, 'after the upgrade')", user="ada")
        trial.run("UPDATE app.notes SET stars = 9 WHERE id = 20", user="ada")
        before = [(_notes(lake, user), _notes(trial, user)) for user in ("ada", "bob")]
        flushes = FlushLake(lake, settings, tmp_path / "expectations")
        assert flushes.flush()["rows_out"] == 5
        assert [(_notes(lake, user), _notes(trial, user)) for user in ("ada", "bob")] == before
        assert flushes.waiting() == {}
        assert lake.rows("SELECT count(*) FROM app.notes", user="ada") == [(37,)]
        made = old_connection.execute(
            "SELECT * FROM ducklake_fork_catalog('main', 'later', %s)", (f"{old.data}/later",)
        )
        assert made.fetchone()
        assert _fsck(flushes, f"fsck_{uuid.uuid4()}")["findings"] == 0


def _notes(lake: SqlLake, user: str) -> list[tuple[Any, ...]]:
    return lake.rows("SELECT * FROM app.notes ORDER BY id", user=user)


def _fsck(lake: FlushLake, run_id: str) -> dict[str, Any]:
    with lake.context(run_id, job="catalog_fsck") as context:
        return run_fsck(context, CatalogFsckParams(deep=True))


def test_an_upgrade_is_recorded_and_not_repeated(old: OldCatalog, old_connection: Connection) -> None:
    done, _ = upgrade_catalog(old_connection)
    assert (done.is_needed, done.lakefork, done.scripts[0].name) == (True, None, "0001_upgrades")
    applied = rows_of(old_connection, "SELECT name, lakefork_version FROM lakefork.schema_upgrade ORDER BY name")
    assert [name for name, _ in applied] == [script.name for script in done.scripts]
    again, _ = upgrade_catalog(old_connection)
    assert (again.is_needed, again.scripts) == (False, [])
    connect(old.dsn).close()


def test_rights_stay_and_client_roles_see_all_views(old_connection: Connection, postgres: str) -> None:
    run = old_connection.execute
    run("CREATE ROLE reporter")
    try:
        run("GRANT SELECT ON system.jobs TO reporter; GRANT SELECT (catalog_name) ON system.catalogs TO reporter")
        run(
            "REVOKE EXECUTE ON FUNCTION lakefork.forget_jobs FROM PUBLIC; GRANT EXECUTE ON FUNCTION lakefork.forget_jobs TO reporter"
        )
        run("SELECT lakefork.create_client_role('old_client', 'secret', 'main')")
        run("DROP VIEW ducklake_client.ducklake_tag")  # as if it came with the upgrade
        upgrade_catalog(old_connection)
        assert rows_of(
            old_connection,
            "SELECT has_table_privilege('reporter', 'system.jobs', 'SELECT'), has_table_privilege('reporter', 'system.tables', 'SELECT'), "
            "has_column_privilege('reporter', 'system.catalogs', 'catalog_name', 'SELECT'), "
            "has_column_privilege('reporter', 'system.catalogs', 'own_rows', 'SELECT'), "
            "has_function_privilege('reporter', 'lakefork.forget_jobs(interval,bigint)', 'EXECUTE'), "
            "has_function_privilege('public', 'lakefork.forget_jobs(interval,bigint)', 'EXECUTE'), "
            "has_table_privilege('old_client', 'ducklake_client.ducklake_tag', 'SELECT')",
        ) == [(True, False, True, False, True, False, True)]
    finally:
        run("DROP OWNED BY reporter; DROP ROLE reporter; SELECT lakefork.drop_client_role('old_client')")


def test_functions_with_other_arguments_give_way(old_connection: Connection) -> None:
    run = old_connection.execute
    run("CREATE FUNCTION lakefork.of_yesterday(int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    run("DROP FUNCTION lakefork.attempt_of CASCADE")
    run("CREATE FUNCTION lakefork.attempt_of(other int) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'")
    upgrade_catalog(old_connection)
    assert rows_of(
        old_connection,
        "SELECT to_regprocedure('lakefork.of_yesterday(int)'), to_regprocedure('lakefork.attempt_of(int)'), lakefork.attempt_of('a/b/c/2')",
    ) == [(None, None, 2)]


def test_views_of_others_stay_or_stop_the_upgrade(old_connection: Connection) -> None:
    old_connection.execute("CREATE SCHEMA mine; CREATE VIEW mine.names AS SELECT catalog_name FROM system.catalogs")
    upgrade_catalog(old_connection)
    assert ("main",) in rows_of(old_connection, "SELECT * FROM mine.names")
    old_connection.execute("CREATE VIEW mine.finding AS SELECT NULL::lakefork.finding")
    old_connection.execute("UPDATE ducklake_metadata SET value = 'other' WHERE key = 'lakefork_schema'")
    with pytest.raises(Exception, match=r"the upgrade failed, and nothing was changed: .*finding.* already exists"):
        upgrade_catalog(old_connection)
