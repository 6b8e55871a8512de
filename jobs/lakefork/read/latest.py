"""The newest version of each row as SQL for DuckDB: MAX(_seq) per key over hot rows and batches."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.hot.rows import is_increasing
from lakefork.hot.tables import hot_column
from lakefork.model.key_ranges import KeyRange, touching
from lakefork.model.predicates import Predicate, quoted
from lakefork.model.tables import DELETED, SEQ, SUPERSEDED, SYSTEM_COLUMN_IDS, USER_ID, Column, TableDefinition
from lakefork.read.pruning import Batch, ColumnBounds, ScanPlan, batches_to_read
from lakefork.read.requests import HotParts, RowsQuery, ScanRequest, ScanResult
from lakefork.read.scan import condition, quoted_name, scan_sql

ORDERED_ALIKE = ("int16", "int32", "int64", "varchar")  # by Arrow, Python and DuckDB


def rows_query(found: ScanResult) -> RowsQuery:
    """Returns the query that reads the rows of a scan."""
    definition = found.definition
    columns = with_key(definition, found.request.columns)
    if found.request.superseded_too:
        return _every_version(definition, columns, found)
    return resolve_latest_version(definition, columns, found.hot, found.plan, found.request)


def as_view(found: ScanResult, hot_name: str) -> tuple[str, Mapping[str, pa.Table]] | None:
    """Returns a query over rows without grouping, if each is a requested newest version; otherwise None.

    Not if rows are hidden: a user's expression could be evaluated on them first, and fail.
    """
    plan, request = found.plan, found.request
    if plan.grouped or plan.tombstones or request.row_filter or request.superseded_too or not plan.clean:
        return None
    if any(not batch.none_deleted or "://" in batch.path for batch in plan.clean):
        return None
    definition = request.table.definition
    parts = [part for part in found.hot.values() if part[1].num_rows]
    hot = dict(zip((hot_name,), parts, strict=False))
    if len(parts) > 1 or (hot and not _only_adds(definition, hot, plan.clean, request)):
        return None
    columns = [column for column in definition.columns if column in request.columns]
    scan = _scan(definition, columns, plan.clean, (), request)
    queries = [f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})"]
    queries += [f"SELECT {_projection(definition, definition, columns)} FROM {name}" for name in hot]
    return " UNION ALL ".join(queries), {name: rows for name, (_, rows) in hot.items()}


def resolve_latest_version(
    definition: TableDefinition,
    columns: Sequence[Column],
    hot: HotParts,
    plan: ScanPlan,
    request: ScanRequest,
    keys: pa.Table | None = None,
) -> RowsQuery:
    """Returns MAX(_seq) per key over all parts, under the current definition, with the conditions applied.

    Clean batches are not grouped: their rows count unless their key is among the others.
    """
    hot = {name: part for name, part in hot.items() if part[1].num_rows}
    in_order = _keys_in_order(definition, hot, request)
    relations = {name: rows for name, (_, rows) in hot.items()}
    if not hot and not plan.grouped and not plan.tombstones and keys is None:
        columns = [column for column in definition.columns if column in request.columns]  # keys are not compared
    parts = [f"SELECT {_projection(under, definition, columns)} FROM {name}" for name, (under, _) in hot.items()]
    if plan.grouped or plan.tombstones:
        scan = _scan(definition, columns, plan.grouped + plan.tombstones, request.predicates, request)
        parts.append(f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})")
    conditions = _conditions(request)
    if keys is not None:
        relations["wanted_keys"] = keys
        conditions.append(f"EXISTS (SELECT 1 FROM w WHERE {_same_key(definition, 'w', 'versions')})")
    # Materialized, because DuckDB cannot push down every condition on keys into Arrow.
    ctes = ["w AS MATERIALIZED (FROM wanted_keys)"] if keys is not None else []
    selects = []
    if parts:
        known = {*columns, *definition.system_columns}
        ctes.append(f"versions AS MATERIALIZED ({' UNION ALL '.join(parts)})")
        filters = [condition(one, quoted_name(one.column)) for one in request.filters if one.column in known]
        with_batches = bool(plan.grouped or plan.tombstones)
        newest = _newest_only(definition, request) if with_batches or not in_order else []
        repeat = with_batches and definition.key and _may_repeat(hot, plan.grouped + plan.tombstones)
        once = f" QUALIFY row_number() OVER (PARTITION BY {SEQ}) = 1" if repeat else ""
        selects.append(f"SELECT * FROM versions WHERE {' AND '.join(['true', *newest, *conditions, *filters])}{once}")
    within = () if plan.tombstones or not in_order else in_order
    touched = {batch.path for batch in batches_to_read(plan.clean, within)} if parts else set[str]()
    for superseded in (True, False):
        if batches := [batch for batch in plan.clean if (batch.path in touched) == superseded]:
            selects.append(_clean_rows(definition, columns, batches, request, conditions, superseded=superseded))
    schema = rows_schema(definition, columns)
    if not selects:
        return RowsQuery(None, schema)
    return RowsQuery((f"WITH {', '.join(ctes)} " if ctes else "") + " UNION ALL ".join(selects), schema, relations)


def _every_version(definition: TableDefinition, columns: Sequence[Column], found: ScanResult) -> RowsQuery:
    """Returns each hot or cold version once, and whether a newer version of its key exists."""
    hot = {name: part for name, part in found.hot.items() if part[1].num_rows}
    parts = [f"SELECT {_projection(under, definition, columns)} FROM {name}" for name, (under, _) in hot.items()]
    if found.plan.batches:
        scan = _scan(definition, columns, found.plan.batches, found.request.predicates, found.request)
        parts.append(f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})")
    schema = rows_schema(definition, columns).append(pa.field(SUPERSEDED, pa.bool_()))
    if not parts:
        return RowsQuery(None, schema)
    key = ", ".join([USER_ID] * definition.per_user + [quoted_name(column) for column in definition.key])
    sql = (
        f"SELECT *, {SEQ} < max({SEQ}) OVER (PARTITION BY {key}) AS {SUPERSEDED} "
        f"FROM (FROM ({' UNION ALL '.join(parts)}) QUALIFY row_number() OVER (PARTITION BY {SEQ}) = 1)"
    )
    return RowsQuery(sql, schema, {name: rows for name, (_, rows) in hot.items()})


def _clean_rows(
    definition: TableDefinition,
    columns: Sequence[Column],
    batches: Sequence[Batch],
    request: ScanRequest,
    conditions: Sequence[str],
    *,
    superseded: bool,
) -> str:
    """Returns rows of clean batches. superseded: some keys may have newer versions among `versions`."""
    live = [] if request.include_deleted else [f"NOT c{SYSTEM_COLUMN_IDS[DELETED]}"]
    scan = _scan(definition, columns, batches, [*request.predicates, *request.filters], request, live)
    rows = f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})"
    if superseded:
        owner = f" AND v.{USER_ID} = clean.{USER_ID}" if definition.per_user and request.user_id is None else ""
        newer_of = f"{_same_key(definition, 'v', 'clean')}{owner} AND v.{SEQ} >= clean.{SEQ}"
        rows = f"SELECT * FROM ({rows}) clean WHERE NOT EXISTS (SELECT 1 FROM versions v WHERE {newer_of})"
    return f"SELECT * FROM ({rows}) versions WHERE {' AND '.join(['true', *conditions])}"


def _keys_in_order(definition: TableDefinition, hot: HotParts, request: ScanRequest) -> tuple[Predicate, ...]:
    """Returns the key bounds of hot rows if their keys are increasing and unique; otherwise empty.

    This is common when rows are added with increasing keys; then there are no versions to compare.
    """
    if len(hot) != 1 or len(definition.key) != 1 or (definition.per_user and request.user_id is None):
        return ()
    ((under, rows),) = hot.values()
    (column,) = definition.key
    if under != definition or column.type.name not in ORDERED_ALIKE:
        return ()
    keys = rows[hot_column(column)]
    if not is_increasing(keys):
        return ()
    return Predicate(column, ">=", (keys[0].as_py(),)), Predicate(column, "<=", (keys[-1].as_py(),))


def _only_adds(definition: TableDefinition, hot: HotParts, batches: Sequence[Batch], request: ScanRequest) -> bool:
    """Whether hot rows are all new ones: of each key one, none deleted, and no batch may have it."""
    within = _keys_in_order(definition, hot, request)
    deleted = any(pc.any(rows[DELETED]).as_py() for _, rows in hot.values())
    return bool(within) and not deleted and not batches_to_read(batches, within)


def _same_key(definition: TableDefinition, one: str, other: str) -> str:
    return " AND ".join(f"{one}.{quoted_name(column)} = {other}.{quoted_name(column)}" for column in definition.key)


def _conditions(request: ScanRequest) -> list[str]:
    """Returns conditions for the newest versions."""
    conditions = [] if request.include_deleted else [f"NOT {DELETED}"]
    conditions += [f"({request.row_filter})"] if request.row_filter else []
    return conditions


def _may_repeat(hot: HotParts, batches: Sequence[Batch]) -> bool:
    """Tells whether a version may occur twice: in a batch and still hot, or published again after
    a restore. Then the _seq of two parts must overlap, as those of flushes one after the other do not.
    """
    ranges = [KeyRange(*(bound.as_py() for bound in pc.min_max(rows[SEQ]).values())) for _, rows in hot.values()]
    for batch in batches:
        bounds = batch.bounds.get(SYSTEM_COLUMN_IDS[SEQ], ColumnBounds())
        ranges.append(KeyRange(bounds.low and int(bounds.low), bounds.high and int(bounds.high)))
    return any(len(together) > 1 for together in touching(ranges, lambda one: one))


def _newest_only(definition: TableDefinition, request: ScanRequest) -> list[str]:
    """Selects the newest version per key by _seq, which is unique; faster than a window."""
    owner = [USER_ID] if definition.per_user and request.user_id is None else []
    key = ", ".join(owner + [quoted_name(column) for column in definition.key])
    return [f"{SEQ} IN (SELECT max({SEQ}) FROM versions GROUP BY {key})"] if key else []


def _scan(
    definition: TableDefinition,
    columns: Sequence[Column],
    batches: Sequence[Batch],
    predicates: Sequence[Predicate],
    request: ScanRequest,
    more_conditions: Sequence[str] = (),
) -> str:
    if request.user_id is not None:  # the catalog knows the owner of a batch; its rows contain it too
        owner = next(column for column in definition.system_columns if column.name == USER_ID)
        predicates = [*predicates, Predicate(owner, "=", (request.user_id,))]
    read = {column.column_id: column for column in (*definition.system_columns, *columns)}
    read |= {predicate.column.column_id: predicate.column for predicate in predicates}
    return scan_sql([batch.path for batch in batches], read.values(), predicates, more_conditions)


def _projection(
    under: TableDefinition, definition: TableDefinition, columns: Sequence[Column], *, cold: bool = False
) -> str:
    system = {column.name: f"c{column.column_id}" if cold else column.name for column in definition.system_columns}
    owner = [f"{system[USER_ID]} AS {USER_ID}"] if definition.per_user else []
    values = [f"{_value(under, column)} AS {quoted_name(column)}" for column in columns]
    return ", ".join([*values, *(f"{system[name]} AS {name}" for name in (SEQ, DELETED)), *owner])


def _value(under: TableDefinition, column: Column) -> str:
    if column.column_id in under.by_id:
        return f"CAST(c{column.column_id} AS {column.type.duckdb})"
    default = "NULL" if column.initial_default is None else quoted(column.initial_default)
    return f"CAST({default} AS {column.type.duckdb})"


def rows_schema(definition: TableDefinition, columns: Sequence[Column]) -> pa.Schema:
    if len(columns) == len(definition.columns):
        return definition.arrow_schema
    everything = [*columns, *definition.system_columns]
    return pa.schema([definition.arrow_schema.field(column.name) for column in everything])


def with_key(definition: TableDefinition, columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(column for column in definition.columns if column in columns or column in definition.key)
