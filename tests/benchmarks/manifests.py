"""The speed of manifest_rebuild, and the cost of a cached manifest for a reader."""

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.catalogs import create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.cold.batch import BatchLayout, with_field_ids, write_batch
from lakefork.cold.layout import batch_directory, below_table
from lakefork.model.params import ManifestRebuildParams
from lakefork.model.tables import TableDefinition
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.storage import StorageOptions
from lakefork.upkeep.manifest_rebuild.run import run_manifest_rebuild

AREA = "manifests"
ROUNDS = 3
USERS, FILES_PER_USER = 2_000, 5
SHARED_FILES = 10_000
COLUMNS = "id BIGINT PRIMARY KEY, title TEXT, body TEXT, amount DOUBLE, quantity INT, created TIMESTAMP, flag BOOLEAN, category TEXT"


class _Quiet(JobContext):
    def progress(self, line: str) -> None:
        if "looked at" in line or "written" in line:
            print(f"    {line}", flush=True)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory, benchmark_database() as dsn:
        return _measure(dsn, directory)


def _measure(dsn: str, directory: str) -> list[Figure]:
    users = [f"user{number}" for number in range(USERS)]
    with connect(dsn) as connection, Engine(Settings(), dsn) as engine:
        create_catalog(connection, "main", f"{directory}/main")
        tables = f"CREATE USER TABLE app.mine ({COLUMNS}); CREATE SHARED TABLE app.ours ({COLUMNS})"
        engine.execute(Session("main", None, Role.ADMIN), f"CREATE NAMESPACE app; {tables}")
        _add_batches(connection, "mine", [user for user in users for _ in range(FILES_PER_USER)])
        _add_batches(connection, "ours", [None] * SHARED_FILES)
        connection.execute("ANALYZE")
        with benchmark_spark():
            return [*_rebuild(dsn), *_cache(engine, connection, users)]


def _add_batches(connection: Connection, name: str, owners: list[str | None]) -> None:
    """As so many flushes would have left them, but in one commit and with the bytes of one file."""
    row = connection.execute("SELECT catalog_id, table_id FROM system.tables WHERE table_name = %s", (name,)).fetchone()
    assert row is not None
    table = row["catalog_id"], row["table_id"]
    definition = find_definitions(connection, [table])[table].definition
    facts, content = _batch(definition, batch_directory(definition, "someone" if definition.per_user else None))
    changes = Changes()
    for number, owner in enumerate(owners):
        path = Path(batch_directory(definition, owner)) / f"batch-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        changes.add_batch(table[1], below_table(definition, str(path)), facts, user_id=owner)
    commit(connection, table[0], newest_snapshot(connection), changes)


def _batch(definition: TableDefinition, directory: str) -> tuple[Any, bytes]:
    rows = 100
    schema = definition.arrow_schema
    values: dict[str, list[Any]] = {"id": list(range(rows)), "_seq": list(range(rows)), "_deleted": [False] * rows}
    values["_user_id"] = ["someone"] * rows
    columns = [pa.array(values.get(field.name, [None] * rows), field.type) for field in schema]
    ids = {column.name: column.column_id for column in definition.columns + definition.system_columns}
    layout = BatchLayout(with_field_ids(schema, ids), key=("id",), bloom_filters=("id", "_seq"))
    path = f"{directory}/sample.parquet"
    facts = write_batch(path, pa.table(columns, schema=layout.schema), layout, StorageOptions())
    content = Path(path).read_bytes()
    Path(path).unlink()
    return facts, content


def _rebuild(dsn: str) -> list[Figure]:
    first = _run(dsn)
    assert first[0]["manifests_written"] == USERS + 1 and first[0]["findings"] == USERS + 1
    rates = {name: [_rate(dsn, name) for _ in range(ROUNDS)] for name in ("mine", "ours")}
    return [
        Figure(
            AREA, f"footers of {USERS * FILES_PER_USER:,} files in {USERS:,} directories, compared",
            statistics.median(rates["mine"]), "/s", at_least=1000,
        ),
        Figure(
            AREA, f"footers of {SHARED_FILES:,} files in one directory, compared",
            statistics.median(rates["ours"]), "/s", at_least=1000,
        ),
    ]  # fmt: skip


def _rate(dsn: str, table: str) -> float:
    result, seconds = _run(dsn, table=table, check_only=True)
    return float(result["files"]) / seconds


def _run(dsn: str, **params: Any) -> tuple[dict[str, Any], float]:
    run = JobRun(f"manifest_rebuild/{uuid.uuid4().hex}", "manifest_rebuild", uuid.uuid4().hex, "cli", "bench")
    with connect(dsn) as connection:
        context = _Quiet(run, Settings(), dsn, connection, Leases(run.job_id, 600))
        started = time.perf_counter()
        result = run_manifest_rebuild(context, ManifestRebuildParams(**params))
        seconds = time.perf_counter() - started
        context.leases.release(connection)
    return result, seconds


def _cache(engine: Engine, connection: Connection, users: list[str]) -> list[Figure]:
    cache = engine._resources.manifests
    row = connection.execute("SELECT catalog_id, table_id FROM system.tables WHERE table_name = 'mine'").fetchone()
    assert row is not None
    first = _microseconds(lambda user: cache.get(row["catalog_id"], row["table_id"], user), users[:200])
    again = _microseconds(lambda user: cache.get(row["catalog_id"], row["table_id"], user), users[:200])
    return [
        Figure(AREA, "a manifest of 5 batches from memory", again, "µs", at_most=1000),
        Figure(AREA, "the same from Postgres, checked against the catalog", first / 1000, "ms"),
    ]


def _microseconds(get: Callable[[str], object], users: list[str]) -> float:
    times = []
    for user in users:
        started = time.perf_counter()
        assert get(user) is not None
        times.append(1e6 * (time.perf_counter() - started))
    return statistics.median(times)
