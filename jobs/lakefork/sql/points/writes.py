"""Changes of one row by key in two round trips: lock and look, then append and commit."""

from collections.abc import Sequence
from typing import Any

from lakefork.database_errors import all_domain_errors, saving
from lakefork.errors import DefinitionChangedError
from lakefork.hot.point_connections import PointConnection, in_one_round_trip, roll_back
from lakefork.hot.points import version_values
from lakefork.hot.rows import key_exists, lock_rows_statement
from lakefork.sql.permissions import Access
from lakefork.sql.points.changes import PointChange
from lakefork.sql.points.found import Finder, parameters_of
from lakefork.sql.points.keys import Key
from lakefork.sql.resources import Resources
from lakefork.sql.results import Affected
from lakefork.sql.session import Role, Session
from lakefork.sql.write.rows import key_hash


class PointWriter:
    def __init__(self, resources: Resources, finder: Finder) -> None:
        self._resources, self._finder = resources, finder

    def execute(self, session: Session, plan: PointChange, values: Sequence[Any], source: str) -> Affected | None:
        """Executes a change; None: nothing was done, the general way has to."""
        keys = plan.keys.keys(values)
        access = self._access(session, plan)
        if keys is None or access is None or plan.row(dict.fromkeys(plan.definition.columns), values) is None:
            return None
        with self._resources.points.connection() as connection:
            try:
                affected = self._change(connection, session, plan, access, keys[0], values)
            finally:
                roll_back(connection)  # what is not committed by now
        return None if affected is None else Affected(source, affected)

    def _access(self, session: Session, plan: PointChange) -> Access | None:
        """Returns the access as last known, which the lock compares; None: rules must be read or applied."""
        if plan.definition.per_user:
            return self._resources.known_rules.access(session, plan.definition) if session.user else None
        return Access(None) if session.role >= Role.SERVICE else None

    def _change(
        self,
        connection: PointConnection,
        session: Session,
        plan: PointChange,
        access: Access,
        key: Key,
        values: Sequence[Any],
    ) -> int | None:
        definition = plan.definition
        lock = (access.user_id, [key_hash(key)], None if access.rules is None else list(access.rules))
        with all_domain_errors():
            found = in_one_round_trip(
                connection,
                ("BEGIN", None),
                (lock_rows_statement(definition), lock),
                (plan.sql, parameters_of(session, [key])),
            ).fetchall()
            newest = self._finder.newest(plan.found, definition.columns, access.user_id, [key], found)
        if newest is None:
            raise DefinitionChangedError(f"{definition} changed concurrently; retry")
        current = newest.get(0)
        is_there = current is not None and not current[1]
        if is_there and plan.is_insert:
            raise key_exists(definition, dict(zip((column.name for column in definition.key), key, strict=True)))
        if not is_there and not plan.is_insert:
            return 0
        row = plan.row(dict(zip(definition.columns, current[2:] if current else (), strict=is_there)), values)
        if row is None:
            return None
        seq = int(self._resources.seqids.next_many(1, after=current[0] if current else 0)[0])
        given = version_values(definition, access.user_id, seq, row, deleted=plan.is_deletion)
        with saving():
            in_one_round_trip(connection, (plan.append, given), ("COMMIT", None))
        return 1
