"""The demo tenant: page views and messages of some users, written through SQL; a flush moves them into files."""

import datetime
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from lakefork.catalog.catalogs import create_catalog, find_catalog
from lakefork.catalog.connection import Connection
from lakefork.errors import NotFoundError
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session

CATALOG = "demo"
DEFINITIONS = """
CREATE NAMESPACE IF NOT EXISTS web;
CREATE SHARED TABLE IF NOT EXISTS web.views (id BIGINT PRIMARY KEY, page TEXT, viewed_at TIMESTAMPTZ, seconds DOUBLE);
CREATE USER TABLE IF NOT EXISTS web.messages (id BIGINT PRIMARY KEY, text TEXT NOT NULL, stars INT DEFAULT 0)
  FLUSH POLICY ROWS 10000 INTERVAL '5 minutes';
"""
USERS = ("ada", "bob", "eve")
VIEWS = 30_000
MESSAGES = 100


def load_demo(
    connection: Connection, dsn: str, settings: Settings, data_path: Path, progress: Callable[[str], None]
) -> None:
    """Safe to repeat: a table that has rows gets no more."""
    try:
        find_catalog(connection, CATALOG)
    except NotFoundError:
        create_catalog(connection, CATALOG, str(data_path), author="demo")
    with Engine(settings, dsn) as engine:
        admin = Session(CATALOG, role=Role.ADMIN)
        engine.execute(admin, DEFINITIONS)
        if _is_empty(engine, admin, "web.views"):
            engine.load(admin, "web.views", _views())
        for user in USERS:
            _add_messages(engine, Session(CATALOG, user))
    progress(
        f"demo: catalog {CATALOG!r} with {VIEWS:,} page views, and {MESSAGES} messages of each of {len(USERS)} users"
    )


def change_demo(dsn: str, settings: Settings, progress: Callable[[str], None]) -> None:
    """Some of the rows get new versions, some go."""
    with Engine(settings, dsn) as engine:
        for user in USERS:
            engine.execute(
                Session(CATALOG, user),
                "UPDATE web.messages SET stars = stars + 1 WHERE id % 3 = 0; DELETE FROM web.messages WHERE id % 9 = 7",
            )
        engine.execute(
            Session(CATALOG, role=Role.ADMIN), "UPDATE web.views SET seconds = seconds * 2 WHERE id % 10 = 0"
        )
    progress("demo: rows were changed and deleted")


def _is_empty(engine: Engine, session: Session, table: str) -> bool:
    (found,) = engine.execute(session, f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608 - a name of ours
    return bool(found.as_json()["row_count"] == 0)


def _add_messages(engine: Engine, session: Session) -> None:
    if _is_empty(engine, session, "web.messages"):
        texts = [f"message {number} of {session.user}" for number in range(MESSAGES)]
        engine.load(session, "web.messages", pa.table({"id": range(MESSAGES), "text": texts}))
        engine.execute(
            session, "UPDATE web.messages SET stars = 5 WHERE id % 10 = 0; DELETE FROM web.messages WHERE id = 3"
        )


def _views() -> pa.Table:
    dice = random.Random(0)  # noqa: S311 - demo data
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return pa.table(
        {
            "id": pa.array(range(VIEWS), pa.int64()),
            "page": pa.array([f"/page/{dice.randrange(200)}" for _ in range(VIEWS)]),
            "viewed_at": pa.array(
                [start + datetime.timedelta(seconds=8 * row) for row in range(VIEWS)], pa.timestamp("us", tz="UTC")
            ),
            "seconds": pa.array([round(dice.expovariate(1 / 30), 3) for _ in range(VIEWS)], pa.float64()),
        }
    )
