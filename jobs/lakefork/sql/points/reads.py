"""SELECT by key: the newest versions, as the reading core would find them, without a query worker."""

from collections.abc import Sequence
from typing import Any

from lakefork.cold.lookups import UnsupportedError
from lakefork.database_errors import all_domain_errors
from lakefork.errors import DefinitionChangedError
from lakefork.hot.point_connections import fetch
from lakefork.model.tables import Column, TableDefinition
from lakefork.sql.permissions import plain_conditions
from lakefork.sql.points.found import Finder, Version, parameters_of
from lakefork.sql.points.keys import Key
from lakefork.sql.points.selects import PointSelect
from lakefork.sql.resources import Resources
from lakefork.sql.results import FewRows
from lakefork.sql.session import Role, Session

ATTEMPTS = 3


class PointReader:
    def __init__(self, resources: Resources, finder: Finder) -> None:
        self._resources, self._finder = resources, finder

    def execute(self, session: Session, plan: PointSelect, values: Sequence[Any], source: str) -> FewRows | None:
        """Returns the answer; None: the general way has to find it.

        Raises UnsupportedError if the plan does not suffice, DefinitionChangedError if it no longer holds.
        """
        keys = plan.keys.keys(values)
        if keys is None or (session.role < Role.SERVICE and not session.user):
            return None
        for _ in range(ATTEMPTS):
            versions = self._versions(session, plan, keys)
            if versions is not None:
                return FewRows(source, plan.schema, _answer(plan, versions))
        raise DefinitionChangedError(f"{plan.definition} changed concurrently; retry")

    def _versions(self, session: Session, plan: PointSelect, keys: Sequence[Key]) -> list[Version] | None:
        with all_domain_errors(), self._resources.points.connection() as connection:
            found = fetch(connection, plan.sql, parameters_of(session, keys))
        conditions = _conditions(session, plan.definition, found[0][1])
        if missing := [column for column, _ in conditions if column not in plan.columns]:
            raise NeedsColumnsError(missing)
        owner = session.user if plan.definition.per_user else None
        newest = self._finder.newest(plan.found, plan.columns, owner, keys, found)
        if newest is None or not conditions:
            return None if newest is None else list(newest.values())
        places = [(plan.columns.index(column) + 2, text) for column, text in conditions]
        return [version for version in newest.values() if any(version[place] == text for place, text in places)]


class NeedsColumnsError(Exception):
    """Rules of the user are about columns that the plan does not read."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.columns = columns


def _conditions(
    session: Session, definition: TableDefinition, rules: Sequence[str] | None
) -> tuple[tuple[Column, str], ...]:
    """Returns what limits the rows that the session may see, besides their owner; raises if it is complicated."""
    if session.role >= Role.SERVICE:
        return ()
    found = plain_conditions(tuple(rules or ()), definition, session.own_user())
    if found is None:
        raise UnsupportedError
    return found


def _answer(plan: PointSelect, versions: Sequence[Version]) -> list[tuple[Any, ...]]:
    rows = [version for version in versions if not version[1]]
    for place, convert in plan.converters:
        rows = [(*row[:place], convert(row[place]), *row[place + 1 :]) for row in rows]
    return [tuple(row[place] for place in plan.outputs) for row in rows]
