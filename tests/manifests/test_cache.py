"""The manifest cache: memory, Postgres, storage; invalid manifests are not used, and are rewritten."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import boto3
import pytest
from psycopg_pool import ConnectionPool

from lakefork.catalog.connection import Connection, connect
from lakefork.errors import PermissionDeniedError
from lakefork.manifests import cache as manifest_cache
from lakefork.manifests.cache import RETRY_SECONDS, ManifestCache
from lakefork.manifests.format import FILE_NAME
from lakefork.model.params import ManifestEvictionParams
from lakefork.settings import ManifestCacheSettings
from lakefork.sql.session import Role
from lakefork.storage import StorageOptions
from lakefork.upkeep.manifest_eviction import run_manifest_eviction
from manifests.conftest import ManifestLake

TTL = 600


@dataclass
class Reader:
    """A process that reads, with a clock of its own and an eye on what it reads from storage."""

    manifests: ManifestLake
    pool: Any
    reads: list[str]
    now: float = 1_000_000.0
    cache: ManifestCache = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, **settings: int) -> None:
        storage = self.manifests.flush_lake.settings.storage
        self.cache = ManifestCache(
            self.pool.connection, StorageOptions(storage.s3_endpoint, storage.s3_region),
            ManifestCacheSettings(**settings), lambda: self.now,
        )  # fmt: skip

    def get(self, user: str = "ada", table: str = "mine", **known: int) -> Any:
        (table_id,) = self.manifests.sql("SELECT table_id FROM system.tables WHERE table_name = %s", table)[0]
        return self.cache.get(self.manifests.lake.catalog.catalog_id, table_id, user, **known)

    def pass_time(self, seconds: float) -> None:
        """For this process and for Postgres."""
        self.now += seconds
        with connect(self.manifests.lake.dsn) as connection:
            connection.execute(
                "UPDATE lakefork.manifest_cache SET last_refreshed = last_refreshed - make_interval(secs => %s)",
                (seconds,),
            )

    def states(self) -> dict[str, str]:
        return dict(self.manifests.sql("SELECT user_id, sync_state FROM lakefork.manifest_cache"))  # type: ignore[arg-type]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read from storage, and what was only looked at."""
    found: list[str] = []
    for name in ("read_file", "file_version"):
        real = getattr(manifest_cache, name)

        def counted(path: str, storage: Any, name: str = name, real: Any = real) -> Any:
            found.append(name)
            return real(path, storage)

        monkeypatch.setattr(manifest_cache, name, counted)
    return found


@pytest.fixture
def reader(manifests: ManifestLake, reads: list[str]) -> Iterator[Reader]:
    with open_pool(manifests.lake.dsn) as pool:
        yield Reader(manifests, pool, reads)


@pytest.fixture
def s3_reader(s3_manifests: ManifestLake, reads: list[str]) -> Iterator[Reader]:
    with open_pool(s3_manifests.lake.dsn) as pool:
        yield Reader(s3_manifests, pool, reads)


def wait_for_checks(manifests: ManifestCache) -> None:
    deadline = time.monotonic() + 10
    while manifests._waiting and time.monotonic() < deadline:
        time.sleep(0.01)


def open_pool(dsn: str) -> Any:
    from psycopg.rows import dict_row

    return ConnectionPool[Connection](
        dsn, kwargs={"autocommit": True, "row_factory": dict_row}, min_size=0, max_size=4, open=True
    )


def test_what_flush_cached_is_used_without_storage(reader: Reader) -> None:
    found = reader.get()
    assert [batch.file for batch in found.batches] == ["batch-0.parquet", "batch-1.parquet"]
    assert reader.get() is found, "from memory"
    assert reader.get("", "ours").user_id is None
    assert reader.reads == []


def test_after_the_ttl_storage_is_asked_and_read_only_if_it_changed(reader: Reader) -> None:
    first = reader.get()
    reader.pass_time(TTL + 1)
    assert reader.get() == first
    assert reader.reads == ["file_version", "read_file"], "this process had not seen the file"
    assert reader.get() == first and len(reader.reads) == 2, "refreshed in memory …"
    reader.restart()
    assert reader.get() == first and len(reader.reads) == 2, "… and in Postgres"
    reader.restart()
    reader.pass_time(TTL + 1)
    reader.get()
    reader.pass_time(TTL + 1)
    del reader.reads[:]
    assert reader.get() == first and reader.reads == ["file_version"], "seen, and not changed since"


def test_an_entry_that_was_evicted_is_read_from_storage_and_cached_again(reader: Reader, caplog: Any) -> None:
    with connect(reader.manifests.lake.dsn) as connection:
        connection.execute("DELETE FROM lakefork.manifest_cache")
    with caplog.at_level(logging.INFO):
        assert reader.get().snapshot_id == reader.manifests.manifest("mine/user_ada")["snapshot_id"]
    assert reader.states() == {"ada": "in_sync"}
    assert "manifest_cache_sync_success: " in caplog.text


def test_a_restart_checks_entries_whose_ttl_has_passed(reader: Reader) -> None:
    reader.pass_time(TTL + 1)
    (reader.manifests.directory("mine/user_ada") / FILE_NAME).write_text("{")
    assert reader.get() is None
    assert reader.states()["ada"] == "error"


DAMAGES = pytest.mark.parametrize(
    ("damage", "state"),
    [
        (lambda path: path.write_text("{"), "error"),
        (lambda path: path.unlink(), "error"),
        (lambda path: path.write_text(path.read_text().replace('"row_count": 2', '"row_count": 3')), "stale"),
        (lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "snapshot_id": 1})), "stale"),
        (lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "table_id": 77})), "stale"),
        (lambda path: path.write_text(path.read_text().replace("batch-1.parquet", "batch-9.parquet")), "stale"),
        (lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "batches": []})), "stale"),
    ],
)


@DAMAGES
def test_a_select_is_right_with_any_manifest_and_has_it_repaired(reader: Reader, damage: Any, state: str) -> None:
    lake, manifests = reader.manifests.lake, reader.manifests
    damage(manifests.directory("mine/user_ada") / FILE_NAME)
    reader.pass_time(TTL + 1)
    assert lake.rows("SELECT id, v FROM app.mine ORDER BY id", user="ada") == [(1, "a"), (2, None), (3, "c")]
    wait_for_checks(lake.engine._resources.manifests)
    assert (reader.states()["ada"], manifests.pending()) == (state, [("ada", "requested")])
    (found,) = lake.run("SHOW MANIFEST CACHE")
    seen = {row[found.columns.index("user_id")]: row[found.columns.index("last_accessed")] for row in found.rows}
    assert seen["ada"] is not None and seen["bob"] is None
    manifests.rebuild()
    assert manifests.rebuild(check_only=True)["findings"] == 0
    assert reader.states()["ada"] == "in_sync"


@DAMAGES
def test_in_doubt_there_is_no_manifest_and_the_next_flush_writes_it(
    reader: Reader, caplog: Any, damage: Any, state: str
) -> None:
    path = reader.manifests.directory("mine/user_ada") / FILE_NAME
    sound = reader.get()
    damage(path)
    assert reader.get() is sound, "within the TTL nobody looks"
    reader.pass_time(TTL + 1)
    assert reader.get() is None
    assert reader.states()["ada"] == state
    assert reader.manifests.pending() == [("ada", "requested")]
    assert f"manifest_cache_sync_failure: {path}: {state}: " in caplog.text
    looked = len(reader.reads)
    assert reader.get() is None and len(reader.reads) == looked, "not at each query"
    reader.manifests.flush_lake.flush()
    assert reader.manifests.pending() == []
    reader.pass_time(RETRY_SECONDS)
    assert replace(reader.get(), generated_at="") == replace(sound, generated_at="")
    assert reader.states()["ada"] == "in_sync"


def test_a_request_is_answered_by_manifest_rebuild(reader: Reader) -> None:
    (reader.manifests.directory("mine/user_bob") / FILE_NAME).unlink()
    reader.pass_time(TTL + 1)
    assert reader.get("bob") is None
    assert reader.manifests.rebuild(user_id="bob")["manifests_written"] == 1
    reader.pass_time(RETRY_SECONDS)
    assert reader.get("bob") is not None


def test_a_publish_that_the_reader_knows_of_brings_the_newer_manifest(reader: Reader) -> None:
    old = reader.get()
    reader.manifests.lake.run("INSERT INTO app.mine VALUES (9, 'i', 9)", user="ada")
    snapshot = reader.manifests.flush_lake.flush()["snapshot_id"]
    assert reader.get() is old, "its entries for batches are still valid"
    reader.pass_time(RETRY_SECONDS)
    newer = reader.get(published=snapshot)
    assert newer.snapshot_id == snapshot and len(newer.batches) == 3
    assert {batch.data_file_id for batch in old.batches} < {batch.data_file_id for batch in newer.batches}


def test_a_cached_manifest_that_disagrees_with_the_catalog_is_not_used(reader: Reader) -> None:
    with connect(reader.manifests.lake.dsn) as connection:
        connection.execute(
            "UPDATE lakefork.manifest_cache SET content = replace(content, '\"row_count\": 2', '\"row_count\": 1')"
        )
    assert [batch.row_count for batch in reader.get().batches] == [2, 1], "storage was asked"
    assert reader.reads == ["file_version", "read_file"]


def test_without_a_publish_a_missing_manifest_is_no_problem(reader: Reader) -> None:
    assert reader.get("nobody") is None
    assert reader.cache.get(99, 99) is None, "no such table"
    assert (reader.manifests.pending(), set(reader.states())) == ([], {"ada", "bob", ""})


def test_memory_is_bounded_and_evicts_unused_entries(reader: Reader) -> None:
    reader.restart(max_entries=2)
    for user, table in (("ada", "mine"), ("bob", "mine"), ("ada", "mine"), ("", "ours")):
        reader.get(user, table)
    assert sorted(key[2] for key in reader.cache.last_accessed()) == ["", "ada"], "the longest unused went"
    assert len(reader.cache) == 2
    reader.restart(last_accessed_memory_window=100, eviction_interval_seconds=50)
    reader.get("ada")
    reader.now += 80
    reader.get("bob")
    reader.now += 80
    reader.get("bob")
    assert [key[2] for key in reader.cache.last_accessed()] == ["bob"]
    assert len(reader.cache) == 1


def test_many_threads_share_it(reader: Reader) -> None:
    found: list[Any] = []

    def ask() -> None:
        for user in ("ada", "bob") * 20:
            found.append(reader.get(user))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160 and {one.user_id for one in found} == {"ada", "bob"}


def test_on_s3_the_etag_tells_whether_anything_changed(s3_reader: Reader, s3: str) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    key = "main/app/mine/user_ada/manifest.json"
    first = s3_reader.get()
    s3_reader.pass_time(TTL + 1)
    assert s3_reader.get() == first
    assert s3_reader.reads == ["file_version"], "the cached content has the same ETag"
    content = client.get_object(Bucket="lake", Key=key)["Body"].read()
    client.put_object(Bucket="lake", Key=key, Body=content + b" ")
    s3_reader.pass_time(TTL + 1)
    assert s3_reader.get() == first and s3_reader.reads[1:] == ["file_version", "read_file"]
    client.delete_object(Bucket="lake", Key=key)
    s3_reader.pass_time(TTL + 1)
    assert s3_reader.get() is None
    assert (s3_reader.states()["ada"], s3_reader.manifests.pending()) == ("error", [("ada", "requested")])


def test_a_storage_that_does_not_answer_is_an_error_of_the_entry_only(s3_reader: Reader) -> None:
    s3_reader.pass_time(TTL + 1)
    s3_reader.cache._storage = StorageOptions("http://127.0.0.1:9", "us-east-1")
    assert s3_reader.get() is None
    assert s3_reader.states()["ada"] == "error"


def evict(manifests: ManifestLake, **settings: int) -> dict[str, Any]:
    chosen = manifests.flush_lake.settings.model_copy(update={"manifest_cache": ManifestCacheSettings(**settings)})
    with manifests.flush_lake.context(settings=chosen) as context:
        return run_manifest_eviction(context, ManifestEvictionParams())


def test_eviction_removes_unused_dropped_and_surplus_entries(reader: Reader) -> None:
    manifests = reader.manifests
    files = manifests.state()
    assert evict(manifests) == {"entries_evicted": 0, "entries_left": 3}
    reader.pass_time(TTL + 1)
    reader.get("ada")
    reader.pass_time(600)
    assert evict(manifests) == {"entries_evicted": 2, "entries_left": 1}, "ada's was used within the window"
    assert manifests.lines == ["2 manifest(s) evicted: unused for a while"]
    reader.get("bob")
    assert evict(manifests, max_entries=1) == {"entries_evicted": 1, "entries_left": 1}
    assert list(reader.states()) == ["bob"], "the oldest goes first"
    assert manifests.state() == files, "only the cache"
    manifests.lake.run("DROP TABLE app.mine")
    assert evict(manifests) == {"entries_evicted": 1, "entries_left": 0}
    assert manifests.lines == ["1 manifest(s) evicted: of dropped tables"]


def test_a_process_that_has_read_nothing_yet_shows_the_ttl(manifests: ManifestLake) -> None:
    (shown,) = manifests.lake.run("SHOW MANIFEST CACHE")
    assert {row[shown.columns.index("ttl")] for row in shown.rows} == {TTL}


def test_show_manifest_cache_is_for_admins_and_shows_all_of_it(manifests: ManifestLake) -> None:
    lake = manifests.lake
    resources = lake.engine._resources
    (table_id,) = manifests.sql("SELECT table_id FROM system.tables WHERE table_name = 'mine'")[0]
    assert resources.manifests.get(lake.catalog.catalog_id, table_id, "ada")
    (shown,) = lake.run("SHOW MANIFEST CACHE")
    columns = [
        "namespace",
        "table",
        "user_id",
        "etag",
        "last_refreshed",
        "last_accessed",
        "ttl",
        "source",
        "sync_state",
    ]
    assert shown.columns == columns
    rows = [dict(zip(columns, row, strict=True)) for row in shown.rows]
    assert [(row["namespace"], row["table"], row["user_id"]) for row in rows] == [
        ("app", "mine", "ada"), ("app", "mine", "bob"), ("app", "ours", None),
    ]  # fmt: skip
    assert rows[0]["last_accessed"] >= rows[0]["last_refreshed"]
    assert [row["last_accessed"] is None for row in rows] == [False, True, True]
    assert {(row["ttl"], row["sync_state"]) for row in rows} == {(TTL, "in_sync")}
    assert rows[0]["source"] == str(manifests.directory("mine/user_ada") / FILE_NAME)
    assert lake.rows("SELECT user_id, sync_state FROM system.manifest_cache ORDER BY 1 NULLS LAST") == [
        ("ada", "in_sync"), ("bob", "in_sync"), (None, "in_sync"),
    ]  # fmt: skip
    for statement in ("SHOW MANIFEST CACHE", "SELECT * FROM system.manifest_cache"):
        for role in (Role.USER, Role.SERVICE):
            with pytest.raises(PermissionDeniedError, match="the manifest cache needs role admin"):
                lake.run(statement, user="ada", role=role)
