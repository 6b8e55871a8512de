"""The newest version of each row, from hot tables and batches: what SELECT, UPDATE, DELETE and key checks look at."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakefork.cold.scan import scan_sql
from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import find_versions, read_versions
from lakefork.maintenance.pruning import Batch, batches_to_read
from lakefork.predicates import Predicate, postgres_text, quoted
from lakefork.sql.duck import Duck
from lakefork.sql.lookup import FoundTable
from lakefork.sql.rows import quoted_name
from lakefork.tables import DELETED, SEQ, USER_ID, Column, TableDefinition, fold


@dataclass(frozen=True)
class Wanted:
    """Which rows and columns of a table; row_filter is SQL over its columns; user_id None: all users."""

    table: FoundTable
    columns: tuple[Column, ...]
    user_id: str | None = None
    predicates: tuple[Predicate, ...] = ()
    include_deleted: bool = False
    row_filter: str | None = None
    snapshot: int | None = None


@dataclass(frozen=True)
class Scanned:
    """What reading a table took: for EXPLAIN."""

    rows: pa.Table
    hot_versions: int
    batches: int
    batches_read: int

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.hot_versions, self.batches, self.batches_read


def read_latest(connection: ArrowConnection, duck: Duck, wanted: Wanted) -> Scanned:
    definition = wanted.table.definition
    columns = _with_key(definition, wanted.columns)
    hot = {
        f"hot_{place}": (
            part.definition,
            read_versions(connection, part, wanted.user_id, _known(part.definition, columns), wanted.predicates),
        )
        for place, part in enumerate(wanted.table.hot)
    }
    batches = list_batches(connection, definition, wanted) if wanted.table.has_files else []
    read = batches_to_read(batches, wanted.predicates)
    rows = resolve_latest_version(
        duck, definition, columns, hot, _scan(definition, columns, read, wanted.predicates, wanted.user_id), wanted
    )
    return Scanned(rows, sum(part.num_rows for _, part in hot.values()), len(batches), len(read))


def read_by_key(
    connection: ArrowConnection,
    duck: Duck,
    table: FoundTable,
    user_id: str | None,
    keys: pa.Table,
    row_filter: str | None = None,
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
    wanted = Wanted(
        table, definition.columns, user_id, _key_bounds(definition, keys), include_deleted=True, row_filter=row_filter
    )
    scan = None
    if sum(part.num_rows for _, part in hot.values()) < keys.num_rows or len(hot) > 1:
        read = batches_to_read(list_batches(connection, definition, wanted), wanted.predicates)
        scan = _scan(definition, definition.columns, read, wanted.predicates, user_id)
    if scan is None and row_filter is None and [under for under, _ in hot.values()] == [definition]:
        return _as_defined(definition, hot["hot_0"][1])
    return resolve_latest_version(duck, definition, definition.columns, hot, scan, wanted, keys if scan else None)


def _as_defined(definition: TableDefinition, found: pa.Table) -> pa.Table:
    """What one hot table gave, under the names and types of the definition."""
    schema = _schema(definition, definition.columns)
    names = [
        name if name in definition.system_names else f"c{definition.by_name[fold(name)].column_id}"
        for name in schema.names
    ]
    return found.select(names).rename_columns(schema.names).cast(schema)


def resolve_latest_version(
    duck: Duck,
    definition: TableDefinition,
    columns: Sequence[Column],
    hot: Mapping[str, tuple[TableDefinition, pa.Table]],
    scan: str | None,
    wanted: Wanted,
    keys: pa.Table | None = None,
) -> pa.Table:
    """MAX(_seq) per key over all parts, under the definition of now, without what is not wanted."""
    parts = [f"SELECT {_projection(under, definition, columns)} FROM {name}" for name, (under, _) in hot.items()]
    if scan:
        parts.append(f"SELECT {_projection(definition, definition, columns, cold=True)} FROM ({scan})")
    if not parts:
        return _schema(definition, columns).empty_table()
    newest, conditions = _newest_versions(definition, wanted, with_batches=bool(scan))
    relations: dict[str, Any] = {name: rows for name, (_, rows) in hot.items()}
    if keys is not None:
        relations["wanted_keys"] = keys
        same = " AND ".join(f"w.{quoted_name(column)} = versions.{quoted_name(column)}" for column in definition.key)
        conditions.append(f"EXISTS (SELECT 1 FROM wanted_keys w WHERE {same})")
    sql = (
        f"WITH versions AS MATERIALIZED (SELECT * FROM ({' UNION ALL '.join(parts)}){newest}) "
        f"SELECT * FROM versions WHERE {' AND '.join(['true', *conditions])}"
    )
    return _run_for_reader(duck, definition, wanted, sql, relations).cast(_schema(definition, columns))


def _newest_versions(definition: TableDefinition, wanted: Wanted, *, with_batches: bool) -> tuple[str, list[str]]:
    """How to find the newest version per key, and what else a row must satisfy."""
    conditions = [] if wanted.include_deleted else [f"NOT {DELETED}"]
    conditions += [f"({wanted.row_filter})"] if wanted.row_filter else []
    owner = [USER_ID] if definition.per_user and wanted.user_id is None else []
    key = ", ".join(owner + [quoted_name(column) for column in definition.key])
    if not key:
        return "", conditions
    if with_batches:
        # After a flush a version may be in a batch and still hot: one of them is enough.
        return f" QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {SEQ} DESC) = 1", conditions
    # Faster, and right because no two hot rows share a _seq.
    return "", [*conditions, f"{SEQ} IN (SELECT max({SEQ}) FROM versions GROUP BY {key})"]


def _run_for_reader(
    duck: Duck, definition: TableDefinition, wanted: Wanted, sql: str, relations: Mapping[str, Any]
) -> pa.Table:
    with duck.reader() as cursor:
        cursor.register(relations)
        try:
            return cursor.query(sql)
        except InvalidInputError as error:
            if wanted.row_filter is None:
                raise
            # What went wrong may tell of rows that the filter hides.
            raise PermissionDeniedError(
                f"permission denied: a rule of system.users cannot be applied to {definition}"
            ) from error


def list_batches(connection: ArrowConnection, definition: TableDefinition, wanted: Wanted) -> list[Batch]:
    bounds = [predicate.column.column_id for predicate in wanted.predicates]
    user = postgres_text(wanted.user_id)
    at = "NULL" if wanted.snapshot is None else str(wanted.snapshot)
    ids = "{" + ",".join(str(one) for one in bounds) + "}"
    found = connection.query(
        "SELECT path, bounds::text AS bounds FROM "
        f"lakefork.table_files({definition.catalog_id}, {definition.table_id}, {user}, '{ids}', {at})"
    )
    return [
        Batch(
            row["path"], {int(column): (low, high) for column, (low, high) in json.loads(row["bounds"] or "{}").items()}
        )
        for row in found.to_pylist()
    ]


def _scan(
    definition: TableDefinition,
    columns: Sequence[Column],
    batches: Sequence[Batch],
    predicates: Sequence[Predicate],
    user_id: str | None,
) -> str | None:
    if not batches:
        return None
    if user_id is not None:  # the catalog says whose a batch is; its rows say so too
        owner = next(column for column in definition.system_columns if column.name == USER_ID)
        predicates = [*predicates, Predicate(owner, "=", (user_id,))]
    return scan_sql([batch.path for batch in batches], [*definition.system_columns, *columns], predicates)


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
