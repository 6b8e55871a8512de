"""Creates, alters and drops tables by commits; schema files follow the catalog."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

import psycopg
from sqlglot import exp

from lakefork.catalog.catalogs import Catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import installation_id, known_files
from lakefork.cold.schema_writer import SchemaWriter
from lakefork.database_errors import domain_errors
from lakefork.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from lakefork.model.tables import FIRST_COLUMN_ID, Column, TableDefinition, TableKind, fold
from lakefork.sql.ddl.alter import altered_columns, ids_of, new_column
from lakefork.sql.ddl.locations import check_new_location
from lakefork.sql.ddl.objects import change_tags, check_name, namespace_id, tags_of
from lakefork.sql.ddl.options import (
    TableDefaults,
    check_column_options,
    check_location,
    flush_tags,
    option_tags,
    renamed_in_options,
    table_defaults,
)
from lakefork.sql.ddl.subscribed import SubscribedError, SubscribedGuard
from lakefork.sql.ddl.table_changes import change_columns, table_changes
from lakefork.sql.expressions import OF_THE_SESSION, constant
from lakefork.sql.lookup import namespace_of
from lakefork.sql.parse.statements import (
    AlterTable,
    ColumnDefinition,
    CreateTable,
    DropColumn,
    DropTable,
    FlushTable,
    OptionValue,
    RenameColumn,
    SetFlushPolicy,
    SetOptions,
)
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.pool import SECONDS_IN_TRANSACTION
from lakefork.storage.credentials import require_allowed
from lakefork.storage.markers import RootOwner, claim_root
from lakefork.storage.paths import credentials_of, path_part, with_credentials

LOCK_SECONDS = 10
MAX_COLUMNS, MAX_KEY_COLUMNS = 1_000, 16  # Postgres can hold 1,600 columns and index 32
_log = logging.getLogger(__name__)


class Tables:
    def __init__(self, resources: Resources, schemas: SchemaWriter) -> None:
        self._resources = resources
        self._schemas = schemas

    def create(self, session: Session, statement: CreateTable) -> str | None:
        session.require(Role.ADMIN, "CREATE TABLE")
        kind = statement.kind or TableKind.SHARED
        namespace = namespace_of(statement.name, session)
        check_name("table", statement.name.table)
        columns = self._columns(statement, f"{namespace}.{statement.name.table}")
        _check_key(kind, statement, columns)
        with self._resources.catalog_of(session) as (connection, catalog):
            schema_id = namespace_id(connection, catalog, namespace)
            if _table_exists(connection, catalog, schema_id, statement.name.table):
                if statement.if_not_exists:
                    return None
                raise ConflictError(f"table {namespace}.{statement.name.table} already exists")
            defaults = table_defaults(tags_of(connection, catalog, schema_id))
            tags = _table_tags(kind, statement, defaults)
            check_column_options(f"{namespace}.{statement.name.table}", tags, columns)
            tags |= self._location_tags(connection, catalog, kind, namespace, statement, defaults)
            key_ids = [
                next(c.column_id for c in columns if fold(c.name) == fold(name)) for name in statement.primary_key
            ]
            tags |= {"kind": kind.value, "primary_key": json.dumps(key_ids)}
            changes = table_changes(schema_id, statement.name.table, kind, columns, tags)
            noted = self._schemas.note(connection, catalog, namespace, statement.name.table)
            commit(connection, catalog.catalog_id, newest_snapshot(connection), changes, author=session.actor)
            if kind is not TableKind.STREAM:
                self._claim_root(connection, self._definition(session, statement))
            return self._schemas.write_noted(connection, noted)

    def _claim_root(self, connection: Connection, definition: TableDefinition) -> None:
        """Marks the table's directory; if that fails, the first flush marks or refuses it."""
        root = definition.path
        owner = RootOwner(installation_id(connection), definition.catalog_id, definition.table_id)
        try:
            claim_root(root, owner, self._resources.storage, lambda: known_files(connection, root))
        except StorageError as error:
            _log.warning("%s: its files cannot be written yet: %s", definition, error)

    def alter(self, session: Session, statement: AlterTable) -> str | None:
        session.require(Role.ADMIN, "ALTER TABLE")
        with self._resources.catalog_of(session) as (connection, catalog):
            base = newest_snapshot(connection)
            definition = self._definition(session, statement)
            _check_stream_actions(definition, statement)
            columns = _not_too_many(str(definition), altered_columns(definition, statement.actions, self._with_default))
            if not columns:
                raise InvalidInputError(f"{definition}: a table needs at least one column")
            tags = _altered_tags(definition, statement)
            check_column_options(str(definition), tags, columns)
            changes = Changes()
            changes.require_table_unchanged(definition.table_id)
            change_columns(changes, definition, columns)
            change_tags(changes, definition.table_id, definition.tags, tags)
            if not {"new", "end"} & set(changes.as_json()):
                raise InvalidInputError(f"{definition}: nothing to change")
            noted = self._schemas.note(connection, catalog, definition.namespace, definition.name)
            guard = _guard_of_columns(definition, statement, columns)
            self._commit_definition(connection, session, catalog, definition, base, changes, guard)
            if definition.kind == TableKind.STREAM:
                connection.execute("SELECT lakefork.look_at_events(%s, %s)", definition.ref)
            return self._schemas.write_noted(connection, noted)

    def flush(self, session: Session, statement: FlushTable) -> None:
        """Requests a flush: the flush DAG starts within seconds, or `lakefork run flush` does it."""
        session.require(Role.SERVICE, "FLUSH TABLE")
        definition = self._definition(session, statement)
        if definition.kind == TableKind.STREAM:
            raise InvalidInputError(f"{definition} is a STREAM table: its events are never written to files")
        with self._resources.catalog.connection() as connection:
            connection.execute(
                "SELECT lakefork.request_flush(%s, %s, %s)",
                (definition.catalog_id, definition.table_id, session.actor),
            )

    def drop(self, session: Session, statement: DropTable) -> str | None:
        session.require(Role.ADMIN, "DROP TABLE")
        with self._resources.catalog_of(session) as (connection, catalog):
            base = newest_snapshot(connection)
            try:
                definition = self._definition(session, statement)
            except NotFoundError:
                if statement.if_exists:
                    return None
                raise
            if statement.kind is not None and statement.kind.value != definition.kind:
                raise InvalidInputError(f"{definition} is a {definition.kind} table, not a {statement.kind} table")
            changes = Changes()
            changes.require_table_unchanged(definition.table_id)
            changes.end("ducklake_table", table_id=definition.table_id)
            guard = SubscribedGuard(None, str(definition), force=statement.force)
            noted = self._schemas.note(connection, catalog, definition.namespace, definition.name)
            self._commit_definition(connection, session, catalog, definition, base, changes, guard)
            if definition.kind == TableKind.STREAM:  # eviction would do it, too
                connection.execute("SELECT lakefork.discard_events(%s, %s)", definition.ref)
            return self._schemas.write_noted(connection, noted)

    def _definition(
        self, session: Session, statement: AlterTable | CreateTable | DropTable | FlushTable
    ) -> TableDefinition:
        with self._resources.readers.transaction() as reading:
            return self._resources.lookup.find(reading, session, statement.name).definition

    def _commit_definition(
        self,
        connection: Connection,
        session: Session,
        catalog: Catalog,
        definition: TableDefinition,
        base: int,
        changes: Changes,
        guard: SubscribedGuard | None = None,
    ) -> None:
        """Commits a definition; waits for current writers, and later ones use the new definition."""
        try:
            with domain_errors(), connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
                connection.execute("SELECT lakefork.lock_definition(%s, %s)", (catalog.catalog_id, definition.table_id))
                if guard is not None:
                    guard.check(connection, definition)
                commit(connection, catalog.catalog_id, base, changes, author=session.actor)
        except SubscribedError:
            raise
        except psycopg.errors.LockNotAvailable:
            raise ConflictError(
                f"{definition} has been locked by writers for more than {LOCK_SECONDS} seconds: try again"
            ) from None
        except (ConflictError, NotFoundError) as error:
            raise ConflictError(f"{definition} changed concurrently; check it and retry ({error})") from error

    def _columns(self, statement: CreateTable, table: str) -> tuple[Column, ...]:
        columns: dict[str, Column] = {}
        next_id = FIRST_COLUMN_ID
        for given in statement.columns:
            column = replace(
                self._with_default(given, new_column(table, given, next_id, columns)), initial_default=None
            )
            columns[fold(given.name)] = column
            next_id += ids_of(column)
        return _not_too_many(table, tuple(columns.values()))

    def _with_default(self, given: ColumnDefinition, column: Column) -> Column:
        """Stores a default: a constant as text; an expression as such, with its current value for existing rows."""
        if given.default is None:
            return column
        _check_default(given)
        kind = column.type.duckdb
        sql = given.default.sql(dialect="duckdb")
        query = Request(f"SELECT CAST(CAST({sql} AS {kind}) AS VARCHAR) AS value")
        values = self._resources.workers.run(query, seconds=SECONDS_IN_TRANSACTION)["value"].to_pylist()
        if len(values) != 1:
            raise InvalidInputError(f"the DEFAULT of column {given.name} must be one value, not {len(values)}: {sql}")
        value = values[0]
        is_constant = constant(given.default)[0] or not any(given.default.find_all(exp.Func))
        if value is None:
            return replace(column, default=None, default_is_expression=False)
        return replace(
            column, initial_default=value, default=value if is_constant else sql, default_is_expression=not is_constant
        )

    def _location_tags(
        self,
        connection: Connection,
        catalog: Catalog,
        kind: TableKind,
        namespace: str,
        statement: CreateTable,
        defaults: TableDefaults,
    ) -> dict[str, str]:
        tags = {}
        location = statement.location
        if location is None and defaults.location is not None and kind is not TableKind.STREAM:
            location = f"{defaults.location}/{path_part(statement.name.table)}"
        if location is not None and credentials_of(location):
            raise InvalidInputError(
                f"LOCATION {location!r}: credentials must be named by a storage location of the catalog"
            )
        if statement.location_reference is not None:
            tags["location_reference"] = statement.location_reference
            location = _referenced_path(connection, catalog, statement.location_reference)
            location = f"{location.rstrip('/')}/{path_part(namespace)}/{path_part(statement.name.table)}"
        if location is None:
            return tags
        location = check_location(kind, location)
        check_new_location(connection, catalog, location, self._resources.home, self._resources.storage)
        return {**tags, "location": location}


def _not_too_many(table: str, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    if len(columns) > MAX_COLUMNS:
        raise InvalidInputError(f"{table}: a table has at most {MAX_COLUMNS} columns")
    return columns


def _check_key(kind: TableKind, statement: CreateTable, columns: tuple[Column, ...]) -> None:
    table = statement.name
    if kind is TableKind.STREAM:
        if statement.primary_key:
            raise InvalidInputError(f"{table}: a STREAM table has no primary key: its events are never changed")
        return
    if not statement.primary_key:
        raise InvalidInputError(f"{table}: a {kind} table needs a PRIMARY KEY, for example id BIGINT PRIMARY KEY")
    if len(statement.primary_key) > MAX_KEY_COLUMNS:
        raise InvalidInputError(f"{table}: a key has at most {MAX_KEY_COLUMNS} columns")
    for name in statement.primary_key:
        column = next(c for c in columns if fold(c.name) == fold(name))
        if column.type.element or column.type.name in ("float32", "float64", "json"):
            raise InvalidInputError(
                f"{table}: {column.type.duckdb} cannot be a key: its values have no reliable equality"
            )


def _table_tags(kind: TableKind, statement: CreateTable, defaults: TableDefaults) -> dict[str, str]:
    options: Mapping[str, OptionValue] = statement.options
    if kind is TableKind.STREAM:
        if statement.flush_policy is not None:
            raise InvalidInputError(
                f"{statement.name}: a STREAM table has no FLUSH POLICY: its events are never written to files"
            )
        return option_tags(kind, options)
    tags = option_tags(
        kind, {"deleted_retention": defaults.deleted_retention, **{fold(key): value for key, value in options.items()}}
    )
    flush_policy = statement.flush_policy or defaults.flush_policy
    return tags | (flush_tags(flush_policy) if flush_policy else {})


def _check_stream_actions(definition: TableDefinition, statement: AlterTable) -> None:
    if definition.kind == TableKind.STREAM and not all(isinstance(one, SetOptions) for one in statement.actions):
        raise InvalidInputError(
            f"{definition} is a STREAM table: its columns cannot be altered, and it is never flushed; "
            "SET OPTIONS (retention, max_buffer, ephemeral) can"
        )


def _guard_of_columns(
    definition: TableDefinition, statement: AlterTable, columns: tuple[Column, ...]
) -> SubscribedGuard | None:
    """Returns what guards live queries against the columns that go."""
    kept = {column.column_id for column in columns}
    gone = [column for column in definition.columns if column.column_id not in kept]
    if not gone:
        return None
    force = all(action.force for action in statement.actions if isinstance(action, DropColumn))
    names = ", ".join(column.name for column in gone)
    title = f"column{'s' if len(gone) > 1 else ''} {names} of {definition}"
    return SubscribedGuard([column.column_id for column in gone], title, force=force)


def _altered_tags(definition: TableDefinition, statement: AlterTable) -> dict[str, str | None]:
    tags: dict[str, str | None] = {}
    for action in statement.actions:
        if isinstance(action, SetOptions):
            tags |= option_tags(TableKind(definition.kind), action.options)
        elif isinstance(action, SetFlushPolicy):
            tags |= {"flush_rows": None, "flush_interval": None, **flush_tags(action.flush_policy)}
        elif isinstance(action, RenameColumn | DropColumn):
            new_name = action.new_name if isinstance(action, RenameColumn) else None
            known = {key: value for key, value in {**definition.tags, **tags}.items() if value is not None}
            tags |= renamed_in_options(known, action.name, new_name)
    return tags


def _check_default(given: ColumnDefinition) -> None:
    default = given.default
    assert default is not None  # noqa: S101 - the caller looked
    parts: tuple[type[exp.Expr], ...] = (exp.Column, exp.Query, exp.Placeholder, exp.AggFunc, exp.Window)
    for part in (*parts, *OF_THE_SESSION):
        if default.find(part):
            raise InvalidInputError(
                f"the DEFAULT of column {given.name} must be a constant or a function without columns: "
                f"{default.sql(dialect='duckdb')}"
            )


def _table_exists(connection: Connection, catalog: Catalog, schema_id: int, name: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM lakefork.visible_table(%s) WHERE schema_id = %s "
        'AND lower(table_name COLLATE "C") = lower(%s::text COLLATE "C")',
        (catalog.catalog_id, schema_id, name),
    ).fetchone()
    return row is not None


def _referenced_path(connection: Connection, catalog: Catalog, reference: str) -> str:
    row = connection.execute(
        "SELECT path, credentials_ref FROM lakefork.storage_location WHERE catalog_id = %s AND location_name = %s",
        (catalog.catalog_id, reference),
    ).fetchone()
    if row is None:
        raise NotFoundError(f"storage location {reference!r} does not exist; system.storage_locations lists them")
    path, credentials = str(row["path"]), row["credentials_ref"]
    if not credentials:
        return path
    # Checked again: a fork has its parent's locations, and the operator may have changed the permission.
    require_allowed(credentials, catalog.name)
    return with_credentials(path, credentials)
