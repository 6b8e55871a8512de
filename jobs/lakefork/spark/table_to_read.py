"""What read_table needs to know of a table: its definitions, its batches, where hot rows are."""

from dataclasses import dataclass

from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.tables import HotTable
from lakefork.model.tables import TableDefinition, TableKind
from lakefork.read.batches import list_batches
from lakefork.read.pruning import Batch
from lakefork.read.tables import AsOf, Definitions, catalog_at, find_history, live_catalog, moment_of, snapshot_at


@dataclass(frozen=True)
class TableToRead:
    """A resolved table. history: all known definitions, oldest first; the last is the one to read under."""

    history: tuple[TableDefinition, ...]
    hot: tuple[HotTable, ...]
    batches: tuple[Batch, ...]

    @property
    def definition(self) -> TableDefinition:
        return self.history[-1]


def find_table_to_read(
    connection: ArrowConnection, catalog: str, namespace: str, table: str, user: str | None, as_of: AsOf | None
) -> TableToRead:
    """Resolves a table in the caller's transaction, so that everything matches the hot rows."""
    catalog_id, snapshot = _place(connection, catalog, as_of)
    (found,) = Definitions().find_tables(connection, catalog_id, catalog, [(namespace, table)], snapshot)
    if found is None:
        when = "" if snapshot is None else f" at snapshot {snapshot}"
        raise NotFoundError(f"table {namespace}.{table} does not exist in catalog {catalog!r}{when}")
    _require_readable(found.definition, user)
    batches = list_batches(connection, found.definition, owner=user, snapshot=snapshot, statistics_too=True)
    return TableToRead(find_history(connection, found.definition), found.hot, tuple(batches))


def _place(connection: ArrowConnection, catalog: str, as_of: AsOf | None) -> tuple[int, int | None]:
    """The live catalog of this name, or the one that had it then, and the snapshot."""
    if as_of is None:
        return live_catalog(connection, catalog), None
    moment = moment_of(as_of)
    catalog_id = catalog_at(connection, catalog, moment)
    catalog_id = live_catalog(connection, catalog) if catalog_id is None else catalog_id
    return catalog_id, snapshot_at(connection, catalog_id, moment)


def _require_readable(definition: TableDefinition, user: str | None) -> None:
    if definition.kind == TableKind.STREAM:
        raise InvalidInputError(f"{definition} is a STREAM table, which has no rows to read")
    if user is not None and not definition.per_user:
        raise InvalidInputError(f"{definition} is a SHARED table, whose rows belong to no user: omit user")
