"""KILL LIVE QUERY: its server ends it within a second."""

import uuid

from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.sql.parse.statements import KillLiveQuery
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session


class LiveQueries:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def kill(self, session: Session, statement: KillLiveQuery) -> None:
        """Ends a live query: of its user, or of anybody for admins."""
        try:
            live_id = uuid.UUID(statement.live_id)
        except ValueError:
            raise InvalidInputError("this is no id of a live query: system.live_queries lists them") from None
        owner = None if session.role >= Role.ADMIN else session.own_user()
        with self._resources.catalog_of(session) as (connection, catalog):
            row = connection.execute(
                "SELECT lakefork.kill_live_query(%s, %s, %s, %s) AS found",
                (catalog.catalog_id, live_id, owner, f"killed by {session.actor}"),
            ).fetchone()
        if row is None or not row["found"]:
            raise NotFoundError(f"live query {live_id} does not exist; system.live_queries lists those that do")
