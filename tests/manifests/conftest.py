"""A lake with flushed batches, whose manifests tests may damage and have looked at."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark import SparkContext

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.model.params import ManifestRebuildParams
from lakefork.settings import Settings, StorageSettings
from lakefork.sql.engine import Engine
from lakefork.upkeep.manifest_rebuild.run import run_manifest_rebuild
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake


@dataclass
class ManifestLake:
    flush_lake: FlushLake

    @property
    def lake(self) -> SqlLake:
        return self.flush_lake.lake

    @property
    def lines(self) -> list[str]:
        return self.flush_lake.lines

    def rebuild(self, **params: Any) -> dict[str, Any]:
        with self.flush_lake.context(job="manifest_rebuild") as context:
            return run_manifest_rebuild(context, ManifestRebuildParams(**params))

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.flush_lake.sql(query, *parameters)

    def directory(self, name: str) -> Path:
        return Path(self.lake.catalog.data_path) / "app" / name

    def manifest(self, name: str) -> Any:
        return json.loads((self.directory(name) / "manifest.json").read_text())

    def state(self) -> dict[str, bytes]:
        """All that is on disk."""
        root = Path(self.lake.catalog.data_path)
        return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def cache(self) -> list[tuple[Any, ...]]:
        return self.sql(
            "SELECT table_id, user_id, content, etag, sync_state FROM lakefork.manifest_cache ORDER BY table_id, user_id"
        )

    def pending(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT user_id, run_id FROM lakefork.manifest_pending ORDER BY user_id")


def fill(flush_lake: FlushLake) -> ManifestLake:
    """Two flushes: app.mine has batches 0 and 1 of ada and batch 0 of bob, app.ours batches 0 and 1."""
    lake = flush_lake.lake
    lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v TEXT, f DOUBLE); "
        "CREATE SHARED TABLE app.ours (id BIGINT PRIMARY KEY, v TEXT)"
    )
    for user in ("ada", "bob"):
        lake.run("INSERT INTO app.mine VALUES (1, 'a', 0.5), (2, NULL, 'NaN')", user=user)
    lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')")
    flush_lake.flush()
    lake.run("INSERT INTO app.mine VALUES (3, 'c', 1)", user="ada")
    lake.run("INSERT INTO app.ours VALUES (3, 'c')")
    flush_lake.flush()
    return ManifestLake(flush_lake)


@pytest.fixture
def manifests(flush_lake: FlushLake) -> ManifestLake:
    return fill(flush_lake)


@pytest.fixture
def s3_manifests(
    dsn: str, s3: str, spark: SparkContext, make_settings: Callable[..., Settings], tmp_path: Path
) -> Iterator[ManifestLake]:
    boto3.client("s3", endpoint_url=s3, region_name="us-east-1").create_bucket(Bucket="lake")
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", "s3://lake/main")
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with Engine(settings, dsn) as engine:
        yield fill(FlushLake(SqlLake(engine, dsn, catalog), settings, tmp_path / "expectations"))
