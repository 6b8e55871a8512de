"""The newest version of each row, from hot tables and batches: what SELECT, UPDATE, DELETE and key checks look at."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.cold.scan import condition, scan_sql
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import find_versions, is_increasing, read_versions
from lakefork.hot.tables import HotTable, hot_column
from lakefork.maintenance.pruning import Batch, ScanPlan, batches_to_read, plan_scan
from lakefork.maintenance.ranges import KeyRange, touching
from lakefork.predicates import Predicate, duckdb_literal, postgres_text, quoted
from lakefork.sql.hot_cache import HotCache
from lakefork.sql.lookup import FoundTable
from lakefork.sql.rows import quoted_name
from lakefork.sql.workers.messages import Probe, Read, Request
from lakefork.sql.workers.pool import QueryWorkers
from lakefork.tables import DELETED, SEQ, SYSTEM_COLUMN_IDS, USER_ID, Column, TableDefinition, fold

ORDERED_ALIKE = ("int16", "int32", "int64", "varchar")  # by Arrow, Python and DuckDB
WORTH_PROBING = 3  # fewer batches are read as quickly as their bloom filters
MOST_PROBES = 8
PROBED_TYPES = ("int16", "int32", "int64", "varchar", "date", "timestamp")  # decimals are not looked up as put in


@dataclass(frozen=True)
class Wanted:
    """Which rows and columns of a table; row_filter is SQL over its columns; user_id None: all users.

    predicates: what is asked of key and _seq; filters: of other columns, which only the newest versions must satisfy.
    """

    table: FoundTable
    columns: tuple[Column, ...]
    user_id: str | None = None
    predicates: tuple[Predicate, ...] = ()
    include_deleted: bool = False
    row_filter: str | None = None
    snapshot: int | None = None
    filters: tuple[Predicate, ...] = ()


@dataclass(frozen=True)
class Resolved:
    """SQL for a worker's reader that gives the newest versions; None: there are none."""

    sql: str | None
    schema: pa.Schema
    relations: Mapping[str, pa.Table] = field(default_factory=dict)

    def as_read(self, name: str, wanted: Wanted) -> tuple[Read, Mapping[str, pa.Table]]:
        """The read, and relations under names that are unique in a request."""
        given = {f"{name}.{local}": rows for local, rows in self.relations.items()}
        # What went wrong may tell of rows that the filter hides.
        refusal = f"permission denied: a rule of system.users cannot be applied to {wanted.table.definition}"
        names = {local: f"{name}.{local}" for local in self.relations}
        return Read(name, self.sql or "", names, refusal if wanted.row_filter else None), given

    def rows(self, workers: QueryWorkers, wanted: Wanted) -> pa.Table:
        if self.sql is None:
            return pa.Table.from_batches([], self.schema)
        read, relations = self.as_read("rows", wanted)
        return workers.run(Request(relations=relations, reads=[read])).cast(self.schema)


Hot = Mapping[str, tuple[TableDefinition, pa.Table]]  # by name; which definition rows were written under


@dataclass(frozen=True)
class Found:
    """What is there of a table, before batches are opened."""

    wanted: Wanted
    hot: Hot
    batches: int
    plan: ScanPlan

    @property
    def hot_versions(self) -> int:
        return sum(part.num_rows for _, part in self.hot.values())

    def as_view(self, hot_name: str) -> tuple[str, Mapping[str, pa.Table]] | None:
        """A query over rows as they are, where those are the ones that are wanted; None: they must be looked through.

        Not where rows are hidden: what a user asks could meet them first, and fail because of them.
        """
        plan, wanted = self.plan, self.wanted
        if plan.grouped or plan.graves or wanted.row_filter or not plan.clean:
            return None
        if any(not batch.none_deleted or "://" in batch.path for batch in plan.clean):
            return None
        definition = wanted.table.definition
        parts = [part for part in self.hot.values() if part[1].num_rows]
        hot = dict(zip((hot_name,), parts, strict=False))
        if len(parts) > 1 or (hot and not _only_adds(definition, hot, plan.clean, wanted)):
            return None
        columns = [column for column in definition.columns if column in wanted.columns]
        scan = _scan(definition, columns, plan.clean, (), wanted)
        queries = [f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})"]
        queries += [f"SELECT {_projection(definition, definition, columns)} FROM {name}" for name in hot]
        return " UNION ALL ".join(queries), {name: rows for name, (_, rows) in hot.items()}

    def resolve(self) -> Resolved:
        """How to read it."""
        definition = self.wanted.table.definition
        columns = _with_key(definition, self.wanted.columns)
        return resolve_latest_version(definition, columns, self.hot, self.plan, self.wanted)


def find_latest(
    connection: ArrowConnection, workers: QueryWorkers, wanted: Wanted, hot_cache: HotCache | None = None
) -> Found:
    """hot_cache: for transactions that only read."""
    definition = wanted.table.definition
    hot = {
        f"hot_{place}": (part.definition, _hot_versions(connection, part, wanted, hot_cache))
        for place, part in enumerate(wanted.table.hot)
    }
    batches = list_batches(connection, definition, wanted) if wanted.table.has_files else []
    return Found(wanted, hot, len(batches), _plan(workers, definition, batches, wanted))


def _hot_versions(connection: ArrowConnection, part: HotTable, wanted: Wanted, hot_cache: HotCache | None) -> pa.Table:
    columns = _known(part.definition, _with_key(wanted.table.definition, wanted.columns))
    if hot_cache is None or wanted.predicates:
        return read_versions(
            connection, part, wanted.user_id, columns, wanted.predicates, batches_too=wanted.table.has_files
        )
    return hot_cache.read(connection, part, wanted.user_id, columns, batches_too=wanted.table.has_files)


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
    wanted = Wanted(table, definition.columns, user_id, _key_bounds(definition, keys), include_deleted=True)
    plan = ScanPlan()
    if sum(part.num_rows for _, part in hot.values()) < keys.num_rows or len(hot) > 1:
        plan = _plan(workers, definition, list_batches(connection, definition, wanted), wanted)
    if not plan.batches and [under for under, _ in hot.values()] == [definition]:
        return _as_defined(definition, hot["hot_0"][1])
    resolved = resolve_latest_version(definition, definition.columns, hot, plan, wanted, keys if plan.batches else None)
    return resolved.rows(workers, wanted)


def _as_defined(definition: TableDefinition, found: pa.Table) -> pa.Table:
    """What one hot table gave, under the names and types of the definition."""
    schema = _schema(definition, definition.columns)
    names = [
        name if name in definition.system_names else f"c{definition.by_name[fold(name)].column_id}"
        for name in schema.names
    ]
    return found.select(names).rename_columns(schema.names).cast(schema)


def _plan(workers: QueryWorkers, definition: TableDefinition, batches: Sequence[Batch], wanted: Wanted) -> ScanPlan:
    key = definition.key[0] if definition.key else None

    def plan(of: Sequence[Batch]) -> ScanPlan:
        return plan_scan(of, key, wanted.predicates, wanted.filters, include_deleted=wanted.include_deleted)

    found = plan(batches)
    for predicate in wanted.predicates:
        if out := _excluded(workers, definition, found.batches, predicate):  # those that are left may be clean now
            skipped = found.skipped
            found = plan([batch for batch in found.batches if batch.path not in out])
            found.skipped += skipped + _by_bloom_filter(predicate, out)
    for predicate in wanted.filters:  # of the newest versions, so only where each batch has those
        if out := _excluded(workers, definition, found.clean, predicate):
            found.clean = [batch for batch in found.clean if batch.path not in out]
            found.skipped += _by_bloom_filter(predicate, out)
    return found


def _excluded(
    workers: QueryWorkers, definition: TableDefinition, batches: Sequence[Batch], predicate: Predicate
) -> frozenset[str]:
    column = predicate.column
    is_filtered = fold(column.name) in definition.filtered_columns
    if len(batches) < WORTH_PROBING or not is_filtered or not can_be_probed(predicate):
        return frozenset()
    literals = [duckdb_literal(value, column.type) for value in predicate.values]
    probe = Probe([batch.path for batch in batches], column.column_id, literals)
    return frozenset(workers.run(probe)["path"].to_pylist())


def can_be_probed(predicate: Predicate) -> bool:
    """Whether DuckDB looks up values of the type in bloom filters as they were put in."""
    return predicate.op == "=" and len(predicate.values) <= MOST_PROBES and predicate.column.type.name in PROBED_TYPES


def _by_bloom_filter(predicate: Predicate, excluded: frozenset[str]) -> Counter[str]:
    return Counter({f"bloom filter of {predicate.column.name}": len(excluded)})


def resolve_latest_version(
    definition: TableDefinition,
    columns: Sequence[Column],
    hot: Hot,
    plan: ScanPlan,
    wanted: Wanted,
    keys: pa.Table | None = None,
) -> Resolved:
    """MAX(_seq) per key over all parts, under the definition of now, without what is not wanted.

    Clean batches are not grouped: their rows count unless their key is among the others.
    """
    hot = {name: part for name, part in hot.items() if part[1].num_rows}
    in_order = _keys_in_order(definition, hot, wanted)
    relations = {name: rows for name, (_, rows) in hot.items()}
    if not hot and not plan.grouped and not plan.graves and keys is None:
        columns = [column for column in definition.columns if column in wanted.columns]  # keys are not compared
    parts = [f"SELECT {_projection(under, definition, columns)} FROM {name}" for name, (under, _) in hot.items()]
    if plan.grouped or plan.graves:
        scan = _scan(definition, columns, plan.grouped + plan.graves, wanted.predicates, wanted)
        parts.append(f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})")
    conditions = _conditions(wanted)
    if keys is not None:
        relations["wanted_keys"] = keys
        conditions.append(f"EXISTS (SELECT 1 FROM w WHERE {_same_key(definition, 'w', 'versions')})")
    # Materialized, because DuckDB cannot push all that it learns of keys down into Arrow.
    ctes = ["w AS MATERIALIZED (FROM wanted_keys)"] if keys is not None else []
    selects = []
    if parts:
        known = {*columns, *definition.system_columns}
        ctes.append(f"versions AS MATERIALIZED ({' UNION ALL '.join(parts)})")
        filters = [condition(one, quoted_name(one.column)) for one in wanted.filters if one.column in known]
        with_batches = bool(plan.grouped or plan.graves)
        newest = _newest_only(definition, wanted) if with_batches or not in_order else []
        repeat = with_batches and definition.key and _may_repeat(hot, plan.grouped + plan.graves)
        once = f" QUALIFY row_number() OVER (PARTITION BY {SEQ}) = 1" if repeat else ""
        selects.append(f"SELECT * FROM versions WHERE {' AND '.join(['true', *newest, *conditions, *filters])}{once}")
    within = () if plan.graves or not in_order else in_order
    touched = {batch.path for batch in batches_to_read(plan.clean, within)} if parts else set[str]()
    for superseded in (True, False):
        if batches := [batch for batch in plan.clean if (batch.path in touched) == superseded]:
            selects.append(_clean_rows(definition, columns, batches, wanted, conditions, superseded=superseded))
    schema = _schema(definition, columns)
    if not selects:
        return Resolved(None, schema)
    return Resolved((f"WITH {', '.join(ctes)} " if ctes else "") + " UNION ALL ".join(selects), schema, relations)


def _clean_rows(
    definition: TableDefinition,
    columns: Sequence[Column],
    batches: Sequence[Batch],
    wanted: Wanted,
    conditions: Sequence[str],
    *,
    superseded: bool,
) -> str:
    """superseded: some keys may have newer versions among `versions`."""
    live = [] if wanted.include_deleted else [f"NOT c{SYSTEM_COLUMN_IDS[DELETED]}"]
    scan = _scan(definition, columns, batches, [*wanted.predicates, *wanted.filters], wanted, live)
    rows = f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})"
    if superseded:
        owner = f" AND v.{USER_ID} = clean.{USER_ID}" if definition.per_user and wanted.user_id is None else ""
        newer_of = f"{_same_key(definition, 'v', 'clean')}{owner} AND v.{SEQ} >= clean.{SEQ}"
        rows = f"SELECT * FROM ({rows}) clean WHERE NOT EXISTS (SELECT 1 FROM versions v WHERE {newer_of})"
    return f"SELECT * FROM ({rows}) versions WHERE {' AND '.join(['true', *conditions])}"


def _keys_in_order(definition: TableDefinition, hot: Hot, wanted: Wanted) -> tuple[Predicate, ...]:
    """Between which keys hot rows are, if they come in order, each once; empty where that is not so, or not known.

    It is so where rows are added under ever greater keys: then there is nothing to look for among versions.
    """
    if len(hot) != 1 or len(definition.key) != 1 or (definition.per_user and wanted.user_id is None):
        return ()
    ((under, rows),) = hot.values()
    (column,) = definition.key
    if under != definition or column.type.name not in ORDERED_ALIKE:
        return ()
    keys = rows[hot_column(column)]
    if not is_increasing(keys):
        return ()
    return Predicate(column, ">=", (keys[0].as_py(),)), Predicate(column, "<=", (keys[-1].as_py(),))


def _only_adds(definition: TableDefinition, hot: Hot, batches: Sequence[Batch], wanted: Wanted) -> bool:
    """Whether hot rows are all new ones: of each key one, none deleted, and no batch may have it."""
    within = _keys_in_order(definition, hot, wanted)
    deleted = any(pc.any(rows[DELETED]).as_py() for _, rows in hot.values())
    return bool(within) and not deleted and not batches_to_read(batches, within)


def _same_key(definition: TableDefinition, one: str, other: str) -> str:
    return " AND ".join(f"{one}.{quoted_name(column)} = {other}.{quoted_name(column)}" for column in definition.key)


def _conditions(wanted: Wanted) -> list[str]:
    """What a newest version must satisfy."""
    conditions = [] if wanted.include_deleted else [f"NOT {DELETED}"]
    conditions += [f"({wanted.row_filter})"] if wanted.row_filter else []
    return conditions


def _may_repeat(hot: Hot, batches: Sequence[Batch]) -> bool:
    """Whether a version may be there twice, of which one is enough: in a batch and still hot, or published again after
    a restore. Then the _seq of two parts must overlap, as those of flushes one after the other do not.
    """
    ranges = [KeyRange(*(bound.as_py() for bound in pc.min_max(rows[SEQ]).values())) for _, rows in hot.values()]
    for batch in batches:
        low, high, *_ = batch.bounds.get(SYSTEM_COLUMN_IDS[SEQ], (None, None))
        ranges.append(KeyRange(low and int(low), high and int(high)))
    return any(len(together) > 1 for together in touching(ranges, lambda one: one))


def _newest_only(definition: TableDefinition, wanted: Wanted) -> list[str]:
    """Right because no two versions share a _seq, and faster than a window."""
    owner = [USER_ID] if definition.per_user and wanted.user_id is None else []
    key = ", ".join(owner + [quoted_name(column) for column in definition.key])
    return [f"{SEQ} IN (SELECT max({SEQ}) FROM versions GROUP BY {key})"] if key else []


def list_batches(connection: ArrowConnection, definition: TableDefinition, wanted: Wanted) -> list[Batch]:
    named = {predicate.column.column_id for predicate in (*wanted.predicates, *wanted.filters)}
    named |= {SYSTEM_COLUMN_IDS[SEQ], SYSTEM_COLUMN_IDS[DELETED]} | {column.column_id for column in definition.key[:1]}
    user = postgres_text(wanted.user_id)
    at = "NULL" if wanted.snapshot is None else str(wanted.snapshot)
    ids = "{" + ",".join(str(one) for one in sorted(named)) + "}"
    found = connection.query(
        "SELECT path, user_id, bounds::text AS bounds FROM "
        f"lakefork.table_files({definition.catalog_id}, {definition.table_id}, {user}, '{ids}', {at})"
    )
    return [
        Batch(
            row["path"],
            {int(column): tuple(found) for column, found in json.loads(row["bounds"] or "{}").items()},
            row["user_id"],
        )
        for row in found.to_pylist()
    ]


def _scan(
    definition: TableDefinition,
    columns: Sequence[Column],
    batches: Sequence[Batch],
    predicates: Sequence[Predicate],
    wanted: Wanted,
    more_conditions: Sequence[str] = (),
) -> str:
    if wanted.user_id is not None:  # the catalog says whose a batch is; its rows say so too
        owner = next(column for column in definition.system_columns if column.name == USER_ID)
        predicates = [*predicates, Predicate(owner, "=", (wanted.user_id,))]
    read = {column.column_id: column for column in (*definition.system_columns, *columns)}
    read |= {predicate.column.column_id: predicate.column for predicate in predicates}
    return scan_sql([batch.path for batch in batches], read.values(), predicates, more_conditions)


def _key_bounds(definition: TableDefinition, keys: pa.Table) -> tuple[Predicate, ...]:
    """Few keys are named one by one, so that bloom filters can say no; many by their range."""
    found = []
    for column in definition.key:
        values = list(dict.fromkeys(keys[column.name].to_pylist()))
        if len(values) <= 100:
            found.append(Predicate(column, "=", tuple(values)))
        else:
            found += [Predicate(column, ">=", (min(values),)), Predicate(column, "<=", (max(values),))]
    return tuple(found)


def _with_key(definition: TableDefinition, columns: Sequence[Column]) -> tuple[Column, ...]:
    return tuple(column for column in definition.columns if column in columns or column in definition.key)


def _known(definition: TableDefinition, columns: Sequence[Column]) -> list[Column]:
    """The columns as they were under an older definition."""
    return [definition.by_id[column.column_id] for column in columns if column.column_id in definition.by_id]


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


def _schema(definition: TableDefinition, columns: Sequence[Column]) -> pa.Schema:
    if len(columns) == len(definition.columns):
        return definition.arrow_schema
    everything = [*columns, *definition.system_columns]
    return pa.schema([definition.arrow_schema.field(column.name) for column in everything])
