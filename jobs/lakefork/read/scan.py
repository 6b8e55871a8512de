"""Builds SQL to read batches with DuckDB: columns by field id, so that old files match new definitions."""

from collections.abc import Iterable, Sequence
from typing import Any

from lakefork.model.predicates import Predicate, duckdb_literal, quoted
from lakefork.model.tables import Column


def scan_sql(
    paths: Sequence[str],
    columns: Iterable[Column],
    predicates: Iterable[Predicate] = (),
    more_conditions: Sequence[str] = (),
) -> str:
    """Returns a query over batches with columns c<column_id>, in current types, with defaults for missing columns."""
    fields = ", ".join(_field(column) for column in columns)
    files = ", ".join(quoted(path) for path in paths)
    conditions = " AND ".join([*(condition(one) for one in predicates), *more_conditions])
    where = f" WHERE {conditions}" if conditions else ""
    return f"SELECT * FROM read_parquet([{files}], schema = MAP {{{fields}}}){where}"


def between(key: Sequence[Column], low: Sequence[Any] | None, high: Sequence[Any] | None) -> list[str]:
    """Returns conditions for keys from low (inclusive) to high (exclusive)."""
    names = [f"c{column.column_id}" for column in key]
    found = []
    for op, bound in ((">=", low), ("<", high)):
        if bound is None:
            continue
        values = [duckdb_literal(value, column.type) for value, column in zip(bound, key, strict=True)]
        if len(names) > 1:
            found.append(_lexicographic(names, op, values))
        # Only a condition on the first column alone is checked against footers.
        found.append(f"{names[0]} {op if len(names) == 1 else op.rstrip('=') + '='} {values[0]}")
    return found


def _lexicographic(names: Sequence[str], op: str, values: Sequence[str]) -> str:
    """Compares keys column by column: DuckDB turns two comparisons of rows into a BETWEEN, and then refuses it."""
    if len(names) == 1:
        return f"{names[0]} {op} {values[0]}"
    rest = _lexicographic(names[1:], op, values[1:])
    return f"({names[0]} {op[0]} {values[0]} OR ({names[0]} = {values[0]} AND {rest}))"


def condition(predicate: Predicate, name: str | None = None) -> str:
    """Returns a predicate as SQL. name: of the column, if different from that in scan_sql."""
    column = predicate.column
    values = [duckdb_literal(value, column.type) for value in predicate.values]
    name = name or f"c{column.column_id}"
    return f"{name} IN ({', '.join(values)})" if len(values) > 1 else f"{name} {predicate.op} {values[0]}"


def quoted_name(column: Column) -> str:
    return '"' + column.name.replace('"', '""') + '"'


def _field(column: Column) -> str:
    default = "NULL" if column.initial_default is None else quoted(column.initial_default)
    name, kind = f"'c{column.column_id}'", quoted(column.type.duckdb)
    return f"{column.column_id}: {{name: {name}, type: {kind}, default_value: {default}}}"
