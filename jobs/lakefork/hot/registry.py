"""Creates a hot table at the first write under a definition; the caller registers it in the same transaction."""

from typing import Any

from lakefork.hot.tables import HotTable


def create_hot_table(connection: Any, hot: HotTable) -> None:
    """Safe to repeat and to race: forks and processes that share the definition share the table."""
    connection.execute("SELECT pg_advisory_xact_lock(hashint8extended(%s, 5063717814))", (hot.definition.table_id,))
    for statement in hot.create_statements():
        connection.execute(statement)
