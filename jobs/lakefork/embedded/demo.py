"""The demo tenant: page views in a few Parquet batches, and messages of some users that are not in files yet."""

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
from lakefork.seqid import SeqId
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session
from lakefork.storage import StorageOptions, open_path
from lakefork.tables import DELETED, FIRST_COLUMN_ID, SEQ, SYSTEM_COLUMN_IDS

CATALOG = "demo"
DEFINITIONS = """
CREATE NAMESPACE IF NOT EXISTS web;
CREATE SHARED TABLE IF NOT EXISTS web.views (id BIGINT PRIMARY KEY, page TEXT, viewed_at TIMESTAMPTZ, seconds DOUBLE);
CREATE USER TABLE IF NOT EXISTS web.messages (id BIGINT PRIMARY KEY, text TEXT NOT NULL, stars INT DEFAULT 0)
  FLUSH POLICY ROWS 10000 INTERVAL '5 minutes';
"""
COLUMNS = ("id", "page", "viewed_at", "seconds")
USERS = ("ada", "bob", "eve")
BATCHES = 3
ROWS = 10_000
MESSAGES = 100


def load_demo(
    connection: Connection, dsn: str, settings: Settings, data_path: Path, progress: Callable[[str], None]
) -> None:
    """Safe to repeat: commits have keys and rows have theirs, so what an interrupted load did is not done again."""
    try:
        catalog = find_catalog(connection, CATALOG)
    except NotFoundError:
        catalog = create_catalog(connection, CATALOG, str(data_path), author="demo")
    with Engine(settings, dsn) as engine:
        engine.execute(Session(CATALOG, role=Role.ADMIN), DEFINITIONS)
        for user in USERS:
            _add_messages(engine, user)
    table_id = _table_id(connection, catalog)
    for number in range(BATCHES):
        _add_batch(connection, catalog, table_id, number)
    progress(
        f"demo: catalog {CATALOG!r} with {BATCHES} batches of {ROWS} rows, "
        f"and {MESSAGES} messages of each of {len(USERS)} users"
    )


def _add_messages(engine: Engine, user: str) -> None:
    session = Session(CATALOG, user)
    if engine.execute(session, "SELECT 1 FROM web.messages LIMIT 1")[0].as_json()["row_count"] == 0:
        texts = [f"message {number} of {user}" for number in range(MESSAGES)]
        engine.load(session, "web.messages", pa.table({"id": range(MESSAGES), "text": texts}))
        engine.execute(
            session, "UPDATE web.messages SET stars = 5 WHERE id % 10 = 0; DELETE FROM web.messages WHERE id = 3"
        )


def _table_id(connection: Connection, catalog: Catalog) -> int:
    row = connection.execute(
        "SELECT table_id FROM lakefork.visible_table(%s) WHERE table_name = 'views'", (catalog.catalog_id,)
    ).fetchone()
    assert row is not None  # noqa: S101 - it was just created
    return int(row["table_id"])


def _add_batch(connection: Connection, catalog: Catalog, table_id: int, number: int) -> None:
    name = f"shared/batch-{number}.parquet"
    filesystem, path = open_path(f"{catalog.data_path}/web/views/{name}", StorageOptions())
    filesystem.create_dir(path.rpartition("/")[0], recursive=True)
    column_ids = {name: FIRST_COLUMN_ID + place for place, name in enumerate(COLUMNS)} | SYSTEM_COLUMN_IDS
    facts = write_batch(filesystem, path, _rows(number), column_ids)
    changes = Changes()
    changes.add_batch(table_id, name, facts)
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
            SEQ: pa.array([SeqId.of(row // 4096, 0, row % 4096) for row in range(first, first + ROWS)], pa.int64()),
            DELETED: pa.repeat(pa.scalar(False), ROWS),
        }
    )
