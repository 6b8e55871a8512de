"""Prepares rows for writing: expressions become typed columns, with defaults, generated keys and checks."""

import datetime
import functools
import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.model.predicates import is_exact, quoted
from lakefork.model.tables import DELETED, SEQ, UPDATED, USER_ID, Column, TableDefinition, fold
from lakefork.read.scan import quoted_name
from lakefork.sql.expressions import constant
from lakefork.sql.parse.grammar import is_default
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.pool import QueryWorkers

GENERATED_KEYS = ("int64", "uuid")
DAY = 86_400_000_000  # microseconds
YEARS = tuple(
    (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    for moment in (datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999))
)


def target_columns(definition: TableDefinition, names: Sequence[str]) -> tuple[Column, ...]:
    """Returns the columns of INSERT; all, in order, if it names none."""
    if not names:
        return definition.columns
    columns = tuple(named_column(definition, name) for name in names)
    if len(set(columns)) < len(columns):
        raise InvalidInputError(f"{definition}: a column is named twice")
    return columns


def named_column(definition: TableDefinition, name: str) -> Column:
    if fold(name) in (SEQ, DELETED, USER_ID, UPDATED):
        raise InvalidInputError(f"{definition}: {fold(name)} is maintained by the system and cannot be set")
    if fold(name) not in definition.by_name:
        raise InvalidInputError(
            f"{definition} has no column {name}; it has {', '.join(c.name for c in definition.columns)}"
        )
    return definition.by_name[fold(name)]


def default_sql(column: Column) -> str:
    """Returns the default of a column as SQL."""
    if column.default is None:
        return f"CAST(NULL AS {column.type.duckdb})"
    text = column.default if column.default_is_expression else quoted(column.default)
    return f"CAST({text} AS {column.type.duckdb})"


def exact_rows(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.Table | None:
    """Returns rows of values that need no conversion; None if one does."""
    arrays = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        if not all(value is None or is_exact(value, column.type) for value in values):
            return None
        arrays.append(typed_array(values, column))
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def typed_array(values: Sequence[Any], column: Column) -> pa.Array:
    """Converts values of the column's Python type to Arrow."""
    if all(value is None for value in values):
        return pa.nulls(len(values), column.type.arrow)
    return pa.array([value.bytes if isinstance(value, uuid.UUID) else value for value in values], column.type.arrow)


def plain_rows(columns: Sequence[Column], values: exp.Values) -> pa.Table | None:
    """Converts VALUES that consist only of literals of the right types, without DuckDB."""
    rows = []
    for row in values.expressions:
        cells = [constant(cell) for cell in row.expressions] if isinstance(row, exp.Tuple) else [constant(row)]
        if len(cells) != len(columns) or not all(known for known, _ in cells):
            return None
        rows.append([value for _, value in cells])
    return exact_rows(columns, rows)


def values_query(definition: TableDefinition, columns: Sequence[Column], values: exp.Values) -> exp.Expr:
    """Returns VALUES as a query with each value cast to its column, so that rows do not affect each other's types."""
    rows = []
    for row in values.expressions:
        cells = row.expressions if isinstance(row, exp.Tuple) else [row]
        if len(cells) != len(columns):
            raise InvalidInputError(
                f"INSERT INTO {definition} names {len(columns)} columns, but a row has {len(cells)} values"
            )
        rows.append([given_value(cell, column) for column, cell in zip(columns, cells, strict=True)])
    if len(rows) == 1:
        return exp.select(*rows[0])
    tuples = [exp.Tuple(expressions=row) for row in rows]
    return exp.select("*").from_(exp.Values(expressions=tuples, alias=exp.TableAlias(this=exp.to_identifier("given"))))


def completed(
    workers: QueryWorkers, definition: TableDefinition, columns: Sequence[Column], given: pa.Table
) -> pa.Table:
    """Returns all columns of the table in its types, with defaults for missing ones."""
    schema = definition.row_schema
    if given.schema.equals(schema):
        return given
    if given.num_rows == 0:
        return schema.empty_table()
    if _needs_no_engine(definition, columns, given):
        arrays = [
            given[column.name] if column in columns else pa.nulls(given.num_rows, column.type.arrow)
            for column in definition.columns
        ]
        return pa.Table.from_arrays(arrays, schema=schema)
    given_values = {column: f"CAST({quoted_name(column)} AS {column.type.duckdb})" for column in columns}
    values = [
        f"{given_values.get(column) or default_sql(column)} AS {quoted_name(column)}" for column in definition.columns
    ]
    return workers.run(Request(f"SELECT {', '.join(values)} FROM given", {"given": given})).cast(schema)


def _needs_no_engine(definition: TableDefinition, columns: Sequence[Column], given: pa.Table) -> bool:
    """Tells whether all values have their types, and missing columns have no defaults."""
    schema = definition.row_schema
    return all(
        given.schema.field(column.name).type == schema.field(column.name).type
        if column in columns
        else column.default is None
        for column in definition.columns
    )


def given_value(expression: exp.Expr, column: Column) -> exp.Expr:
    """Returns a value of INSERT or UPDATE in the column's type."""
    if is_default(expression):
        return exp.maybe_parse(default_sql(column), dialect="duckdb")
    return exp.Cast(this=expression.copy(), to=_data_type(column.type.duckdb).copy())


@functools.cache
def _data_type(name: str) -> exp.DataType:
    return exp.DataType.build(name, dialect="duckdb")


def with_generated_keys(
    definition: TableDefinition, rows: pa.Table, seqs: np.ndarray[Any, Any]
) -> tuple[pa.Table, bool]:
    """Generates missing keys; also returns whether any row had an explicit key."""
    if len(definition.key) != 1 or definition.key[0].type.name not in GENERATED_KEYS:
        return rows, True
    column = definition.key[0]
    missing = rows[column.name].null_count
    if not missing:
        return rows, True
    if column.type.name == "int64":
        generated = pa.array(seqs, pa.int64())
    else:
        generated = pa.array([uuid.uuid4().bytes for _ in range(rows.num_rows)], pa.uuid())
    filled = generated if missing == rows.num_rows else _coalesce(rows[column.name].combine_chunks(), generated)
    place = rows.column_names.index(column.name)
    return rows.set_column(place, column.name, filled), missing < rows.num_rows


def _coalesce(values: pa.Array, others: pa.Array) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, pc.coalesce(values.storage, others.storage))
    return pc.coalesce(values, others)


def check_values(definition: TableDefinition, rows: pa.Table) -> None:
    """Raises for values that Postgres or files cannot hold, before anything is written."""
    for column in definition.columns:
        values = rows[column.name]
        if not column.nullable and values.null_count:
            raise InvalidInputError(f"{definition}: column {column.name} cannot be NULL")
        kind = column.type.element or column.type
        if kind.name in _CHECKS:
            elements = pc.list_flatten(values) if column.type.element else values
            if problem := _CHECKS[kind.name](elements):
                raise InvalidInputError(f"{definition}: column {column.name} {problem}")


def _nul(values: pa.ChunkedArray) -> str | None:
    found = pc.any(pc.match_substring(values.cast(pa.string()), "\0")).as_py()
    return "cannot hold the character NUL (0)" if found else None


def _outside(values: pa.ChunkedArray, number: pa.DataType, first: int, last: int) -> bool:
    low, high = (bound.as_py() for bound in pc.min_max(values.cast(number)).values())
    return low is not None and (low < first or high > last)


def _years(values: pa.ChunkedArray) -> str | None:
    is_date = pa.types.is_date32(values.type)
    first, last = (bound // DAY if is_date else bound for bound in YEARS)
    outside = _outside(values, pa.int32() if is_date else pa.int64(), first, last)
    return "holds years 1 to 9999 only" if outside else None


def _hours(values: pa.ChunkedArray) -> str | None:
    return "holds times before 24:00 only" if _outside(values, pa.int64(), 0, DAY - 1) else None


_CHECKS = {"varchar": _nul, "json": _nul, "date": _years, "timestamp": _years, "timestamptz": _years, "time": _hours}


def check_row_filter(
    workers: QueryWorkers,
    definition: TableDefinition,
    row_filter: str | None,
    rows: pa.Table,
    seconds: float | None = None,
) -> None:
    """Raises if new rows are outside the user's rules."""
    if row_filter is None:
        return
    count = Request("SELECT count(*) AS rows FROM given", {"given": rows}, row_filters={"given": row_filter})
    within = workers.run(count, seconds=seconds)
    outside = rows.num_rows - within["rows"][0].as_py()
    if outside:
        raise PermissionDeniedError(f"permission denied: {outside} row(s) would violate your rules in {definition}")


def key_hashes(definition: TableDefinition, keys: pa.Table) -> list[int]:
    """Returns hashes to lock keys by; equal keys have equal hashes."""
    columns = [keys[column.name].to_pylist() for column in definition.key]
    return [key_hash(row) for row in zip(*columns, strict=True)]


def key_hash(values: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "big", signed=True)
