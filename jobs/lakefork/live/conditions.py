"""Conditions of live queries on rows: simple ones are compared here, all others are computed by a query worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from lakefork.model.tables import TableDefinition
from lakefork.sql.read.constants import exact_value
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.pool import QueryWorkers

Values = Sequence[Any]  # of a row, by the place of the column in its definition
Check = Callable[[Values], bool | None]  # None: unknown, as in SQL

RELATION = "changed_rows"
# In these types Python and DuckDB compare alike, whatever the values.
SIMPLE_TYPES = frozenset({"int16", "int32", "int64", "varchar", "boolean", "uuid"})
_ORDERED = frozenset({"int16", "int32", "int64", "varchar"})
_COMPARE: dict[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
}
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ, exp.NEQ: exp.NEQ, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE,
}  # fmt: skip


def compiled(condition: exp.Expr, definition: TableDefinition) -> Check | None:
    """Returns a check of rows; None: the condition has something that only a worker may compute."""
    places = {column.column_id: place for place, column in enumerate(definition.columns)}
    return _Compiler(definition, places).check(condition)


class _Compiler:
    def __init__(self, definition: TableDefinition, places: Mapping[int, int]) -> None:
        self._definition, self._places = definition, places

    def check(self, node: exp.Expr) -> Check | None:
        node = node.unnest()
        if isinstance(node, exp.And | exp.Or):
            return self._combined(node)
        if isinstance(node, exp.Not):
            inner = self.check(node.this)
            return None if inner is None else _negated(inner)
        if isinstance(node, exp.Coalesce):
            return self._coalesced(node)
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            return self._among(node)
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low = self._compared(exp.GTE, node.this, node.args["low"])
            high = self._compared(exp.LTE, node.this, node.args["high"])
            return None if low is None or high is None else _all_of([low, high])
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            place = self._place(node.this)
            return None if place is None else lambda row: row[place[0]] is None
        if type(node) in _COMPARE and isinstance(node, exp.Binary):
            return self._compared(type(node), node.left, node.right) or self._compared(
                _MIRRORED[type(node)], node.right, node.left
            )
        return None

    def _combined(self, node: exp.And | exp.Or) -> Check | None:
        parts = [self.check(part) for part in node.flatten()]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return _all_of(known) if isinstance(node, exp.And) else _any_of(known)

    def _coalesced(self, node: exp.Coalesce) -> Check | None:
        """coalesce(…, false), as row filters of rules are."""
        inner = self.check(node.this)
        last = node.expressions
        if inner is None or len(last) != 1 or not isinstance(last[0], exp.Boolean) or last[0].this:
            return None
        return lambda row: inner(row) is True

    def _among(self, node: exp.In) -> Check | None:
        place = self._place(node.this)
        if place is None:
            return None
        values = [exact_value(one, self._definition.columns[place[0]].type) for one in node.expressions]
        if any(value is None for value in values):
            return None
        wanted = frozenset(values)
        return lambda row: None if row[place[0]] is None else row[place[0]] in wanted

    def _compared(self, kind: type[exp.Expr], side: exp.Expr, other: exp.Expr) -> Check | None:
        found = self._place(side)
        if found is None:
            return None
        place, type_name = found
        value = exact_value(other, self._definition.columns[place].type)
        if value is None or (kind not in (exp.EQ, exp.NEQ) and type_name not in _ORDERED):
            return None
        compare = _COMPARE[kind]
        return lambda row: None if row[place] is None else compare(row[place], value)

    def _place(self, node: exp.Expr) -> tuple[int, str] | None:
        node = node.unnest()
        if not isinstance(node, exp.Column):
            return None
        place = self._places[int(node.name[1:])]
        name = self._definition.columns[place].type.name
        return (place, name) if name in SIMPLE_TYPES else None


def _negated(inner: Check) -> Check:
    def check(row: Values) -> bool | None:
        found = inner(row)
        return None if found is None else not found

    return check


def _all_of(parts: Sequence[Check]) -> Check:
    def check(row: Values) -> bool | None:
        found: bool | None = True
        for part in parts:
            one = part(row)
            if one is False:
                return False
            found = None if one is None else found
        return found

    return check


def _any_of(parts: Sequence[Check]) -> Check:
    def check(row: Values) -> bool | None:
        found: bool | None = False
        for part in parts:
            one = part(row)
            if one is True:
                return True
            found = None if one is None else found
        return found

    return check


def compute(workers: QueryWorkers, conditions: Sequence[str], rows: pa.Table, seconds: float) -> list[list[bool]]:
    """Returns for each condition which of the rows satisfy it; rows have columns c<id>."""
    numbered = rows.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    tests = ", ".join(f"(({one}) IS TRUE) AS f{place}" for place, one in enumerate(conditions))
    found = workers.run(Request(f"SELECT place, {tests} FROM {RELATION}", {RELATION: numbered}), seconds=seconds)
    found = found.sort_by("place")
    return [found[f"f{place}"].to_pylist() for place in range(len(conditions))]
