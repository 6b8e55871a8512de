"""The demo's tenants: rows of some users, written through SQL. Runs of the DAGs turn them into a history."""

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakefork.catalog.catalogs import create_catalog, find_catalog
from lakefork.catalog.connection import Connection
from lakefork.errors import NotFoundError
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role, Session

CATALOG = "demo"
FORK_PREFIX = "demo_agent_"
USERS = ("ada", "bob", "eve")
VIEWS = 30_000
MESSAGES = 100
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Rows:
    """Rows of a table, by user; user None in a shared table."""

    table: str
    users: tuple[str | None, ...]
    make: Callable[[str | None], pa.Table]


def _views(_: str | None) -> pa.Table:
    dice = random.Random(0)  # noqa: S311 - demo data
    return pa.table(
        {
            "id": pa.array(range(VIEWS), pa.int64()),
            "page": pa.array([f"/page/{dice.randrange(200)}" for _ in range(VIEWS)]),
            "viewed_at": _times(VIEWS, 8),
            "seconds": pa.array([round(dice.expovariate(1 / 30), 3) for _ in range(VIEWS)], pa.float64()),
        }
    )


def _messages(user: str | None) -> pa.Table:
    return pa.table({"id": range(MESSAGES), "text": [f"message {number} of {user}" for number in range(MESSAGES)]})


def _orders(_: str | None) -> pa.Table:
    dice = random.Random(1)  # noqa: S311 - demo data
    customers = pa.array([f"customer {dice.randrange(300)}" for _ in range(4_000)])
    cents = pa.array([dice.randrange(500, 20_000) for _ in range(4_000)], pa.int64())
    return pa.table({"id": range(4_000), "customer": customers, "placed_at": _times(4_000, 60), "cents": cents})


def _readings(device: str | None) -> pa.Table:
    dice = random.Random(device)  # noqa: S311 - demo data
    celsius = pa.array([round(20 + dice.gauss(0, 3), 2) for _ in range(500)], pa.float64())
    return pa.table({"id": range(500), "celsius": celsius, "read_at": _times(500, 300)})


def _times(count: int, seconds: int) -> pa.Array:
    return pa.array(
        [START + datetime.timedelta(seconds=seconds * row) for row in range(count)], pa.timestamp("us", tz="UTC")
    )


DEFINITIONS = {
    CATALOG: """
        CREATE NAMESPACE IF NOT EXISTS web;
        CREATE SHARED TABLE IF NOT EXISTS web.views
          (id BIGINT PRIMARY KEY, page TEXT, viewed_at TIMESTAMPTZ, seconds DOUBLE);
        CREATE USER TABLE IF NOT EXISTS web.messages (id BIGINT PRIMARY KEY, text TEXT NOT NULL, stars INT DEFAULT 0)
          FLUSH POLICY ROWS 10000 INTERVAL '5 minutes';
        """,
    "shop": """
        CREATE NAMESPACE IF NOT EXISTS sales;
        CREATE SHARED TABLE IF NOT EXISTS sales.orders
          (id BIGINT PRIMARY KEY, customer TEXT, placed_at TIMESTAMPTZ, cents BIGINT)
          FLUSH POLICY ROWS 5000 INTERVAL '1 hour';
        """,
    "sensors": """
        CREATE NAMESPACE IF NOT EXISTS plant;
        CREATE USER TABLE IF NOT EXISTS plant.readings (id BIGINT PRIMARY KEY, celsius DOUBLE, read_at TIMESTAMPTZ)
          FLUSH POLICY ROWS 1000 INTERVAL '1 hour' WITH (deleted_retention = '1d');
        """,
}
ROWS = {
    CATALOG: (Rows("web.views", (None,), _views), Rows("web.messages", USERS, _messages)),
    "shop": (Rows("sales.orders", (None,), _orders),),
    "sensors": (Rows("plant.readings", ("boiler", "press", "pump"), _readings),),
}
FIRST_CHANGES = "UPDATE web.messages SET stars = 5 WHERE id % 10 = 0; DELETE FROM web.messages WHERE id = 3"


def load_demo(connection: Connection, dsn: str, settings: Settings, progress: Callable[[str], None]) -> None:
    """Loads the demo, except into tables that already have rows."""
    with Engine(settings, dsn) as engine:
        for catalog, definitions in DEFINITIONS.items():
            _ensure_catalog(connection, catalog, settings.home / "data" / catalog)
            engine.execute(Session(catalog, role=Role.ADMIN), definitions)
            for rows in ROWS[catalog]:
                for user in rows.users:
                    _load(engine, Session(catalog, user) if user else Session(catalog, role=Role.ADMIN), rows, user)
    progress(f"demo: tenants {', '.join(DEFINITIONS)}; {CATALOG} has {VIEWS:,} page views and messages of {USERS}")


def change_demo(dsn: str, settings: Settings, progress: Callable[[str], None]) -> None:
    """Updates some rows, deletes others and changes a fork."""
    with Engine(settings, dsn) as engine:
        for user in USERS:
            engine.execute(
                Session(CATALOG, user),
                "UPDATE web.messages SET stars = stars + 1 WHERE id % 3 = 0; DELETE FROM web.messages WHERE id % 9 = 7",
            )
        for catalog, statement in {
            CATALOG: "UPDATE web.views SET seconds = seconds * 2 WHERE id % 10 = 0",
            f"{FORK_PREFIX}1": "UPDATE web.views SET page = '/tried' WHERE id < 500; DROP TABLE web.messages",
            "shop": "UPDATE sales.orders SET cents = cents * 9 // 10 WHERE id % 4 = 0",
        }.items():
            engine.execute(Session(catalog, role=Role.ADMIN), statement)
    progress("demo: rows were changed and deleted")


def write_waiting_rows(dsn: str, settings: Settings, progress: Callable[[str], None]) -> None:
    """Writes rows that wait for the next flush."""
    with Engine(settings, dsn) as engine:
        engine.execute(Session("shop", role=Role.ADMIN), "UPDATE sales.orders SET cents = cents + 100 WHERE id % 5 = 0")
        engine.execute(Session("sensors", "pump"), "UPDATE plant.readings SET celsius = celsius + 1")
    progress("demo: some rows wait for the next flush")


def _ensure_catalog(connection: Connection, name: str, data_path: Path) -> None:
    try:
        find_catalog(connection, name)
    except NotFoundError:
        create_catalog(connection, name, str(data_path), author="demo")


def _load(engine: Engine, session: Session, rows: Rows, user: str | None) -> None:
    (found,) = engine.execute(session, f"SELECT 1 FROM {rows.table} LIMIT 1")  # noqa: S608 - a name of ours
    if found.as_json()["row_count"]:
        return
    engine.load(session, rows.table, rows.make(user))
    if rows.table == "web.messages":
        engine.execute(session, FIRST_CHANGES)
