"""Reads batches with DuckDB: columns by field id, so that old files fit new definitions; filters reach the footers."""

from collections.abc import Iterable, Sequence

from lakefork.predicates import Predicate, duckdb_literal, quoted
from lakefork.tables import Column


def scan_sql(paths: Sequence[str], columns: Iterable[Column], predicates: Iterable[Predicate] = ()) -> str:
    """A query over batches with the columns as c<column_id>, in the types of now, defaults where a file has none."""
    fields = ", ".join(_field(column) for column in columns)
    files = ", ".join(quoted(path) for path in paths)
    conditions = " AND ".join(condition(one) for one in predicates)
    where = f" WHERE {conditions}" if conditions else ""
    return f"SELECT * FROM read_parquet([{files}], schema = MAP {{{fields}}}){where}"


def condition(predicate: Predicate) -> str:
    column = predicate.column
    values = [duckdb_literal(value, column.type) for value in predicate.values]
    name = f"c{column.column_id}"
    return f"{name} IN ({', '.join(values)})" if len(values) > 1 else f"{name} {predicate.op} {values[0]}"


def _field(column: Column) -> str:
    default = "NULL" if column.initial_default is None else quoted(column.initial_default)
    name, kind = f"'c{column.column_id}'", quoted(column.type.duckdb)
    return f"{column.column_id}: {{name: {name}, type: {kind}, default_value: {default}}}"
