"""Finds the short way of a statement: one about rows by key, which is planned once per shape."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.cold.lookups import UnsupportedError
from lakefork.errors import DefinitionChangedError, LakeforkError
from lakefork.sql.expressions import bind
from lakefork.sql.parse.grammar import SqlSyntaxError, parse, table_name
from lakefork.sql.parse.statements import Delete, Insert, Select, Statement, Update
from lakefork.sql.points.changes import PointChange, plan_change
from lakefork.sql.points.found import Finder
from lakefork.sql.points.plans import Plans
from lakefork.sql.points.reads import NeedsColumnsError, PointReader
from lakefork.sql.points.selects import PointSelect, plan_select, table_of
from lakefork.sql.points.shapes import Shaped, shape_of
from lakefork.sql.points.writes import PointWriter
from lakefork.sql.resources import Resources
from lakefork.sql.results import Affected, FewRows
from lakefork.sql.session import Role, Session
from lakefork.sql.system.relations import SYSTEM_NAMESPACES

STARTS = ("SELECT", "UPDATE", "DELETE", "INSERT")
Plan = PointSelect | PointChange


@dataclass(frozen=True)
class Shortcut:
    """A planned statement with the values of one execution."""

    key: Hashable
    plan: Plan
    shaped: Shaped

    @property
    def statement(self) -> Statement:
        return self.plan.statement


class Shortcuts:
    """For all sessions of an engine."""

    def __init__(self, resources: Resources) -> None:
        finder = Finder(resources)
        self._resources = resources
        self._reader, self._writer = PointReader(resources, finder), PointWriter(resources, finder)
        self._plans: Plans[Plan] = Plans()

    def find(self, session: Session, text: str, parameters: Sequence[Any]) -> Shortcut | None:
        """Returns the plan of a text that was seen before."""
        shaped = shape_of(text, parameters)
        if shaped is None or shaped.shape[:6].upper() not in STARTS:
            return None
        key = (session.catalog, session.namespace, session.role >= Role.SERVICE, shaped.shape)
        plan = self._plans.find(key, lambda: self._learn(session, text, parameters, shaped))
        return None if plan is None else Shortcut(key, plan, shaped)

    def execute(self, session: Session, shortcut: Shortcut) -> FewRows | Affected | None:
        """Returns the answer; None: nothing was done, and the general way has to find it."""
        plan, shaped = shortcut.plan, shortcut.shaped
        try:
            if isinstance(plan, PointChange):
                answer: FewRows | Affected | None = self._writer.execute(session, plan, shaped.values, shaped.source)
            else:
                answer = self._select(session, shortcut.key, plan, shaped)
        except UnsupportedError:
            return None
        except DefinitionChangedError:
            self._plans.forget(shortcut.key)
            return None
        return answer

    def _select(self, session: Session, key: Hashable, plan: PointSelect, shaped: Shaped) -> FewRows | None:
        try:
            return self._reader.execute(session, plan, shaped.values, shaped.source)
        except NeedsColumnsError as error:
            plan = plan.with_columns(error.columns)
            self._plans.replace(key, plan)
            return self._reader.execute(session, plan, shaped.values, shaped.source)

    def _learn(self, session: Session, text: str, parameters: Sequence[Any], shaped: Shaped) -> Plan | None:
        try:
            statement, *others = parse(shaped.shape)
            written, *_ = parse(text)
        except SqlSyntaxError:
            return None
        try:
            if others or _bound(statement, shaped.values, session) != _bound(written, parameters, session):
                return None  # a constant means something else where it stands
            return self._plan(session, statement)
        except LakeforkError:
            return None

    def _plan(self, session: Session, statement: Statement) -> Plan | None:
        resources = self._resources
        if isinstance(statement, Select):
            table = table_of(statement.query)
            name = None if table is None else table_name(table)
        else:
            table, name = None, statement.name if isinstance(statement, Insert | Update | Delete) else None
        if name is None or (name.namespace or session.namespace or "").lower() in SYSTEM_NAMESPACES:
            return None
        with resources.readers.transaction() as connection:
            found = resources.lookup.find(connection, session, name)
        if isinstance(statement, Select) and table is not None:
            return plan_select(statement, table, found, sees_all=session.role >= Role.SERVICE)
        return plan_change(statement, found) if isinstance(statement, Insert | Update | Delete) else None


def _bound(statement: Statement, values: Sequence[Any], session: Session) -> list[Any]:
    """Returns what a statement consists of, with its parameters replaced."""
    parts: list[Any] = [type(statement)]
    if isinstance(statement, Select):
        return [*parts, bind(statement.query, values, session)]
    if isinstance(statement, Insert):
        return [*parts, statement.name, statement.columns, statement.as_user, bind(statement.source, values, session)]
    if isinstance(statement, Update | Delete):
        parts += [statement.name, statement.alias, statement.as_user]
        parts += [None if statement.where is None else bind(statement.where, values, session)]
    if isinstance(statement, Update):
        parts += [(name, bind(value, values, session)) for name, value in statement.assignments]
    return parts
