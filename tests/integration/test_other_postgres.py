"""Any Postgres works: an older server, and one with another language."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.errors import CatalogVersionError, ConflictError, NotFoundError
from lakefork.settings import PostgresSettings, Settings
from lakefork.transfer.dump import dump_catalog
from support.lake import add_file, file_changes, files_at, make_catalog, make_table, rows_of

DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) if Path("/usr/lib/postgresql").is_dir() else []
LANGUAGE = "de_DE.UTF-8"


@pytest.fixture(scope="module")
def older_dsn(make_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's Postgres; its messages are German where the system can make that locale."""
    if not DEBIAN:
        pytest.skip("no Debian postgresql is installed: apt-get install postgresql")
    settings = make_settings(postgres=PostgresSettings(shared_buffers="32MB", max_connections=50))
    options = {"fsync": "off"}
    before = os.environ.get("LOCPATH")
    if locales := _german(tmp_path_factory.mktemp("locale")):
        os.environ["LOCPATH"] = str(locales)
        options["lc_messages"] = LANGUAGE
    server = EmbeddedPostgres(settings, bin_dir=DEBIAN[-1].parent, server_options=options)
    dsn = server.start()
    with connect(dsn, check_version=False) as connection:
        with pytest.raises(CatalogVersionError, match="run `lakefork init` first"):
            connect(dsn)
        init_catalog(connection)
    yield dsn
    server.stop()
    if before is None:
        os.environ.pop("LOCPATH", None)


def _german(directory: Path) -> Path | None:
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        return None
    directory.chmod(0o755)
    for parent in directory.parents:
        if parent.owner() == directory.owner() and parent != parent.parent and str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    done = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", directory / LANGUAGE], capture_output=True)
    return directory if done.returncode == 0 else None


def test_errors_are_understood_whatever_the_language(older_dsn: str) -> None:
    with connect(older_dsn) as connection:
        make_catalog(connection, "twice", "/lake/twice")
        with pytest.raises(ConflictError, match="catalog 'twice' already exists"):
            make_catalog(connection, "twice", "/lake/other")
        if rows_of(connection, "SHOW lc_messages") != [(LANGUAGE,)]:
            pytest.skip("the locale de_DE.UTF-8 cannot be made here: apt-get install locales")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT nonsense")
        assert "existiert nicht" in str(caught.value), "the server really answers in German"


def test_commits_conflicts_drops_and_fsck_on_an_older_server(older_dsn: str, tmp_path: Path) -> None:
    with connect(older_dsn) as connection:
        table = make_table(connection, make_catalog(connection, "main"))
        base = add_file(connection, table).snapshot_id
        changes = file_changes(table, "merged")
        changes.end("ducklake_data_file", data_file_id=0)
        commit(connection, table.catalog.catalog_id, base, changes)
        with pytest.raises(ConflictError):
            commit(connection, table.catalog.catalog_id, base, changes)
        assert (files_at(connection, table), files_at(connection, table, base)) == (
            ["merged"],
            ["shared/batch-0.parquet"],
        )
        changes = Changes()
        changes.end("ducklake_table", table_id=table.table_id)
        commit(connection, table.catalog.catalog_id, newest_snapshot(connection), changes)
        with pytest.raises(NotFoundError):
            add_file(connection, table, "late")
        assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []
    dump_catalog(older_dsn, tmp_path / "dump.duckdb")
    with duckdb.connect(str(tmp_path / "dump.duckdb")) as duck:
        assert duck.execute("SELECT count(*) FROM ducklake_data_file").fetchone() == (2,)
