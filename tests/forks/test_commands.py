"""The commands for forks: what they print, line by line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakefork.catalog.connection import connect
from lakefork.overview.forks import list_forks
from lakefork.overview.status import readable_bytes
from support.fork_lake import fork, sql
from support.sql_lake import SqlLake

LAKEFORK = Path(sys.executable).parent / "lakefork"
DROPPED = "their rows stay readable at earlier snapshots until retention_gc; file_cleanup deletes unneeded files\n"


@pytest.fixture
def parent(lake: SqlLake) -> SqlLake:
    """Two rows in a batch, and one that is not flushed."""
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY); INSERT INTO app.t VALUES (1), (2)"
    )
    lake.flush_by_hand("app.t")
    with connect(lake.dsn) as connection:
        connection.execute("DELETE FROM lakefork.hot_delta")  # as a flush would have counted
    lake.run("INSERT INTO app.t VALUES (3)")
    return lake


def run(lake: SqlLake, *arguments: str) -> str:
    done = _run(lake, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(lake: SqlLake, *arguments: str) -> str:
    done = _run(lake, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    return done.stderr


def _run(lake: SqlLake, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LAKEFORK_DSN": lake.dsn}
    return subprocess.run(
        [LAKEFORK, *arguments], env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


def test_fork(parent: SqlLake, tmp_path: Path) -> None:
    made = f"catalog mine is a fork of main; its own files go to {tmp_path}/mine\n"
    arguments = ("fork", "main", "mine", "--data-path", f"{tmp_path}/mine", "--expires-after", "2h")
    assert run(parent, *arguments) == run(parent, *arguments, "--if-not-exists") == made
    found = "SELECT parent_name, expires_at - created_at = interval '2 hours' FROM system.catalogs WHERE catalog_name = 'mine'"
    assert sql(parent, found) == [("main", True)]
    assert "catalog 'mine' already exists" in refused(parent, *arguments)
    assert "snapshot 99 does not exist" in refused(parent, "fork", "main", "other", "--as-of", "99")
    assert "--expires-after = 'soon' is not a duration" in refused(
        parent, "fork", "main", "x", "--expires-after", "soon"
    )


def test_forks_and_what_dropping_one_frees(parent: SqlLake) -> None:
    child = fork(parent, "child")
    child.run("INSERT INTO app.t VALUES (4)")
    child.flush_by_hand("app.t", trim=False)
    fork(child, "grandchild")
    with connect(parent.dsn) as connection:
        main, of_child, of_grandchild = list_forks(connection)
    when = {one["name"]: f"{one['created_at']:%Y-%m-%d %H:%M}" for one in (main, of_child, of_grandchild)}
    sizes = {one["name"]: (readable_bytes(one["own_bytes"]), readable_bytes(one["shared_bytes"]))
             for one in (main, of_child, of_grandchild)}  # fmt: skip

    def line(shown: str, name: str, of: object, own: str, shared: str, hot: str) -> str:
        return (
            f"{shown:<36}{when[name]:<18}{of:>12}{own:>14}{sizes[name][0]:>10}{shared:>14}{sizes[name][1]:>10}{hot:>12}"
        )

    head = "catalog                             created (UTC)         snapshot      own rows       own   shared rows    shared    hot rows  expires"
    lines = [
        line("main", "main", "", "2", "0", "1"),
        line("  child", "child", child.catalog.begin_snapshot - 1, "4", "2", "2"),
        line("    grandchild", "grandchild", of_child["begin_snapshot"] + 1, "0", "6", "2"),
    ]
    assert run(parent, "forks").splitlines() == [head, *lines]
    assert run(parent, "forks", "child").splitlines()[1].startswith("child ")
    shared, own = readable_bytes(of_child["shared_bytes"]), readable_bytes(of_child["own_bytes"])
    assert run(parent, "forks", "child", "--reclaim").splitlines() == [
        "dropping it would free 0 file(s), 0 B, once its snapshots have expired",
        f"kept by main: 1 file(s), {shared}",
        f"kept by grandchild: 2 file(s), {readable_bytes(of_child['shared_bytes'] + of_child['own_bytes'])}",
    ]
    assert run(parent, "forks", "grandchild", "--reclaim").splitlines()[1:] == [
        f"kept by main: 1 file(s), {shared}",
        f"kept by child: 2 file(s), {readable_bytes(of_child['shared_bytes'] + of_child['own_bytes'])}",
    ]
    assert own != "0 B"
    assert "--reclaim needs a catalog" in refused(parent, "forks", "--reclaim")
    assert "catalog 'nobody' does not exist" in refused(parent, "forks", "nobody")


def test_drop_catalog(parent: SqlLake) -> None:
    for name in ("agent_1", "agent_2", "agent_3", "other"):
        fork(parent, name)
    with connect(parent.dsn) as connection:
        connection.execute(
            "UPDATE lakefork.fork SET created_at = created_at - interval '3 hours' WHERE catalog_id IN "
            "(SELECT catalog_id FROM ducklake_catalog WHERE catalog_name IN ('agent_1', 'agent_2', 'other'))"
        )
    names = "SELECT catalog_name FROM system.catalogs ORDER BY 1"
    assert _run(parent, "drop-catalog", "--prefix", "agent_").returncode == 1, "nobody was there to agree"
    assert len(sql(parent, names)) == 5
    dropped = run(parent, "drop-catalog", "--prefix", "agent_", "--older-than", "2h", "--yes")
    assert dropped == f"2 of 2 catalog(s) dropped\n{DROPPED}"
    assert run(parent, "drop-catalog", "other") == f"1 of 1 catalog(s) dropped\n{DROPPED}"
    assert sql(parent, names) == [("agent_3",), ("main",)]
    assert "catalog 'other' does not exist" in refused(parent, "drop-catalog", "other")
    assert "specify the NAME of a catalog, or --prefix" in refused(parent, "drop-catalog")
    assert "would drop every fork" in refused(parent, "drop-catalog", "--prefix", "", "--yes")
    then = sql(parent, "SELECT begin_snapshot FROM ducklake_catalog WHERE catalog_name = 'other'")[0][0]
    table = run(
        parent,
        "sql",
        "--catalog",
        "other",
        "--format",
        "json",
        f"SELECT id FROM app.t AT (VERSION => {then}) ORDER BY id",
    )
    assert '"rows": [[1], [2]]' in table or '"rows":[[1],[2]]' in table
