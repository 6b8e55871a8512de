"""What a WHERE tells before the newest version of a row is known: comparisons of key and _seq with constants."""

import itertools
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from lakefork.predicates import Predicate, is_exact
from lakefork.sql.expressions import constant
from lakefork.sql.rows import typed_array
from lakefork.tables import SEQ, Column, TableDefinition, fold

_OPERATORS: dict[type[exp.Expr], str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_MIRRORED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
MOST_PINNED_KEYS = 1_000


def predicates_of(definition: TableDefinition, select: exp.Expr, name: str) -> Iterator[Predicate]:
    """What every row of the table must satisfy that is to be in the answer of a SELECT in which it has this name."""
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    if where is not None:
        alone = len(list(_sources(select))) == 1
        yield from conjuncts(definition, where.this, name, alone=alone)


def asks_for_changes(select: exp.Expr, name: str) -> bool:
    """Whether a WHERE has a part `_seq > …`, whatever it is compared with."""
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    if where is None:
        return False
    condition = where.this.unnest()
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        part = part.unnest()
        later = (
            part.left
            if isinstance(part, exp.GT | exp.GTE)
            else part.right
            if isinstance(part, exp.LT | exp.LTE)
            else None
        )
        if isinstance(later, exp.Column) and fold(later.name) == SEQ and fold(later.table) in ("", fold(name)):
            return True
    return False


def pinned_keys(definition: TableDefinition, where: exp.Expr | None, name: str | None) -> pa.Table | None:
    """The keys of all rows that can satisfy a condition, if it names them; None: they must be looked for."""
    if where is None:
        return None
    pinned: dict[Column, tuple[Any, ...]] = {}
    for predicate in conjuncts(definition, where, name or definition.name):
        if predicate.op == "=":
            pinned.setdefault(predicate.column, predicate.values)
    if set(pinned) != set(definition.key):
        return None
    rows = list(
        itertools.islice(itertools.product(*(dict.fromkeys(pinned[c]) for c in definition.key)), MOST_PINNED_KEYS + 1)
    )
    if len(rows) > MOST_PINNED_KEYS:
        return None
    arrays = [
        typed_array(values, column) for column, values in zip(definition.key, zip(*rows, strict=True), strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=[column.name for column in definition.key])


def names_only_keys(definition: TableDefinition, where: exp.Expr | None, name: str | None) -> bool:
    """Whether a condition says nothing but which keys: then nothing is left to compute."""
    if where is None:
        return False
    where = where.unnest()
    parts = len(list(where.flatten())) if isinstance(where, exp.And) else 1
    found = list(conjuncts(definition, where, name or definition.name))
    pinned = {predicate.column for predicate in found if predicate.op == "="}
    return len(found) == parts == len(definition.key) and pinned == set(definition.key)


def conjuncts(
    definition: TableDefinition, condition: exp.Expr, name: str, *, alone: bool = True
) -> Iterator[Predicate]:
    """The parts of a condition that compare key columns or _seq with constants; alone: no other table is named."""
    columns = {fold(column.name): column for column in definition.key}
    columns |= {column.name: column for column in definition.system_columns if column.name == SEQ}
    condition = condition.unnest()
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        predicate = _predicate(part.unnest(), columns, name, alone=alone)
        # A version with a small _seq may not be the newest: only those above a bound can be told early.
        if predicate and (predicate.column.name != SEQ or predicate.op in (">", ">=")):
            yield predicate


def _predicate(condition: exp.Expr, columns: Mapping[str, Column], name: str, *, alone: bool) -> Predicate | None:
    if isinstance(condition, exp.In) and condition.expressions and not condition.args.get("query"):
        return _compared(condition.this, "=", condition.expressions, columns, name, alone=alone)
    op = _OPERATORS.get(type(condition))
    if op is None or not isinstance(condition, exp.Binary):
        return None
    return _compared(condition.left, op, [condition.right], columns, name, alone=alone) or _compared(
        condition.right, _MIRRORED[op], [condition.left], columns, name, alone=alone
    )


def _compared(
    side: exp.Expr,
    op: str,
    others: list[exp.Expr],
    columns: Mapping[str, Column],
    name: str,
    *,
    alone: bool,
) -> Predicate | None:
    if not isinstance(side, exp.Column) or fold(side.name) not in columns:
        return None
    if not (fold(side.table) == fold(name) if side.table else alone):
        return None
    column = columns[fold(side.name)]
    values = [_typed(other, column) for other in others]
    return Predicate(column, op, tuple(values)) if all(is_exact(value, column.type) for value in values) else None


def _typed(expression: exp.Expr, column: Column) -> Any:
    """A constant as a value of the column's own type; None where the engines might not agree on it."""
    known, value = constant(expression)
    if isinstance(expression, exp.Cast) and column.type.name == "uuid" and expression.to.is_type("uuid"):
        known, value = constant(expression.this)
    if known and column.type.name == "uuid" and isinstance(value, str):
        try:
            return uuid.UUID(value)
        except ValueError:
            return None
    return value if known else None


def _sources(select: exp.Expr) -> Iterator[exp.Expr]:
    source = select.args.get("from_") or select.args.get("from")
    if source is not None:
        yield source.this
        yield from source.this.args.get("joins") or ()
    yield from select.args.get("joins") or ()
    yield from select.args.get("laterals") or ()
