"""SELECT from STREAM tables: the buffer of the session's user, or of all users."""

import pyarrow as pa

from lakefork.errors import InvalidInputError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.streams import StreamBuffer, read_events
from lakefork.model.tables import USER_ID, TableDefinition, TableKind
from lakefork.read.pruning import ScanPlan
from lakefork.read.requests import ScanRequest, ScanResult
from lakefork.sql.workers.messages import Read


def is_stream(definition: TableDefinition) -> bool:
    return definition.kind == TableKind.STREAM


def scan_events(connection: ArrowConnection, request: ScanRequest) -> ScanResult:
    """Returns the events as the hot rows of a scan; they are all that it finds."""
    definition = request.table.definition
    if request.snapshot is not None:
        raise InvalidInputError(f"{definition} is a STREAM table: its events belong to no snapshot; leave out AT")
    rows = read_events(connection, StreamBuffer(definition), request.user_id, request.columns)
    return ScanResult(request, {"events": (definition, rows)}, 0, ScanPlan())


def events_as_relation(found: ScanResult, names: frozenset[str]) -> pa.Table:
    """Returns the events, with their owner if it is named."""
    _, rows = found.hot["events"]
    return rows if USER_ID in names else rows.drop_columns([USER_ID])


def filtered_read(name: str, given: str, row_filter: str, definition: TableDefinition) -> Read:
    """Returns the read of a relation that hides what rules hide; its error must not tell of it."""
    refusal = f"permission denied: a rule of system.users cannot be applied to {definition}"
    return Read(name, f"SELECT * FROM events WHERE {row_filter}", {"events": given}, refusal)
