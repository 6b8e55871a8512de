"""When a table counts as clean: only where what is recorded of its files proves it."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.lake import resolved_file_id

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection
from support.lake import Table, make_catalog, make_table, rows_of

KEY_COLUMN = {"int64": 10, "varchar": 11}


@dataclass
class Files:
    """Commits of made-up files, and what is then known."""

    connection: Connection
    table: Table
    key: int
    ids: list[int] = field(default_factory=list)

    def publish(self, *files: dict[str, Any], end: tuple[int, ...] = ()) -> bool:
        changes = Changes()
        for number in end:
            changes.end("ducklake_data_file", data_file_id=self.ids[number])
        placeholders = [self._add(changes, **file) for file in files]
        catalog_id = self.table.catalog.catalog_id
        done = commit(self.connection, catalog_id, newest_snapshot(self.connection), changes)
        self.ids += [resolved_file_id(done, one) for one in placeholders]
        answer = rows_of(
            self.connection, "SELECT lakefork.note_clean(%s, %s, %s)", catalog_id, self.table.table_id, done.snapshot_id
        )
        return bool(answer[0][0])

    def _add(
        self,
        changes: Changes,
        low: Any,
        high: Any,
        *,
        deleted: str = "00",
        seq: tuple[int, int] = (1, 1),
        owner: str | None = None,
    ) -> int:
        file_id = changes.new_file_id()
        table_id = self.table.table_id
        changes.add(
            "ducklake_data_file", data_file_id=file_id, table_id=table_id, path=f"f{len(self.ids)}_{file_id}",
            path_is_relative=True, record_count=1, file_size_bytes=1,
            statistics=[
                (column_id, 1, 0, *(None if bound in (None, "?") else str(bound) for bound in bounds), None)
                for column_id, *bounds in ((1, *seq), (2, *deleted), (self.key, low, high))
            ],
        )  # fmt: skip
        if owner is not None:
            changes.add(
                "ducklake_file_partition_value", data_file_id=file_id, table_id=table_id, partition_key_index=0,
                partition_value=owner,
            )  # fmt: skip
        return file_id


@pytest.fixture(params=["int64", "varchar"])
def files(connection: Connection, request: pytest.FixtureRequest) -> Files:
    table = make_table(connection, make_catalog(connection))
    changes = Changes()
    key = KEY_COLUMN[request.param]
    changes.add(
        "ducklake_column", table_id=table.table_id, column_id=key, column_order=key, column_name="k",
        column_type=request.param,
    )  # fmt: skip
    changes.add("ducklake_tag", object_id=table.table_id, key="primary_key", value=f"[{key}, 3]")
    commit(connection, table.catalog.catalog_id, newest_snapshot(connection), changes)
    return Files(connection, table, key)


def file(low: Any, high: Any, **facts: Any) -> dict[str, Any]:
    return {"low": low, "high": high, **facts}


def test_files_of_one_commit_share_no_key(files: Files) -> None:
    assert files.publish(file(1, 5), file(3, 9))


@pytest.mark.parametrize(
    ("low", "high", "clean"), [(6, 9, True), (5, 9, False), (1, 1, False), (0, 9, False), (None, 9, False)]
)
def test_files_of_two_commits_must_not_touch(files: Files, low: Any, high: Any, clean: bool) -> None:
    assert files.publish(file(1, 5))
    assert files.publish(file(low, high)) is clean


def test_keys_compare_as_what_they_are(files: Files) -> None:
    assert files.publish(file(10, 20))
    assert files.publish(file(9, 9)), "after 10 as text, before it as a number"
    assert files.publish(file(100, 101)) is (files.key == KEY_COLUMN["int64"])


def test_a_file_inside_a_gap_of_a_long_one_is_found(files: Files) -> None:
    assert files.publish(file(10, 90), file(20, 30))
    assert not files.publish(file(50, 60))


def test_owners_do_not_share_keys(files: Files) -> None:
    assert files.publish(file(1, 5, owner="ada"), file(1, 5, owner="bob"))
    assert files.publish(file(1, 5, owner="eve"))
    assert not files.publish(file(5, 6, owner="bob"))
    assert not files.publish(file(7, 8, owner="ada")), "bob's are not clean yet"
    assert files.publish(file(1, 6, owner="bob"), end=(1, 3))


@pytest.mark.parametrize("deleted", ["01", "?0", "?1", "0?", "??"])
def test_a_file_may_not_have_both_rows_and_tombstones(files: Files, deleted: str) -> None:
    assert files.publish(file(1, 5, deleted=deleted)) is (deleted == "?0")


@pytest.mark.parametrize(
    ("low", "high", "seq", "clean"),
    [(1, 1, (9, 9), False), (6, 9, (9, 9), True), (1, 1, (0, 4), True), (1, 1, (0, 5), False), (None, None, (9, 9), False)],
)  # fmt: skip
def test_tombstones_must_hide_nothing(files: Files, low: Any, high: Any, seq: tuple[int, int], clean: bool) -> None:
    assert files.publish(file(1, 5, seq=(5, 8)))
    assert files.publish(file(low, high, deleted="11", seq=seq)) is clean


def test_tombstones_of_the_same_commit_hide_nothing(files: Files) -> None:
    assert files.publish(file(1, 5), file(2, 3, deleted="11", seq=(9, 9)))
    assert not files.publish(file(4, 4, deleted="11", seq=(10, 10)))


def test_a_state_without_one_of_its_files_is_forgotten(files: Files) -> None:
    assert files.publish(file(1, 5))
    assert files.publish(file(6, 9))
    assert files.publish(file(1, 5), end=(0,))
    clean = "SELECT count(*) FROM lakefork.clean_snapshot"
    assert rows_of(files.connection, clean) == [(3,)]
    files.connection.execute("DELETE FROM ducklake_data_file WHERE data_file_id = %s", (files.ids[0],))
    assert rows_of(files.connection, clean) == [(1,)]


def test_states_that_cannot_be_queried_are_not_kept(files: Files) -> None:
    for low in range(3):
        assert files.publish(file(low, low))
    files.connection.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id < lakefork.newest_snapshot()")
    assert files.publish(file(7, 7))
    assert rows_of(files.connection, "SELECT count(*) FROM lakefork.clean_snapshot") == [(2,)]
