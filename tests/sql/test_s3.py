"""A lake on S3: schema files, batches and locations lie there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog
from lakefork.errors import ConflictError, InvalidInputError, PermissionDeniedError
from lakefork.settings import Settings, StorageSettings
from lakefork.sql.engine import Engine
from support.sql_lake import SqlLake, allow_tests


def test_a_lake_on_s3(dsn: str, s3: str, make_settings: Callable[..., Settings]) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", "s3://lake/main")
        allow_tests(connection)
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with Engine(settings, dsn) as engine:
        lake = SqlLake(engine, dsn, catalog)
        lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
        manifest = json.loads(client.get_object(Bucket="lake", Key="main/configs/app/manifest.json")["Body"].read())
        assert manifest["t"]["path"] == "schemas/t/schema_v1.json"
        lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b')", user="ada/../x")
        assert lake.flush_by_hand("app.t", "ada/../x") == 2
        listed = [found["Key"] for found in client.list_objects_v2(Bucket="lake", Prefix="main/app/")["Contents"]]
        assert [key for key in listed if not key.endswith("/")] == [
            "main/app/t/.lakefork-root.json",
            "main/app/t/user_ada%2F%2E%2E%2Fx/batch-0.parquet",
        ]
        with pytest.raises(ConflictError, match="id = 2"):
            lake.run("INSERT INTO app.t VALUES (2, 'c')", user="ada/../x")
        lake.run("ALTER TABLE app.t ADD COLUMN n INT DEFAULT 7")
        assert lake.count("UPDATE app.t SET v = 'c' WHERE id = 2", user="ada/../x") == 1
        assert lake.rows("SELECT id, v, n FROM app.t ORDER BY id", user="ada/../x") == [(1, "a", 7), (2, "c", 7)]
        lake.run(
            "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES ('other', 's3', 's3://lake/other/${user_id}')"
        )
        lake.run("CREATE USER TABLE app.u (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'other'")
        with pytest.raises(InvalidInputError, match="cannot be written to"):
            lake.run("CREATE SHARED TABLE app.x (id BIGINT PRIMARY KEY) LOCATION 's3://no-such-bucket/x'")


ADD_LOCATION = (
    "INSERT INTO system.storage_locations (location_name, location_type, path, credentials_ref) "
    "VALUES ('far', 's3', 's3://archive/{place}', 'vault')"
)


def test_catalogs_use_only_credentials_that_the_operator_gave_them(
    dsn: str, s3: str, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    for bucket in ("lake", "archive"):
        client.create_bucket(Bucket=bucket)
    with connect(dsn) as connection:
        catalogs = [create_catalog(connection, name, f"s3://lake/{name}") for name in ("main", "tenant")]
        allow_tests(connection)
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with Engine(settings, dsn) as engine:
        main, tenant = (SqlLake(engine, dsn, catalog) for catalog in catalogs)
        main.run(ADD_LOCATION.format(place="main"))
        main.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'far'")
        main.run("INSERT INTO app.t VALUES (1), (2)")
        main.flush_by_hand("app.t")
        with pytest.raises(PermissionDeniedError, match="catalog tenant may not use the S3 credentials vault: "):
            tenant.run(ADD_LOCATION.format(place="tenant"))
        tenant.run(ADD_LOCATION.format(place="tenant").replace("'vault'", "NULL"))
        for reference in ("vault", "VAULT"):
            with pytest.raises(PermissionDeniedError, match="catalog tenant may not use"):
                tenant.run(f"UPDATE system.storage_locations SET credentials_ref = '{reference}'")
        with connect(dsn) as connection:
            child = SqlLake(engine, dsn, fork_catalog(connection, "main", "child", None))
        assert child.rows("SELECT id FROM app.t ORDER BY id") == [(1,), (2,)]
        child.run("INSERT INTO app.t VALUES (3)")
        child.flush_by_hand("app.t")
        assert child.rows("SELECT id FROM app.t ORDER BY id") == [(1,), (2,), (3,)]
        with pytest.raises(PermissionDeniedError, match="catalog child may not use"):
            child.run("CREATE SHARED TABLE app.u (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'far'")
        monkeypatch.setenv("LAKEFORK_S3_VAULT_CATALOGS", "main, child")
        child.run("CREATE SHARED TABLE app.u (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'far'")
        monkeypatch.delenv("LAKEFORK_S3_VAULT_CATALOGS")
        with pytest.raises(PermissionDeniedError, match="catalog main may not use"):
            main.run("CREATE SHARED TABLE app.w (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'far'")
        assert main.rows("SELECT id FROM app.t ORDER BY id") == [(1,), (2,)]


def test_commands_and_jobs_run_with_credentials_by_reference(dsn: str, s3: str) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    for bucket in ("lake", "archive"):
        client.create_bucket(Bucket=bucket)
    with connect(dsn) as connection:
        create_catalog(connection, "main", "s3://lake/main")
        allow_tests(connection)
    said: list[str] = []

    def lakefork(*arguments: str) -> None:
        storage = {"LAKEFORK_STORAGE__S3_ENDPOINT": s3, "LAKEFORK_STORAGE__S3_REGION": "us-east-1"}
        done = subprocess.run(
            [Path(sys.executable).parent / "lakefork", *arguments], check=False, capture_output=True, text=True,
            env={**os.environ, "LAKEFORK_DSN": dsn, **storage}, timeout=120,
        )  # fmt: skip
        said.append(done.stdout + done.stderr)
        assert done.returncode == 0, said[-1]

    create = "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'far'"
    lakefork("sql", "--role", "admin", f"{ADD_LOCATION.format(place='main')}; {create}")
    for number in range(2):
        lakefork("sql", "--role", "admin", f"INSERT INTO app.t VALUES ({number})")
        lakefork("run", "flush", "--params", '{"force": true}')
    lakefork("run", "snapshot_dedup", "--params", '{"min_batches": 2}')
    lakefork("run", "manifest_rebuild")
    lakefork("run", "file_cleanup", "--params", '{"orphans": true}')
    lakefork("sql", "--role", "admin", "--format", "json", "SELECT id FROM app.t ORDER BY id")
    assert json.loads(said[-1])["results"][0]["rows"] == [[0], [1]]
    keys = {found["Key"] for found in client.list_objects_v2(Bucket="archive")["Contents"]}
    assert {f"main/app/t/shared/batch-{number}.parquet" for number in range(3)} <= keys
    with connect(dsn) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        said += [str(connection.execute(f"SELECT t::text AS row FROM {row['name']} t").fetchall()) for row in tables]
    for secret in ("vault-key", "vault-secret"):
        assert not any(secret in text for text in said)
