"""Finds tables for sessions: in their catalog, of which their user must be one."""

from collections.abc import Sequence

from lakefork.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.model.predicates import postgres_text
from lakefork.read.tables import Definitions, FoundTable, moment_of
from lakefork.sql.parse.statements import TableName
from lakefork.sql.session import Session


class Lookup:
    def __init__(self) -> None:
        self._definitions = Definitions()

    def catalog_id(self, connection: ArrowConnection, session: Session, moment: str | None = None) -> int:
        """The session's catalog, in which its user must not have been deleted; moment: as of when (moment_of)."""
        name = postgres_text(session.catalog)
        live = f"lakefork.visible_catalog() c WHERE c.catalog_name = {name}"
        user = postgres_text(session.user)
        found = connection.query(
            "SELECT c.catalog_id, EXISTS (SELECT FROM lakefork.app_user u WHERE u.catalog_id = c.catalog_id "
            f"AND u.user_id = {user} AND u.deleted_at IS NOT NULL) AS deleted "
            f"FROM {live if moment is None else f'lakefork.catalog_at({name}, {moment}) c'}"
        ).to_pylist()
        if not found:
            raise NotFoundError(f"catalog {session.catalog!r} does not exist; `lakefork status` lists catalogs")
        if found[0]["deleted"]:
            raise PermissionDeniedError(f"user {session.user!r} was deleted")
        return int(found[0]["catalog_id"])

    def find(
        self, connection: ArrowConnection, session: Session, name: TableName, snapshot: int | None = None
    ) -> FoundTable:
        return self.find_all(connection, session, [name], snapshot)[0]

    def find_all(
        self, connection: ArrowConnection, session: Session, names: Sequence[TableName], snapshot: int | None = None
    ) -> list[FoundTable]:
        catalog_id = self.catalog_id(connection, session, None if snapshot is None else moment_of(snapshot))
        full_names = [(namespace_of(name, session), name.table) for name in names]
        tables = self._definitions.find_tables(connection, catalog_id, session.catalog, full_names, snapshot)
        found = []
        for (namespace, name), table in zip(full_names, tables, strict=True):
            if table is None:
                when = "" if snapshot is None else f" at snapshot {snapshot}"
                raise NotFoundError(f"table {namespace}.{name} does not exist{when}; SHOW TABLES lists tables")
            found.append(table)
        return found


def namespace_of(name: TableName, session: Session) -> str:
    namespace = name.namespace or session.namespace
    if namespace is None:
        raise InvalidInputError(f"table {name.table} needs a namespace: use namespace.{name.table}")
    return namespace
