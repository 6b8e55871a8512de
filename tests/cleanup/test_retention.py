"""retention_gc removes exactly what the policies give up, and other catalogs lose nothing."""

import contextlib
import datetime
import random
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefork.catalog import retention
from lakefork.catalog.catalogs import Catalog, drop_catalog, find_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.retention import set_retention, tag_snapshot, untag_snapshot
from lakefork.errors import AlreadyExistsError, InvalidInputError, LeaseLostError, NotFoundError
from lakefork.model.durations import seconds_of
from lakefork.settings import RetentionSettings, Settings
from lakefork.upkeep.retention import run as retention_gc
from lakefork.upkeep.retention.plan import RetentionFacts
from support.cleanup_lake import age_schedule, cleanup, execute, gc, gc_and_clean, on_disk, referenced, scheduled
from support.cloned_lake import Cloned, three_flushes_and_a_dedup
from support.flush_lake import Filled, FlushLake
from support.fork_lake import fork, no_findings, upkeep
from support.sql_lake import SqlLake


@pytest.fixture
def filled(cloned: Cloned) -> Filled:
    """Three flushes and a dedup: files that only old snapshots need."""
    return Filled(cloned(three_flushes_and_a_dedup))


def newest(lake: FlushLake) -> int:
    return int(lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0])


def at(lake: SqlLake, snapshot: int) -> list[tuple[Any, ...]]:
    return lake.rows(f"SELECT * FROM app.ours AT (VERSION => {snapshot}) ORDER BY id")


def history_of(lake: FlushLake) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """What can be read of each table at each snapshot."""
    found = {}
    for number in range(newest(lake) + 1):
        for table in ("app.mine", "app.ours"):
            with contextlib.suppress(NotFoundError):
                found[table, number] = lake.lake.rows(f"SELECT * FROM {table} AT (VERSION => {number}) ORDER BY ALL")
    return found


def check_that_what_can_be_read_is_exact(
    lake: FlushLake, before: dict[tuple[str, int], list[tuple[Any, ...]]], *refused: tuple[str, int]
) -> None:
    after = history_of(lake)
    assert {place: rows for place, rows in after.items() if place in before and rows != before[place]} == {}
    assert not set(refused) & set(after)
    assert {("app.ours", newest(lake)), ("app.mine", newest(lake))} <= set(after)


def root_of(lake: FlushLake) -> Path:
    return Path(lake.lake.catalog.data_path).parent


def test_old_snapshots_expire_with_what_only_they_needed(filled: Filled) -> None:
    lake = filled.flush_lake
    expected, before = filled.rows(), newest(lake)
    files = on_disk(root_of(lake))
    plan = gc(lake, retain_snapshots=1, dry_run=True)
    assert "main: keeps snapshots from" in plan["plan"]
    assert "app.ours: 3 file(s)" in plan["plan"]
    assert newest(lake) == before
    assert on_disk(root_of(lake)) == files
    assert scheduled(lake) == set()
    result = gc(lake, retain_snapshots=1)
    assert {name: result[name] for name in plan if name not in ("plan_id", "plan")} == {
        name: plan[name] for name in plan if name not in ("plan_id", "plan")
    }
    assert result["files_scheduled"] == 9
    assert on_disk(root_of(lake)) == files, "only cleanup removes files"
    assert scheduled(lake) == files - referenced(lake)
    assert filled.rows() == filled.in_files() == expected
    assert no_findings(lake.lake)
    age_schedule(lake)
    cleaned = cleanup(lake)
    assert (cleaned["files_deleted"], cleaned["files_still_needed"]) == (9, 0)
    assert on_disk(root_of(lake)) == referenced(lake)
    assert filled.rows() == filled.in_files() == expected
    assert gc(lake, retain_snapshots=1)["files_released"] == 0


def test_delete_files_expire_the_same_way(filled: Filled) -> None:
    """Lakefork writes none; other writers of this catalog format do."""
    lake = filled.flush_lake
    execute(
        lake,
        "INSERT INTO ducklake_delete_file (catalog_id, delete_file_id, table_id, begin_snapshot, end_snapshot, data_file_id, path, "
        "path_is_relative, format, delete_count, file_size_bytes, footer_size) "
        "SELECT f.catalog_id, 900000 + n, f.table_id, f.begin_snapshot, CASE n WHEN 1 THEN f.begin_snapshot + 1 END, f.data_file_id, "
        "'shared/delete-' || n || '.parquet', true, 'parquet', 1, 10, 1 "
        "FROM (SELECT * FROM ducklake_data_file WHERE end_snapshot IS NULL LIMIT 1) f, generate_series(1, 2) n",
    )
    gc(lake, retain_snapshots=1)
    assert {path.rpartition("/")[2] for path in scheduled(lake) if "delete-" in path} == {"delete-1.parquet"}
    (reason,) = lake.sql("SELECT reason, file_size_bytes FROM lakefork.scheduled_file WHERE data_file_id = 900001")
    assert reason == ("its last snapshot expired", 10)
    child = fork(lake.lake, "child")
    with connect(lake.lake.dsn) as connection:
        drop_catalog(connection, lake.lake.catalog)
    gc(lake, retain_snapshots=1)
    assert len([path for path in scheduled(lake) if "delete-" in path]) == 1, "the fork has the other one"
    with connect(lake.lake.dsn) as connection:
        drop_catalog(connection, child.catalog)
    gc(lake, retain_snapshots=1)
    assert {path.rpartition("/")[2] for path in scheduled(lake) if "delete-" in path} == {
        "delete-1.parquet",
        "delete-2.parquet",
    }


def test_below_the_floor_nothing_is_read(filled: Filled) -> None:
    lake = filled.flush_lake
    last = newest(lake)
    gc(lake, retain_snapshots=2)
    assert len(at(lake.lake, last)) > 0
    kept = lake.sql("SELECT snapshot_id FROM lakefork.retained_from")[0][0]
    assert at(lake.lake, kept) != []
    with pytest.raises(
        NotFoundError, match=f"snapshot {kept - 1} is no longer retained: this catalog keeps those from {kept} on"
    ):
        at(lake.lake, kept - 1)


def test_by_number_by_time_and_both(filled: Filled) -> None:
    lake = filled.flush_lake
    commits = [
        row[0] for row in lake.sql("SELECT snapshot_id FROM ducklake_snapshot_changes WHERE catalog_id > 0 ORDER BY 1")
    ]
    execute(
        lake,
        "UPDATE ducklake_snapshot SET snapshot_time = snapshot_time - interval '10 days' WHERE snapshot_id < %s",
        commits[-2],
    )
    assert gc(lake, retain_for="7d", dry_run=True)["catalogs"] == 1

    def floor(**params: Any) -> int:
        plan = gc(lake, dry_run=True, **params)
        return int(
            lake.sql("SELECT coalesce(max(floor), 0) FROM lakefork.gc_item WHERE plan_id = %s", plan["plan_id"])[0][0]
        )

    assert floor(retain_for="7d") == commits[-2]
    assert floor(retain_for="30d") == 0 or floor(retain_for="30d") == commits[0]
    assert floor(retain_snapshots=4) == commits[-4]
    assert floor(retain_snapshots=4, retain_for="7d") == commits[-4], "what either keeps is kept"
    assert floor(retain_snapshots=1, retain_for="7d") == commits[-2]


def test_policies_of_settings_catalogs_and_tables(filled: Filled) -> None:
    lake = filled.flush_lake
    settings = lake.settings.model_copy(update={"retention": RetentionSettings(retain_for="7d", retain_snapshots=0)})
    assert gc(lake, settings=settings, dry_run=True)["catalogs"] == 0, "nothing is a week old"
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", 1, None)
    assert gc(lake, settings=settings, dry_run=True)["files_scheduled"] == 9
    last = newest(lake)
    lake.lake.run("ALTER TABLE app.ours SET (retain_for = '5 days')")
    plan = gc(lake, settings=settings, dry_run=True)
    assert plan["files_scheduled"] == 6, "the table keeps more than its catalog"
    gc(lake, settings=settings)
    assert len(at(lake.lake, last - 1)) > 0
    with pytest.raises(NotFoundError, match=r"snapshot \d+ is no longer retained: table app.mine keeps those from"):
        lake.lake.rows(f"SELECT * FROM app.mine AT (VERSION => {last - 1})", user="ada")
    with pytest.raises(NotFoundError, match="no longer retained"):
        fork(lake.lake, "x", as_of=last - 1)
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", None, None)
    assert no_findings(lake.lake)


def test_retention_days_of_a_namespace_hold_for_its_tables(filled: Filled) -> None:
    lake = filled.flush_lake
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", 1, None)
    lake.lake.run("CREATE NAMESPACE other; ALTER NAMESPACE other SET OPTIONS (retention_days = 5)")
    assert gc(lake, dry_run=True)["files_scheduled"] == 9
    lake.lake.run("ALTER NAMESPACE app SET OPTIONS (retention_days = 5)")
    assert gc(lake, dry_run=True)["files_scheduled"] == 0
    lake.lake.run("ALTER TABLE app.ours SET (retain_snapshots = 1)")
    assert gc(lake, dry_run=True)["files_scheduled"] == 3, "what a table says itself counts"
    last = newest(lake)
    gc(lake)
    assert lake.lake.rows(f"SELECT * FROM app.mine AT (VERSION => {last - 1})", user="ada")
    with pytest.raises(NotFoundError, match="no longer retained"):
        at(lake.lake, last - 2)


def keeps(lake: FlushLake, time: str) -> Settings:
    return lake.settings.model_copy(update={"retention": RetentionSettings(retain_for=time, retain_snapshots=0)})


def test_a_table_that_kept_more_gives_up_what_a_run_takes_from_its_catalog(filled: Filled) -> None:
    """Its own floor is below that of the catalog; a run whose parameters overrule all policies takes its files, too."""
    lake = filled.flush_lake
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", 1, None)
    lake.lake.run("ALTER TABLE app.ours SET (retain_for = '90d')")
    before, last = history_of(lake), newest(lake)
    gc(lake, settings=keeps(lake, "7d"))
    assert at(lake.lake, last - 3) == before["app.ours", last - 3] != []
    lake.lake.run("CREATE NAMESPACE later")
    gc_and_clean(lake)
    check_that_what_can_be_read_is_exact(lake, before, ("app.ours", last - 3))


def test_a_table_that_keeps_more_begins_with_what_is_left(filled: Filled) -> None:
    """The catalog gave up its files before the table had a policy of its own."""
    lake = filled.flush_lake
    before, last = history_of(lake), newest(lake)
    gc_and_clean(lake)
    lake.lake.run("ALTER TABLE app.ours SET (retain_for = '90d')")
    lake.lake.run("CREATE NAMESPACE later")
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", 1, None)
    gc(lake, settings=keeps(lake, "7d"))
    check_that_what_can_be_read_is_exact(lake, before, ("app.ours", last - 3))


def test_an_older_plan_does_not_bring_a_floor_down(filled: Filled) -> None:
    lake = filled.flush_lake
    lake.lake.run("ALTER TABLE app.ours SET (retain_for = '90d')")
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", 1, None)
    before, last = history_of(lake), newest(lake)
    plan = gc(lake, settings=keeps(lake, "7d"), dry_run=True)
    gc_and_clean(lake)
    with lake.context(job="retention_gc") as context:
        context.leases.take(context.connection, "retention_gc")
        context.connection.execute("SELECT lakefork.raise_floors(%s, %s)", (plan["plan_id"], context.run.job_id))
    check_that_what_can_be_read_is_exact(lake, before, ("app.ours", last - 3))


@pytest.mark.parametrize("seed", range(1))
def test_reads_are_exact_after_any_changes_of_policies(filled: Filled, seed: int) -> None:
    lake, dice = filled.flush_lake, random.Random(seed)  # noqa: S311 - it must repeat
    before = history_of(lake)
    for number in range(6):
        table = dice.choice(["mine", "ours"])
        option = dice.choice([f"retain_for = '{90 + number}d'", f"retain_snapshots = {number + 1}"])
        lake.lake.run(f"ALTER TABLE app.{table} SET ({option})")
        lake.lake.run(f"CREATE NAMESPACE n{number}")
        before |= {place: rows for place, rows in history_of(lake).items() if place not in before}
        with connect(lake.lake.dsn) as connection:
            set_retention(connection, "main", dice.choice([None, 1, 2]), None)
        gc_and_clean(lake, retain_snapshots=dice.choice([None, None, 1, 3]))
        check_that_what_can_be_read_is_exact(lake, before)
    assert no_findings(lake.lake)


def test_only_a_snapshot_that_is_complete_can_be_tagged(filled: Filled) -> None:
    """A table may keep less than its catalog, and the catalog less than a table."""
    lake = filled.flush_lake
    last = newest(lake)
    lake.lake.run("ALTER TABLE app.ours SET (retain_snapshots = 1)")
    lake.lake.run("CREATE NAMESPACE later")
    with connect(lake.lake.dsn) as connection:
        set_retention(connection, "main", 3, None)
        gc(lake, settings=keeps(lake, "7d"))
        with pytest.raises(NotFoundError, match=rf"snapshot {last} is no longer retained: table app.ours keeps"):
            tag_snapshot(connection, "main", last, "half")
        tag_snapshot(connection, "main", last + 2, "whole")
        lake.lake.run("ALTER TABLE app.mine SET (retain_for = '90d')")
        set_retention(connection, "main", 1, None)
        gc(lake, settings=keeps(lake, "7d"))
        with pytest.raises(NotFoundError, match=r"no longer retained: this catalog keeps"):
            tag_snapshot(connection, "main", last + 1, "half")


def test_tagged_snapshots_are_kept(filled: Filled) -> None:
    lake = filled.flush_lake
    lake.lake.run("ALTER TABLE app.ours ADD COLUMN n INT")
    commits = [
        row[0] for row in lake.sql("SELECT snapshot_id FROM ducklake_snapshot_changes WHERE catalog_id > 0 ORDER BY 1")
    ]
    tagged = commits[-5]
    expected = at(lake.lake, tagged)
    assert expected
    with connect(lake.lake.dsn) as connection:
        tag_snapshot(connection, "main", tagged, "release")
        with pytest.raises(AlreadyExistsError, match="catalog 'main' already has a tag 'release'"):
            tag_snapshot(connection, "main", tagged, "release")
        with pytest.raises(InvalidInputError, match="tag name"):
            tag_snapshot(connection, "main", tagged, "a b")
        with pytest.raises(NotFoundError):
            tag_snapshot(connection, "main", 10**6, "future")
    gc_and_clean(lake)
    assert at(lake.lake, tagged) == expected
    with pytest.raises(NotFoundError, match="no longer retained"):
        at(lake.lake, tagged - 1)
    assert fork(lake.lake, "of_tag", as_of=tagged).rows("SELECT * FROM app.ours ORDER BY id") == expected
    with connect(lake.lake.dsn) as connection:
        untag_snapshot(connection, "main", "release")
        with pytest.raises(NotFoundError, match="has no tag 'release'"):
            untag_snapshot(connection, "main", "release")
        drop = SqlLake(lake.lake.engine, lake.lake.dsn, fork(lake.lake, "tmp").catalog)
        drop_catalog(connection, drop.catalog)
    lake.lake.run("INSERT INTO app.ours (id) VALUES (900)")
    lake.flush()
    gc_and_clean(lake)
    assert no_findings(lake.lake)


def test_what_only_a_tag_kept_expires_with_it(filled: Filled) -> None:
    """Also without further commits."""
    lake = filled.flush_lake
    expected = filled.rows()
    with connect(lake.lake.dsn) as connection:
        tag_snapshot(connection, "main", newest(lake) - 4, "release")
    gc_and_clean(lake)
    pinned = on_disk(root_of(lake))
    assert gc(lake, retain_snapshots=1)["catalogs"] == 0, "all is done"
    with connect(lake.lake.dsn) as connection:
        untag_snapshot(connection, "main", "release")
    gc_and_clean(lake)
    assert on_disk(root_of(lake)) == referenced(lake) < pinned
    assert gc(lake, retain_snapshots=1)["catalogs"] == 0
    assert filled.rows() == filled.in_files() == expected


def test_the_parent_cleans_up_and_the_fork_reads_on(filled: Filled) -> None:
    """Scenarios 1 and 3: a parent expires and cleans up while a fork needs the files, also ended ones that it retains.

    DuckDB alone reads the same from the fork's files.
    """
    lake = filled.flush_lake
    with connect(lake.lake.dsn) as connection:
        tag_snapshot(connection, "main", newest(lake) - 4, "early")
    early = newest(lake) - 4
    child = fork(lake.lake, "child", as_of=early)
    of_child = upkeep(lake, child)
    expected, birth = at(child, child.catalog.begin_snapshot), child.catalog.begin_snapshot
    of_child.dedup(catalog="child")
    with connect(lake.lake.dsn) as connection:
        untag_snapshot(connection, "main", "early")
    before = {path: Path(path).read_bytes() for path in on_disk(root_of(lake))}
    gc_and_clean(lake, catalog="main")
    assert at(child, birth) == expected, "the fork's ended files are retained"
    for path in {
        path
        for (path,) in lake.sql(
            "SELECT path FROM lakefork.file_reference WHERE catalog_id = %s", child.catalog.catalog_id
        )
    }:
        assert Path(path).read_bytes() == before[path]
    lake.lake.run("DROP TABLE app.ours; DROP TABLE app.mine")
    gc_and_clean(lake, catalog="main")
    assert at(child, birth) == child.rows("SELECT * FROM app.ours ORDER BY id") == expected
    assert Filled(of_child).rows() == Filled(of_child).in_files()
    gc_and_clean(lake)
    assert child.rows("SELECT * FROM app.ours ORDER BY id") == expected
    assert on_disk(root_of(lake)) == referenced(lake)
    assert no_findings(lake.lake)


def test_dropped_catalogs_expire(filled: Filled) -> None:
    lake = filled.flush_lake
    child = fork(lake.lake, "child")
    child.run("INSERT INTO app.ours VALUES (77, 'own')")
    upkeep(lake, child).flush(catalog="child")
    child.run("INSERT INTO app.ours VALUES (78, 'hot')")
    own = on_disk(Path(child.catalog.data_path))
    assert own
    with connect(lake.lake.dsn) as connection:
        drop_catalog(connection, child.catalog)
    gc(lake, retain_for="7d")
    assert lake.sql("SELECT count(*) FROM ducklake_catalog WHERE catalog_id = %s", child.catalog.catalog_id) == [(1,)]
    execute(lake, "UPDATE ducklake_snapshot SET snapshot_time = snapshot_time - interval '8 days'")
    result = gc(lake, retain_for="7d", catalog="child")
    assert result["hot_rows_removed"] > 0
    assert scheduled(lake) == own, "what it shared is the parent's"
    for table in ("ducklake_catalog", "ducklake_schema", "ducklake_table", "ducklake_column", "ducklake_data_file", "ducklake_file_column_stats",
                  "ducklake_tag", "ducklake_schema_versions", "lakefork.fork", "lakefork.hot_count", "lakefork.watermark", "ducklake_inlined_data_tables"):  # fmt: skip
        assert lake.sql(f"SELECT count(*) FROM {table} WHERE catalog_id = %s", child.catalog.catalog_id) == [(0,)], (
            table
        )
    age_schedule(lake)
    cleanup(lake)
    assert on_disk(Path(child.catalog.data_path)) == set()
    time.sleep(1.1)
    cleanup(lake, orphans=True, older_than="1s")
    assert not [path for path in Path(child.catalog.data_path).rglob("*") if path.is_file()], (
        "manifests and schemas go, too"
    )
    assert lake.sql("SELECT count(*) FROM ducklake_metadata WHERE scope_id = %s", child.catalog.catalog_id) == [(0,)]
    assert filled.rows() == filled.in_files()
    assert no_findings(lake.lake)
    again = fork(lake.lake, "child")
    assert again.rows("SELECT id FROM app.ours WHERE id >= 77") == []


def test_forks_past_their_time_are_dropped(filled: Filled) -> None:
    lake = filled.flush_lake
    fork(lake.lake, "brief", expires_after=datetime.timedelta(hours=1))
    fork(lake.lake, "long", expires_after=datetime.timedelta(days=1))
    assert gc(lake)["forks_dropped"] == 0
    execute(lake, "UPDATE lakefork.fork SET expires_at = expires_at - interval '2 hours'")
    plan = gc(lake, dry_run=True)
    assert plan["forks_dropped"] == 1
    assert "  brief: is dropped, as a fork that expired at" in plan["plan"]
    assert lake.sql("SELECT count(*) FROM system.catalogs") == [(3,)]
    assert gc(lake, plan_id=plan["plan_id"])["forks_dropped"] == 1
    assert lake.sql("SELECT catalog_name FROM system.catalogs ORDER BY 1") == [("long",), ("main",)]
    assert gc(lake)["forks_dropped"] == 0


def test_a_fork_that_is_wanted_for_longer_stops_the_plan_that_drops_it(filled: Filled) -> None:
    lake = filled.flush_lake
    fork(lake.lake, "brief", expires_after=datetime.timedelta(hours=1))
    execute(lake, "UPDATE lakefork.fork SET expires_at = expires_at - interval '2 hours'")
    plan = gc(lake, dry_run=True)
    execute(lake, "UPDATE lakefork.fork SET expires_at = expires_at + interval '9 days'")
    with pytest.raises(InvalidInputError, match=r"has changed since .*: make a new one"):
        gc(lake, plan_id=plan["plan_id"])
    assert lake.sql("SELECT catalog_name FROM system.catalogs ORDER BY 1") == [("brief",), ("main",)]


def test_forks_are_dropped_only_under_the_lease(filled: Filled) -> None:
    lake = filled.flush_lake
    fork(lake.lake, "brief", expires_after=datetime.timedelta(hours=1))
    execute(lake, "UPDATE lakefork.fork SET expires_at = expires_at - interval '2 hours'")
    plan = gc(lake, dry_run=True)
    with connect(lake.lake.dsn) as connection, pytest.raises(LeaseLostError):
        list(retention.drop_planned(connection, plan["plan_id"], "nobody", 10))
    assert lake.sql("SELECT count(*) FROM system.catalogs") == [(2,)]


def test_dropped_tables_take_their_hot_rows_along(filled: Filled) -> None:
    lake = filled.flush_lake
    lake.lake.run("CREATE SHARED TABLE app.gone (id BIGINT PRIMARY KEY); INSERT INTO app.gone VALUES (1), (2)")
    child = fork(lake.lake, "child")
    lake.lake.run("DROP TABLE app.gone")
    (name,) = lake.sql("SELECT table_name FROM ducklake_inlined_data_tables ORDER BY table_id DESC LIMIT 1")[0]
    gc(lake, retain_snapshots=1)
    assert child.rows("SELECT id FROM app.gone ORDER BY id") == [(1,), (2,)], "the fork has its own"
    assert lake.sql(f"SELECT count(*) FROM hot.{name} WHERE catalog_id = %s", lake.lake.catalog.catalog_id) == [(0,)]
    child.run("DROP TABLE app.gone")
    gc(lake, retain_snapshots=1)
    assert lake.sql("SELECT to_regclass(%s)", f"hot.{name}") == [(None,)], "no catalog has that hot table"
    assert lake.sql(
        "SELECT count(*) FROM lakefork.hot_count c WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = c.table_id)"
    ) == [(0,)]
    assert no_findings(lake.lake)


def test_old_definitions_outlive_their_snapshots(filled: Filled) -> None:
    """Hot rows under an old definition are read and flushed as before; ids of dropped columns are not used again."""
    lake = filled.flush_lake
    lake.lake.run("ALTER TABLE app.ours ADD COLUMN n INT DEFAULT 5; INSERT INTO app.ours VALUES (900, 'x', 6)")
    lake.lake.run(
        "ALTER TABLE app.ours DROP COLUMN n; ALTER TABLE app.ours ADD COLUMN l INT[] DEFAULT [1]; INSERT INTO app.ours VALUES (901, 'y', [2])"
    )
    expected = lake.lake.rows("SELECT * FROM app.ours ORDER BY id")
    gc(lake, retain_snapshots=1)
    lake.lake.engine._resources.lookup._definitions._kept.clear()
    assert lake.lake.rows("SELECT * FROM app.ours ORDER BY id") == expected
    child = fork(lake.lake, "child")
    assert child.rows("SELECT * FROM app.ours ORDER BY id") == expected
    lake.flush()
    assert (
        lake.lake.rows("SELECT * FROM app.ours ORDER BY id")
        == child.rows("SELECT * FROM app.ours ORDER BY id")
        == expected
    )
    for one in (lake.lake, child):
        one.run("ALTER TABLE app.ours ADD COLUMN again INT")
        assert {row[0] for row in one.rows("SELECT again FROM app.ours")} == {None}
    assert no_findings(lake.lake)


def test_other_tenants_keep_their_time_travel(filled: Filled) -> None:
    """Scenario 1: what one catalog gives up is no other's loss."""
    lake = filled.flush_lake
    other = fork(lake.lake, "other")
    for number in range(3):
        other.run(f"INSERT INTO app.ours VALUES ({500 + number}, 'other')")
        upkeep(lake, other).flush(catalog="other")
        lake.lake.run(f"INSERT INTO app.ours VALUES ({500 + number}, 'main')")
        lake.flush(catalog="main")
    history = {number: at(other, number) for number in range(other.catalog.begin_snapshot, newest(lake) + 1)}
    gc_and_clean(lake, catalog="main")
    assert {number: at(other, number) for number in history} == history
    assert no_findings(lake.lake)


def test_an_approved_plan_is_carried_out_as_it_was(filled: Filled) -> None:
    lake = filled.flush_lake
    plan = gc(lake, retain_snapshots=1, dry_run=True)
    filled.write(5)
    lake.flush()
    result = gc(lake, plan_id=plan["plan_id"])
    assert result["files_scheduled"] == plan["files_scheduled"] == 9, "what came later is not part of it"
    assert filled.rows() == filled.in_files()
    with pytest.raises(NotFoundError, match="plan 'nonsense' of retention_gc does not exist"):
        gc(lake, plan_id="nonsense")


@pytest.mark.parametrize("change", ["tag", "fork", "drop", "policy", "policy of a table", "settings"])
def test_a_plan_that_is_not_true_any_more_is_refused(filled: Filled, change: str) -> None:
    lake = filled.flush_lake
    early = newest(lake) - 4
    execute(lake, "UPDATE ducklake_snapshot SET snapshot_time = snapshot_time - interval '10 days'")
    plan = gc(lake, settings=keeps(lake, "1d"), dry_run=True)
    assert plan["files_scheduled"] == 9
    if change == "policy of a table":
        lake.lake.run("ALTER TABLE app.ours SET (retain_for = '90d')")
    elif change == "policy":
        with connect(lake.lake.dsn) as connection:
            set_retention(connection, "main", None, "90d")
    elif change == "tag":
        with connect(lake.lake.dsn) as connection:
            tag_snapshot(connection, "main", early, "kept")
    elif change == "fork":
        fork(lake.lake, "child", as_of=early)
    else:
        with connect(lake.lake.dsn) as connection:
            drop_catalog(connection, lake.lake.catalog)
    before = lake.sql("SELECT * FROM ducklake_data_file ORDER BY catalog_id, data_file_id")
    with pytest.raises(InvalidInputError, match=r"has changed since .*: make a new one"):
        gc(lake, settings=keeps(lake, "30d" if change == "settings" else "1d"), plan_id=plan["plan_id"])
    assert lake.sql("SELECT * FROM ducklake_data_file ORDER BY catalog_id, data_file_id") == before


class Crash(BaseException):
    pass


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "step", ["remove_files", "remove_rest", "remove_definitions", "drop_unused_hot_tables", "finish_plan"]
)
def test_an_interrupted_run_is_resumed(filled: Filled, monkeypatch: pytest.MonkeyPatch, step: str, late: bool) -> None:
    """Scenario 7: an interrupted expiry is resumed cleanly."""
    lake = filled.flush_lake
    expected = filled.rows()
    real = getattr(retention, step)

    def dying(*arguments: Any, **named: Any) -> Any:
        if late:
            list(real(*arguments, **named)) if step == "remove_rest" else real(*arguments, **named)
        raise Crash(step)

    monkeypatch.setattr(retention_gc, step, dying)
    with pytest.raises(Crash):
        gc(lake, retain_snapshots=1)
    monkeypatch.undo()
    assert filled.rows() == expected
    gc(lake, retain_snapshots=1)
    assert scheduled(lake) == on_disk(root_of(lake)) - referenced(lake)
    assert len(scheduled(lake)) == 9
    assert lake.sql("SELECT count(*) FROM lakefork.plan WHERE begun_at IS NOT NULL AND done_at IS NULL") == [(0,)]
    age_schedule(lake)
    assert cleanup(lake)["files_deleted"] == 9
    assert filled.rows() == filled.in_files() == expected
    assert no_findings(lake.lake)


def test_a_run_that_lost_its_lease_changes_nothing_more(filled: Filled) -> None:
    lake = filled.flush_lake
    with lake.context(job="retention_gc") as context:
        plan = gc(lake, retain_snapshots=1, dry_run=True)
        with pytest.raises(LeaseLostError, match="lost its lease on retention_gc"):
            retention.begin_plan(context.connection, plan["plan_id"], context.run.job_id)
        with pytest.raises(LeaseLostError):
            retention.remove_files(
                context.connection, plan["plan_id"], context.run.job_id, [lake.lake.catalog.catalog_id], 10
            )
    assert scheduled(lake) == set()


def test_a_run_that_loses_its_lease_between_batches_stops_there(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled.flush_lake
    expected = filled.rows()
    real = retention.remove_files

    def remove_and_lose(*arguments: Any) -> Any:
        removed = real(*arguments)
        execute(lake, "UPDATE lakefork.lease SET expires_at = '-infinity'")
        return removed

    monkeypatch.setattr(retention_gc, "FILES_AT_ONCE", 2)
    monkeypatch.setattr(retention_gc, "remove_files", remove_and_lose)
    with pytest.raises(LeaseLostError):
        gc(lake, retain_snapshots=1)
    assert len(scheduled(lake)) == 2
    monkeypatch.undo()
    gc(lake, retain_snapshots=1)
    assert len(scheduled(lake)) == 9
    assert filled.rows() == filled.in_files() == expected


@pytest.mark.parametrize("counted_at_once", [1, 3, 100_000])
def test_a_file_that_many_catalogs_give_up_counts_once(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, counted_at_once: int
) -> None:
    """However many transactions it takes; and as often as before if its table had other names."""
    lake = filled.flush_lake
    monkeypatch.setattr(retention, "COUNTED_AT_ONCE", counted_at_once)
    for number in range(3):
        fork(lake.lake, f"c{number}", as_of=newest(lake) - number)
    (owner,) = lake.sql("SELECT table_id FROM system.tables WHERE catalog_name = 'main' AND table_name = 'ours'")[0]
    execute(
        lake,
        "UPDATE ducklake_data_file SET end_snapshot = begin_snapshot + 1 WHERE table_id = %s AND end_snapshot IS NULL",
        owner,
    )
    lake.lake.run("CREATE NAMESPACE later")
    for number in range(3):
        SqlLake(lake.lake.engine, lake.lake.dsn, catalog_of(lake, f"c{number}")).run("CREATE NAMESPACE later")
    execute(
        lake,
        "INSERT INTO ducklake_table (catalog_id, table_id, table_uuid, begin_snapshot, end_snapshot, schema_id, table_name, path, path_is_relative) "
        "SELECT catalog_id, table_id, table_uuid, 0, 1, schema_id, 'older', path, path_is_relative FROM ducklake_table WHERE table_id = %s",
        owner,
    )
    plan = gc(lake, retain_snapshots=1, dry_run=True)
    files = lake.sql("SELECT count(DISTINCT data_file_id) FROM ducklake_data_file WHERE end_snapshot IS NOT NULL")
    assert [(plan["files_scheduled"],)] == files
    sizes = dict(
        lake.sql("SELECT data_file_id, file_size_bytes FROM ducklake_data_file WHERE end_snapshot IS NOT NULL")
    )
    assert plan["bytes_scheduled"] == sum(sizes.values())
    (of_main,) = lake.sql(
        "SELECT sum(file_size_bytes)::bigint FROM ducklake_data_file WHERE catalog_id = %s AND table_id = %s AND end_snapshot IS NOT NULL",
        lake.lake.catalog.catalog_id, owner,
    )[0]  # fmt: skip
    assert f"    app.ours: 4 file(s), {of_main:,} bytes" in plan["plan"]
    assert "c0 (fork of main): keeps snapshots from" in plan["plan"]
    done = gc(lake, plan_id=plan["plan_id"])
    assert done["files_scheduled"] == plan["files_scheduled"]
    assert done["snapshots_expired"] == plan["snapshots_expired"] > 0
    assert lake.sql("SELECT DISTINCT plan_id FROM lakefork.gc_count") == [(plan["plan_id"],)]


def catalog_of(lake: FlushLake, name: str) -> Catalog:
    with connect(lake.lake.dsn) as connection:
        return find_catalog(connection, name)


def test_two_that_give_up_the_same_file_at_once_schedule_it_once(filled: Filled) -> None:
    """Catalogs that share all files, each cleaned by a run of its own; the last one notices that it is."""
    lake = filled.flush_lake
    children = [fork(lake.lake, f"c{number}") for number in range(4)]
    shared = set(lake.paths("app.mine") + lake.paths("app.ours"))
    for one in (lake.lake, *children):
        one.run("DROP TABLE app.mine; DROP TABLE app.ours")
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            with lake.context(job="retention_gc") as context:
                plan_id = f"plan_{name}"
                facts = retention.retention_facts(context.connection, name, asked=(1, None), default=(None, None))
                items = retention_gc.plan_retention(
                    (RetentionFacts(**row) for row in facts), datetime.datetime.now(datetime.UTC)
                )
                retention.save_plan(context.connection, plan_id, "run", {}, [vars(item) for item in items])
                # the lease keeps others out; here it is handed on, batch by batch
                for _ in range(8):
                    with lock:
                        context.leases.take(context.connection, "retention_gc")
                        retention.remove_files(
                            context.connection, plan_id, context.run.job_id, [item.catalog_id for item in items], 2
                        )
                        context.leases.release(context.connection)
        except BaseException as error:
            failures.append(error)

    lock = threading.Lock()
    threads = [threading.Thread(target=run, args=(one.catalog.name,)) for one in (lake.lake, *children)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert shared <= scheduled(lake)


def test_old_records_of_runs_are_removed(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled.flush_lake
    execute(lake, "UPDATE lakefork.flush_audit SET audited_at = audited_at - interval '100 days'")
    execute(lake, "UPDATE lakefork.commit_key SET committed_at = committed_at - interval '100 days'")
    assert lake.sql("SELECT count(*) FROM lakefork.flush_audit")[0][0] > 0
    execute(
        lake,
        "INSERT INTO lakefork.job_run (job_id, job, run_id, trace, params, status, started_at, heartbeat_at, node_id) SELECT 'flush/' || n, "
        "'flush', 'r', 'cli/' || n, '{}', 'completed', now() - n * interval '30 days', now() - n * interval '30 days', 'x' FROM generate_series(0, 20) n",
    )
    execute(
        lake,
        "INSERT INTO lakefork.plan (plan_id, job, run_id, created_at, params, begun_at, done_at) SELECT 'cleanup_' || n, 'file_cleanup', 'r', "
        "now() - interval '900 days', '{}', now(), CASE n WHEN 1 THEN now() END FROM generate_series(1, 2) n",
    )
    monkeypatch.setattr(retention_gc, "ROWS_AT_ONCE", 3)
    assert gc(lake)["records_removed"] > 0
    kept = lake.sql("SELECT job_id FROM lakefork.job_run WHERE job_id LIKE 'flush/%%'")
    days = seconds_of(lake.settings.retention.jobs_for, "jobs_for") // 86400
    assert len(kept) == len(range(0, days, 30))
    assert lake.sql("SELECT plan_id FROM lakefork.plan WHERE job = 'file_cleanup'") == [("cleanup_2",)], "it was begun"
    assert lake.sql("SELECT count(*) FROM lakefork.flush_audit") == [(0,)]
    assert lake.sql("SELECT count(*) FROM lakefork.commit_key") == [(0,)]


def test_the_guard_of_the_database(filled: Filled) -> None:
    """Nothing of this can be done without the lease, whoever asks."""
    lake = filled.flush_lake
    with psycopg.connect(lake.lake.dsn, autocommit=True) as connection:
        for call in (
            "remove_files('p', 'nobody', '{1}', 10)",
            "remove_snapshots('p', 'nobody', '{1}', 10)",
            "remove_definitions('p', 'nobody', '{1}')",
            "drop_planned('p', 'nobody', 10)",
            "remove_records('nobody', '1 day', '1 day', '1 day', 10)",
        ):
            with pytest.raises(psycopg.Error, match="lost its lease"):
                connection.execute(f"SELECT * FROM lakefork.{call}")
