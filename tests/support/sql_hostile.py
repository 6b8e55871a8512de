"""Helpers for the hostile SQL in tests/sql/hostile: a lake with secrets, and what must hold whatever is tried."""

import functools
import json
from typing import Any

import psycopg

from lakefork.errors import LakeforkError
from lakefork.sql.session import Role, Session
from support import sql_lake
from support.sql_lake import SqlLake

SECRET = "TOPSECRET"
PATIENCE = 240  # seconds that no statement needs, however busy the machine is; the limit of a test is 300


def fill(lake: SqlLake) -> None:
    """mallory may use app.open, own rows of app.mine and those of app.filtered; all that others have says TOPSECRET."""
    lake.run(
        f"""
        CREATE NAMESPACE app; CREATE NAMESPACE other;
        CREATE SHARED TABLE app.open (id BIGINT PRIMARY KEY, v STRING);
        CREATE SHARED TABLE app.secret (id BIGINT PRIMARY KEY, owner STRING, v STRING);
        CREATE SHARED TABLE app.filtered (id BIGINT PRIMARY KEY, owner STRING, v STRING, n BIGINT);
        CREATE SHARED TABLE app.mixed (id BIGINT PRIMARY KEY, code STRING);
        CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, v STRING);
        CREATE SHARED TABLE other.t (id BIGINT PRIMARY KEY, v STRING);
        INSERT INTO app.open VALUES (1, 'open'), (2, 'open');
        INSERT INTO app.secret VALUES (1, 'alice', '{SECRET}'), (2, 'mallory', '{SECRET}');
        INSERT INTO app.filtered VALUES (1, 'mallory', 'own', 1), (2, 'alice', '{SECRET}', 0), (3, NULL, '{SECRET}', 0);
        INSERT INTO app.mixed VALUES (1, '5'), (2, '{SECRET}');
        INSERT INTO other.t VALUES (1, '{SECRET}');
        INSERT INTO system.users (user_id, permissions) VALUES ('alice', []),
            ('mallory', ['app.open', 'app.filtered.owner = CURRENT_USER()', 'app.mixed.code = 5', 'other.nothing']);
        """
    )
    lake.run(f"INSERT INTO app.mine VALUES (1, '{SECRET}'), (2, '{SECRET}')", user="alice")
    lake.run("INSERT INTO app.mine VALUES (1, 'own')", user="mallory")
    rival = Session("rival", role=Role.ADMIN)
    lake.engine.execute(
        rival,
        f"CREATE NAMESPACE app; CREATE SHARED TABLE app.rivals (id BIGINT PRIMARY KEY, v STRING); INSERT INTO app.rivals VALUES (1, '{SECRET}')",
    )
    lake.flush_by_hand("app.secret")
    lake.flush_by_hand("app.filtered")
    lake.flush_by_hand("app.mine", "alice")


@functools.cache
def watching(dsn: str) -> psycopg.Connection[Any]:
    """One connection for all looks at the state of a database."""
    return psycopg.connect(dsn, autocommit=True)


def state(lake: SqlLake) -> Any:
    """All that a statement could change."""
    connection = watching(lake.dsn)
    tables = [
        row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hot' ORDER BY 1")
    ]
    counts = " UNION ALL ".join(f"SELECT '{name}', count(*), max(_seq) FROM hot.{name}" for name in tables)
    rest = connection.execute(
        "SELECT (SELECT max(snapshot_id) FROM public.ducklake_snapshot), (SELECT count(*) FROM lakefork.storage_location), "
        "(SELECT jsonb_agg(u ORDER BY user_id) FROM lakefork.app_user u), (SELECT count(*) FROM lakefork.audit)"
    ).fetchone()
    return sorted(connection.execute(counts).fetchall()), rest


def refuse(lake: SqlLake, text: str, *parameters: Any, kind: type[LakeforkError] = LakeforkError, **who: Any) -> str:
    """Fails with one line that tells no secret; returns it."""
    message = sql_lake.refuse(lake, kind, ".", text, *parameters, **who)
    assert SECRET not in message
    return message


def survives(lake: SqlLake, text: str, *parameters: Any, **who: Any) -> list[Any] | None:
    """Answers, or fails with one line; what it answers can be shown as JSON."""
    try:
        results = lake.run(text, *parameters, **who)
    except LakeforkError as error:
        assert "\n" not in str(error)
        return None
    for result in results:
        json.dumps(result.as_json(), allow_nan=False)
    return results
