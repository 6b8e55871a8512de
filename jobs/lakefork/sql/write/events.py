"""INSERT into STREAM tables: events are appended to the table's buffer, or discarded if nobody would get them."""

import pyarrow as pa

from lakefork.errors import InvalidInputError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.streams import StreamBuffer, admit_events, append_events, create_buffer
from lakefork.model.tables import SEQ, TableDefinition, TableKind
from lakefork.sql.permissions import Access
from lakefork.sql.resources import Resources


class EventAppender:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._created: set[int] = set()  # ids of tables that have one in Postgres; no id is used again

    def prepare(self, definition: TableDefinition) -> None:
        """Makes the table for the events of a definition, if nobody has."""
        if definition.kind != TableKind.STREAM or definition.table_id in self._created:
            return
        with self._resources.catalog.connection() as connection, connection.transaction():
            create_buffer(connection, StreamBuffer(definition))
        self._resources.eviction.start()
        self._created.add(definition.table_id)

    def append(self, connection: ArrowConnection, definition: TableDefinition, access: Access, rows: pa.Table) -> None:
        """Appends events in the caller's transaction. Whether they are kept is no matter of their writer."""
        owner = _owner_of(access)
        if admit_events(connection, definition, owner, access.rules):
            seqs = self._resources.seqids.next_many(rows.num_rows)
            append_events(connection, definition, owner, rows.append_column(SEQ, pa.array(seqs, pa.int64())))


def _owner_of(access: Access) -> str:
    assert access.user_id is not None  # noqa: S101 - who writes to a table with owners is one
    return access.user_id


def reject_change(definition: TableDefinition) -> None:
    """Raises for an UPDATE or DELETE of events."""
    if definition.kind == TableKind.STREAM:
        raise InvalidInputError(
            f"{definition} is a STREAM table: its events cannot be changed; they go by retention and max_buffer"
        )
