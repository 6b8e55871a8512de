"""Namespaces: made, altered and dropped by commits, with their options as tags."""

import json
from collections.abc import Mapping

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.errors import ConflictError, InvalidInputError
from lakefork.sql.objects import change_tags, check_name, find_namespace, namespace_id, tags_of
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.sql.statements import AlterNamespace, CreateNamespace, DropNamespace, OptionValue
from lakefork.sql.system import SYSTEM_NAMESPACES
from lakefork.storage.paths import path_part
from lakefork.tables import fold


class Namespaces:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def create(self, session: Session, statement: CreateNamespace) -> None:
        session.require(Role.ADMIN, "CREATE NAMESPACE")
        check_name("namespace", statement.name)
        if fold(statement.name) in SYSTEM_NAMESPACES:
            raise InvalidInputError(f"the name {statement.name} is reserved")
        with self._resources.catalog_of(session) as (connection, catalog):
            if find_namespace(connection, catalog, statement.name):
                if statement.if_not_exists:
                    return
                raise ConflictError(f"there is a namespace {statement.name} already")
            changes = Changes()
            schema_id = changes.new_id()
            changes.add(
                "ducklake_schema",
                schema_id=schema_id,
                schema_name=statement.name,
                path=path_part(statement.name),
                path_is_relative=True,
            )
            for key, value in _option_tags(statement.options).items():
                changes.add("ducklake_tag", object_id=schema_id, key=key, value=value)
            commit(connection, catalog.catalog_id, newest_snapshot(connection), changes, author=session.actor)

    def alter(self, session: Session, statement: AlterNamespace) -> None:
        session.require(Role.ADMIN, "ALTER NAMESPACE")
        with self._resources.catalog_of(session) as (connection, catalog):
            base = newest_snapshot(connection)
            schema_id = namespace_id(connection, catalog, statement.name)
            changes = Changes()
            change_tags(changes, schema_id, tags_of(connection, catalog, schema_id), _option_tags(statement.options))
            commit(connection, catalog.catalog_id, base, changes, author=session.actor)

    def drop(self, session: Session, statement: DropNamespace) -> None:
        session.require(Role.ADMIN, "DROP NAMESPACE")
        with self._resources.catalog_of(session) as (connection, catalog):
            found = find_namespace(connection, catalog, statement.name)
            if found is None and statement.if_exists:
                return
            schema_id = namespace_id(connection, catalog, statement.name)
            tables = connection.execute(
                "SELECT table_name FROM lakefork.visible_table(%s) WHERE schema_id = %s ORDER BY 1 LIMIT 21",
                (catalog.catalog_id, schema_id),
            ).fetchall()
            if tables:
                names = ", ".join(row["table_name"] for row in tables[:20]) + (", …" if len(tables) > 20 else "")
                raise ConflictError(f"namespace {statement.name} has tables: {names}; drop them first")
            changes = Changes()
            changes.end("ducklake_schema", schema_id=schema_id)
            commit(connection, catalog.catalog_id, newest_snapshot(connection), changes, author=session.actor)


def _option_tags(options: Mapping[str, OptionValue]) -> dict[str, str]:
    return {f"option.{key.lower()}": json.dumps(value) for key, value in options.items()}
