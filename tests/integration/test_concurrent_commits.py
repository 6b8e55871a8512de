"""Many writers at once: exact rows, gap-free snapshots, unique ids, one winner."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psycopg
import pytest

from lakefork.catalog.catalogs import create_catalog, newest_snapshot
from lakefork.catalog.commits import commit
from lakefork.catalog.connection import Connection, connect
from lakefork.errors import ConflictError, InvalidInputError
from support.lake import Table, add_file, file_changes, files_at, make_catalog, make_table, rows_of

WRITERS = 16
COMMITS = 12


def _write(dsn: str, table: Table, writer: int) -> list[int]:
    with connect(dsn) as connection:
        base = newest_snapshot(connection)
        snapshots = []
        for number in range(COMMITS):
            done = commit(connection, table.catalog.catalog_id, base, file_changes(table, f"w{writer}-{number}"))
            snapshots.append(done.snapshot_id)
            base = done.snapshot_id
        return snapshots


@pytest.mark.parametrize("one_table", [False, True], ids=["16 catalogs", "one table"])
def test_sixteen_writers_lose_nothing(dsn: str, connection: Connection, one_table: bool) -> None:
    if one_table:
        tables = [make_table(connection, make_catalog(connection))] * WRITERS
    else:
        tables = [make_table(connection, make_catalog(connection, f"c{n}")) for n in range(WRITERS)]
    first = newest_snapshot(connection) + 1
    with ThreadPoolExecutor(WRITERS) as pool:
        made = list(pool.map(_write, [dsn] * WRITERS, tables, range(WRITERS)))
    assert sorted(snapshot for snapshots in made for snapshot in snapshots) == list(
        range(first, first + WRITERS * COMMITS)
    )
    assert all(earlier < later for snapshots in made for earlier, later in pairwise(snapshots))
    expected = {f"w{writer}-{number}" for writer in range(WRITERS) for number in range(COMMITS)}
    for writer, table in enumerate(tables):
        mine = expected if one_table else {path for path in expected if path.startswith(f"w{writer}-")}
        found = files_at(connection, table)
        assert len(found) == len(mine) and set(found) == mine
    assert rows_of(
        connection, "SELECT count(*), count(DISTINCT data_file_id), max(data_file_id) FROM ducklake_data_file"
    ) == [(WRITERS * COMMITS, WRITERS * COMMITS, WRITERS * COMMITS - 1)]
    starts = rows_of(connection, "SELECT catalog_id, table_id, row_id_start FROM ducklake_data_file")
    assert len(set(starts)) == len(starts), "row ids are not given out twice"
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def test_racing_commits_on_the_same_rows_have_one_winner(dsn: str, connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = add_file(connection, table).snapshot_id
    barrier = threading.Barrier(8)

    def compact(number: int) -> str:
        with connect(dsn) as mine:
            changes = file_changes(table, f"merged-{number}")
            changes.end("ducklake_data_file", data_file_id=0)
            barrier.wait()
            try:
                commit(mine, table.catalog.catalog_id, base, changes)
            except ConflictError:
                return "conflict"
            return f"merged-{number}"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(compact, range(8)))
    winners = [outcome for outcome in outcomes if outcome != "conflict"]
    assert len(winners) == 1
    assert files_at(connection, table) == winners


def test_racing_commits_with_one_key_are_one_commit(dsn: str, connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)

    def publish(_: int) -> tuple[int, bool]:
        with connect(dsn) as mine:
            done = commit(mine, table.catalog.catalog_id, base, file_changes(table, "batch-0"), commit_key="run/1")
            return done.snapshot_id, done.replayed

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(publish, range(8)))
    assert {snapshot for snapshot, _ in outcomes} == {base + 1}
    assert [replayed for _, replayed in outcomes].count(False) == 1
    assert files_at(connection, table) == ["batch-0"]


def test_no_reader_misses_a_lower_snapshot_that_commits_later(dsn: str, connection: Connection) -> None:
    """A reader that saw snapshot N sees, from then on, exactly the same files at N."""
    tables = [make_table(connection, make_catalog(connection, name)) for name in ("a", "b")]
    slow = connect(dsn, autocommit=False)
    commit(slow, tables[0].catalog.catalog_id, newest_snapshot(slow), file_changes(tables[0], "slow"))
    with ThreadPoolExecutor(1) as pool, connect(dsn) as other:
        late = pool.submit(add_file, other, tables[1], "late")
        time.sleep(0.3)
        assert not late.done(), "a later snapshot waits for the one before it"
        before = newest_snapshot(connection)
        seen = [files_at(connection, table, before) for table in tables]
        slow.commit()
        slow.close()
        assert late.result().snapshot_id == before + 2
    assert [files_at(connection, table, before) for table in tables] == seen == [[], []]
    assert [files_at(connection, table, before + 1) for table in tables] == [["slow"], []]
    assert [files_at(connection, table, before + 2) for table in tables] == [["slow"], ["late"]]


def test_racing_catalogs_never_share_a_name_or_a_path(dsn: str, connection: Connection) -> None:
    def create(number: int) -> str:
        with connect(dsn) as mine:
            try:
                return create_catalog(mine, "same", f"/lake/{number}").name
            except ConflictError:
                return "name taken"

    def nest(number: int) -> str:
        with connect(dsn) as mine:
            try:
                return create_catalog(mine, f"n{number}", "/shared" + "/deeper" * number).name
            except InvalidInputError:
                return "overlap"

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(create, range(6))) == ["name taken"] * 5 + ["same"]
        assert sorted(pool.map(nest, range(6))).count("overlap") == 5
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def test_a_writer_that_dies_in_the_middle_blocks_nobody(dsn: str, connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    dying = connect(dsn, autocommit=False)
    commit(dying, table.catalog.catalog_id, newest_snapshot(dying), file_changes(table, "lost"))
    with ThreadPoolExecutor(1) as pool, connect(dsn) as other:
        waiting = pool.submit(add_file, other, table, "kept")
        connection.execute("SELECT pg_terminate_backend(%s)", (dying.info.backend_pid,))
        waiting.result(timeout=10)
    with pytest.raises(psycopg.OperationalError):
        dying.commit()
    assert files_at(connection, table) == ["kept"]
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []
