"""Flush, dedup and what tidies up after them remove and replace only what they wrote themselves."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakefork.catalog.connection import connect
from lakefork.errors import StorageError
from lakefork.storage.markers import MARKER
from lakefork.upkeep.flush import publish as flush_publish
from lakefork.upkeep.flush import run as flush
from lakefork.upkeep.flush.audit import FlushAudit
from support.cloned_lake import Cloned, three_flushes
from support.flush_lake import Filled, FlushLake

FOREIGN = b"somebody else's"
WHY = "Postgres may have been restored to an earlier time, or another installation"


def die(*_: Any) -> None:
    raise SystemExit


def shared(lake: FlushLake) -> Path:
    return Path(lake.lake.catalog.data_path) / "app/ours/shared"


def put(path: Path, content: bytes = FOREIGN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def said(lake: FlushLake) -> str:
    return " ".join(line for line in lake.lines if WHY in line)


def test_flush_skips_a_taken_name_and_reports_it(filled: Filled) -> None:
    lake, expected = filled.flush_lake, filled.rows()
    foreign = [put(shared(lake) / f"batch-{number}.parquet") for number in (0, 1, 3)]
    lake.flush()
    assert [path.read_bytes() for path in foreign] == [FOREIGN] * 3
    assert lake.paths("app.ours") == [f"{shared(lake)}/batch-2.parquet"]
    assert f"{foreign[0]} already exists and is left as it is; writing batch-2.parquet instead" in said(lake)
    filled.write(1)
    expected = filled.rows()
    lake.flush()
    assert lake.paths("app.ours")[1:] == [f"{shared(lake)}/batch-4.parquet"]
    assert [path.read_bytes() for path in foreign] == [FOREIGN] * 3
    assert filled.rows() == filled.in_files() == expected
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    assert {path for (path,) in lake.sql("SELECT path FROM lakefork.foreign_file")} == set(map(str, foreign))


def test_a_taken_name_with_the_highest_number_is_skipped(filled: Filled) -> None:
    lake = filled.flush_lake
    foreign = [put(shared(lake) / f"batch-{number}.parquet") for number in (0, 10**18 - 1)]
    (shared(lake) / "batch-1.parquet").symlink_to(shared(lake) / "nowhere")
    (shared(lake) / "batch-2.parquet").mkdir()
    lake.flush()
    assert lake.paths("app.ours") == [f"{shared(lake)}/batch-3.parquet"]
    assert all(path.read_bytes() == FOREIGN for path in foreign)


def test_dedup_skips_a_taken_name(cloned: Cloned) -> None:
    lake = cloned(three_flushes)
    expected = Filled(lake).rows()
    foreign = put(shared(lake) / "batch-3.parquet")
    lake.dedup()
    assert foreign.read_bytes() == FOREIGN
    assert str(foreign) not in lake.paths("app.ours")
    assert f"{foreign} already exists" in said(lake)
    assert Filled(lake).rows() == expected


@pytest.mark.parametrize("content", [FOREIGN, None], ids=["no batch", "a batch of another run"])
def test_foreign_files_under_names_that_a_dead_run_reserved_stay(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Also if the run wrote other files, which go."""
    lake, expected = filled.flush_lake, filled.rows()
    with monkeypatch.context() as patched:
        patched.setattr(flush, "publish_all", die)
        with pytest.raises(SystemExit):
            lake.flush(run_id="dead")
    foreign = shared(lake) / "batch-0.parquet"
    other = Path(lake.lake.catalog.data_path) / "app/mine/user_ada/batch-0.parquet"
    written = FOREIGN if content else other.read_bytes()
    foreign.write_bytes(written)
    if content is None:
        lake.sql("UPDATE lakefork.staged_file SET job_id = job_id || 'x' WHERE path = %s RETURNING 1", str(foreign))
    lake.flush(run_id="next")
    assert foreign.read_bytes() == written
    assert f"1 file(s) are left alone, for example {foreign}" in said(lake)
    assert filled.rows() == filled.in_files() == expected
    assert sorted(lake.files_on_disk()) == sorted([str(foreign), *lake.paths("app.ours"), *lake.paths("app.mine")])
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def test_only_own_files_of_a_failed_audit_are_removed(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled.flush_lake
    real = FlushAudit.judge

    def refuse(*arguments: Any) -> Any:
        return [flush_publish.Verdict(False, "refused", one.results) for one in real(*arguments)]

    monkeypatch.setattr(FlushAudit, "judge", refuse)
    with pytest.raises(Exception, match="refused"):
        lake.flush()
    (kept,) = (Path(lake.lake.catalog.data_path) / "app/ours/.quarantine").rglob("batch-0.parquet")
    foreign = put(kept.with_name("batch-7.parquet"))
    with pytest.raises(Exception, match="refused"):
        lake.flush()
    assert foreign.read_bytes() == FOREIGN
    assert not kept.exists()


def test_an_earlier_postgres_overwrites_and_removes_nothing_of_the_later_one(cloned: Cloned) -> None:
    """All that it knows is that these are not its own."""
    lake = cloned(three_flushes)
    later = {path: Path(path).read_bytes() for path in lake.paths("app.ours")[1:] + lake.paths("app.mine")[2:]}
    with connect(lake.lake.dsn) as connection:
        for table in ("ducklake_data_file", "ducklake_file_column_stats", "ducklake_file_partition_value"):
            connection.execute(f"DELETE FROM {table} WHERE data_file_id > 2")
        connection.execute("UPDATE lakefork.batch_number SET next_number = 1")
    lake.lake.run("INSERT INTO app.ours VALUES (900, 'after')")
    lake.flush()
    assert {path: Path(path).read_bytes() for path in later} == later
    assert lake.paths("app.ours")[-1].endswith("batch-3.parquet")
    assert said(lake)
    assert (900, "after") in lake.lake.rows("SELECT id, v FROM app.ours")


def test_a_directory_of_another_installation_is_left_to_it(filled: Filled) -> None:
    lake = filled.flush_lake
    marker = shared(lake).parent / MARKER
    foreign = put(shared(lake) / "batch-0.parquet")
    manifest = put(shared(lake) / "manifest.json")
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "installation": "another"}))
    with pytest.raises(
        StorageError, match=r"app\.ours was not published: .* belongs to another installation"
    ) as caught:
        lake.flush()
    assert not caught.value.retryable or "another installation" in str(caught.value)
    assert len(lake.paths("app.mine")) == 2, "others are not kept"
    assert (foreign.read_bytes(), manifest.read_bytes()) == (FOREIGN, FOREIGN)
    assert lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]


def test_a_directory_with_foreign_files_before_the_first_write_is_refused(filled: Filled) -> None:
    lake = filled.flush_lake
    (shared(lake).parent / MARKER).unlink()
    manifest = put(shared(lake) / "manifest.json")
    with pytest.raises(StorageError, match=r"holds files that Lakefork did not write \(.*manifest\.json\)"):
        lake.flush()
    assert manifest.read_bytes() == FOREIGN
    manifest.unlink()
    lake.flush()
    assert json.loads((shared(lake).parent / MARKER).read_text())["table_id"] > 0


def test_an_empty_directory_in_place_of_a_tables_files_is_refused(cloned: Cloned) -> None:
    """A disk that is not mounted."""
    lake = cloned(three_flushes)
    root = shared(lake).parent
    root.rename(root.with_name("mounted_elsewhere"))
    lake.lake.run("INSERT INTO app.ours VALUES (900, 'x')")
    with pytest.raises(StorageError, match=r"has none of the files that the catalog has there: is the right storage"):
        lake.flush()
    assert not list(root.rglob("*")) or not root.exists()


def test_the_first_flush_of_a_fork_marks_its_own_directories(cloned: Cloned) -> None:
    from support.fork_lake import fork, upkeep

    lake = cloned(three_flushes)
    child = fork(lake.lake, "child")
    assert not Path(child.catalog.data_path).exists(), "a fork writes no file"
    child.run("INSERT INTO app.ours VALUES (900, 'child')")
    upkeep(lake, child).flush()
    marker = json.loads((Path(child.catalog.data_path) / "app/ours" / MARKER).read_text())
    parents = json.loads((shared(lake).parent / MARKER).read_text())
    assert marker["catalog_id"] == child.catalog.catalog_id != parents["catalog_id"]
    assert (marker["installation"], marker["table_id"]) == (parents["installation"], parents["table_id"])


def test_a_table_that_replaces_a_dropped_one_reuses_its_directory(filled: Filled) -> None:
    lake = filled.flush_lake
    lake.flush()
    lake.lake.run("DROP TABLE app.ours; CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)")
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'new')")
    lake.flush()
    assert lake.paths("app.ours") == [f"{shared(lake)}/batch-1.parquet"]
    assert said(lake) == ""


def test_concurrent_markers_of_one_directory_agree(filled: Filled) -> None:
    from lakefork.storage import StorageOptions
    from lakefork.storage.markers import RootOwner, claim_root

    root = f"{filled.flush_lake.lake.catalog.data_path}/app/new"

    def claim(number: int) -> None:
        claim_root(root, RootOwner("me", 1, number), StorageOptions(), list)
        put(Path(root) / f"batch-{number}.parquet")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(claim, range(64)))
    assert json.loads((Path(root) / MARKER).read_text())["installation"] == "me"
    assert not list(Path(root).glob(f".{MARKER}.*")), "nothing unfinished is left"


def test_on_s3_a_taken_name_is_skipped_too(s3_lake: FlushLake, s3: str) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    s3_lake.lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY)")
    key = "main/app/t/shared/batch-{}.parquet"
    for number in (0, 1):
        client.put_object(Bucket="lake", Key=key.format(number), Body=FOREIGN)
    s3_lake.lake.run("INSERT INTO app.t VALUES (1)")
    s3_lake.flush()
    assert s3_lake.paths("app.t") == [f"s3://lake/{key.format(2)}"]
    for number in (0, 1):
        assert client.get_object(Bucket="lake", Key=key.format(number))["Body"].read() == FOREIGN
    assert s3_lake.lake.rows("SELECT id FROM app.t") == [(1,)]
    assert WHY in said(s3_lake)
