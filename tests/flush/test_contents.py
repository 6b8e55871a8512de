"""What is in the files: every type, every kind of key, odd users, places, sizes, filters."""

import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
import duckdb
import pyarrow.parquet as pq
import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, InvalidInputError, StorageError
from lakefork.settings import FlushSettings, Settings, StorageSettings
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake
from support.sql_values import VALUES, same

ODD_USERS = [
    "../x",
    "a/b",
    "%2e",
    "x" * 300,
    "🦆",
    ".",
    "..",
    "user one",
    "Ä",
    "ä",
    "a'b",
    'a"b',
    "\\",
    "a\nb",
    "con",
]
KEYS: dict[str, list[Any]] = {
    "SMALLINT": [-5, 3, 7], "INTEGER": [-5, 3, 7], "BIGINT": [-(2**63), 0, 2**63 - 1], "BOOLEAN": [False, True],
    "STRING": ["", "B", "a", "ä", "🦆"], "BYTES": [b"", b"\x00", b"\xff"], "DATE": [datetime.date(1, 1, 1), datetime.date(2020, 2, 29)],
    "TIME": [datetime.time(0), datetime.time(23, 59, 59, 999999)], "TIMESTAMP": [datetime.datetime(1, 1, 1), datetime.datetime(2026, 1, 1)],
    "TIMESTAMP WITH TIME ZONE": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)],
    "UUID": [uuid.UUID(int=1), uuid.UUID(int=2**128 - 1)], "DECIMAL(10, 2)": [Decimal("-1.50"), Decimal("2.25"), Decimal("10.00")],
}  # fmt: skip


def test_every_type_reads_the_same_from_files(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(VALUES))
    lake.run(f"CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, {columns})")
    rows = [[*(values[number] if number < len(values) else None for values in VALUES.values())] for number in range(8)]
    for number, row in enumerate(rows):
        lake.run(f"INSERT INTO app.t VALUES ({', '.join(['?'] * (len(row) + 1))})", number, *row, user="ada")
    lake.run("UPDATE app.t SET c0 = c0 WHERE id >= 0", user="ada")
    flush_lake.flush()
    lake.run("INSERT INTO app.t (id) VALUES (99)", user="ada")
    flush_lake.flush()
    found = lake.rows("SELECT * FROM app.t WHERE id < 99 ORDER BY id", user="ada")
    for row, expected in zip(found, rows, strict=True):
        for place, value in enumerate(expected):
            assert same(row[place + 1], value), (list(VALUES)[place], row[place + 1], value)
    assert flush_lake.hot_rows() == 1


@pytest.fixture
def small_slices(flush_lake: FlushLake, monkeypatch: pytest.MonkeyPatch) -> FlushLake:
    """Slices of a few rows, so that a small table is a large one."""
    monkeypatch.setattr("lakefork.upkeep.flush.plan.SMALLEST_SLICE", 1)
    settings = flush_lake.settings.model_copy(update={"flush": FlushSettings(slice_rows=2, file_mb=1)})
    return replace(flush_lake, settings=settings)


def test_every_type_of_key_is_sliced_sorted_and_deduplicated(small_slices: FlushLake) -> None:
    lake = small_slices.lake
    lake.run("CREATE NAMESPACE app")
    for place, (kind, keys) in enumerate(KEYS.items()):
        lake.run(f"CREATE SHARED TABLE app.t{place} (k {kind}, n INT, v INT, PRIMARY KEY (k, n))")
        for key in keys:
            lake.run(f"INSERT INTO app.t{place} VALUES (?, 1, 0), (?, 2, 0)", key, key)
        lake.run(f"UPDATE app.t{place} SET v = v + 1 WHERE n = 2")
    small_slices.flush()
    for place, (kind, keys) in enumerate(KEYS.items()):
        files = [pq.read_table(path) for path in small_slices.paths(f"app.t{place}")]
        assert sum(file.num_rows for file in files) == 2 * len(keys), kind
        found = [(row["n"], row["v"]) for file in files for row in file.to_pylist()]
        assert found == [(1, 0), (2, 1)] * len(keys), kind
        seen = [row[0] for row in lake.rows(f"SELECT k FROM app.t{place} WHERE n = 1 ORDER BY k")]
        assert seen == keys, kind


def test_a_large_user_is_read_in_slices_and_becomes_files_with_disjoint_keys(small_slices: FlushLake) -> None:
    lake = small_slices.lake
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.t SELECT i, 'x' FROM range(0, 1000) r(i)", user="large")
    lake.run("INSERT INTO app.t VALUES (1, 'small')", user="small")
    settings = small_slices.settings.model_copy(update={"flush": FlushSettings(slice_rows=100)})
    result = small_slices.flush(settings=settings)
    assert (result["rows_out"], result["users"]) == (1001, 2)
    paths = [path for path in small_slices.paths("app.t") if "/user_large/" in path]
    assert len(paths) == 10
    ranges = sorted(duckdb.sql(f"SELECT min(id), max(id), count(*) FROM '{path}'").fetchall()[0] for path in paths)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert {count for _, _, count in ranges} == {100}, "balanced by count"
    assert lake.rows("SELECT count(*), sum(id) FROM app.t", user="large") == [(1000, 499_500)]
    assert "in 2 task(s)" in next(line for line in small_slices.lines if line.startswith("to flush")), (
        "users are not split"
    )


def test_a_large_user_is_split_into_files_of_the_target_size(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.t SELECT i, repeat(md5(i::text), 32) FROM range(0, 3800) r(i)", user="large")
    lake.run("INSERT INTO app.t VALUES (1, 'small')", user="small")
    settings = flush_lake.settings.model_copy(update={"flush": FlushSettings(file_mb=1)})
    result = flush_lake.flush(settings=settings)
    assert (result["rows_out"], result["users"], result["files_written"]) == (3801, 2, 5), "just under 4 MB of rows"
    paths = [path for path in flush_lake.paths("app.t") if "/user_large/" in path]
    ranges = sorted(duckdb.sql(f"SELECT min(id), max(id), count(*) FROM '{path}'").fetchall()[0] for path in paths)
    assert ranges == [(0, 949, 950), (950, 1899, 950), (1900, 2849, 950), (2850, 3799, 950)]
    assert lake.rows("SELECT count(*), sum(id) FROM app.t", user="large") == [(3800, 7_218_100)]


def test_slices_of_a_sampled_table_are_balanced(small_slices: FlushLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some blocks are looked at; keys lie in no order."""
    monkeypatch.setattr("lakefork.upkeep.flush.facts.ALL_ROWS", 100)
    lake = small_slices.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.t SELECT i * 7919 % 10007, 'x' FROM range(0, 10007) r(i)")
    settings = small_slices.settings.model_copy(update={"flush": FlushSettings(slice_rows=2502)})
    assert small_slices.flush(settings=settings)["rows_out"] == 10_007
    paths = small_slices.paths("app.t")
    ranges = sorted(duckdb.sql(f"SELECT min(id), max(id), count(*) FROM '{path}'").fetchall()[0] for path in paths)
    assert len(ranges) == 4
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert all(2502 / 2 < count < 2502 * 2 for _, _, count in ranges), ranges
    assert lake.rows("SELECT count(*), sum(id) FROM app.t") == [(10_007, 10_007 * 10_006 // 2)]


@pytest.mark.parametrize("kind", ["USER", "SHARED"])
def test_rows_far_wider_than_the_average_are_read_in_parts(flush_lake: FlushLake, kind: str) -> None:
    lake = flush_lake.lake
    lake.run(f"CREATE NAMESPACE app; CREATE {kind} TABLE app.t (a BIGINT, b TEXT, v TEXT, PRIMARY KEY (a, b))")
    lake.run("INSERT INTO app.t SELECT i, 'b', 'x' FROM range(0, 3000) r(i)", user="narrow" if kind == "USER" else None)
    # md5 does not compress: in Postgres, too, these rows are wide.
    for first in (3000, 3004):
        lake.run(
            "INSERT INTO app.t SELECT i, 'b', (SELECT string_agg(md5((j + i)::text), '') FROM range(0, 12000) s(j)) "
            f"FROM range({first}, {first + 4}) r(i)",
            user="wide" if kind == "USER" else None,
        )
    lake.run("INSERT INTO app.t VALUES (9000, 'b', 'y')", user="after" if kind == "USER" else None)
    expected = 3000 + 8 + 1
    settings = flush_lake.settings.model_copy(update={"flush": FlushSettings(slice_mb=1)})
    result = flush_lake.flush(settings=settings)
    assert (result["rows_in"], result["rows_out"]) == (expected, expected)
    files = [pq.ParquetFile(path) for path in flush_lake.paths("app.t")]
    assert len(files) > 4, "what does not fit is read in parts"
    assert sum(file.metadata.num_rows for file in files) == expected
    bounds = sorted(
        tuple(row)
        for path in flush_lake.paths("app.t")
        for row in duckdb.sql(f"SELECT min(a), max(a) FROM '{path}'").fetchall()
    )
    assert all(before[1] < after[0] for before, after in pairwise(bounds)), "each key is in one file"


def test_a_row_larger_than_a_slice_is_flushed(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.t SELECT 1, string_agg(md5(j::text), '') FROM range(0, 50000) s(j)")
    flush_lake.flush(settings=flush_lake.settings.model_copy(update={"flush": FlushSettings(slice_mb=1)}))
    assert lake.rows("SELECT id, length(v) FROM app.t") == [(1, 1_600_000)]
    assert len(flush_lake.paths("app.t")) == 1


def test_a_key_with_very_many_versions_needs_no_more_memory(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, n INT)")
    lake.run("INSERT INTO app.t VALUES (1, 0)")
    for _ in range(30):
        lake.run("UPDATE app.t SET n = n + 1 WHERE id = 1")
    settings = flush_lake.settings.model_copy(update={"flush": FlushSettings(slice_rows=4)})
    result = flush_lake.flush(settings=settings)
    assert (result["rows_in"], result["rows_out"], result["files_written"]) == (31, 1, 1)
    assert flush_lake.newest_in_files("app.t") == [(1, 30)]


def test_odd_users_have_directories_of_their_own(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    for user in ODD_USERS:
        lake.run("INSERT INTO app.t VALUES (1, ?)", user, user=user)
    result = flush_lake.flush()
    assert (result["users"], result["files_written"]) == (len(ODD_USERS), len(ODD_USERS))
    root = Path(lake.catalog.data_path) / "app" / "t"
    directories = [path for path in root.iterdir() if path.name.startswith("user_")]
    assert len(directories) == len(ODD_USERS)
    assert all(len(path.name) < 256 and ".." not in path.name for path in directories)
    lake.run("INSERT INTO app.t VALUES (2, 'x')", user="somebody")
    flush_lake.flush()
    assert flush_lake.hot_rows() == 1
    for user in ODD_USERS:
        assert lake.rows("SELECT v FROM app.t", user=user) == [(user,)], user
    for directory in directories:
        manifest = json.loads((directory / "manifest.json").read_text())
        assert manifest["user_id"] in ODD_USERS
        assert manifest["batches"][0]["columns"]["v"]["min"] == manifest["user_id"] or len(manifest["user_id"]) > 100


def test_a_manifest_matches_the_documented_format(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT, f DOUBLE, b BOOLEAN)")
    lake.run("INSERT INTO app.t VALUES (1, 'a', 0.5, true), (3, NULL, 'NaN', false)", user="ada")
    result = flush_lake.flush()
    directory = f"{lake.catalog.data_path}/app/t/user_ada"
    manifest = flush_lake.manifest(directory)
    (batch,) = manifest["batches"]
    assert (manifest["format"], manifest["user_id"], manifest["max_batch"]) == (1, "ada", 0)
    assert manifest["snapshot_id"] == result["snapshot_id"] and manifest["generated_at"].endswith("Z")
    assert (batch["file"], batch["status"], batch["row_count"]) == ("batch-0.parquet", "active", 2)
    assert batch["size_bytes"] == Path(f"{directory}/batch-0.parquet").stat().st_size
    seqs = pq.read_table(f"{directory}/batch-0.parquet")["_seq"].to_pylist()
    assert (batch["min_seq"], batch["max_seq"]) == (min(seqs), max(seqs))
    assert batch["columns"]["id"] == {"column_id": 4, "min": 1, "max": 3, "null_count": 0}
    assert batch["columns"]["v"] == {"column_id": 5, "min": "a", "max": "a", "null_count": 1}
    assert batch["columns"]["f"] == {"column_id": 6, "min": None, "max": None, "null_count": 0}, "NaN has no bounds"
    assert batch["columns"]["b"] == {"column_id": 7, "min": False, "max": True, "null_count": 0}
    cached = flush_lake.sql("SELECT content, sync_state FROM lakefork.manifest_cache")
    assert [(json.loads(content), state) for content, state in cached] == [(manifest, "in_sync")]
    assert flush_lake.sql("SELECT contains_nan FROM ducklake_file_column_stats WHERE column_id = 6") == [(True,)]


def test_bloom_filters_are_where_the_options_say(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, email TEXT, v TEXT) "
        "WITH (bloom_filters = 'email', no_bloom_filters = '_seq', bloom_filter_fpp = 0.001)"
    )

    def filtered() -> set[str]:
        found = duckdb.sql(
            f"SELECT path_in_schema, bloom_filter_offset FROM parquet_metadata('{flush_lake.paths('app.t')[-1]}')"
        ).fetchall()
        return {name for name, offset in found if offset is not None}

    lake.run("INSERT INTO app.t VALUES (1, 'a@b', 'x')")
    flush_lake.flush()
    assert filtered() == {"id", "email"}
    lake.run("ALTER TABLE app.t RENAME COLUMN email TO mail; INSERT INTO app.t VALUES (2, 'c@d', 'x')")
    flush_lake.flush()
    assert filtered() == {"id", "mail"}
    lake.run("ALTER TABLE app.t DROP COLUMN mail; ALTER TABLE app.t SET (no_bloom_filters = 'id')")
    lake.run("INSERT INTO app.t VALUES (3, 'x')")
    flush_lake.flush()
    assert filtered() == {"_seq"}
    for wrong in ("bloom_filters = 'nothing'", "bloom_filter_fpp = 2", "no_bloom_filters = ''"):
        with pytest.raises(InvalidInputError):
            lake.run(f"ALTER TABLE app.t SET ({wrong})")


def test_locations_are_written_to_where_they_say(flush_lake: FlushLake, tmp_path: Path) -> None:
    lake = flush_lake.lake
    lake.run(
        f"CREATE NAMESPACE app; CREATE USER TABLE app.a (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/places/${{user_id}}/a'; "
        f"CREATE USER TABLE app.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/places/${{user_id}}/b'; "
        f"CREATE SHARED TABLE app.c (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/other'"
    )
    lake.run("INSERT INTO app.a VALUES (1); INSERT INTO app.b VALUES (2)", user="ada")
    lake.run("INSERT INTO app.c VALUES (3)")
    flush_lake.flush()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("batch-*.parquet"))
    assert found == ["other/shared/batch-0.parquet", "places/ada/a/batch-0.parquet", "places/ada/b/batch-0.parquet"]
    lake.run("INSERT INTO app.a VALUES (4); INSERT INTO app.b VALUES (4)", user="ada")
    lake.run("INSERT INTO app.c VALUES (4)")
    flush_lake.flush()
    assert lake.rows("SELECT id FROM app.a ORDER BY id", user="ada") == [(1,), (4,)]
    assert lake.rows("SELECT id FROM app.b ORDER BY id", user="ada") == [(2,), (4,)]
    assert lake.rows("SELECT id FROM app.c ORDER BY id") == [(3,), (4,)]


def test_many_small_tables_of_several_catalogs_share_a_task(flush_lake: FlushLake, data_dir: Path) -> None:
    lake = flush_lake.lake
    with connect(lake.dsn) as connection:
        other = SqlLake(lake.engine, lake.dsn, create_catalog(connection, "other", str(data_dir / "other")))
    for one in (lake, other):
        one.run("CREATE NAMESPACE app")
        for number in range(5):
            one.run(f"CREATE SHARED TABLE app.t{number} (id BIGINT PRIMARY KEY, v TEXT)")
            one.run(f"INSERT INTO app.t{number} VALUES (1, '{one.catalog.name} {number}')")
    result = flush_lake.flush()
    assert (result["tables"], result["files_written"], result["rows_out"]) == (10, 10, 10)
    for one in (lake, other):
        assert one.rows("SELECT v FROM app.t3") == [(f"{one.catalog.name} 3",)]


def test_a_lake_on_s3_is_flushed_audited_and_read(s3_lake: FlushLake, s3: str) -> None:
    lake = s3_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')", user="ada/../x")
    s3_lake.flush()
    lake.run("UPDATE app.t SET v = 'bb' WHERE id = 2", user="ada/../x")
    s3_lake.flush()
    assert lake.rows("SELECT id, v FROM app.t ORDER BY id", user="ada/../x") == [(1, "a"), (2, "bb")]
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    listed = [found["Key"] for found in client.list_objects_v2(Bucket="lake", Prefix="main/app/")["Contents"]]
    directory = "main/app/t/user_ada%2F%2E%2E%2Fx"
    assert listed == [
        "main/app/t/.lakefork-root.json",
        f"{directory}/batch-0.parquet",
        f"{directory}/batch-1.parquet",
        f"{directory}/manifest.json",
    ]
    manifest = json.loads(client.get_object(Bucket="lake", Key=f"{directory}/manifest.json")["Body"].read())
    assert [batch["file"] for batch in manifest["batches"]] == ["batch-0.parquet", "batch-1.parquet"]


def test_a_location_is_opened_with_the_credentials_that_it_names(s3_lake: FlushLake, s3: str) -> None:
    boto3.client("s3", endpoint_url=s3, region_name="us-east-1").create_bucket(Bucket="archive")
    lake = s3_lake.lake
    lake.run(
        "CREATE NAMESPACE app; INSERT INTO system.storage_locations (location_name, location_type, path, credentials_ref) "
        "VALUES ('archive', 's3', 's3://archive/${user_id}', 'vault')"
    )
    lake.run("CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT) LOCATION REFERENCE 'archive'")
    lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')", user="ada")
    s3_lake.flush()
    assert s3_lake.paths("app.t") == ["s3://vault@archive/ada/app/t/batch-0.parquet"]
    assert lake.rows("SELECT id, v FROM app.t ORDER BY id", user="ada") == [(1, "a"), (2, "b")]
    with pytest.raises(ConflictError, match=r"belongs to table app\.t"):
        lake.run("CREATE USER TABLE app.u (id BIGINT PRIMARY KEY) LOCATION 's3://archive/${user_id}/app/t'")


def test_an_s3_that_answers_503_is_one_clear_error_and_the_next_run_succeeds(
    s3_lake: FlushLake, make_settings: Callable[..., Settings]
) -> None:
    lake = s3_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY); INSERT INTO app.t VALUES (1)")

    class Unavailable(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_response(503)
            self.end_headers()

        do_POST = do_GET = do_HEAD = do_PUT  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Unavailable)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(StorageError, match=r"s3://lake/main/app/t cannot be written to"):
            s3_lake.flush(settings=make_settings(storage=StorageSettings(s3_endpoint=address, s3_region="us-east-1")))
    finally:
        server.shutdown()
        server.server_close()
    assert lake.rows("SELECT id FROM app.t") == [(1,)]
    assert s3_lake.flush()["files_written"] == 1
    assert lake.rows("SELECT id FROM app.t") == [(1,)]
