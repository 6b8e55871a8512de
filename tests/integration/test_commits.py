"""Single commits: ids, versions, statistics, change records, replays and refusals."""

import psycopg
import pytest

from lakefork.catalog.catalogs import drop_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection, connect
from lakefork.errors import ConflictError, InvalidInputError, NotFoundError
from support.lake import add_column, add_file, file_changes, files_at, make_catalog, make_table, rows_of


def test_every_commit_makes_the_next_global_snapshot(connection: Connection) -> None:
    first, second = make_catalog(connection, "a"), make_catalog(connection, "b")
    tables = make_table(connection, first), make_table(connection, second)
    snapshots = [add_file(connection, table, f"batch-{n}").snapshot_id for n in range(3) for table in tables]
    assert snapshots == list(range(snapshots[0], snapshots[0] + 6))
    assert rows_of(connection, "SELECT count(*), max(snapshot_id) + 1 FROM ducklake_snapshot") == [(11, 11)]


def test_ids_come_from_the_counters_and_are_never_shared(connection: Connection) -> None:
    catalogs = [make_catalog(connection, name) for name in "abc"]
    tables = [make_table(connection, catalog) for catalog in catalogs]
    ids = [catalog.catalog_id for catalog in catalogs] + [i for t in tables for i in (t.schema_id, t.table_id)]
    assert len(set(ids)) == len(ids)
    files = [add_file(connection, table).first_file_id for table in tables]
    assert files == [0, 1, 2]
    assert rows_of(
        connection, "SELECT next_catalog_id, next_file_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
    ) == [(max(ids) + 1, 3)]


def test_a_commit_writes_rows_statistics_and_totals_together(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    changes = file_changes(table, "batch-0", rows=10, size=1000, low=5, high=7)
    second = changes.new_file_id()
    changes.add(
        "ducklake_data_file", data_file_id=second, table_id=table.table_id, path="batch-1", path_is_relative=True,
        record_count=3, file_size_bytes=50,
    )  # fmt: skip
    commit(connection, table.catalog.catalog_id, newest_snapshot(connection), changes)
    add_file(connection, table, "batch-2", rows=4, size=9, low=-2, high=30)
    assert rows_of(
        connection, "SELECT path, row_id_start, record_count FROM ducklake_data_file ORDER BY data_file_id"
    ) == [("batch-0", 0, 10), ("batch-1", 10, 3), ("batch-2", 13, 4)]
    assert rows_of(connection, "SELECT record_count, next_row_id, file_size_bytes FROM ducklake_table_stats") == [
        (17, 17, 1059)
    ]
    bounds = "SELECT DISTINCT min_value, max_value FROM lakefork.visible_table_column_stats(%s)"
    assert rows_of(connection, bounds, table.catalog.catalog_id) == [(None, None)], "a file without statistics"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([("1", "9", 0)], ("1", "9", False)),
        ([("10", "20", 0), ("9", "100", 0)], ("9", "100", False)),
        ([("-5", "-1", 0), ("0", "3", 0)], ("-5", "3", False)),
        ([(None, None, 10)], (None, None, True)),
        ([("1", "9", 0), (None, None, 10)], ("1", "9", True)),
        ([("1", "9", 0), (None, None, 0)], (None, None, False)),
        ([("1", "9", 0), (None, None, 0), ("0", "5", 0)], (None, None, False)),
    ],
)
def test_table_bounds_hold_all_files_or_are_unknown(
    connection: Connection, files: list[tuple[str | None, str | None, int]], expected: tuple[object, ...]
) -> None:
    table = make_table(connection, make_catalog(connection))
    for low, high, nulls in files:
        changes = Changes()
        file_id = changes.new_file_id()
        changes.add(
            "ducklake_data_file", data_file_id=file_id, table_id=table.table_id, path=f"f{low}{high}{nulls}",
            path_is_relative=True, record_count=10, file_size_bytes=1, statistics=[(1, 10, nulls, low, high, None)],
        )  # fmt: skip
        commit(connection, table.catalog.catalog_id, newest_snapshot(connection), changes)
    assert rows_of(
        connection,
        "SELECT min_value, max_value, contains_null FROM lakefork.visible_table_column_stats(%s)",
        table.catalog.catalog_id,
    ) == [expected]


def test_bounds_of_text_go_by_its_bytes_and_follow_time_travel(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    first = add_file(connection, table, "a", low=10, high=20).snapshot_id
    add_file(connection, table, "b", low=9, high=100)
    query = "SELECT min_value, max_value FROM lakefork.visible_table_column_stats(%s, %s) WHERE column_id = %s"
    assert rows_of(connection, query, table.catalog.catalog_id, None, 2) == [("10", "20")], "'100' < '20', '10' < '9'"
    assert rows_of(connection, query, table.catalog.catalog_id, None, 1) == [("9", "100")]
    assert rows_of(connection, query, table.catalog.catalog_id, first, 1) == [("10", "20")]


def test_the_same_key_returns_the_first_result_and_writes_nothing(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    first = commit(connection, table.catalog.catalog_id, base, file_changes(table, "batch-0"), commit_key="run/1")
    before = rows_of(connection, "SELECT count(*) FROM ducklake_data_file")
    again = commit(connection, table.catalog.catalog_id, base, file_changes(table, "batch-9"), commit_key="run/1")
    assert again.replayed and not first.replayed
    assert (again.snapshot_id, again.first_file_id) == (first.snapshot_id, first.first_file_id)
    assert rows_of(connection, "SELECT count(*) FROM ducklake_data_file") == before
    assert newest_snapshot(connection) == first.snapshot_id
    other = commit(connection, table.catalog.catalog_id, base, file_changes(table, "batch-1"), commit_key="run/2")
    assert other.snapshot_id == first.snapshot_id + 1


def test_changes_are_recorded_in_words(connection: Connection) -> None:
    catalog = make_catalog(connection)
    table = make_table(connection, catalog, 'we"ird')
    add_file(connection, table)
    changes = Changes()
    changes.end("ducklake_column", table_id=table.table_id, column_id=5)
    commit(connection, catalog.catalog_id, newest_snapshot(connection), changes, author="ann", message="drop day")
    changes = file_changes(table, "merged")
    changes.end("ducklake_data_file", data_file_id=0)
    commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
    changes = Changes()
    changes.end("ducklake_table", table_id=table.table_id)
    commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
    drop_catalog(connection, catalog)
    words = [
        row[0] for row in rows_of(connection, "SELECT changes_made FROM ducklake_snapshot_changes ORDER BY snapshot_id")
    ]
    assert words == [
        "created_database",
        'created_catalog:"main"',
        'created_schema:"app",created_table:"app"."we""ird"',
        f"inserted_into_table:{table.table_id}",
        f"altered_table:{table.table_id}",
        f"compacted_table:{table.table_id}",
        f"dropped_table:{table.table_id}",
        f"dropped_catalog:{catalog.catalog_id}",
    ]
    assert rows_of(
        connection, "SELECT author, commit_message FROM ducklake_snapshot_changes WHERE author IS NOT NULL"
    ) == [("ann", "drop day")]


def test_only_definitions_make_schema_versions(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    made = add_file(connection, table)
    changes = Changes()
    add_column(changes, table.table_id, 6, "extra", "int64")
    altered = commit(connection, table.catalog.catalog_id, made.snapshot_id, changes)
    assert altered.schema_version == made.schema_version + 1
    assert rows_of(
        connection,
        "SELECT begin_snapshot, schema_version, table_id FROM ducklake_schema_versions ORDER BY 1 DESC LIMIT 1",
    ) == [(altered.snapshot_id, altered.schema_version, table.table_id)]
    assert add_file(connection, table, "batch-1").schema_version == altered.schema_version


def test_two_commits_that_end_the_same_file_exactly_one_wins(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = add_file(connection, table).snapshot_id
    changes = file_changes(table, "merged-1")
    changes.end("ducklake_data_file", data_file_id=0)
    commit(connection, table.catalog.catalog_id, base, changes)
    late = file_changes(table, "merged-2")
    late.end("ducklake_data_file", data_file_id=0)
    newest = newest_snapshot(connection)
    with pytest.raises(ConflictError, match="changed since snapshot"):
        commit(connection, table.catalog.catalog_id, base, late)
    assert newest_snapshot(connection) == newest, "a refused commit leaves no snapshot"
    assert files_at(connection, table) == ["merged-1"]
    assert files_at(connection, table, base) == ["shared/batch-0.parquet"]


def test_two_alters_of_one_table_exactly_one_wins(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    first, second = Changes(), Changes()
    for changes, name in ((first, "x"), (second, "y")):
        changes.require_table_unchanged(table.table_id)
        add_column(changes, table.table_id, 6, name, "int64")
    commit(connection, table.catalog.catalog_id, base, first)
    with pytest.raises(ConflictError, match="definition of table"):
        commit(connection, table.catalog.catalog_id, base, second)


def test_two_alters_that_require_nothing_still_cannot_share_a_column_id(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    for name in ("x", "y"):
        changes = Changes()
        add_column(changes, table.table_id, 6, name, "int64")
        if name == "x":
            commit(connection, table.catalog.catalog_id, base, changes)
        else:
            with pytest.raises(ConflictError):
                commit(connection, table.catalog.catalog_id, base, changes)


def test_a_commit_can_rely_on_the_set_of_files(connection: Connection) -> None:
    table, other = (make_table(connection, make_catalog(connection, name)) for name in "ab")
    base = newest_snapshot(connection)
    add_file(connection, other)
    careful = file_changes(table, "batch-1")
    careful._requires["files"].append(table.table_id)
    done = commit(connection, table.catalog.catalog_id, base, careful)
    with pytest.raises(ConflictError, match="files of table"):
        commit(connection, table.catalog.catalog_id, base, careful)
    assert commit(connection, table.catalog.catalog_id, done.snapshot_id, careful).snapshot_id == done.snapshot_id + 1


def test_names_are_unique_among_the_living(connection: Connection) -> None:
    catalog = make_catalog(connection)
    table = make_table(connection, catalog, "t")
    for name in ("t", "T"):
        with pytest.raises(ConflictError, match="a table of this name already exists"):
            make_table(connection, catalog, name)
    changes = Changes()
    changes.end("ducklake_table", table_id=table.table_id)
    commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
    assert make_table(connection, catalog, "t").table_id != table.table_id


def test_dropping_a_table_ends_all_that_belongs_to_it(connection: Connection) -> None:
    catalog = make_catalog(connection)
    kept, dropped = make_table(connection, catalog, "kept"), make_table(connection, catalog, "dropped")
    for table in (kept, dropped):
        add_file(connection, table)
        changes = Changes()
        changes.add("ducklake_tag", object_id=table.table_id, key="kind", value="SHARED")
        changes.add("ducklake_column_tag", table_id=table.table_id, column_id=1, key="comment", value="key")
        partition = changes.new_id()
        changes.add("ducklake_partition_info", partition_id=partition, table_id=table.table_id)
        changes.add(
            "ducklake_partition_column",
            partition_id=partition,
            table_id=table.table_id,
            partition_key_index=0,
            column_id=1,
        )
        commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
    before = newest_snapshot(connection)
    changes = Changes()
    changes.end("ducklake_table", table_id=dropped.table_id)
    gone = commit(connection, catalog.catalog_id, before, changes).snapshot_id
    for entity, column in [
        ("table", "table_id"), ("column", "table_id"), ("column_tag", "table_id"), ("data_file", "table_id"),
        ("partition_info", "table_id"), ("tag", "object_id"), ("file_column_stats", "table_id"), ("partition_column", "table_id"),
    ]:  # fmt: skip
        query = f"SELECT DISTINCT {column} FROM lakefork.visible_{entity}(%s, %s) ORDER BY 1"
        assert rows_of(connection, query, catalog.catalog_id, None) == [(kept.table_id,)], entity
        assert rows_of(connection, query, catalog.catalog_id, gone) == [(kept.table_id,)], entity
        assert rows_of(connection, query, catalog.catalog_id, before) == [(kept.table_id,), (dropped.table_id,)], entity
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def test_a_namespace_with_tables_cannot_be_dropped(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    changes = Changes()
    changes.end("ducklake_schema", schema_id=table.schema_id)
    with pytest.raises(InvalidInputError, match="namespace with 1 object"):
        commit(connection, table.catalog.catalog_id, newest_snapshot(connection), changes)


def test_a_rename_is_a_version_and_keeps_the_children(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = add_file(connection, table).snapshot_id
    changes = Changes()
    changes.end("ducklake_schema", schema_id=table.schema_id)
    changes.add("ducklake_schema", schema_id=table.schema_id, schema_name="new", path="app", path_is_relative=True)
    changes.end("ducklake_table", table_id=table.table_id)
    changes.add(
        "ducklake_table",
        table_id=table.table_id,
        schema_id=table.schema_id,
        table_name="u",
        path="t",
        path_is_relative=True,
    )
    commit(connection, table.catalog.catalog_id, base, changes)
    names = "SELECT s.schema_name, t.table_name FROM lakefork.visible_schema(%s, %s) s JOIN lakefork.visible_table(%s, %s) t USING (schema_id)"
    catalog_id = table.catalog.catalog_id
    assert rows_of(connection, names, catalog_id, None, catalog_id, None) == [("new", "u")]
    assert rows_of(connection, names, catalog_id, base, catalog_id, base) == [("app", "t")]
    assert files_at(connection, table) == ["shared/batch-0.parquet"]
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c, t: c.add("ducklake_nonsense", x=1), InvalidInputError),
        (lambda c, t: c.add("ducklake_snapshot", snapshot_id=1), InvalidInputError),
        (lambda c, t: c.add("ducklake_table", table_id=-7, schema_id=t.schema_id, table_name="x"), NotFoundError),
        (lambda c, t: c.add("ducklake_table", table_id=9999, schema_id=t.schema_id, table_name="x"), NotFoundError),
        (lambda c, t: c.add("ducklake_table", table_id=c.new_id(), schema_id=9999, table_name="x"), NotFoundError),
        (lambda c, t: c.add("ducklake_data_file", data_file_id=c.new_file_id(), table_id=9999, record_count=1, file_size_bytes=1), NotFoundError),
        (lambda c, t: c.add("ducklake_data_file", data_file_id=-5, table_id=t.table_id, record_count=1, file_size_bytes=1), NotFoundError),
        (lambda c, t: c.add("ducklake_file_column_stats", data_file_id=-1, column_id=1), InvalidInputError),
        (lambda c, t: c.add("ducklake_data_file", data_file_id=c.new_file_id(), table_id=t.table_id, path="x", file_size_bytes=1), NotFoundError),
        (lambda c, t: c.add("ducklake_data_file", data_file_id=c.new_file_id(), table_id=t.table_id, path="x", record_count=1), NotFoundError),
        (lambda c, t: c.add("ducklake_data_file", data_file_id=c.new_file_id(), table_id=t.table_id, record_count=1, file_size_bytes=1), NotFoundError),
        (lambda c, t: c.end("ducklake_table", table_id=9999), ConflictError),
        (lambda c, t: c.end("ducklake_file_column_stats", data_file_id=0, column_id=1), InvalidInputError),
    ],
)  # fmt: skip
def test_invalid_commits_are_refused_and_change_nothing(connection: Connection, change, error) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    changes = file_changes(table, "batch-0")
    change(changes, table)
    with pytest.raises(error):
        commit(connection, table.catalog.catalog_id, base, changes)
    assert newest_snapshot(connection) == base
    assert files_at(connection, table) == []
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"data_file_id": -2}, {"data_file_id": 5}, {"table_id": 9999}, {"path": None}, {"record_count": None},
        {"record_count": -1}, {"file_size_bytes": None}, {"file_size_bytes": -1},
    ],
)  # fmt: skip
def test_a_single_file_is_checked_like_many(connection: Connection, wrong: dict[str, object]) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    changes = Changes()
    row = {
        "data_file_id": changes.new_file_id(),
        "table_id": table.table_id,
        "path": "x",
        "record_count": 1,
        "file_size_bytes": 1,
    }
    changes.add("ducklake_data_file", **{**row, **wrong})
    with pytest.raises(NotFoundError, match="1 of 1 new rows of ducklake_data_file are refused"):
        commit(connection, table.catalog.catalog_id, base, changes)
    assert newest_snapshot(connection) == base
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def test_ids_cannot_be_returned(connection: Connection) -> None:
    catalog = make_catalog(connection)
    for counter in ("catalog_ids", "file_ids"):
        with pytest.raises(psycopg.Error, match="cannot return ids"):
            connection.execute(f"SELECT * FROM lakefork.commit({catalog.catalog_id}, 1, '{{\"{counter}\": -1}}')")


def test_a_base_that_only_another_catalog_gave_up_is_as_good_as_ever(connection: Connection) -> None:
    table, other = (make_table(connection, make_catalog(connection, name)) for name in "ab")
    added = add_file(connection, table, "batch-0")
    base = add_file(connection, other, "batch-0").snapshot_id
    add_file(connection, other, "batch-1")
    connection.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id = %s", (base,))
    connection.execute("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = %s", (base,))
    connection.execute("INSERT INTO lakefork.retained_from VALUES (%s, 0, %s)", (other.catalog.catalog_id, base + 1))
    replaced = Changes()
    replaced.end("ducklake_data_file", data_file_id=added.first_file_id)
    with pytest.raises(NotFoundError, match=f"base snapshot {base} is not a retained snapshot"):
        commit(connection, other.catalog.catalog_id, base, replaced)
    commit(connection, table.catalog.catalog_id, base, replaced)
    with pytest.raises(ConflictError):
        commit(connection, table.catalog.catalog_id, base, replaced)


def test_commits_into_missing_objects_are_refused(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    with pytest.raises(NotFoundError, match="catalog 999 does not exist"):
        commit(connection, 999, base, Changes())
    with pytest.raises(NotFoundError, match="base snapshot 12345"):
        commit(connection, table.catalog.catalog_id, 12345, Changes())
    drop_catalog(connection, table.catalog)
    for changes in (file_changes(table, "late"), Changes()):
        with pytest.raises(NotFoundError):
            commit(connection, table.catalog.catalog_id, base, changes)
    assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def test_a_table_of_another_catalog_is_out_of_reach(connection: Connection) -> None:
    mine, other = (make_table(connection, make_catalog(connection, name)) for name in "ab")
    with pytest.raises(NotFoundError):
        commit(connection, mine.catalog.catalog_id, newest_snapshot(connection), file_changes(other, "x"))


def test_a_stale_transaction_is_refused_with_a_reason(dsn: str) -> None:
    with connect(dsn) as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(InvalidInputError, match="READ COMMITTED, this transaction has REPEATABLE READ"):
            commit(connection, 1, 0, Changes())


def test_a_commit_in_a_transaction_that_rolls_back_leaves_no_gap(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    base = newest_snapshot(connection)
    with connection.transaction(force_rollback=True):
        commit(connection, table.catalog.catalog_id, base, file_changes(table, "lost"))
    assert add_file(connection, table, "kept").snapshot_id == base + 1
    assert files_at(connection, table) == ["kept"]


def test_plain_psycopg_sees_the_documented_sqlstates(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for query, state in [
            ("SELECT * FROM lakefork.commit(999, 0, '{}')", "LFN01"),
            ("SELECT * FROM lakefork.create_catalog('', '/x')", "LFV01"),
        ]:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(query)
            assert caught.value.sqlstate == state
