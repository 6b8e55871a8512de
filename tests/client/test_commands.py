"""The commands for stock DuckDB: what they print is what one types into DuckDB."""

import re
from pathlib import Path

from support.duckdb_client import attached, run
from support.sql_lake import SqlLake

ATTACH = re.compile(r"ATTACH 'ducklake:(?P<source>.+)' AS lake \((?P<options>.+)\)\n$")


def tables_of(printed: str) -> list[tuple[str]]:
    found = ATTACH.search(printed)
    assert found, printed
    with attached(found["source"], found["options"]) as duck:
        tables: list[tuple[str]] = duck.execute("SELECT table_name FROM ducklake_table_info('lake')").fetchall()
        return tables


def test_export(lake: SqlLake, tmp_path: Path) -> None:
    lake.run("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
    file = str(tmp_path / "main.ducklake")
    done = run("export", "main", file, dsn=lake.dsn)
    assert done.returncode == 0, done.stderr
    assert tables_of(done.stdout) == [("t",)]
    again = run("export", "main", file, dsn=lake.dsn)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1) and "already exists" in again.stderr
    unknown = run("export", "nix", str(tmp_path / "nix"), dsn=lake.dsn)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (
        1,
        1,
    ) and "catalog 'nix' does not exist" in unknown.stderr


def test_client_role(lake: SqlLake) -> None:
    lake.run("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
    done = run("client-role", "client_of_cli", "--catalog", "main", dsn=lake.dsn)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("role client_of_cli can read catalog main\n")
    assert tables_of(done.stdout) == [("t",)]
    assert run("client-role", "client_of_cli", "--drop", dsn=lake.dsn).stdout == "role client_of_cli was dropped\n"
    refused = run("client-role", "Bad", dsn=lake.dsn)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1) and "is invalid" in refused.stderr
