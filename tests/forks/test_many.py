"""Many forks, many at once: what the forking document asks to be tried under stress."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from lakefork.catalog.catalogs import find_catalog, list_catalogs, newest_snapshot
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog, fork_catalogs
from support.fork_lake import fork, no_findings, sql
from support.lake import Table, add_file, make_catalog, make_table
from support.sql_lake import SqlLake

FORKS = 1_000


def at_once(actions: list[Callable[[], Any]]) -> list[Any]:
    """Runs each in a thread of its own; the first failure is raised."""
    results: list[Any] = [None] * len(actions)
    failures: list[BaseException] = []

    def run(place: int, action: Callable[[], Any]) -> None:
        try:
            results[place] = action()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


@pytest.fixture(scope="module")
def forest(module_lake: SqlLake) -> SqlLake:
    """A parent with two tables, a batch and hot rows, and 1,000 forks."""
    lake = module_lake
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT); CREATE SHARED TABLE app.u (id BIGINT PRIMARY KEY)"
    )
    lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')")
    lake.flush_by_hand("app.t")
    lake.run("INSERT INTO app.t VALUES (3, 'hot')")
    with connect(lake.dsn) as connection:
        for start in range(0, FORKS, 50):
            fork_catalogs(connection, "main", {f"f{number}": None for number in range(start, start + 50)})
    return lake


def of(lake: SqlLake, name: str) -> SqlLake:
    with connect(lake.dsn) as connection:
        return SqlLake(lake.engine, lake.dsn, find_catalog(connection, name))


def test_a_thousand_forks_of_one_parent(forest: SqlLake) -> None:
    """1,000 forks from a single parent, each with a snapshot, an id and a place of its own."""
    assert sql(
        forest, "SELECT count(*), count(DISTINCT catalog_id), count(DISTINCT data_path) FROM system.catalogs"
    ) == [(FORKS + 1,) * 3]
    assert sql(
        forest,
        "SELECT count(*), count(DISTINCT snapshot_id) FROM ducklake_snapshot_changes WHERE changes_made LIKE 'forked_from:%%'",
    ) == [(FORKS, FORKS)]
    assert no_findings(forest)


def test_reads_across_all_forks_at_once(forest: SqlLake) -> None:
    """Concurrent reads across all forks; connections and memory stay where they are."""
    with connect(forest.dsn) as connection:
        lakes = [SqlLake(forest.engine, forest.dsn, one) for one in list_catalogs(connection) if one.name != "main"]
    assert len(lakes) == FORKS
    expected = [(1, "a"), (2, "b"), (3, "hot")]
    process = psutil.Process()
    assert lakes[0].rows("SELECT id, v FROM app.t ORDER BY id") == expected
    before = process.memory_info().rss

    def read(some: list[SqlLake]) -> bool:
        return all(one.rows("SELECT id, v FROM app.t ORDER BY id") == expected for one in some)

    assert all(at_once([lambda place=place: read(lakes[place::8]) for place in range(8)]))
    (connections,) = sql(forest, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")[0]
    assert connections <= 70
    assert process.memory_info().rss - before < 300 << 20


def test_commits_of_all_forks_at_once_get_snapshots_of_their_own(forest: SqlLake) -> None:
    """Concurrent commits from many catalogs: a global snapshot each, without gaps, and nobody sees another's file."""
    with connect(forest.dsn) as connection:
        before = newest_snapshot(connection)
        found = connection.execute(
            "SELECT t.catalog_id, t.schema_id, t.table_id FROM ducklake_table t JOIN lakefork.fork USING (catalog_id) "
            "WHERE t.table_name = 'u' ORDER BY 1"
        ).fetchall()
        catalogs = {one.catalog_id: one for one in list_catalogs(connection)}
    tables = [Table(catalogs[row["catalog_id"]], row["schema_id"], row["table_id"]) for row in found]

    def write(some: list[Table]) -> None:
        with connect(forest.dsn) as connection:
            for table in some:
                add_file(connection, table, f"shared/batch-{table.catalog.catalog_id}.parquet")

    at_once([lambda place=place: write(tables[place::8]) for place in range(8)])
    changes = sql(
        forest,
        "SELECT snapshot_id, catalog_id FROM ducklake_snapshot_changes WHERE snapshot_id > %s ORDER BY 1",
        before,
    )
    assert [snapshot for snapshot, _ in changes] == list(range(before + 1, before + FORKS + 1))
    assert len({catalog for _, catalog in changes}) == FORKS
    files = sql(
        forest,
        "SELECT catalog_id, path FROM ducklake_data_file WHERE path_is_relative AND begin_snapshot > %s ORDER BY 1",
        before,
    )
    assert files == [(table.catalog.catalog_id, f"shared/batch-{table.catalog.catalog_id}.parquet") for table in tables]
    assert no_findings(forest)


def test_a_forks_new_files_get_unique_ids(forest: SqlLake) -> None:
    """Counters are global: new files of any catalog get globally unique ids."""
    lakes = [of(forest, f"f{number}") for number in range(100, 108)]
    for lake in lakes:
        lake.run("INSERT INTO app.t VALUES (9, 'own')")

    at_once([lambda lake=lake: lake.flush_by_hand("app.t") for lake in lakes])
    own = sql(forest, "SELECT data_file_id, catalog_id FROM ducklake_data_file WHERE path_is_relative")
    assert len(own) == len({file_id for file_id, _ in own})
    assert {lake.catalog.catalog_id for lake in lakes} <= {catalog_id for _, catalog_id in own}
    inherited = sql(forest, "SELECT DISTINCT data_file_id FROM ducklake_data_file WHERE NOT path_is_relative")
    assert len(inherited) == 1


def test_forks_of_one_parent_at_once_while_it_commits(lake: SqlLake) -> None:
    """Concurrent forks from the same parent work correctly."""
    with connect(lake.dsn) as connection:
        table = make_table(connection, make_catalog(connection, "p", "/lake/p"))
        other = make_table(connection, make_catalog(connection, "q", "/lake/q"))
    stop = threading.Event()
    numbers = itertools.count()

    def commit(into: Any) -> int:
        done = 0
        with connect(lake.dsn) as connection:
            while not stop.is_set():
                add_file(connection, into, f"shared/batch-{next(numbers)}.parquet")
                done += 1
        return done

    def make(place: int) -> list[tuple[int, int, int]]:
        found = []
        with connect(lake.dsn) as connection:
            for number in range(8):
                child = fork_catalog(connection, "p", f"c{place}_{number}")
                (row,) = connection.execute(
                    "SELECT (SELECT count(*) FROM lakefork.visible_data_file(%(child)s)) AS mine, f.parent_snapshot, "
                    "(SELECT count(*) FROM lakefork.visible_data_file(%(parent)s, f.parent_snapshot)) AS parents "
                    "FROM lakefork.fork f WHERE f.catalog_id = %(child)s",
                    {"child": child.catalog_id, "parent": table.catalog.catalog_id},
                ).fetchall()
                found.append((row["mine"], row["parents"], child.catalog_id))
        return found

    def make_all() -> list[Any]:
        try:
            return at_once([lambda place=place: make(place) for place in range(6)])
        finally:
            stop.set()

    *commits, made = at_once([lambda: commit(table), lambda: commit(other), make_all])
    results = [one for some in made for one in some]
    assert all(mine == parents for mine, parents, _ in results), "a fork has the files of the snapshot that it is of"
    assert len({catalog_id for *_, catalog_id in results}) == 48
    assert min(commits) > 5
    assert no_findings(lake)


def test_a_fork_is_quick_among_many(forest: SqlLake) -> None:
    times = []
    for number in range(5):
        started = time.perf_counter()
        fork(forest, f"quick{number}")
        times.append(time.perf_counter() - started)
    assert min(times) < 0.5
