"""Nothing that one catalog does is seen by another: rows, definitions, flush, dedup, drops."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from lakefork.catalog.catalogs import drop_catalog
from lakefork.catalog.connection import connect
from lakefork.model.params import ManifestRebuildParams
from lakefork.upkeep.dedup import run as dedup
from lakefork.upkeep.flush import publish as flush_publish
from lakefork.upkeep.manifest_rebuild.run import run_manifest_rebuild
from support.cloned_lake import Cloned, two_flushes_and_more
from support.flush_lake import Filled
from support.fork_lake import fork, no_findings, sql, upkeep
from support.sql_lake import SqlLake

CHANGES: dict[str, str] = {
    "insert": "INSERT INTO app.ours VALUES (100, 'new')",
    "update": "UPDATE app.ours SET v = 'changed' WHERE id = 2",
    "delete": "DELETE FROM app.ours WHERE id = 2",
    "add column": "ALTER TABLE app.ours ADD COLUMN n INT DEFAULT 7; INSERT INTO app.ours VALUES (101, 'n', 1)",
    "drop column": "ALTER TABLE app.ours DROP COLUMN v; INSERT INTO app.ours VALUES (102)",
    "rename column": "ALTER TABLE app.ours RENAME COLUMN v TO w; UPDATE app.ours SET w = 'w' WHERE id = 4",
    "modify column": "ALTER TABLE app.ours ADD COLUMN n SMALLINT; ALTER TABLE app.ours MODIFY COLUMN n BIGINT; "
    "INSERT INTO app.ours VALUES (103, 'm', 3000000000)",
    "drop table": "DROP TABLE app.ours",
    "drop and create": "DROP TABLE app.ours; CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO app.ours VALUES (1, 'anew')",
    "drop namespace": "DROP TABLE app.ours; DROP TABLE app.mine; DROP NAMESPACE app",
    "create namespace": "CREATE NAMESPACE other; CREATE SHARED TABLE other.t (id BIGINT PRIMARY KEY); INSERT INTO other.t VALUES (1)",
    "alter namespace": "ALTER NAMESPACE app SET OPTIONS (retention_days = 9)",
    "option": "ALTER TABLE app.ours SET (deleted_retention = 'off')",
    "new table": "CREATE SHARED TABLE app.more (id BIGINT PRIMARY KEY); INSERT INTO app.more VALUES (1)",
}


def state(lake: SqlLake) -> dict[str, Any]:
    """All that a reader of a catalog can see."""
    tables = lake.rows("SHOW TABLES")
    return {
        "namespaces": [(name, *rest) for name, _, *rest in lake.rows("SHOW NAMESPACES")],
        "tables": [row[:3] for row in tables],
        "ours": lake.rows("SELECT * FROM app.ours ORDER BY id"),
        "mine": [lake.rows("SELECT * FROM app.mine ORDER BY id", user=user) for user in ("ada", "bob")],
        "described": [row[:5] for row in lake.rows("DESCRIBE TABLE app.ours") if row[0] == "column"],
        "options": lake.find("app.ours").definition.tags,
    }


def schema_files(lake: SqlLake) -> dict[str, str]:
    root = Path(lake.catalog.data_path, "configs")
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.json")}


def test_a_change_on_one_side_is_not_seen_on_the_other(filled: Filled) -> None:
    """Fork writes do not affect the parent, and parent writes do not affect the fork.

    Every kind of change, once on the parent and once on the fork, then flush and dedup of all of them. Rows, definitions,
    options and schema files of the other side stay as they are.
    """
    lake = filled.flush_lake
    pairs = []
    for number, change in enumerate(CHANGES.values()):
        for on_parent in (True, False):
            parent = fork(lake.lake, f"parent_{number}_{on_parent}")
            child = fork(parent, f"child_{number}_{on_parent}")
            changed, other = (parent, child) if on_parent else (child, parent)
            state(other)  # a fork has files of its own once it was described
            files = schema_files(other)
            changed.run(change)
            pairs.append((change, changed, other, files))
    before = state(lake.lake)
    lake.flush()
    lake.dedup()
    for change, changed, other, files in pairs:
        assert state(other) == before, change
        assert schema_files(other) == files, change
        if not change.startswith("DROP"):
            assert state(changed) != before, change
    assert no_findings(lake.lake)


@pytest.fixture
def filled(cloned: Cloned) -> Filled:
    """Two batches of each owner, and rows that are not flushed."""
    return Filled(cloned(two_flushes_and_more))


def test_flushed_rows_are_not_copied_and_waiting_ones_are(filled: Filled) -> None:
    lake = filled.flush_lake
    expected = filled.rows()
    waiting = sql(
        lake.lake, "SELECT user_id, sum(versions) FROM (SELECT * FROM system.waiting) w GROUP BY 1 ORDER BY 1"
    )
    child = fork(lake.lake, "child")
    of_child = sql(
        lake.lake,
        "SELECT user_id, sum(versions) FROM system.waiting WHERE catalog_name = 'child' GROUP BY 1 ORDER BY 1",
    )
    assert of_child == waiting
    assert Filled(upkeep(lake, child)).rows() == expected
    lake.flush()
    again = fork(lake.lake, "again")
    assert sql(lake.lake, "SELECT * FROM system.waiting WHERE catalog_name = 'again'") == []
    assert Filled(upkeep(lake, again)).rows() == Filled(upkeep(lake, child)).rows() == filled.rows() == expected


def test_upkeep_of_a_fork_writes_to_its_own_place_only(filled: Filled) -> None:
    lake = filled.flush_lake
    child = fork(lake.lake, "child")
    kept = {path: Path(path).read_bytes() for path in lake.files_on_disk()}
    of_child = upkeep(lake, child)
    of_child.flush(catalog="child")
    result = of_child.dedup(catalog="child")
    assert result["files_replaced"] == 9
    paths = of_child.paths("app.mine") + of_child.paths("app.ours")
    assert all(path.startswith(f"{child.catalog.data_path}/app/") for path in paths)
    assert {path: Path(path).read_bytes() for path in lake.files_on_disk()} == kept
    assert Filled(of_child).rows() == Filled(of_child).in_files() == filled.rows()
    assert len(lake.paths("app.ours")) == 2, "the parent's batches are as they were"


def test_inherited_batches_are_merged_with_newer_ones(filled: Filled) -> None:
    """All of them begin with the fork; which of them may share keys is known all the same."""
    lake = filled.flush_lake
    lake.flush()
    child = upkeep(lake, fork(lake.lake, "child"))
    expected = filled.rows()
    assert child.dedup(catalog="child")["files_replaced"] == 9
    assert Filled(child).rows() == Filled(child).in_files() == expected
    assert child.dedup(catalog="child")["files_replaced"] == 0


def test_upkeep_of_everything_copies_nothing_into_forks(filled: Filled) -> None:
    lake = filled.flush_lake
    lake.flush()
    children = [upkeep(lake, fork(lake.lake, f"child{number}")) for number in range(3)]
    inherited = lake.paths("app.ours") + lake.paths("app.mine")
    expected = filled.rows()
    assert lake.dedup()["files_replaced"] == 9, "those of the parent"
    for child in children:
        assert child.paths("app.ours") + child.paths("app.mine") == inherited
        assert Filled(child).rows() == expected
    children[0].lake.run("INSERT INTO app.ours VALUES (700, 'own')")
    lake.flush()
    lake.dedup()
    assert len(children[0].paths("app.ours")) < 4, (
        "where a fork has batches of its own, they are merged with the others"
    )
    assert children[1].paths("app.ours") == [path for path in inherited if "/ours/" in path]


def test_manifests_of_a_fork_are_about_its_own_batches(filled: Filled) -> None:
    lake = filled.flush_lake
    child = fork(lake.lake, "child")
    of_child = upkeep(lake, child)
    with lake.context(job="manifest_rebuild") as context:
        result = run_manifest_rebuild(context, ManifestRebuildParams(catalog="child", check_only=True))
    assert result["directories"] == 0, "what was inherited lies elsewhere"
    child.run("INSERT INTO app.ours VALUES (500, 'own')")
    of_child.flush(catalog="child")
    with lake.context(job="manifest_rebuild") as context:
        result = run_manifest_rebuild(context, ManifestRebuildParams(check_only=True))
    manifest = of_child.manifest(f"{child.catalog.data_path}/app/ours/shared")
    assert [batch["file"] for batch in manifest["batches"]] == ["batch-0.parquet"]


def test_drops_and_forks_of_forks(filled: Filled) -> None:
    lake = filled.flush_lake
    child = fork(lake.lake, "child")
    grandchild = fork(child, "grandchild")
    expected = filled.rows()
    with connect(lake.lake.dsn) as connection:
        drop_catalog(connection, child.catalog)
    assert Filled(upkeep(lake, grandchild)).rows() == filled.rows() == expected
    lake.lake.run("DROP TABLE app.ours; DROP TABLE app.mine; DROP NAMESPACE app")
    assert Filled(upkeep(lake, grandchild)).rows() == expected
    upkeep(lake, grandchild).flush()
    assert Filled(upkeep(lake, grandchild)).in_files() == expected


@pytest.mark.parametrize("moment", ["before the publish", "after the publish"])
def test_a_fork_in_the_middle_of_a_flush(filled: Filled, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    lake = filled.flush_lake
    expected = filled.rows()
    real = flush_publish._publish
    made: list[SqlLake] = []

    def publish(*arguments: Any, **named: Any) -> Any:
        if moment.startswith("before"):
            made.append(fork(lake.lake, f"f{len(made)}"))
        result = real(*arguments, **named)
        if moment.startswith("after"):
            made.append(fork(lake.lake, f"f{len(made)}"))
        return result

    monkeypatch.setattr(flush_publish, "_publish", publish)
    lake.flush()
    monkeypatch.undo()
    assert len(made) == 2
    for child in made:
        assert Filled(upkeep(lake, child)).rows() == expected
        upkeep(lake, child).flush(catalog=child.catalog.name)
        assert Filled(upkeep(lake, child)).rows() == Filled(upkeep(lake, child)).in_files() == expected
    lake.flush()  # trims
    assert [Filled(upkeep(lake, child)).rows() for child in made] == [expected, expected]


def test_a_fork_in_the_middle_of_a_dedup(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled.flush_lake
    lake.flush()
    expected = filled.rows()
    real = dedup._commit
    made: list[SqlLake] = []

    def commit(*arguments: Any) -> int:
        made.append(fork(lake.lake, f"before{len(made)}"))
        result = real(*arguments)
        made.append(fork(lake.lake, f"after{len(made)}"))
        return result

    monkeypatch.setattr(dedup, "_commit", commit)
    lake.dedup(catalog="main")
    monkeypatch.undo()
    assert len(made) == 6
    for child in made:
        assert Filled(upkeep(lake, child)).rows() == Filled(upkeep(lake, child)).in_files() == expected


def test_a_fork_in_the_middle_of_writes_and_flushes_is_of_one_moment(filled: Filled) -> None:
    """One writer counts up, in statements of two rows: a fork has the first n statements, whole, wherever the rows are."""
    lake = filled.flush_lake
    lake.lake.run("CREATE SHARED TABLE app.counted (id BIGINT PRIMARY KEY, twin BOOLEAN)")
    stop = threading.Event()
    failures: list[BaseException] = []
    last = [0]

    def write() -> None:
        while not stop.is_set():
            number = last[0] + 1
            lake.lake.run(f"INSERT INTO app.counted VALUES ({number}, false), ({-number}, true)")
            last[0] = number

    def flush() -> None:
        while not stop.is_set():
            lake.flush(table="counted", catalog="main")

    def watched(action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                action()
            except BaseException as error:
                failures.append(error)

        return run

    threads = [threading.Thread(target=watched(action)) for action in (write, flush)]
    for thread in threads:
        thread.start()
    children = []
    try:
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline and not failures:
            acknowledged = last[0]
            children.append((acknowledged, fork(lake.lake, f"f{len(children)}")))
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert len(children) > 20
    moved = 0
    for acknowledged, child in children:
        numbers = [row[0] for row in child.rows("SELECT id FROM app.counted ORDER BY id")]
        newest = max(numbers, default=0)
        assert numbers == [*range(-newest, 0), *range(1, newest + 1)]
        assert newest >= acknowledged
        moved += bool(upkeep(lake, child).paths("app.counted"))
    assert moved > 1, "some forks were made while flushes had published"


def test_both_write_while_the_other_reads(filled: Filled) -> None:
    """Scenario 2: the fork shares the parent's hot table; rows never cross."""
    lake = filled.flush_lake
    child = fork(lake.lake, "child")
    failures: list[BaseException] = []

    def write(into: SqlLake, mark: str, first: int) -> None:
        try:
            for number in range(first, first + 40):
                into.run(
                    f"INSERT INTO app.ours VALUES ({number}, '{mark}'); UPDATE app.ours SET v = '{mark}' WHERE id = {number}"
                )
                strangers = into.rows(f"SELECT id FROM app.ours WHERE id >= 1000 AND v <> '{mark}'")
                assert strangers == []
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=arguments)
        for arguments in (
            (lake.lake, "parent", 1000),
            (child, "child", 1000),
            (lake.lake, "parent", 2000),
            (child, "child", 2000),
        )
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        lake.flush()
    for thread in threads:
        thread.join()
    assert failures == []
    for one, mark in ((lake.lake, "parent"), (child, "child")):
        assert one.rows("SELECT count(*), min(v), max(v) FROM app.ours WHERE id >= 1000") == [(80, mark, mark)]


def test_hot_tables_that_come_into_use_during_the_copy_are_copied_too(filled: Filled) -> None:
    lake = filled.flush_lake
    stop = threading.Event()
    made = [0]
    failures: list[BaseException] = []

    def create() -> None:
        try:
            while not stop.is_set():
                number = made[0]
                lake.lake.run(
                    f"CREATE SHARED TABLE app.t{number} (id BIGINT PRIMARY KEY); INSERT INTO app.t{number} VALUES (1)"
                )
                made[0] = number + 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    children = []
    try:
        for number in range(12):
            acknowledged = made[0]
            children.append((acknowledged, fork(lake.lake, f"f{number}")))
    finally:
        stop.set()
        thread.join()
    assert failures == []
    for acknowledged, child in children:
        for number in range(acknowledged):
            assert child.rows(f"SELECT id FROM app.t{number}") == [(1,)]


def test_outside_readers_see_the_same_rows(filled: Filled) -> None:
    lake = filled.flush_lake
    lake.flush()
    child = upkeep(lake, fork(lake.lake, "child"))
    read = "SELECT id, v FROM read_parquet({}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY _seq DESC) = 1 ORDER BY id"
    assert (
        duckdb.sql(read.format(child.paths("app.ours"))).fetchall()
        == duckdb.sql(read.format(lake.paths("app.ours"))).fetchall()
    )
