"""Extracts from a WHERE clause the comparisons of columns with constants."""

import itertools
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
from sqlglot import exp

from lakefork.errors import InvalidInputError
from lakefork.model.column_types import column_type
from lakefork.model.predicates import Predicate
from lakefork.model.seqid import SeqId
from lakefork.model.tables import SEQ, UPDATED, USER_ID, Column, TableDefinition, fold
from lakefork.sql.read.constants import exact_value
from lakefork.sql.write.rows import typed_array

_OPERATORS: dict[type[exp.Expr], str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_MIRRORED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
MAX_PINNED_KEYS = 1_000


def predicates_of(definition: TableDefinition, select: exp.Expr, name: str) -> Iterator[Predicate]:
    """Returns predicates that every result row of a table must satisfy in a SELECT where it has this name."""
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    if where is not None:
        alone = len(list(_sources(select))) == 1
        yield from conjuncts(definition, where.this, name, alone=alone)


def selects_changes(select: exp.Expr, name: str) -> bool:
    """Whether a WHERE has a part `_seq > …` or `_updated > …`, whatever it is compared with."""
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    if where is None:
        return False
    condition = where.this.unnest()
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        part = part.unnest()
        for one in _comparisons(part):
            later = (
                one.left
                if isinstance(one, exp.GT | exp.GTE)
                else one.right
                if isinstance(one, exp.LT | exp.LTE)
                else None
            )
            if (
                isinstance(later, exp.Column)
                and fold(later.name) in (SEQ, UPDATED)
                and fold(later.table) in ("", fold(name))
            ):
                return True
    return False


def pinned_keys(definition: TableDefinition, where: exp.Expr | None, name: str | None) -> pa.Table | None:
    """Returns the keys of all rows that can satisfy a condition, if it names them; None: they must be searched."""
    if where is None:
        return None
    pinned: dict[Column, tuple[Any, ...]] = {}
    for predicate in conjuncts(definition, where, name or definition.name):
        if predicate.op == "=" and predicate.column in definition.key:
            pinned.setdefault(predicate.column, predicate.values)
    if set(pinned) != set(definition.key):
        return None
    rows = list(
        itertools.islice(itertools.product(*(dict.fromkeys(pinned[c]) for c in definition.key)), MAX_PINNED_KEYS + 1)
    )
    if len(rows) > MAX_PINNED_KEYS:
        return None
    arrays = [
        typed_array(values, column) for column, values in zip(definition.key, zip(*rows, strict=True), strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=[column.name for column in definition.key])


def names_only_keys(definition: TableDefinition, where: exp.Expr | None, name: str | None) -> bool:
    """Tells whether a condition only names keys, so that nothing else must be computed."""
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
    """The parts of a condition that may be used before the newest versions are known; alone: no other table is named.

    They compare key columns with constants, or _seq from below: a version with a small _seq may not be the newest.
    """
    for predicate in _predicates(definition, condition, name, alone=alone):
        if _is_early(definition, predicate):
            yield predicate


def filters_of(definition: TableDefinition, select: exp.Expr, name: str) -> Iterator[Predicate]:
    """Returns predicates that the newest version of each result row must satisfy in addition."""
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    if where is not None:
        yield from later_conjuncts(definition, where.this, name, alone=len(list(_sources(select))) == 1)


def later_conjuncts(
    definition: TableDefinition, condition: exp.Expr, name: str, *, alone: bool = True
) -> Iterator[Predicate]:
    """Returns the other parts of a condition that compare columns with constants."""
    for predicate in _predicates(definition, condition, name, alone=alone):
        if not _is_early(definition, predicate):
            yield predicate


def _is_early(definition: TableDefinition, predicate: Predicate) -> bool:
    if predicate.column.name == SEQ:
        return predicate.op in (">", ">=")
    return predicate.column in definition.key or predicate.column.name == USER_ID  # keys are unique per user


def _predicates(definition: TableDefinition, condition: exp.Expr, name: str, *, alone: bool) -> Iterator[Predicate]:
    columns = {fold(column.name): column for column in definition.columns if not column.type.element}
    columns |= {column.name: column for column in definition.system_columns if column.name in (SEQ, USER_ID)}
    if SEQ in columns:
        columns[UPDATED] = Column(0, UPDATED, column_type("timestamptz"))
    condition = condition.unnest()
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        for one in _comparisons(part.unnest()):
            predicate = _predicate(one, columns, name, alone=alone)
            if predicate and predicate.column.name == UPDATED:
                predicate = _of_seq(predicate, columns[SEQ])
            if predicate:
                yield predicate


def _comparisons(part: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(part, exp.Between) and not part.args.get("symmetric"):
        yield exp.GTE(this=part.this, expression=part.args["low"])
        yield exp.LTE(this=part.this, expression=part.args["high"])
    else:
        yield part


def _of_seq(predicate: Predicate, seq: Column) -> Predicate | None:
    """Converts a predicate on _updated, the time in _seq, to one on _seq."""
    if predicate.op == "=":
        return None
    (moment,) = predicate.values
    op = ">=" if predicate.op in (">", ">=") else "<"
    try:
        first = SeqId.first_at(moment if predicate.op in (">=", "<") else moment + timedelta(microseconds=1))
    except (OverflowError, InvalidInputError):  # no _seq is so late
        return None
    return Predicate(seq, op, (int(first),))


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
    values = [exact_value(other, column.type) for other in others]
    return None if any(value is None for value in values) else Predicate(column, op, tuple(values))


def _sources(select: exp.Expr) -> Iterator[exp.Expr]:
    source = select.args.get("from_") or select.args.get("from")
    if source is not None:
        yield source.this
        yield from source.this.args.get("joins") or ()
    yield from select.args.get("joins") or ()
    yield from select.args.get("laterals") or ()
