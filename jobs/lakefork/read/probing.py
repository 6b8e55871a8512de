"""Which batches to read, when bloom filters may be asked as well."""

from collections import Counter
from collections.abc import Callable, Sequence

from lakefork.model.predicates import Predicate, duckdb_literal
from lakefork.model.tables import TableDefinition, fold
from lakefork.read.pruning import Batch, ScanPlan, plan_scan
from lakefork.read.requests import ScanRequest

MIN_BATCHES_TO_PROBE = 3  # fewer batches are read as fast as their bloom filters
MAX_PROBES = 8
PROBED_TYPES = (
    "int16",
    "int32",
    "int64",
    "varchar",
    "date",
    "timestamp",
)  # not decimals: hashed differently

Probe = Callable[[Sequence[str], int, Sequence[str]], frozenset[str]]  # paths, column, values: files that have none


def plan_batches(definition: TableDefinition, batches: Sequence[Batch], request: ScanRequest, probe: Probe) -> ScanPlan:
    """Which of the batches to read, by their bounds and bloom filters."""
    key = definition.key[0] if definition.key else None

    def plan(of: Sequence[Batch]) -> ScanPlan:
        one_key = len(definition.key) == 1 and not request.superseded_too
        return plan_scan(
            of, key, request.predicates, request.filters, one_key=one_key, include_deleted=request.include_deleted
        )

    found = plan(batches)
    for predicate in request.predicates:
        if out := _excluded(probe, definition, found.batches, predicate):  # the remaining ones may be clean now
            skipped = found.skipped
            found = plan([batch for batch in found.batches if batch.path not in out])
            found.skipped += skipped + _by_bloom_filter(predicate, out)
    for predicate in request.filters:  # of the newest versions, so only where each batch has those
        if out := _excluded(probe, definition, found.clean, predicate):
            found.clean = [batch for batch in found.clean if batch.path not in out]
            found.skipped += _by_bloom_filter(predicate, out)
    return found


def _excluded(
    probe: Probe, definition: TableDefinition, batches: Sequence[Batch], predicate: Predicate
) -> frozenset[str]:
    column = predicate.column
    is_filtered = fold(column.name) in definition.filtered_columns
    if len(batches) < MIN_BATCHES_TO_PROBE or not is_filtered or not can_be_probed(predicate):
        return frozenset()
    literals = [duckdb_literal(value, column.type) for value in predicate.values]
    return probe([batch.path for batch in batches], column.column_id, literals)


def can_be_probed(predicate: Predicate) -> bool:
    """Tells whether DuckDB probes bloom filters correctly for the type."""
    return predicate.op == "=" and len(predicate.values) <= MAX_PROBES and predicate.column.type.name in PROBED_TYPES


def _by_bloom_filter(predicate: Predicate, excluded: frozenset[str]) -> Counter[str]:
    return Counter({f"bloom filter of {predicate.column.name}": len(excluded)})
