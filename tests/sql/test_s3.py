"""A lake on S3: schema files, batches and locations lie there."""

import json
from collections.abc import Callable

import boto3
import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, InvalidInputError
from lakefork.settings import Settings, StorageSettings
from lakefork.sql.engine import Engine
from sql_lake import SqlLake, allow_tests


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
