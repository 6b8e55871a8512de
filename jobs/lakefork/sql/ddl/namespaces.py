"""Creates, alters and drops namespaces by commits, with their options as tags."""

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.cold.schema_writer import SchemaWriter
from lakefork.errors import ConflictError, InvalidInputError
from lakefork.model.tables import fold
from lakefork.sql.ddl.objects import change_tags, check_name, find_namespace, namespace_id, tags_of
from lakefork.sql.ddl.options import namespace_option_tags
from lakefork.sql.parse.statements import AlterNamespace, CreateNamespace, DropNamespace
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.sql.system.relations import SYSTEM_NAMESPACES
from lakefork.storage.paths import path_part


class Namespaces:
    def __init__(self, resources: Resources, schemas: SchemaWriter) -> None:
        self._resources = resources
        self._schemas = schemas

    def create(self, session: Session, statement: CreateNamespace) -> None:
        session.require(Role.ADMIN, "CREATE NAMESPACE")
        check_name("namespace", statement.name)
        if fold(statement.name) in SYSTEM_NAMESPACES:
            raise InvalidInputError(f"the name {statement.name} is reserved")
        with self._resources.catalog_of(session) as (connection, catalog):
            if find_namespace(connection, catalog, statement.name):
                if statement.if_not_exists:
                    return
                raise ConflictError(f"namespace {statement.name} already exists")
            changes = Changes()
            schema_id = changes.new_id()
            changes.add(
                "ducklake_schema",
                schema_id=schema_id,
                schema_name=statement.name,
                path=path_part(statement.name),
                path_is_relative=True,
            )
            for key, value in namespace_option_tags(statement.options).items():
                changes.add("ducklake_tag", object_id=schema_id, key=key, value=value)
            commit(connection, catalog.catalog_id, newest_snapshot(connection), changes, author=session.actor)

    def alter(self, session: Session, statement: AlterNamespace) -> None:
        session.require(Role.ADMIN, "ALTER NAMESPACE")
        with self._resources.catalog_of(session) as (connection, catalog):
            base = newest_snapshot(connection)
            schema_id = namespace_id(connection, catalog, statement.name)
            changes = Changes()
            change_tags(
                changes, schema_id, tags_of(connection, catalog, schema_id), namespace_option_tags(statement.options)
            )
            commit(connection, catalog.catalog_id, base, changes, author=session.actor)

    def drop(self, session: Session, statement: DropNamespace) -> str | None:
        session.require(Role.ADMIN, "DROP NAMESPACE")
        with self._resources.catalog_of(session) as (connection, catalog):
            found = find_namespace(connection, catalog, statement.name)
            if found is None and statement.if_exists:
                return None
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
            noted = self._schemas.note(connection, catalog, statement.name)
            commit(connection, catalog.catalog_id, newest_snapshot(connection), changes, author=session.actor)
            return self._schemas.write_noted(connection, noted)
