"""Lists the batches of a table from the catalog, in a reader's transaction."""

import json
from collections.abc import Iterable

from lakefork.hot.connections import ArrowConnection
from lakefork.model.predicates import postgres_text
from lakefork.model.tables import DELETED, SEQ, SYSTEM_COLUMN_IDS, TableDefinition
from lakefork.queries import load
from lakefork.read.pruning import Batch, ColumnBounds

_SQL = load(__package__)


def list_batches(
    connection: ArrowConnection,
    definition: TableDefinition,
    *,
    owner: str | None = None,
    snapshot: int | None = None,
    bounds_of: Iterable[int] = (),
    statistics_too: bool = False,
) -> list[Batch]:
    """Lists batches. owner: None for all. bounds_of: ids of columns besides the first key column, _seq and _deleted.

    statistics_too: also which columns have statistics.
    """
    bounded = {SYSTEM_COLUMN_IDS[SEQ], SYSTEM_COLUMN_IDS[DELETED], *bounds_of}
    bounded |= {column.column_id for column in definition.key[:1]}
    found = connection.query(
        _SQL["batches_with_statistics" if statistics_too else "batches"].format(
            catalog_id=definition.catalog_id,
            table_id=definition.table_id,
            owner=postgres_text(owner),
            columns=",".join(map(str, sorted(bounded))),
            snapshot="NULL" if snapshot is None else snapshot,
        )
    )
    return [
        Batch(
            row["path"],
            {int(column): ColumnBounds(*known) for column, known in json.loads(row["bounds"] or "{}").items()},
            row["owner"],
            row["published"],
            frozenset(row.get("column_ids", ())),
        )
        for row in found.to_pylist()
    ]
