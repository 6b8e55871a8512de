"""The most common write, one row with a generated key, in one round trip; others use the general path."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlglot import exp

from lakefork.database_errors import saving
from lakefork.errors import DefinitionChangedError, InvalidInputError
from lakefork.hot.rows import append_one_statement, append_one_values
from lakefork.hot.streams import append_event_statement, append_event_values
from lakefork.model.predicates import is_exact
from lakefork.model.tables import Column, TableDefinition, TableKind
from lakefork.read.tables import FoundTable
from lakefork.sql.expressions import constant
from lakefork.sql.parse.statements import Insert
from lakefork.sql.permissions import Access
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.sql.write.rows import GENERATED_KEYS, target_columns

CACHED_PLANS = 1_000
_GENERATED = object()


@dataclass(frozen=True)
class _Plan:
    """How to insert: for each column a parameter's position, or a value."""

    definition: TableDefinition
    sql: str
    slots: tuple[tuple[Column, int | None, Any], ...]

    @property
    def is_stream(self) -> bool:
        return self.definition.kind == TableKind.STREAM


class QuickInserter:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._plans: OrderedDict[tuple[object, ...], _Plan] = OrderedDict()
        self._lock = threading.Lock()

    def insert(self, session: Session, statement: Insert, parameters: Sequence[Any]) -> bool:
        """Inserts the row; returns False if nothing was done."""
        plan = self._plans.get(_plan_key(session, statement))
        if (
            plan is None
            or (not plan.definition.per_user and session.role < Role.SERVICE)
            or statement.as_user is not None
        ):
            return False
        access = self._access(session, plan.definition)
        seq = self._resources.seqids.next()
        values = _values(plan, seq, parameters)
        if values is None or access is None:
            return False
        try:
            with self._resources.catalog.connection() as connection, saving():
                append_values = append_event_values if plan.is_stream else append_one_values
                given = append_values(plan.definition, access.user_id, session.user, access.rules, seq, values)
                connection.execute(plan.sql, given, prepare=True)
        except DefinitionChangedError:
            self._forget(session, statement)
            return False
        return True

    def _access(self, session: Session, definition: TableDefinition) -> Access | None:
        """Returns the access as last known; the statement itself checks whether rules have changed."""
        return self._resources.known_rules.access(session, definition) if definition.per_user else Access(None)

    def learn(self, session: Session, statement: Insert, found: FoundTable) -> None:
        """Caches the plan for the same text, if it is simple enough."""
        slots = _slots(statement, found.definition)
        if slots is None or statement.as_user is not None:
            return
        append = append_event_statement if found.definition.kind == TableKind.STREAM else append_one_statement
        plan = _Plan(found.definition, append(found.definition), slots)
        with self._lock:
            self._plans[_plan_key(session, statement)] = plan
            while len(self._plans) > CACHED_PLANS:
                self._plans.popitem(last=False)

    def _forget(self, session: Session, statement: Insert) -> None:
        with self._lock:
            self._plans.pop(_plan_key(session, statement), None)


def _plan_key(session: Session, statement: Insert) -> tuple[object, ...]:
    return session.catalog, session.namespace, statement.text, statement.parameters


def _slots(statement: Insert, definition: TableDefinition) -> tuple[tuple[Column, int | None, Any], ...] | None:
    source = statement.source
    if not isinstance(source, exp.Values) or len(source.expressions) != 1 or not _generates_key(definition):
        return None
    cells = source.expressions[0].expressions
    columns = target_columns(definition, statement.columns)
    if set(definition.key) & set(columns) or len(cells) != len(columns):
        return None
    given = dict(zip(columns, cells, strict=True))
    slots = []
    for column in definition.columns:
        slot = _slot(column, given.get(column), is_key=column in definition.key)
        if slot is None:
            return None
        slots.append(slot)
    return tuple(slots)


def _generates_key(definition: TableDefinition) -> bool:
    """Whether no key has to be looked up; events have none."""
    return not definition.key or (
        len(definition.key) == 1 and definition.key[0].type.name in GENERATED_KEYS and definition.key[0].default is None
    )


def _slot(column: Column, cell: exp.Expr | None, *, is_key: bool) -> tuple[Column, int | None, Any] | None:
    if is_key:
        return column, None, _GENERATED
    if cell is None:
        known, value = constant_default(column)
        return (column, None, value) if known and _fits(column, value) else None
    if isinstance(cell, exp.Placeholder):
        return column, int(cell.name) - 1, None
    known, value = constant(cell)
    return (column, None, value) if known and _fits(column, value) else None


def constant_default(column: Column) -> tuple[bool, Any]:
    """Returns a constant default as a value."""
    if column.default is None:
        return True, None
    if column.default_is_expression or column.type.name not in _READERS:
        return False, None
    return True, _READERS[column.type.name](column.default)


_READERS: dict[str, Callable[[str], Any]] = {
    "int16": int, "int32": int, "int64": int, "float64": float, "varchar": str, "boolean": lambda text: text == "true",
}  # fmt: skip


def _values(plan: _Plan, seq: int, parameters: Sequence[Any]) -> list[Any] | None:
    values = []
    for column, position, value in plan.slots:
        if position is not None:
            if position >= len(parameters):
                raise InvalidInputError(f"parameter {position + 1} has no value: {len(parameters)} were given")
            value = parameters[position]
            if not _fits(column, value):
                return None
        elif value is _GENERATED:
            value = int(seq) if column.type.name == "int64" else uuid4()
        values.append(value)
    return values


def _fits(column: Column, value: Any) -> bool:
    if value is None:
        return column.nullable
    return column.type.name not in ("date", "timestamp", "timestamptz", "json") and is_exact(value, column.type)
