"""What a fork begins with, and what refuses to be forked."""

import datetime
import threading
import time
from typing import Any

import psycopg
import pytest

from lakefork.catalog.catalogs import drop_catalog, find_catalog, list_catalogs, newest_snapshot, rename_catalog
from lakefork.catalog.commits import commit
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.forks import fork_catalog
from lakefork.errors import AlreadyExistsError, ConflictError, InvalidInputError, LakeforkError, NotFoundError
from lakefork.overview.forks import list_forks, reclaimable
from support.fork_lake import COPIED, counts, fork, no_findings, sql
from support.lake import add_file, file_changes, make_catalog, make_table, rows_of
from support.sql_lake import SqlLake

TABLES = """
    CREATE NAMESPACE app;
    CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT);
    CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT, gone INT) WITH (deleted_retention = '3d');
"""


@pytest.fixture
def parent(lake: SqlLake) -> SqlLake:
    """Batches and hot rows, tables that were altered, users, and a table that was dropped."""
    lake.run(TABLES)
    lake.run("INSERT INTO system.users (user_id, role) VALUES ('ada', 'user')")
    lake.run("INSERT INTO app.mine VALUES (1, 'a'), (2, 'b')", user="ada")
    lake.run("INSERT INTO app.ours VALUES (1, 'x', 1), (2, 'y', 2)")
    lake.flush_by_hand("app.ours")
    lake.flush_by_hand("app.mine", "ada")
    lake.run("ALTER TABLE app.ours DROP COLUMN gone; UPDATE app.ours SET v = 'Y' WHERE id = 2")
    lake.run("INSERT INTO app.mine VALUES (3, 'c'); DELETE FROM app.mine WHERE id = 1", user="ada")
    lake.run("CREATE SHARED TABLE app.dead (id BIGINT PRIMARY KEY); INSERT INTO app.dead VALUES (1)")
    lake.flush_by_hand("app.dead")
    lake.run("DROP TABLE app.dead")
    return lake


def contents(lake: SqlLake) -> dict[str, Any]:
    return {
        "mine": lake.rows("SELECT id, v, _seq FROM app.mine ORDER BY id", user="ada"),
        "ours": lake.rows("SELECT * FROM app.ours ORDER BY id"),
        "deleted": lake.rows("SELECT id, _deleted, _seq FROM app.mine WHERE _deleted ORDER BY id", user="ada"),
    }


def test_a_fork_begins_with_everything_that_is_current(parent: SqlLake) -> None:
    """A fork reads its parent's files, and all else that is the parent's now."""
    expected = contents(parent)
    child = fork(parent, "child")
    assert contents(child) == expected
    assert expected["mine"][0][:2] == (2, "b")
    assert expected["deleted"][0][:2] == (1, True)
    assert {row[1] for row in child.rows("SHOW TABLES")} == {"mine", "ours"}
    assert no_findings(parent)


def test_rows_are_copied_with_the_same_ids_and_begin_with_the_fork(parent: SqlLake) -> None:
    """A fork creates all metadata correctly."""
    child = fork(parent, "child").catalog
    for table, key in COPIED.items():
        versioned = sql(
            parent,
            "SELECT 1 FROM information_schema.columns WHERE table_name = %s AND column_name = 'end_snapshot'",
            table,
        )
        current = "AND end_snapshot IS NULL" if versioned else ""
        if table in ("ducklake_file_column_stats", "ducklake_file_partition_value"):
            current = "AND (catalog_id, data_file_id) IN (SELECT catalog_id, data_file_id FROM ducklake_data_file WHERE end_snapshot IS NULL)"
        elif table in ("ducklake_schema_versions", "ducklake_inlined_data_tables"):
            current = "AND (catalog_id, table_id) IN (SELECT catalog_id, table_id FROM ducklake_table WHERE end_snapshot IS NULL)"
        select = f"SELECT {key} FROM {table} WHERE catalog_id = %s"
        of_parent = sql(parent, f"{select} {current} ORDER BY {key}", parent.catalog.catalog_id)
        assert sql(parent, f"{select} ORDER BY {key}", child.catalog_id) == of_parent, table
        if versioned:
            begun = sql(
                parent,
                f"SELECT DISTINCT begin_snapshot, end_snapshot FROM {table} WHERE catalog_id = %s",
                child.catalog_id,
            )
            assert begun in ([(child.begin_snapshot, None)], []), table


def test_what_is_not_copied(parent: SqlLake) -> None:
    with connect(parent.dsn) as connection:
        connection.execute(
            "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (%s, 999, 'x', true, now())",
            (parent.catalog.catalog_id,),
        )
    child = fork(parent, "child").catalog
    for table in ("ducklake_files_scheduled_for_deletion",):
        assert sql(parent, f"SELECT * FROM {table} WHERE catalog_id = %s", child.catalog_id) == []
    assert sql(parent, "SELECT key, value FROM ducklake_metadata WHERE scope_id = %s", child.catalog_id) == [
        ("data_path", child.data_path)
    ]
    changes = sql(
        parent,
        "SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes WHERE catalog_id = %s",
        child.catalog_id,
    )
    assert changes == [(child.begin_snapshot, f"forked_from:{parent.catalog.catalog_id}")]


def test_one_snapshot_and_the_next_id_of_the_counter(parent: SqlLake) -> None:
    """A commit makes one global snapshot, and ids come from its counters."""
    with connect(parent.dsn) as connection:
        before = newest_snapshot(connection)
        (next_id,) = sql(parent, "SELECT next_catalog_id FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1")[0]
        row = connection.execute("SELECT * FROM ducklake_fork_catalog('main', 'child', '/lake/child')").fetchone()
        assert row == {"catalog_id": next_id, "snapshot_id": before + 1}
        assert newest_snapshot(connection) == before + 1
        (after,) = sql(parent, "SELECT next_catalog_id FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1")[0]
        assert after == next_id + 1
    assert sql(parent, "SELECT parent_id, parent_snapshot FROM lakefork.fork") == [(parent.catalog.catalog_id, before)]


def test_by_call_too(parent: SqlLake) -> None:
    with connect(parent.dsn) as connection:
        connection.execute("CALL ducklake_fork_catalog('main', 'child', '/lake/child')")
        connection.execute("CALL ducklake_fork_catalog('main', 'child', '/lake/child', if_not_exists => true)")
        assert find_catalog(connection, "child").data_path == "/lake/child"


def test_paths_of_files_become_absolute_and_new_ones_are_the_forks(parent: SqlLake) -> None:
    child = fork(parent, "child")
    files = sql(
        parent,
        "SELECT r.catalog_id, r.file_id, r.path, f.path_is_relative FROM lakefork.file_reference r "
        "JOIN ducklake_data_file f ON f.catalog_id = r.catalog_id AND f.data_file_id = r.file_id "
        "WHERE r.end_snapshot IS NULL ORDER BY r.catalog_id, r.file_id",
    )
    own = {file_id: path for catalog, file_id, path, _ in files if catalog == parent.catalog.catalog_id}
    inherited = {file_id: path for catalog, file_id, path, _ in files if catalog == child.catalog.catalog_id}
    assert inherited == own
    assert {relative for catalog, *_, relative in files if catalog == child.catalog.catalog_id} == {False}
    assert child.find("app.ours").definition.path == f"{child.catalog.data_path}/app/ours"


def test_a_table_with_a_location_goes_on_below_the_forks_root(parent: SqlLake, tmp_path: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parent.run(
        f"CREATE SHARED TABLE app.far (id BIGINT PRIMARY KEY) LOCATION '{elsewhere}/far'; INSERT INTO app.far VALUES (1)"
    )
    parent.flush_by_hand("app.far")
    child = fork(parent, "child")
    assert child.rows("SELECT id FROM app.far") == [(1,)]
    assert child.find("app.far").definition.path.startswith(f"{child.catalog.data_path}/app/far_")
    assert "location" not in child.find("app.far").definition.tags
    child.run("INSERT INTO app.far VALUES (2)")
    child.flush_by_hand("app.far")
    assert child.rows("SELECT id FROM app.far ORDER BY id") == [(1,), (2,)]
    assert parent.rows("SELECT id FROM app.far") == [(1,)]
    assert no_findings(parent)


def test_totals_are_those_of_live_files(parent: SqlLake) -> None:
    child = fork(parent, "child").catalog
    query = "SELECT table_id, record_count, file_size_bytes, next_row_id FROM ducklake_table_stats WHERE catalog_id = %s ORDER BY 1"
    assert sql(parent, query, child.catalog_id) == sql(parent, query, parent.catalog.catalog_id)


def test_ids_of_dropped_columns_are_not_used_again(parent: SqlLake) -> None:
    """Inherited files have them."""
    grandchild = fork(fork(parent, "child"), "grandchild")
    for lake in (grandchild, parent):
        lake.run("ALTER TABLE app.ours ADD COLUMN fresh INT")
        assert lake.rows("SELECT id, fresh FROM app.ours ORDER BY id") == [(1, None), (2, None)]


def test_old_definitions_are_known_in_the_fork(parent: SqlLake) -> None:
    parent.run("INSERT INTO app.ours VALUES (7, 'under v2'); ALTER TABLE app.ours ADD COLUMN l INT[] DEFAULT [1, 2]")
    parent.run("INSERT INTO app.ours VALUES (8, 'under v3', [3])")
    child = fork(fork(parent, "between"), "child")
    assert contents(child) == contents(parent)
    described = [row for row in child.rows("DESCRIBE TABLE app.ours") if row[0] == "version"]
    assert described == [row for row in parent.rows("DESCRIBE TABLE app.ours") if row[0] == "version"]
    assert len(described) == 3
    child.run("ALTER TABLE app.ours ADD COLUMN m INT; INSERT INTO app.ours VALUES (9, 'v4', [], 4)")
    assert child.rows("SELECT id, l, m FROM app.ours WHERE id > 6 ORDER BY id") == [
        (7, [1, 2], None),
        (8, [3], None),
        (9, [], 4),
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("nobody", "x", "/lake/x"), NotFoundError, "catalog 'nobody' does not exist"),
        (("main", "main", "/lake/x"), AlreadyExistsError, "catalog 'main' already exists"),
        (("main", "a b", "/lake/x"), InvalidInputError, "catalog name 'a b' is invalid"),
        (("main", "x", "lake/x"), InvalidInputError, "data path 'lake/x' must be absolute"),
        (("main", "x", "/lake/../x"), InvalidInputError, "without . or .. as a part"),
        (("main", "x", "{root}/inside"), InvalidInputError, "overlaps that of catalog"),
        (("main", "x", "{above}"), InvalidInputError, "overlaps that of catalog"),
        (("main", None, "/lake/x"), InvalidInputError, "catalog name NULL"),
    ],
)
def test_errors_leave_nothing_behind(parent: SqlLake, arguments: Any, error: type[LakeforkError], message: str) -> None:
    root = parent.catalog.data_path
    given = [one and one.format(root=root, above=root.rpartition("/")[0]) for one in arguments]
    before = sql(parent, "SELECT * FROM ducklake_snapshot"), counts(parent, parent.catalog)
    with connect(parent.dsn) as connection, pytest.raises(error, match=message):
        fork_catalog(connection, *given)
    assert (sql(parent, "SELECT * FROM ducklake_snapshot"), counts(parent, parent.catalog)) == before
    for table in [*COPIED, "ducklake_catalog", "lakefork.fork"]:
        assert (
            sql(parent, f"SELECT DISTINCT catalog_id FROM {table} WHERE catalog_id <> %s", parent.catalog.catalog_id)
            == []
        )


def test_if_not_exists(parent: SqlLake) -> None:
    first = fork(parent, "child").catalog
    with connect(parent.dsn) as connection:
        before = newest_snapshot(connection)
        assert fork_catalog(connection, "main", "child", if_not_exists=True) == first
        assert newest_snapshot(connection) == before
        with pytest.raises(AlreadyExistsError, match="catalog 'child' already exists"):
            fork_catalog(connection, "main", "child")
        make_catalog(connection, "other", "/lake/other")
        with pytest.raises(AlreadyExistsError, match="catalog 'child' already exists and is not a fork of 'other'"):
            fork_catalog(connection, "other", "child", if_not_exists=True)
        with pytest.raises(AlreadyExistsError, match="'other' already exists and is not a fork of 'main'"):
            fork_catalog(connection, "main", "other", if_not_exists=True)


def test_a_fork_of_an_older_snapshot_has_what_the_files_held(parent: SqlLake) -> None:
    with connect(parent.dsn) as connection:
        then = newest_snapshot(connection)
    parent.run("INSERT INTO app.ours VALUES (10, 'later')")
    parent.flush_by_hand("app.ours")
    parent.run(
        "ALTER TABLE app.ours ADD COLUMN more INT; DROP USER TABLE app.mine; CREATE SHARED TABLE app.newer (id BIGINT PRIMARY KEY)"
    )
    at_then = parent.rows(f"SELECT * FROM app.ours AT (VERSION => {then}) ORDER BY id")
    child = fork(parent, "child", as_of=then)
    assert child.rows("SELECT * FROM app.ours ORDER BY id") == at_then
    assert [row[:2] for row in at_then] == [(1, "x"), (2, "y")], "hot rows belong to the present"
    assert child.rows("SELECT id FROM app.mine ORDER BY id", user="ada") == [(1,), (2,)]
    assert {row[1] for row in child.rows("SHOW TABLES")} == {"mine", "ours"}
    assert sql(parent, "SELECT parent_snapshot FROM lakefork.fork") == [(then,)]
    assert no_findings(parent)


def test_snapshots_that_cannot_be_forked(parent: SqlLake) -> None:
    with connect(parent.dsn) as connection:
        newest = newest_snapshot(connection)
        for snapshot, message in (
            (newest + 1, f"snapshot {newest + 1} does not exist"),
            (0, "its first one is 1"),
            (10**12, "does not exist"),
        ):
            with pytest.raises(NotFoundError, match=message):
                fork_catalog(connection, "main", "x", "/lake/x", as_of=snapshot)
        connection.execute(
            "INSERT INTO lakefork.retained_from (catalog_id, snapshot_id) VALUES (%s, %s)",
            (parent.catalog.catalog_id, newest),
        )
        with pytest.raises(
            NotFoundError,
            match=f"snapshot {newest - 1} is no longer retained: this catalog keeps those from {newest} on",
        ):
            fork_catalog(connection, "main", "x", "/lake/x", as_of=newest - 1)
        connection.execute(
            "INSERT INTO lakefork.snapshot_tag VALUES (%s, 'kept', %s)", (parent.catalog.catalog_id, newest - 1)
        )
        fork_catalog(connection, "main", "x", "/lake/x", as_of=newest - 1)


def test_time_before_a_fork_is_not_the_forks(parent: SqlLake) -> None:
    with connect(parent.dsn) as connection:
        before = newest_snapshot(connection)
    child = fork(parent, "child")
    begin = child.catalog.begin_snapshot
    with pytest.raises(
        NotFoundError, match=f"snapshot {before} of this catalog does not exist: its first one is {begin}"
    ):
        child.rows(f"SELECT * FROM app.ours AT (VERSION => {before})")
    assert len(child.rows(f"SELECT * FROM app.ours AT (VERSION => {begin})")) == 2
    child.run("INSERT INTO app.ours VALUES (5, 'child')")
    child.flush_by_hand("app.ours")
    assert len(child.rows(f"SELECT * FROM app.ours AT (VERSION => {begin})")) == 2


def test_the_whole_database_at_a_snapshot(parent: SqlLake) -> None:
    """Time travel works at the global level."""
    names: dict[int, list[str]] = {}

    def note(connection: Connection) -> None:
        names[newest_snapshot(connection)] = [catalog.name for catalog in list_catalogs(connection)]

    with connect(parent.dsn) as connection:
        note(connection)
        child = fork(parent, "child")
        note(connection)
        grandchild = fork(child, "grandchild")
        note(connection)
        drop_catalog(connection, child.catalog)
        note(connection)
        rename_catalog(connection, grandchild.catalog, "renamed")
        note(connection)
        assert list(names.values()) == [
            ["main"],
            ["child", "main"],
            ["child", "grandchild", "main"],
            ["grandchild", "main"],
            ["main", "renamed"],
        ]
        for snapshot, expected in names.items():
            assert [catalog.name for catalog in list_catalogs(connection, snapshot=snapshot)] == expected
            held = connection.execute(
                "SELECT c.catalog_name, count(f.*) AS files FROM lakefork.visible_catalog(%s) c "
                "LEFT JOIN LATERAL lakefork.visible_data_file(c.catalog_id, %s) f ON true GROUP BY 1",
                (snapshot, snapshot),
            ).fetchall()
            assert {row["catalog_name"]: row["files"] for row in held} == dict.fromkeys(expected, 2)


def test_lineage(parent: SqlLake) -> None:
    child = fork(parent, "child", expires_after=datetime.timedelta(hours=2))
    fork(child, "grandchild")
    child.run("INSERT INTO app.ours VALUES (5, 'child')")
    child.flush_by_hand("app.ours")
    with connect(parent.dsn) as connection:
        tree = list_forks(connection)
        assert [(one["depth"], one["name"], one["parent"]) for one in tree] == [
            (0, "main", None),
            (1, "child", "main"),
            (2, "grandchild", "child"),
        ]
        assert [(one["own_files"], one["shared_files"]) for one in tree] == [(2, 0), (1, 2), (0, 2)]
        assert tree[0]["own_rows"] + tree[0]["shared_rows"] == 4
        assert tree[1]["expires_at"] - tree[1]["created_at"] == datetime.timedelta(hours=2)
        assert tree[1]["forked_at_snapshot"] == child.catalog.begin_snapshot - 1
        assert [one["name"] for one in list_forks(connection, "child")] == ["child", "grandchild"]
        assert sql(
            parent, "SELECT parent_name, forked_at_snapshot IS NULL FROM system.catalogs ORDER BY catalog_id"
        ) == [(None, True), ("main", False), ("child", False)]
        held = sql(
            parent,
            "SELECT own_rows, shared_rows, own_bytes > 0, shared_bytes > 0 FROM system.catalogs ORDER BY catalog_id",
        )
        assert held == [(4, 0, True, False), (3, 4, True, True), (0, 4, False, True)]
        of_child = {row["pinned_by"]: row["files"] for row in reclaimable(connection, "child")}
        assert of_child == {None: 1, "main": 2, "grandchild": 2}
        drop_catalog(connection, find_catalog(connection, "child"))
        assert [(one["depth"], one["name"], one["parent"]) for one in list_forks(connection)] == [
            (0, "grandchild", "child"),
            (0, "main", None),
        ]


def test_a_dropped_forks_name_and_place_can_be_used_again(parent: SqlLake) -> None:
    child = fork(parent, "child")
    child.run("INSERT INTO app.ours VALUES (5, 'old')")
    child.flush_by_hand("app.ours")
    with connect(parent.dsn) as connection:
        drop_catalog(connection, child.catalog)
    again = fork(parent, "child")
    assert again.catalog.data_path == child.catalog.data_path
    assert again.catalog.catalog_id != child.catalog.catalog_id
    assert again.rows("SELECT id FROM app.ours ORDER BY id") == [(1,), (2,)]
    assert no_findings(parent)


def test_users_belong_to_the_catalog(parent: SqlLake) -> None:
    child = fork(parent, "child")
    assert child.rows("SELECT user_id FROM system.users") == [("ada",)]
    child.run("DELETE FROM system.users WHERE user_id = 'ada'")
    assert [row[0] for row in parent.rows("SELECT user_id FROM system.users WHERE deleted_at IS NULL")] == ["ada"]
    with pytest.raises(LakeforkError, match="deleted"):
        child.rows("SELECT * FROM app.mine", user="ada")
    assert len(parent.rows("SELECT * FROM app.mine", user="ada")) == 2


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_other_isolation_levels_are_refused(parent: SqlLake, isolation: str) -> None:
    with psycopg.connect(parent.dsn) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        with pytest.raises(psycopg.Error, match="needs isolation level READ COMMITTED"):
            connection.execute("SELECT * FROM ducklake_fork_catalog('main', 'x', '/lake/x')")


def test_many_files_keep_their_statistics(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    for number in range(5):
        add_file(connection, table, f"shared/batch-{number}.parquet", low=number, high=number + 1)
    fork_catalog(connection, "main", "child")
    child = find_catalog(connection, "child").catalog_id
    query = (
        "SELECT data_file_id, column_id, min_value, max_value FROM lakefork.visible_file_column_stats(%s) ORDER BY 1, 2"
    )
    of = [connection.execute(query, (one,)).fetchall() for one in (table.catalog.catalog_id, child)]
    assert of[0] == of[1]
    assert len(of[0]) == 25


def test_concurrent_requests_for_one_name_make_one_fork(parent: SqlLake) -> None:
    results: list[Any] = []

    def make() -> None:
        with connect(parent.dsn) as connection:
            try:
                results.append(fork_catalog(connection, "main", "child"))
            except ConflictError as error:
                results.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [one for one in results if not isinstance(one, Exception)]
    assert len(results) == 4
    assert len(made) == 1
    assert no_findings(parent)


def test_a_snapshot_that_expires_between_the_look_and_the_copy_is_refused(connection: Connection, dsn: str) -> None:
    table = make_table(connection, make_catalog(connection))
    then = add_file(connection, table, "shared/batch-0.parquet")
    replaced = file_changes(table, "shared/batch-1.parquet")
    replaced.end("ducklake_data_file", data_file_id=then.first_file_id)
    newest = commit(connection, table.catalog.catalog_id, then.snapshot_id, replaced).snapshot_id
    failures: list[LakeforkError] = []

    def make() -> None:
        with connect(dsn) as other:
            try:
                fork_catalog(other, "main", "child", as_of=then.snapshot_id)
            except LakeforkError as error:
                failures.append(error)

    with psycopg.connect(dsn) as gate:
        gate.execute("LOCK TABLE ducklake_macro IN ACCESS EXCLUSIVE MODE")  # the copy needs it, the look does not
        thread = threading.Thread(target=make)
        thread.start()
        while thread.is_alive() and not rows_of(connection, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            time.sleep(0.01)
        # As retention_gc does, one committed after the other.
        connection.execute(
            "INSERT INTO lakefork.retained_from (catalog_id, snapshot_id) VALUES (%s, %s)",
            (table.catalog.catalog_id, newest),
        )
        connection.execute("DELETE FROM ducklake_data_file WHERE end_snapshot <= %s", (newest,))
        gate.rollback()
        thread.join()
    assert [str(error) for error in failures] == [
        f"snapshot {then.snapshot_id} is no longer retained: this catalog keeps those from {newest} on, and tagged ones"
    ]
    assert [catalog.name for catalog in list_catalogs(connection)] == ["main"]


def test_a_place_that_a_table_has_is_refused(parent: SqlLake, tmp_path: Any) -> None:
    parent.run(
        f"CREATE SHARED TABLE app.far (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/far/away'; "
        f"CREATE USER TABLE app.users (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/people/u_${{user_id}}/x'"
    )
    with connect(parent.dsn) as connection:
        for path, table in (
            ("far/away", "far"), ("far/away/below", "far"), ("far", "far"), ("people", "users"), ("people/u_1", "users"),
        ):  # fmt: skip
            message = f"data path '{tmp_path}/{path}' overlaps the LOCATION of table app.{table} of catalog main"
            with pytest.raises(InvalidInputError, match=message):
                fork_catalog(connection, "main", "child", f"{tmp_path}/{path}")
            with pytest.raises(InvalidInputError, match=message):
                make_catalog(connection, "child", f"{tmp_path}/{path}")
        fork_catalog(connection, "main", "child", f"{tmp_path}/far/awayward")
        parent.run("DROP TABLE app.far")
        fork_catalog(connection, "main", "again", f"{tmp_path}/far/away")


def test_a_renamed_catalog_is_named_as_it_is_now(parent: SqlLake) -> None:
    child = fork(parent, "zzz_before").catalog
    with connect(parent.dsn) as connection:
        rename_catalog(connection, child, "child")
        assert [row["pinned_by"] for row in reclaimable(connection, "main")] == [None, "child"]


def test_a_dropped_catalog_is_read_at_earlier_snapshots(parent: SqlLake) -> None:
    child = fork(parent, "child")
    child.run("INSERT INTO app.ours VALUES (5, 'child')")
    child.flush_by_hand("app.ours")
    with connect(parent.dsn) as connection:
        then = newest_snapshot(connection)
        (moment,) = sql(parent, "SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = %s", then)[0]
        expected = child.rows(f"SELECT id, v FROM app.ours AT (VERSION => {then}) ORDER BY id")
        assert expected[-1] == (5, "child")
        drop_catalog(connection, child.catalog)
        again = fork(parent, "child")
        for place in (f"VERSION => {then}", f"TIMESTAMP => '{moment.isoformat()}'"):
            assert again.rows(f"SELECT id, v FROM app.ours AT ({place}) ORDER BY id") == expected
        assert again.rows("SELECT id FROM app.ours ORDER BY id") == [(1,), (2,)]
        drop_catalog(connection, again.catalog)
    assert child.rows(f"SELECT id, v FROM app.ours AT (VERSION => {then}) ORDER BY id") == expected
    for text in ("SELECT * FROM app.ours", f"SELECT * FROM app.ours AT (VERSION => {then + 1})", "SHOW TABLES"):
        with pytest.raises(NotFoundError, match="catalog 'child' does not exist"):
            child.rows(text)
    renamed = fork(parent, "old")
    with connect(parent.dsn) as connection:
        new = SqlLake(parent.engine, parent.dsn, rename_catalog(connection, renamed.catalog, "new"))
    at_birth = f"SELECT id FROM app.ours AT (VERSION => {renamed.catalog.begin_snapshot}) ORDER BY id"
    assert new.rows(at_birth) == renamed.rows(at_birth) == [(1,), (2,)], "by either name"


def test_a_failure_after_the_copy_leaves_nothing_behind(parent: SqlLake) -> None:
    with connect(parent.dsn) as connection:
        connection.execute(
            "CREATE FUNCTION pg_temp.fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$; "
            "CREATE TRIGGER fails BEFORE INSERT ON lakefork.fork FOR EACH ROW EXECUTE FUNCTION pg_temp.fail()"
        )
        tables = [*COPIED, "ducklake_catalog", "ducklake_snapshot", "ducklake_metadata", "lakefork.fork", "lakefork.app_user",
                  "lakefork.clean_snapshot", "lakefork.hot_delta"]  # fmt: skip
        tables += [f"hot.{name}" for (name,) in sql(parent, "SELECT tablename FROM pg_tables WHERE schemaname = 'hot'")]
        before = {table: sorted(map(repr, sql(parent, f"SELECT * FROM {table}"))) for table in tables}
        with pytest.raises(psycopg.Error, match="the disk is full"):
            fork_catalog(connection, "main", "child")
        assert {table: sorted(map(repr, sql(parent, f"SELECT * FROM {table}"))) for table in tables} == before


OTHER_ENTITIES = {
    "ducklake_view": "(catalog_id, view_id, begin_snapshot, schema_id, view_name, dialect, sql, column_aliases) "
    "VALUES ({catalog}, 901, {now}, {schema}, 'v', 'duckdb', 'SELECT 1', '')",
    "ducklake_macro": "(catalog_id, schema_id, macro_id, macro_name, begin_snapshot) VALUES ({catalog}, {schema}, 902, 'm', {now})",
    "ducklake_macro_impl": "(catalog_id, macro_id, impl_id, dialect, sql, type) VALUES ({catalog}, 902, 0, 'duckdb', 'a', 'scalar')",
    "ducklake_macro_parameters": "(catalog_id, macro_id, impl_id, column_id, parameter_name, parameter_type, default_value, "
    "default_value_type) VALUES ({catalog}, 902, 0, 0, 'a', 'int32', '1', 'int32')",
    "ducklake_delete_file": "(catalog_id, delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format, "
    "delete_count, file_size_bytes, footer_size) VALUES ({catalog}, 903, {table}, {now}, {file}, 'd.parquet', true, 'parquet', 1, 2, 3)",
    "ducklake_column_tag": "(catalog_id, table_id, column_id, begin_snapshot, key, value) VALUES ({catalog}, {table}, 1, {now}, 'comment', 'c')",
    "ducklake_column_mapping": "(catalog_id, mapping_id, table_id, type) VALUES ({catalog}, 904, {table}, 'map_by_name')",
    "ducklake_name_mapping": "(catalog_id, mapping_id, column_id, source_name, target_field_id, is_partition) "
    "VALUES ({catalog}, 904, 0, 'n', 1, false)",
}  # fmt: skip


def test_whatever_else_ducklake_has_is_copied_row_by_row(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection))
    file = add_file(connection, table)
    facts = {"catalog": table.catalog.catalog_id, "schema": table.schema_id, "table": table.table_id,
             "now": file.snapshot_id, "file": file.first_file_id}  # fmt: skip
    for entity, values in OTHER_ENTITIES.items():
        connection.execute(f"INSERT INTO {entity} {values.format(**facts)}")
    child = fork_catalog(connection, "main", "child")
    for entity in OTHER_ENTITIES:
        of_parent, of_child = (
            connection.execute(f"SELECT * FROM {entity} WHERE catalog_id = %s", (one.catalog_id,)).fetchall()
            for one in (table.catalog, child)
        )
        (expected,) = ({**row, "catalog_id": child.catalog_id} for row in of_parent)
        if "begin_snapshot" in expected:
            expected["begin_snapshot"] = child.begin_snapshot
        if entity == "ducklake_delete_file":
            expected |= {"path": "/lake/main/app/t/d.parquet", "path_is_relative": False}
        assert of_child == [expected], entity
