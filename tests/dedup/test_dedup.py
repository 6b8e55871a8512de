"""snapshot_dedup: fewer files, the same results, at every retained snapshot."""

import datetime
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.rows import dict_row

from lakefork.catalog.connection import connect
from lakefork.errors import StorageError
from lakefork.settings import DedupSettings, FlushSettings, Settings
from lakefork.upkeep import staging
from lakefork.upkeep.dedup import run as dedup
from support.flush_lake import Filled, FlushLake
from support.fork_lake import fork
from support.killed import run_until_killed

TABLES = ("app.mine", "app.ours")


def history(filled: Filled) -> dict[int, list[tuple[Any, ...]]]:
    """What the files said at each snapshot that is retained."""
    lake = filled.flush_lake.lake
    snapshots = [number for (number,) in filled.flush_lake.sql("SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")]
    found = {}
    for number in snapshots:
        rows: list[tuple[Any, ...]] = []
        for table in TABLES:
            exists = filled.flush_lake.sql(
                "SELECT 1 FROM lakefork.visible_table(%s, %s) WHERE table_name = %s",
                lake.catalog.catalog_id, number, table.split(".")[1],
            )  # fmt: skip
            if exists:
                rows += lake.rows(
                    f"SELECT '{table}', id, v, _seq FROM {table} AT (VERSION => {number}) ORDER BY ALL", user=None
                )
        found[number] = rows
    return found


def tombstones_and_live(paths: list[str]) -> list[tuple[int, int]]:
    return [
        duckdb.sql(f"SELECT count(*) FILTER (_deleted), count(*) FILTER (NOT _deleted) FROM '{path}'").fetchall()[0]
        for path in paths
    ]


def test_batches_become_few_with_one_version_per_key(flushed: Filled) -> None:
    lake = flushed.flush_lake
    expected, before = flushed.rows(), history(flushed)
    old = lake.paths("app.mine") + lake.paths("app.ours")
    result = lake.dedup()
    assert flushed.rows() == flushed.in_files() == expected
    assert (result["files_replaced"], result["tables"], result["users"]) == (9, 2, 2)
    for table in TABLES:
        paths = lake.paths(table)
        keys = duckdb.sql(
            f"SELECT count(*), count(DISTINCT {'_user_id || ' if table == 'app.mine' else ''}id::text) FROM read_parquet({paths!r})"
        ).fetchall()
        assert keys[0][0] == keys[0][1], "one version per key"
        assert all(deleted == 0 or live == 0 for deleted, live in tombstones_and_live(paths)), "separate files"
        for path in paths:
            ids = pq.read_table(path)["id"].to_pylist()
            assert ids == sorted(ids)
    assert result["rows_in"] - result["rows_out"] > 0
    after = history(flushed)
    assert {number: after[number] for number in before} == before, "retained snapshots read as before"
    assert set(old) <= set(lake.files_on_disk()), "they need the old files"
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    assert lake.dedup()["tables"] == 0, "nothing is left to do"
    flushed.write(3)
    expected = flushed.rows()
    lake.flush()
    assert flushed.rows() == flushed.in_files() == expected


def test_manifests_follow(flushed: Filled) -> None:
    lake = flushed.flush_lake
    lake.dedup()
    for table in TABLES:
        paths = lake.paths(table)
        named = sorted(
            f"{directory}/{batch['file']}"
            for directory in {path.rpartition("/")[0] for path in paths}
            for batch in lake.manifest(directory)["batches"]
        )
        assert named == sorted(paths)
    assert lake.sql("SELECT count(*) FROM lakefork.manifest_pending") == [(0,)]


def test_only_worthwhile_and_requested_merges_are_made(flushed: Filled) -> None:
    lake = flushed.flush_lake
    assert lake.dedup(min_batches=9, settings=with_dedup(lake, superseded_share=1.0))["tables"] == 0
    assert lake.lines == ["nothing to merge"]
    assert lake.dedup(namespace="other")["tables"] == 0
    result = lake.dedup(namespace="app", table="ours")
    assert result["files_replaced"] == 3 and len(lake.paths("app.mine")) == 6


def with_dedup(lake: FlushLake, slice_mb: int = 512, **values: Any) -> Settings:
    return lake.settings.model_copy(
        update={"dedup": DedupSettings(**values), "flush": FlushSettings(slice_mb=slice_mb)}
    )


@pytest.mark.parametrize(
    ("option", "open_transaction", "kept"),
    [("1s", False, False), ("1s", True, True), ("off", False, True), ("7d", False, True)],
)
def test_tombstones_are_removed_when_retention_allows(
    flush_lake: FlushLake, option: str, open_transaction: bool, kept: bool
) -> None:
    lake = flush_lake.lake
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT) "
        f"WITH (deleted_retention = '{option}')"
    )
    lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')")
    flush_lake.flush()
    with connect(lake.dsn) as connection:
        if open_transaction:
            connection.execute("BEGIN; SELECT 1 FROM ducklake_snapshot")
        lake.run("DELETE FROM app.t WHERE id = 1")
        flush_lake.flush()
        time.sleep(1.1)
        flush_lake.dedup()
    counts = tombstones_and_live(flush_lake.paths("app.t"))
    assert counts == ([(0, 1), (1, 0)] if kept else [(0, 1)])
    assert lake.rows("SELECT id FROM app.t") == [(2,)]


@pytest.mark.parametrize("later", [False, True])
def test_a_single_batch_of_tombstones_is_removed_when_retention_allows(flush_lake: FlushLake, later: bool) -> None:
    """An owner who deleted everything; a retention that is changed later counts from then on."""
    lake = flush_lake.lake
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT) "
        f"WITH (deleted_retention = '{'7d' if later else '1s'}')"
    )
    lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b'); DELETE FROM app.t")
    flush_lake.flush()
    assert tombstones_and_live(flush_lake.paths("app.t")) == [(2, 0)]
    time.sleep(1.1)
    if later:
        assert flush_lake.dedup()["files_replaced"] == 0
        lake.run("ALTER TABLE app.t SET (deleted_retention = '1s')")
    result = flush_lake.dedup()
    assert (result["files_replaced"], result["files_written"], flush_lake.paths("app.t")) == (1, 0, [])
    assert lake.rows("SELECT id FROM app.t") == []
    lake.run("INSERT INTO app.t VALUES (1, 'again')")
    flush_lake.flush()
    assert lake.rows("SELECT id, v FROM app.t") == flush_lake.newest_in_files("app.t") == [(1, "again")]


def test_a_tombstone_stays_while_an_older_batch_outside_needs_it(flush_lake: FlushLake) -> None:
    """Two groups, because a group may be only so large: the older one holds a row that the newer one deletes."""
    lake = flush_lake.lake
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT) WITH (deleted_retention = '1s')"
    )
    noise = "(SELECT string_agg(md5((i * 7919 + j)::text), '') FROM range(0, 100) s(j))"
    for first in (0, 200):
        lake.run(f"INSERT INTO app.t SELECT i * 2, {noise} FROM range({first}, {first + 200}) r(i)")
        flush_lake.flush()
        lake.run(f"INSERT INTO app.t SELECT 2 * i + 1, {noise} FROM range({first}, {first + 200}) r(i)")
        flush_lake.flush()
    lake.run("UPDATE app.t SET v = 'x' WHERE id IN (0, 799)")
    flush_lake.flush()
    lake.run("DELETE FROM app.t WHERE id BETWEEN 1 AND 10; UPDATE app.t SET v = 'y' WHERE id IN (0, 799)")
    flush_lake.flush()
    expected = lake.rows("SELECT id, v FROM app.t ORDER BY id")
    time.sleep(1.1)
    flush_lake.dedup(settings=with_dedup(flush_lake, group_mb=1, file_mb=1))
    assert lake.rows("SELECT id, v FROM app.t ORDER BY id") == expected
    assert flush_lake.newest_in_files("app.t") == expected


def test_large_groups_are_merged_in_parts(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (a TEXT, b BIGINT, v TEXT, PRIMARY KEY (a, b))")
    noise = "(SELECT string_agg(md5((i * 7919 + j)::text), '') FROM range(0, 30) s(j))"
    for round_number in range(3):
        lake.run("UPDATE app.t SET v = v || 'u' WHERE b % 3 = 0")
        lake.run(
            f"INSERT INTO app.t SELECT CASE WHEN i % 2 = 0 THEN 'x' ELSE 'é' END, i, {noise} "
            f"FROM range({round_number * 3000}, {round_number * 3000 + 3000}) r(i)"
        )
        flush_lake.flush()
    expected = flush_lake.newest_in_files("app.t", "a, b")
    settings = with_dedup(flush_lake, slice_mb=1, file_mb=1)
    result = flush_lake.dedup(settings=settings)
    assert result["rows_out"] == len(expected) == 9000
    assert flush_lake.newest_in_files("app.t", "a, b") == expected
    paths = flush_lake.paths("app.t")
    assert len(paths) > 3
    bounds = sorted(duckdb.sql(f"SELECT min((a, b)), max((a, b)) FROM '{path}'").fetchall()[0] for path in paths)
    assert all(tuple(low) <= tuple(high) for low, high in bounds)
    assert sum(pq.ParquetFile(path).metadata.num_rows for path in paths) == 9000


def test_old_files_are_merged_under_the_definition_of_now(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, a INT, b TEXT)")
    lake.run("INSERT INTO app.t VALUES (1, 1, 'one'), (2, 2, 'two')")
    flush_lake.flush()
    lake.run("ALTER TABLE app.t RENAME COLUMN b TO c; ALTER TABLE app.t ADD COLUMN d TEXT DEFAULT 'new'")
    lake.run("ALTER TABLE app.t MODIFY COLUMN a BIGINT; INSERT INTO app.t VALUES (3, 3000000000, 'three', 'given')")
    flush_lake.flush()
    lake.run(
        "ALTER TABLE app.t DROP COLUMN d; ALTER TABLE app.t ADD COLUMN d INT DEFAULT 7; UPDATE app.t SET c = 'zwei' WHERE id = 2"
    )
    flush_lake.flush()
    expected = lake.rows("SELECT id, a, c, d FROM app.t ORDER BY id")
    flush_lake.dedup()
    assert lake.rows("SELECT id, a, c, d FROM app.t ORDER BY id") == expected == [
        (1, 1, "one", 7), (2, 2, "zwei", 7), (3, 3000000000, "three", 7),
    ]  # fmt: skip
    (path,) = flush_lake.paths("app.t")
    assert pq.read_schema(path).names == ["id", "a", "c", "d", "_seq", "_deleted"]


def before_the_first_commit(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    real = dedup._commit
    happened = []

    def commit(*arguments: Any) -> int:
        if not happened:
            happened.append(happens())
        return real(*arguments)

    monkeypatch.setattr(dedup, "_commit", commit)


def test_a_flush_may_publish_meanwhile(flushed: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = flushed.flush_lake

    def publish_more() -> None:
        flushed.write(3)
        lake.flush()

    before_the_first_commit(monkeypatch, publish_more)
    assert lake.dedup()["files_replaced"] == 9
    assert flushed.rows() == flushed.in_files()
    assert len(lake.paths("app.ours")) == 2, "concurrently flushed rows are not part of it"
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def test_concurrently_changed_groups_are_left_alone(flushed: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = flushed.flush_lake
    expected = flushed.rows()
    real = dedup._commit
    done = []

    def commit(context: Any, plan: Any, merge: Any, *rest: Any) -> int:
        if not done and merge.definition.name == "ours":
            done.append(1)
            file_id = merge.group.batches[0].file_id
            lake.sql("UPDATE ducklake_data_file SET begin_snapshot = (SELECT max(snapshot_id) + 1 FROM ducklake_snapshot) WHERE data_file_id = %s RETURNING 1", file_id)  # fmt: skip
            try:
                return real(context, plan, merge, *rest)
            finally:
                lake.sql(
                    "UPDATE ducklake_data_file SET begin_snapshot = 3 WHERE data_file_id = %s RETURNING 1", file_id
                )
        return real(context, plan, merge, *rest)

    monkeypatch.setattr(dedup, "_commit", commit)
    result = lake.dedup()
    assert result["files_replaced"] == 6
    assert any("app.ours: 3 batches are left as they are" in line for line in lake.lines), lake.lines
    assert flushed.rows() == expected
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    known = {path for (path,) in lake.sql("SELECT path FROM lakefork.file_reference")}
    assert set(lake.files_on_disk()) == known, "what was merged in vain is removed"


def test_a_dropped_table_is_left_alone(flushed: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = flushed.flush_lake
    before_the_first_commit(monkeypatch, lambda: lake.lake.run("DROP USER TABLE app.mine; DROP SHARED TABLE app.ours"))
    assert lake.dedup()["files_replaced"] == 0
    known = {path for (path,) in lake.sql("SELECT path FROM lakefork.file_reference")}
    assert set(lake.files_on_disk()) == known


def test_another_run_on_the_table_is_not_disturbed(flushed: Filled) -> None:
    lake = flushed.flush_lake
    with lake.context(job="snapshot_dedup") as other:
        (table_id,) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = 'ours'")[0]
        other.leases.take(other.connection, f"dedup/{lake.lake.catalog.catalog_id}/{table_id}")
        assert lake.dedup()["files_replaced"] == 6
        assert any("app.ours is being deduplicated by another run" in line for line in lake.lines)


def test_a_table_that_was_named_is_waited_for_and_never_left_silently(flushed: Filled) -> None:
    lake = flushed.flush_lake
    with lake.context(job="snapshot_dedup") as other:
        (table_id,) = lake.sql("SELECT table_id FROM ducklake_table WHERE table_name = 'ours'")[0]
        other.leases.seconds = 2
        other.leases.take(other.connection, f"dedup/{lake.lake.catalog.catalog_id}/{table_id}")
        result = lake.dedup(table="ours")
        assert (result["tables"], result["files_replaced"] > 0) == (1, True)
        assert any("app.ours is being worked on by snapshot_dedup/" in line for line in lake.lines)


def test_a_broken_storage_is_one_clear_error(flushed: Filled) -> None:
    lake = flushed.flush_lake
    expected = flushed.rows()
    victim = Path(lake.paths("app.ours")[1])
    content = victim.read_bytes()
    victim.write_bytes(content[:100])
    with pytest.raises(StorageError, match=r"app\.ours was not merged: .*batch-1\.parquet"):
        lake.dedup()
    victim.write_bytes(content)
    assert len(lake.paths("app.mine")) < 6, "the other table was merged"
    assert flushed.rows() == expected
    lake.dedup()
    assert flushed.rows() == flushed.in_files() == expected


def test_a_broken_batch_of_a_large_group_is_named_too(flushed: Filled) -> None:
    lake = flushed.flush_lake
    settings = with_dedup(lake, slice_mb=1, file_mb=1)
    lake.sql("UPDATE ducklake_data_file SET file_size_bytes = 10000000 RETURNING 1")  # so that keys are sampled
    victim = Path(lake.paths("app.ours")[1])
    old = set(lake.paths("app.mine"))
    victim.write_bytes(victim.read_bytes()[:100])
    with pytest.raises(StorageError, match=r"app\.ours was not merged: .*batch-1\.parquet"):
        lake.dedup(settings=settings)
    assert old.isdisjoint(lake.paths("app.mine")), "the other table was merged"


@pytest.mark.parametrize("happened", [True, False], ids=["it happened", "it did not"])
def test_a_connection_that_breaks_at_commit(flushed: Filled, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    lake = flushed.flush_lake
    expected = flushed.rows()
    real = dedup._commit
    broken = []

    def commit(context: Any, *arguments: Any) -> int:
        if broken:
            return real(context, *arguments)
        if happened:
            real(context, *arguments)
        broken.append(1)
        context.connection.close()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(dedup, "_commit", commit)
    assert lake.dedup()["files_replaced"] == 9
    assert any("retrying after" in line for line in lake.lines)
    assert flushed.rows() == flushed.in_files() == expected
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def test_transactions_that_cannot_be_seen_may_be_old(flush_lake: FlushLake, dsn: str) -> None:
    role = f"blind_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'blind'")
    try:
        with flush_lake.context(job="snapshot_dedup") as context:
            recently = dedup._oldest_transaction(context)
            assert recently > datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
            seeing = context.connection
            with psycopg.connect(dsn, user=role, password="blind", row_factory=dict_row) as blind:
                context.connection = blind
                assert dedup._oldest_transaction(context).year == 1970
                context.connection = seeing
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f"DROP ROLE {role}")


def test_batches_with_fewer_rows_than_recorded_are_left_alone(flushed: Filled) -> None:
    lake = flushed.flush_lake
    path = lake.paths("app.ours")[0]
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    with pytest.raises(StorageError, match="the catalog says"):
        lake.dedup(table="ours")
    assert len(lake.paths("app.ours")) == 3


class Crash(BaseException):
    pass


@pytest.mark.parametrize("same_run", [True, False], ids=["the same run again", "another run"])
@pytest.mark.parametrize(
    ("owner", "name", "call", "late"),
    [
        (dedup, "_parts", 1, False), (dedup, "_publish", 1, False), (dedup, "_commit", 1, True),
        (dedup, "_commit", 2, True), (dedup, "remove_unpublished", 1, False),
        (dedup, "write_pending", 1, False), (dedup, "write_pending", 1, True),
        (staging, "forget_staged", 1, False),
    ],
)  # fmt: skip
def test_a_crash_at_any_step_is_repaired(
    flushed: Filled, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, late: bool, same_run: bool
) -> None:
    lake = flushed.flush_lake
    expected, before = flushed.rows(), history(flushed)
    real = getattr(owner, name)
    calls = []

    def dying(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) != call:
            return real(*arguments, **named)
        if late:
            real(*arguments, **named)
        raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dying)
        if name == "forget_staged":  # is called only where something was left behind
            patched.setattr(dedup, "_publish", lambda *_: None)
        with pytest.raises(Crash):
            lake.dedup(run_id="one")
    assert flushed.rows() == expected
    lake.dedup(run_id="one" if same_run else "two")
    lake.flush()  # writes manifests that are missing
    assert flushed.rows() == flushed.in_files() == expected
    after = history(flushed)
    assert {number: after[number] for number in before} == before
    assert len(lake.paths("app.ours")) == 1 and len(lake.paths("app.mine")) == 4
    known = {path for (path,) in lake.sql("SELECT path FROM lakefork.file_reference")}
    assert set(lake.files_on_disk()) == known
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    assert lake.sql("SELECT count(*) FROM lakefork.manifest_pending") == [(0,)]


def test_files_of_a_dead_run_are_removed_even_if_their_table_is_gone(
    flushed: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = flushed.flush_lake
    published = set(lake.files_on_disk())
    with monkeypatch.context() as patched:
        patched.setattr(dedup, "_commit", lambda *_: (_ for _ in ()).throw(Crash("_commit")))
        with pytest.raises(Crash):
            lake.dedup(run_id="dead")
    assert set(lake.files_on_disk()) > published
    lake.lake.run("DROP TABLE app.mine; DROP TABLE app.ours")
    assert lake.dedup(run_id="next")["tables"] == 0
    assert any("that snapshot_dedup/dead/" in line and "discarded" in line for line in lake.lines)
    assert set(lake.files_on_disk()) == published
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def test_a_process_that_is_killed_for_real(flushed: Filled) -> None:
    """kill −9 after its first commit; its leases run out, as they do."""
    lake = flushed.flush_lake
    expected, before = flushed.rows(), history(flushed)
    run_until_killed("snapshot_dedup", "dedup.run._commit", lake.lake.dsn, min_batches=2)
    assert flushed.rows() == expected
    assert lake.dedup(run_id="too early")["tables"] == 0, "the dead run's leases are still held"
    with connect(lake.lake.dsn) as connection:
        connection.execute("UPDATE lakefork.lease SET expires_at = '-infinity'")
    lake.dedup(run_id="next")
    lake.flush()
    assert flushed.rows() == flushed.in_files() == expected
    after = history(flushed)
    assert {number: after[number] for number in before} == before
    assert len(lake.paths("app.ours")) == 1 and len(lake.paths("app.mine")) == 4
    assert set(lake.files_on_disk()) == {path for (path,) in lake.sql("SELECT path FROM lakefork.file_reference")}
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def values_in_live_files(lake: FlushLake, catalog_id: int, table: str) -> set[str]:
    """What the files of now say, deleted rows included."""
    paths = lake.sql(
        "SELECT lakefork.join_path(lakefork.join_path(lakefork.join_path(lakefork.data_path(f.catalog_id), s.path, s.path_is_relative), "
        "t.path, t.path_is_relative), f.path, f.path_is_relative) FROM lakefork.visible_data_file(%s) f "
        "JOIN lakefork.visible_table(f.catalog_id) t USING (table_id) JOIN lakefork.visible_schema(f.catalog_id) s USING (schema_id) "
        "WHERE t.table_name = %s",
        catalog_id, table,
    )  # fmt: skip
    return {value for (path,) in paths for (value,) in duckdb.sql(f"SELECT v FROM '{path}'").fetchall()}


@pytest.mark.parametrize("kind", ["USER", "SHARED"])
def test_a_deleted_value_leaves_every_live_file_after_its_retention(flush_lake: FlushLake, kind: str) -> None:
    """The batch of its tombstone holds a live row, too, and there are too few batches to be worth merging."""
    lake = flush_lake.lake
    lake.run(
        f"CREATE NAMESPACE app; CREATE {kind} TABLE app.t (id BIGINT PRIMARY KEY, v TEXT) WITH (deleted_retention = '1s')"
    )
    user = "ada" if kind == "USER" else None
    lake.run("INSERT INTO app.t VALUES " + ", ".join(f"({n}, 'v{n}')" for n in range(100)), user=user)
    flush_lake.flush(force=True)
    lake.run("DELETE FROM app.t WHERE id = 50; INSERT INTO app.t VALUES (100, 'v100')", user=user)
    flush_lake.flush(force=True)
    forked = fork(lake, "copy")
    catalogs = (lake.catalog.catalog_id, forked.catalog.catalog_id)
    assert all("v50" in values_in_live_files(flush_lake, catalog, "t") for catalog in catalogs)
    time.sleep(1.5)
    flush_lake.dedup()
    expected = {f"v{n}" for n in range(101)} - {"v50"}
    for catalog in catalogs:
        assert values_in_live_files(flush_lake, catalog, "t") == expected
        assert [one.rows("SELECT count(*) FROM app.t", user=user) for one in (lake, forked)] == [[(100,)]] * 2
    assert flush_lake.dedup()["files_written"] == 0, "nothing is written again"
