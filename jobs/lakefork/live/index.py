"""The index that makes looks at a hot table cheap: only tables that somebody has subscribed to have it."""

import logging
from collections.abc import Iterable

import psycopg

from lakefork.hot.changes import index_name, index_statement
from lakefork.sql.resources import Resources

LOCK_MS = 200  # writers wait while this does
_there: set[tuple[str, str]] = set()

logger = logging.getLogger(__name__)


def ensure_indexes(resources: Resources, names: Iterable[str]) -> None:
    """Makes missing indexes; where writers are in the way, a later call tries again, and looks are only slower."""
    for name in names:
        if (resources.dsn, name) in _there:
            continue
        schema = name.partition(".")[0]
        with resources.catalog.connection() as connection:
            row = connection.execute(
                "SELECT to_regclass(%s) IS NOT NULL AS there", (f"{schema}.{index_name(name)}",)
            ).fetchone()
            if row is None or not row["there"]:
                try:
                    with connection.transaction():
                        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_MS}ms'")
                        connection.execute(index_statement(name))
                except psycopg.Error as error:
                    logger.info("no index on %s yet: %s", name, str(error).partition("\n")[0])
                    continue
        _there.add((resources.dsn, name))
