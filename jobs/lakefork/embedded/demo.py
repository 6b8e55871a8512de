"""The demo tenant: a catalog with one table of page views in a few Parquet batches."""

import datetime
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from lakefork.catalog.catalogs import Catalog, create_catalog, find_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection
from lakefork.cold.batch import write_batch
from lakefork.errors import NotFoundError
from lakefork.storage import StorageOptions, open_path

CATALOG = "demo"
COLUMNS = (
    ("id", "int64", False),
    ("page", "varchar", True),
    ("viewed_at", "timestamptz", True),
    ("seconds", "float64", True),
)
BATCHES = 3
ROWS = 10_000


def load_demo(connection: Connection, data_path: Path, progress: Callable[[str], None]) -> None:
    """Safe to repeat: each commit has a key, so what an interrupted load did is not done again."""
    try:
        catalog = find_catalog(connection, CATALOG)
    except NotFoundError:
        catalog = create_catalog(connection, CATALOG, str(data_path), author="demo")
    table_id = _create_table(connection, catalog)
    for number in range(BATCHES):
        _add_batch(connection, catalog, table_id, number)
    progress(f"demo: catalog {CATALOG!r} with {BATCHES} batches of {ROWS} rows")


def _create_table(connection: Connection, catalog: Catalog) -> int:
    changes = Changes()
    schema_id, table_id = changes.new_id(), changes.new_id()
    changes.add("ducklake_schema", schema_id=schema_id, schema_name="web", path="web", path_is_relative=True)
    changes.add(
        "ducklake_table",
        table_id=table_id,
        schema_id=schema_id,
        table_name="views",
        path="views",
        path_is_relative=True,
    )
    for column_id, (name, kind, nullable) in enumerate(COLUMNS, 1):
        changes.add(
            "ducklake_column", table_id=table_id, column_id=column_id, column_order=column_id, column_name=name,
            column_type=kind, nulls_allowed=nullable,
        )  # fmt: skip
    done = commit(
        connection, catalog.catalog_id, newest_snapshot(connection), changes, author="demo",
        message="demo table", commit_key=f"demo/{catalog.catalog_uuid}/table",
    )  # fmt: skip
    return done.resolved_id(table_id)


def _add_batch(connection: Connection, catalog: Catalog, table_id: int, number: int) -> None:
    name = f"shared/batch-{number}.parquet"
    filesystem, path = open_path(f"{catalog.data_path}/web/views/{name}", StorageOptions())
    filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    column_ids = {column[0]: position for position, column in enumerate(COLUMNS, 1)}
    facts = write_batch(filesystem, path, _rows(number), column_ids)
    changes = Changes()
    file_id = changes.new_file_id()
    changes.add(
        "ducklake_data_file", data_file_id=file_id, table_id=table_id, path=name, path_is_relative=True,
        record_count=facts.record_count, file_size_bytes=facts.size_bytes, footer_size=facts.footer_size,
    )  # fmt: skip
    for column_id, column in facts.columns.items():
        changes.add("ducklake_file_column_stats", data_file_id=file_id, column_id=column_id, **vars(column))
    commit(
        connection, catalog.catalog_id, newest_snapshot(connection), changes, author="demo",
        message=f"demo batch {number}", commit_key=f"demo/{catalog.catalog_uuid}/batch/{number}",
    )  # fmt: skip


def _rows(number: int) -> pa.Table:
    """The same rows each time, so that a repeated load writes the same file."""
    dice = random.Random(number)  # noqa: S311 - demo data
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=number)
    first = number * ROWS
    return pa.table(
        {
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "page": pa.array([f"/page/{dice.randrange(200)}" for _ in range(ROWS)]),
            "viewed_at": pa.array(
                [start + datetime.timedelta(seconds=8 * row) for row in range(ROWS)], pa.timestamp("us", tz="UTC")
            ),
            "seconds": pa.array([round(dice.expovariate(1 / 30), 3) for _ in range(ROWS)], pa.float64()),
        }
    )
