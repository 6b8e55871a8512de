"""Backups on S3: from there, to there, with credentials of storage locations, and when it does not answer."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import boto3
import pytest
from pyspark import SparkContext

from lakefork.backups.format import DamagedBackupError
from lakefork.backups.place import Place
from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import LakeforkError, PermissionDeniedError
from lakefork.settings import Settings, StorageSettings
from lakefork.sql.engine import Engine
from lakefork.storage import StorageOptions, copying, s3_requests
from lakefork.storage.copying import Content, fetch_file, store_file
from lakefork.transfer.backup.verify import verify_place
from support.backup_lake import BackupLake
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake, allow_tests


@pytest.fixture
def s3_backup_lake(
    dsn: str, s3: str, spark: SparkContext, make_settings: Callable[..., Settings], tmp_path: Path
) -> Iterator[BackupLake]:
    """Files and backups lie on S3, in two buckets."""
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    for bucket in ("lake", "archive"):
        client.create_bucket(Bucket=bucket)
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", "s3://lake/main")
        allow_tests(connection)
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with Engine(settings, dsn) as engine:
        lake = FlushLake(SqlLake(engine, dsn, catalog), settings, tmp_path / "expectations")
        found = BackupLake(lake, "s3://archive/backups")
        found.run(
            "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT); "
            "CREATE TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')"
        )
        found.run("INSERT INTO app.mine VALUES (1, 'x')", user="ada")
        lake.flush()
        found.run("UPDATE app.ours SET v = 'c' WHERE id = 1")
        yield found


def test_from_s3_to_s3_and_back(s3_backup_lake: BackupLake, s3: str) -> None:
    lake = s3_backup_lake
    before = lake.state()
    first = lake.backup()
    second = lake.backup(incremental=True, keep=1)
    assert (second["files_written"], second["base"]) == (0, first["backup_id"])
    place = Place(lake.place, StorageOptions(s3, "us-east-1"))
    assert [(one.backup_id, one.problems) for one in verify_place(place, None)] == [(second["backup_id"], ())]
    lake.restore(namespace="again")
    assert lake.state("again") == before
    shown = lake.rows(f"SHOW BACKUP '{lake.place}'")
    assert {row[3] for row in shown} == {"mine", "ours"}
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    (victim, *_) = [
        one["Key"] for one in client.list_objects_v2(Bucket="archive")["Contents"] if "/files/" in one["Key"]
    ]
    client.put_object(Bucket="archive", Key=victim, Body=b"damage")
    assert [bool(one.problems) for one in verify_place(place, None)] == [True]
    with pytest.raises((DamagedBackupError, LakeforkError)):
        lake.restore(namespace="third")
    assert sorted(row[0] for row in lake.rows("SHOW NAMESPACES")) == ["again", "app"]


def test_the_credentials_of_a_storage_location_are_used(
    s3_backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = s3_backup_lake
    before = lake.state()
    lake.run(
        "INSERT INTO system.storage_locations (location_name, location_type, path, credentials_ref) "
        "VALUES ('vault', 's3', 's3://archive', 'VAULT')"
    )
    done = lake.backup()
    assert lake.sql("SELECT file_location FROM system.backups") == [("s3://archive/backups",)], "without their name"
    assert "vault" not in str(done).lower()
    lake.restore(namespace="again")
    assert lake.state("again") == before
    monkeypatch.setenv("LAKEFORK_S3_VAULT_CATALOGS", "other")
    with pytest.raises(PermissionDeniedError, match="catalog main may not use the S3 credentials VAULT"):
        lake.backup()


@pytest.mark.parametrize("how", ["answers 503", "cuts connections"])
def test_an_s3_that_fails_is_one_sentence_and_the_next_run_goes_on(
    s3_backup_lake: BackupLake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    lake = s3_backup_lake
    monkeypatch.setattr(s3_requests, "WAITS", (0.01,))

    class Failing(BaseHTTPRequestHandler):
        def do(self) -> None:
            if how == "answers 503":
                self.send_response(503)
                self.send_header("content-length", "0")
                self.end_headers()
            else:
                self.connection.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do  # noqa: N815 - the names are http.server's

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    broken = lake.flush_lake.settings.model_copy(
        update={"storage": StorageSettings(s3_endpoint=address, s3_region="us-east-1")}
    )
    try:
        with pytest.raises((LakeforkError, OSError)) as caught:
            lake.backup(settings=broken)
    finally:
        server.shutdown()
        server.server_close()
    assert "\n" not in str(caught.value)
    done = lake.backup()
    assert done["tables"] == 2
    assert lake.sql("SELECT count(*) FROM lakefork.snapshot_tag") == [(0,)]


def test_large_files_go_in_parts(
    s3_backup_lake: BackupLake, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read twice on their way to S3, once between local files; a digest that does not fit leaves nothing."""
    monkeypatch.setattr(copying, "WHOLE", 1000)
    monkeypatch.setattr(copying, "PART", 700)
    monkeypatch.setattr(copying, "LARGEST_IN_MEMORY", 2000)
    options = StorageOptions(s3, "us-east-1")
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 40)
    found = copying.read_content(str(source), options)
    for number, target in enumerate((str(tmp_path), "s3://archive/large")):
        stored = store_file(str(source), lambda content, to=target: f"{to}/{content.digest}", str(tmp_path), options)  # type: ignore[misc]
        assert stored == found
        path = f"{target}/{found.digest}"
        assert copying.read_content(path, options) == found
        for back in (f"{tmp_path}/back{number}", f"s3://archive/back{number}"):
            assert fetch_file(path, back, replace(found, digest="0" * 64), options) == found
            with pytest.raises(FileNotFoundError):
                copying.read_content(back, options)
            assert fetch_file(path, back, found, options) == found
            assert copying.read_content(back, options) == found
    with pytest.raises(FileExistsError):
        fetch_file(str(source), f"{tmp_path}/back0", found, options)
    assert isinstance(found, Content) and not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
