"""Reads the newest versions for SQL: what SELECT, UPDATE, DELETE and key checks look at."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import find_versions, read_versions
from lakefork.hot.tables import HotTable
from lakefork.model.predicates import Predicate
from lakefork.model.tables import Column, TableDefinition, fold
from lakefork.read.batches import list_batches
from lakefork.read.latest import resolve_latest_version, rows_schema, with_key
from lakefork.read.probing import Probe, plan_batches
from lakefork.read.pruning import Batch, ScanPlan
from lakefork.read.requests import RowsQuery, ScanRequest, ScanResult
from lakefork.read.tables import FoundTable
from lakefork.sql.read.hot_cache import HotCache
from lakefork.sql.workers.messages import Probe as ProbeMessage
from lakefork.sql.workers.messages import Read, Request
from lakefork.sql.workers.pool import QueryWorkers


def as_read(query: RowsQuery, name: str, request: ScanRequest) -> tuple[Read, Mapping[str, pa.Table]]:
    """The read, and relations under names that are unique in a request."""
    given = {f"{name}.{local}": rows for local, rows in query.relations.items()}
    # The error may reveal rows that the filter hides.
    refusal = f"permission denied: a rule of system.users cannot be applied to {request.table.definition}"
    names = {local: f"{name}.{local}" for local in query.relations}
    return Read(name, query.sql or "", names, refusal if request.row_filter else None), given


def read_rows(query: RowsQuery, workers: QueryWorkers, request: ScanRequest) -> pa.Table:
    if query.sql is None:
        return pa.Table.from_batches([], query.schema)
    read, relations = as_read(query, "rows", request)
    return workers.run(Request(relations=relations, reads=[read])).cast(query.schema)


def find_latest(
    connection: ArrowConnection, workers: QueryWorkers, request: ScanRequest, hot_cache: HotCache | None = None
) -> ScanResult:
    """Scans a table. hot_cache: for read-only transactions."""
    definition = request.table.definition
    hot = {
        f"hot_{place}": (part.definition, _hot_versions(connection, part, request, hot_cache))
        for place, part in enumerate(request.table.hot)
    }
    batches = requested_batches(connection, request) if request.table.has_files else []
    return ScanResult(request, hot, len(batches), plan_batches(definition, batches, request, _probe(workers)))


def _hot_versions(
    connection: ArrowConnection, part: HotTable, request: ScanRequest, hot_cache: HotCache | None
) -> pa.Table:
    columns = _known(part.definition, with_key(request.table.definition, request.columns))
    if hot_cache is None or request.predicates or request.superseded_too:
        batches_too = request.table.has_files and not request.superseded_too
        return read_versions(connection, part, request.user_id, columns, request.predicates, batches_too=batches_too)
    return hot_cache.read(connection, part, request.user_id, columns, batches_too=request.table.has_files)


def read_by_key(
    connection: ArrowConnection, workers: QueryWorkers, table: FoundTable, user_id: str | None, keys: pa.Table
) -> pa.Table:
    """The newest versions, deleted ones too, of the rows with these keys.

    Hot rows are read before the list of batches, because a flush adds batches before it trims. A row that is hot is
    not looked for in batches: its newest version leaves the hot store only together with all older ones.
    """
    definition = table.definition
    hot = {
        f"hot_{place}": (part.definition, find_versions(connection, part, user_id, keys))
        for place, part in enumerate(table.hot)
    }
    request = ScanRequest(table, definition.columns, user_id, key_bounds(definition, keys), include_deleted=True)
    plan = ScanPlan()
    if sum(part.num_rows for _, part in hot.values()) < keys.num_rows or len(hot) > 1:
        plan = plan_batches(definition, requested_batches(connection, request), request, _probe(workers))
    if not plan.batches and [under for under, _ in hot.values()] == [definition]:
        return _as_defined(definition, hot["hot_0"][1])
    query = resolve_latest_version(definition, definition.columns, hot, plan, request, keys if plan.batches else None)
    return read_rows(query, workers, request)


def _as_defined(definition: TableDefinition, found: pa.Table) -> pa.Table:
    """Returns rows of one hot table with the names and types of the definition."""
    schema = rows_schema(definition, definition.columns)
    names = [
        name if name in definition.system_names else f"c{definition.by_name[fold(name)].column_id}"
        for name in schema.names
    ]
    return found.select(names).rename_columns(schema.names).cast(schema)


def requested_batches(connection: ArrowConnection, request: ScanRequest) -> list[Batch]:
    bounds = {predicate.column.column_id for predicate in (*request.predicates, *request.filters)}
    return list_batches(
        connection, request.table.definition, owner=request.user_id, snapshot=request.snapshot, bounds_of=bounds
    )


def _probe(workers: QueryWorkers) -> Probe:
    def probe(paths: Sequence[str], column_id: int, literals: Sequence[str]) -> frozenset[str]:
        return frozenset(workers.run(ProbeMessage(list(paths), column_id, list(literals)))["path"].to_pylist())

    return probe


def key_bounds(definition: TableDefinition, keys: pa.Table) -> tuple[Predicate, ...]:
    """Returns predicates on keys: few keys are listed, so that bloom filters apply; many become a range."""
    found = []
    for column in definition.key:
        values = list(dict.fromkeys(keys[column.name].to_pylist()))
        if len(values) <= 100:
            found.append(Predicate(column, "=", tuple(values)))
        else:
            found += [Predicate(column, ">=", (min(values),)), Predicate(column, "<=", (max(values),))]
    return tuple(found)


def _known(definition: TableDefinition, columns: Sequence[Column]) -> list[Column]:
    """Returns the columns as they were under an older definition."""
    return [definition.by_id[column.column_id] for column in columns if column.column_id in definition.by_id]
