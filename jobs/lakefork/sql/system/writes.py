"""INSERT, UPDATE and DELETE on system.users and system.storage_locations, by admins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from sqlglot import exp

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.errors import ConflictError, InvalidInputError, PermissionDeniedError
from lakefork.model.tables import TableKind
from lakefork.sql.ddl.locations import check_allowed
from lakefork.sql.ddl.options import check_location, static_part
from lakefork.sql.expressions import bind, constant
from lakefork.sql.parse.grammar import parse_rule
from lakefork.sql.parse.statements import Delete, Insert, Update
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session, check_user_id
from lakefork.sql.workers.messages import Request
from lakefork.sql.workers.pool import SECONDS_IN_TRANSACTION
from lakefork.storage import require_access
from lakefork.storage.credentials import require_allowed
from lakefork.storage.paths import credentials_of, with_credentials

Row = dict[str, Any]


@dataclass(frozen=True)
class SystemTable:
    """A system table with the columns that may be set; check raises for invalid rows."""

    table: str
    key: str
    columns: Mapping[str, str]
    others: Mapping[str, str]
    check: Callable[[Row, Connection, Resources, Session], None]
    delete: str
    refuse_delete: str | None = None
    role: str | None = None  # the column with a role, which must not exceed the session's

    def require_rank(self, session: Session, row: Row) -> None:
        """Raises if the old or the new row has a role above the session's."""
        if self.role and Role.named(row[self.role]) > session.role:
            raise PermissionDeniedError(
                f"permission denied: {row[self.key]!r} has or would get a role above {session.role.name.lower()}, "
                "which this session has"
            )


def _check_user(row: Row, _connection: Connection, _resources: Resources, _session: Session) -> None:
    check_user_id(row["user_id"] or "")
    row["role"] = Role.named(row["role"]).name.lower()
    for rule in row["permissions"]:
        parse_rule(rule)


def _check_location(row: Row, connection: Connection, resources: Resources, session: Session) -> None:
    if not row["location_name"]:
        raise InvalidInputError("system.storage_locations: location_name cannot be empty")
    if row["location_type"] not in ("filesystem", "s3") or not row["path"]:
        raise InvalidInputError("system.storage_locations: location_type is 'filesystem' or 's3', and path is needed")
    path = check_location(TableKind.USER, row["path"])
    if path.startswith("s3://") != (row["location_type"] == "s3"):
        raise InvalidInputError(f"system.storage_locations: {path!r} is no path of type {row['location_type']}")
    reference = row.get("credentials_ref")
    if reference:
        if credentials_of(with_credentials(path, reference)) != reference or credentials_of(path):
            raise InvalidInputError(
                f"system.storage_locations: credentials_ref {reference!r} must be a name of letters, digits and _, "
                "for a path s3://bucket/… without one"
            )
        require_allowed(reference, session.catalog)
        path = with_credentials(path, reference)
    check_allowed(connection, path, resources.home)
    require_access(static_part(path), resources.storage)


_TABLES = {
    "users": SystemTable(
        "app_user", "user_id",
        {
            "user_id": "VARCHAR", "username": "VARCHAR", "role": "VARCHAR", "permissions": "VARCHAR[]",
            "deleted_at": "TIMESTAMPTZ",
        },
        {"created_at": "TIMESTAMPTZ"}, _check_user,
        "UPDATE lakefork.app_user SET deleted_at = now() "
        "WHERE catalog_id = %s AND user_id = ANY (%s) AND deleted_at IS NULL",
        role="role",
    ),
    "storage_locations": SystemTable(
        "storage_location", "location_name",
        {"location_name": "VARCHAR", "location_type": "VARCHAR", "path": "VARCHAR", "credentials_ref": "VARCHAR"},
        {"created_at": "TIMESTAMPTZ", "usage_count": "BIGINT", "used_by": "VARCHAR[]"}, _check_location,
        "DELETE FROM lakefork.storage_location WHERE catalog_id = %s AND location_name = ANY (%s)",
        "SELECT location_name AS name, used_by FROM system.storage_locations "
        "WHERE catalog_name = %s AND location_name = ANY (%s) AND usage_count > 0",
    ),
}  # fmt: skip
_DEFAULTS: Row = {"role": "user", "permissions": []}


class SystemWriter:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def insert(self, session: Session, statement: Insert, parameters: Sequence[Any]) -> int:
        table = self._table(session, statement)
        names = [self._column(table, name) for name in statement.columns] or list(table.columns)
        source = bind(statement.source, parameters, session)
        for row in source.expressions if isinstance(source, exp.Values) else [source]:
            if len(row.expressions) != len(names):
                raise InvalidInputError(
                    f"system.{statement.name.table}: INSERT names {len(names)} columns, "
                    f"but a row has {len(row.expressions)} values"
                )
        rows = self._evaluate(source, {name: table.columns[name] for name in names})
        with self._resources.catalog.connection() as connection, connection.transaction():
            for row in rows:
                _complete(table, row)
                table.check(row, connection, self._resources, session)
                table.require_rank(session, row)
            catalog_id = _catalog_id(connection, session)
            try:
                for row in rows:
                    _insert(connection, table, catalog_id, row)
            except psycopg.errors.UniqueViolation:
                raise ConflictError(
                    f"system.{statement.name.table}: a row with this {table.key} already exists"
                ) from None
        return len(rows)

    def update(self, session: Session, statement: Update, parameters: Sequence[Any]) -> int:
        table = self._table(session, statement)
        assigned = {
            self._column(table, name): bind(value, parameters, session) for name, value in statement.assignments
        }
        if table.key in assigned:
            raise InvalidInputError(f"system.{statement.name.table}: {table.key} cannot be changed")
        where = bind(statement.where, parameters, session) if statement.where is not None else None
        with self._resources.catalog.connection() as connection, connection.transaction():
            catalog_id = _catalog_id(connection, session)
            rows = self._matching(
                connection, session, table, catalog_id, statement.alias or statement.name.table, where, assigned
            )
            for row in rows:
                _complete(table, row)
                table.check(row, connection, self._resources, session)
                table.require_rank(session, row)
                _update(connection, table, catalog_id, row)
        return len(rows)

    def delete(self, session: Session, statement: Delete, parameters: Sequence[Any]) -> int:
        table = self._table(session, statement)
        where = bind(statement.where, parameters, session) if statement.where is not None else None
        with self._resources.catalog.connection() as connection, connection.transaction():
            catalog_id = _catalog_id(connection, session)
            keys = [
                row[table.key]
                for row in self._matching(
                    connection, session, table, catalog_id, statement.alias or statement.name.table, where, {}
                )
            ]
            if table.refuse_delete:
                used = connection.execute(table.refuse_delete, (session.catalog, keys)).fetchone()
                if used:
                    raise ConflictError(f"{used['name']!r} is used by {', '.join(used['used_by'])}; drop them first")
            return connection.execute(table.delete, (catalog_id, keys)).rowcount

    def _table(self, session: Session, statement: Insert | Update | Delete) -> SystemTable:
        session.require(Role.ADMIN, f"changing {statement.name}")
        if statement.as_user is not None:
            raise PermissionDeniedError("AS USER clause not supported for system tables")
        if (statement.name.namespace or "").lower() != "system" or statement.name.table.lower() not in _TABLES:
            raise InvalidInputError(
                f"{statement.name} cannot be changed by SQL; system.users and system.storage_locations can"
            )
        return _TABLES[statement.name.table.lower()]

    @staticmethod
    def _column(table: SystemTable, name: str) -> str:
        if name.lower() not in table.columns:
            raise InvalidInputError(f"column {name} cannot be set; columns: {', '.join(table.columns)}")
        return name.lower()

    def _evaluate(self, source: exp.Expr, types: Mapping[str, str]) -> list[Row]:
        if source.find(exp.Table):
            raise InvalidInputError("system tables accept only VALUES, not rows of other tables")
        inner = source.sql(dialect="duckdb")
        names = ", ".join(types)
        casts = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in types.items())
        query = Request(f"SELECT {casts} FROM ({inner}) AS given ({names})")
        return list(self._resources.workers.run(query).to_pylist())

    def _matching(
        self,
        connection: Connection,
        session: Session,
        table: SystemTable,
        catalog_id: int,
        alias: str,
        where: exp.Expr | None,
        assigned: Mapping[str, exp.Expr],
    ) -> list[Row]:
        """Returns rows that satisfy a condition, with new values; locks them until the transaction ends."""
        for one in (where, *assigned.values()):
            if one is not None and one.find(exp.Table):
                raise InvalidInputError("a change of system tables cannot use other tables")
        key = _pinned(table, where)
        columns = {**table.columns, **{name: kind for name, kind in table.others.items() if name == "created_at"}}
        found = connection.execute(
            f"SELECT {', '.join(columns)} FROM lakefork.{table.table} "
            f"WHERE catalog_id = %s AND (%s::text IS NULL OR {table.key} = %s) FOR UPDATE",
            (catalog_id, key, key),
        ).fetchall()
        if not found:
            return []
        values = ", ".join(
            f"CAST({assigned[name].sql(dialect='duckdb') if name in assigned else name} AS {kind}) AS {name}"
            for name, kind in columns.items()
        )
        condition = "true" if where is None else where.sql(dialect="duckdb")
        name = exp.to_identifier(alias, quoted=True).sql(dialect="duckdb")
        query = Request(
            f"SELECT {values} FROM found_rows AS {name} WHERE {condition}", {"found_rows": _arrow(found, columns)}
        )
        rows = list(self._resources.workers.run(query, seconds=SECONDS_IN_TRANSACTION).to_pylist())
        before = {row[table.key]: row for row in found}
        for row in rows:
            table.require_rank(session, before[row[table.key]])
        return rows


def _arrow(rows: list[Row], columns: Mapping[str, str]) -> Any:
    types = {"VARCHAR": pa.string(), "VARCHAR[]": pa.list_(pa.string()), "TIMESTAMPTZ": pa.timestamp("us", "UTC")}
    return pa.table({name: pa.array([row[name] for row in rows], types[kind]) for name, kind in columns.items()})


def _pinned(table: SystemTable, where: exp.Expr | None) -> str | None:
    """Returns the key that a condition names, so that not all rows are read."""
    parts = [] if where is None else where.flatten() if isinstance(where, exp.And) else [where]
    for part in parts:
        if isinstance(part, exp.EQ) and isinstance(part.left, exp.Column) and part.left.name.lower() == table.key:
            known, value = constant(part.right)
            if known and isinstance(value, str):
                return value
    return None


def _complete(table: SystemTable, row: Row) -> None:
    for name, value in row.items():
        if any("\0" in text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise InvalidInputError(f"{name} cannot hold the character NUL (0)")
    for name in table.columns:
        if row.get(name) is None:
            row[name] = _DEFAULTS.get(name)


def _catalog_id(connection: Connection, session: Session) -> int:
    return find_catalog(connection, session.catalog).catalog_id


def _insert(connection: Connection, table: SystemTable, catalog_id: int, row: Row) -> None:
    names = list(table.columns)
    connection.execute(
        f"INSERT INTO lakefork.{table.table} (catalog_id, {', '.join(names)}) VALUES (%s{', %s' * len(names)})",
        [catalog_id, *(row[name] for name in names)],
    )


def _update(connection: Connection, table: SystemTable, catalog_id: int, row: Row) -> None:
    names = [name for name in table.columns if name != table.key]
    connection.execute(
        f"UPDATE lakefork.{table.table} SET {', '.join(f'{name} = %s' for name in names)} "
        f"WHERE catalog_id = %s AND {table.key} = %s",
        [*(row[name] for name in names), catalog_id, row[table.key]],
    )
