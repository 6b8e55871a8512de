"""SELECT by key: the newest versions, as the reading core would find them, without a query worker."""

from collections.abc import Sequence
from typing import Any

from lakefork.cold.lookups import UnsupportedError
from lakefork.database_errors import all_domain_errors
from lakefork.errors import DefinitionChangedError, LakeforkError
from lakefork.hot.point_connections import fetch
from lakefork.model.tables import TableDefinition
from lakefork.sql.permissions import access_under
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

        Raises UnsupportedError if the plan does not suffice, DefinitionChangedError if it does not hold any more.
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
        if not _sees_all_rows(session, plan.definition, found[0][1]):
            raise UnsupportedError
        owner = session.user if plan.definition.per_user else None
        newest = self._finder.newest(plan.found, plan.columns, owner, keys, found)
        return None if newest is None else list(newest.values())


def _sees_all_rows(session: Session, definition: TableDefinition, rules: Sequence[str] | None) -> bool:
    """Tells whether nothing but the owner limits what the session may see."""
    if session.role >= Role.SERVICE:
        return True
    try:
        return access_under(tuple(rules or ()), definition, session.own_user()).row_filter is None
    except LakeforkError:
        return False


def _answer(plan: PointSelect, versions: Sequence[Version]) -> list[tuple[Any, ...]]:
    rows = [version for version in versions if not version[1]]
    for place, convert in plan.converters:
        rows = [(*row[:place], convert(row[place]), *row[place + 1 :]) for row in rows]
    return [tuple(row[place] for place in plan.outputs) for row in rows]
