"""Trims hot rows that earlier flushes published, in bounded transactions."""

import sys
from collections.abc import Sequence
from typing import Any

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.leases import table_lease
from lakefork.database_errors import domain_errors
from lakefork.hot.tables import HotTable
from lakefork.model.tables import TableRef
from lakefork.queries import load
from lakefork.spark.job import JobContext

TRIM_ROWS = 50_000
IDLE_ROWS = 20 * TRIM_ROWS


def trim_idle_tables(context: JobContext) -> None:
    """Trims tables that are no longer written, and so not flushed, an hour after their last publish; bounded."""
    rows = context.connection.execute(load(__package__)["idle_untrimmed"])
    names = {table_lease(*table): table for table in map(TableRef.of, rows)}
    if taken := context.leases.acquire_available(context.connection, names):
        trim_tables(context, sorted(names[name] for name in taken), max_rows=IDLE_ROWS)


def trim_tables(context: JobContext, tables: Sequence[TableRef], *, max_rows: int = sys.maxsize) -> None:
    sql = load(__package__)
    removed = 0
    with connect(context.dsn, check_version=False) as connection:
        defined = find_definitions(connection, tables)
        hot = {
            (*table, under.definition_snapshot): HotTable(under) for table, one in defined.items() for under in one.hot
        }
        wanted = {"catalogs": [one for one, _ in tables], "tables": [one for _, one in tables]}
        for row in connection.execute(sql["untrimmed"], wanted).fetchall():
            key = row["catalog_id"], row["table_id"], row["hot_snapshot"]
            if key not in hot or removed >= max_rows:
                continue
            where: dict[str, Any] = {
                "job_id": context.run.job_id,
                "hot": hot[key].qualified, "catalog_id": key[0], "table_id": key[1], "hot_snapshot": key[2],
                "per_user": hot[key].definition.per_user, "after_user": "", "after_seq": -1, "limit": TRIM_ROWS,
            }  # fmt: skip
            removed += _trim_table(connection, sql["trim_hot"], where, context, max_rows - removed)
    if removed:
        context.progress(f"{removed:,} hot rows of earlier flushes were trimmed")


def _trim_table(connection: Connection, sql: str, where: dict[str, Any], context: JobContext, max_rows: int) -> int:
    removed: int = 0
    while removed < max_rows and not context.lease_lost.is_set():
        row = _trim_some(connection, sql, where)
        removed += row["deleted"]
        if row["last_user"] is None:
            break
        where = {**where, "after_user": row["last_user"], "after_seq": row["last_seq"]}
    return removed


def _trim_some(connection: Connection, sql: str, where: dict[str, Any]) -> dict[str, Any]:
    """Trims some rows in one transaction."""
    with domain_errors():
        row = connection.execute(sql, where).fetchone()
    assert row is not None  # noqa: S101 - the function returns one row
    return row
