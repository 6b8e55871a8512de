"""Who may see and change which rows: own rows in USER tables, in SHARED tables what a rule of system.users allows."""

from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from lakefork.errors import PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.predicates import postgres_text
from lakefork.sql.grammar import Rule, parse_rule
from lakefork.sql.session import Role, Session
from lakefork.tables import Column, TableDefinition, fold


@dataclass(frozen=True)
class Access:
    """The rows that a session may reach: of one user (None: all), and those that satisfy a condition in SQL."""

    user_id: str | None
    row_filter: str | None = None
    filter_columns: tuple[Column, ...] = ()


def read_access(connection: ArrowConnection, session: Session, definition: TableDefinition) -> Access:
    """Services and admins read the rows of all users."""
    if session.role >= Role.SERVICE:
        return Access(None)
    return _user_access(connection, session, definition)


def write_access(
    connection: ArrowConnection, session: Session, definition: TableDefinition, as_user: str | None
) -> Access:
    """Rows of USER tables are written for one user: the session's own, or the one that AS USER names."""
    if as_user is not None:
        return Access(_subject(connection, session, definition, as_user))
    if definition.per_user:
        return Access(session.own_user())
    if session.role >= Role.SERVICE:
        return Access(None)
    return _user_access(connection, session, definition)


def _subject(connection: ArrowConnection, session: Session, definition: TableDefinition, as_user: str) -> str:
    if session.role < Role.SERVICE:
        raise PermissionDeniedError("permission denied: AS USER requires service/admin role")
    if definition.kind == "SHARED":
        raise PermissionDeniedError("AS USER clause not supported for SHARED tables: their rows belong to nobody")
    found = connection.query(
        f"SELECT 1 FROM lakefork.app_user WHERE catalog_id = {definition.catalog_id} AND deleted_at IS NULL "
        f"AND user_id = {postgres_text(as_user)}"
    )
    if not found.num_rows:
        # The same words for unknown and deleted users: they tell nothing of who exists.
        raise PermissionDeniedError("Invalid user_id for AS USER operation: name a user of system.users")
    return as_user


def _user_access(connection: ArrowConnection, session: Session, definition: TableDefinition) -> Access:
    user = session.own_user()
    rules = rules_of(connection, definition.catalog_id, user)
    if definition.per_user:
        return Access(user)
    rules = [rule for rule in rules if applies(rule, definition)]
    if not rules:
        raise PermissionDeniedError(
            f"permission denied: no rule lets user {user!r} use {definition}; an admin can add one to system.users"
        )
    filters = [row_filter(rule, definition, user) for rule in rules]
    if None in filters:
        return Access(None)
    columns = tuple(definition.by_name[fold(rule.column)] for rule in rules if rule.column)
    return Access(None, " OR ".join(f"({one})" for one in filters), columns)


def rules_of(connection: ArrowConnection, catalog_id: int, user: str) -> list[Rule]:
    found = connection.query(
        "SELECT permissions, deleted_at IS NOT NULL AS deleted FROM lakefork.app_user "
        f"WHERE catalog_id = {catalog_id} AND user_id = {postgres_text(user)}"
    ).to_pylist()
    if found and found[0]["deleted"]:
        raise PermissionDeniedError(f"user {user!r} was deleted")
    return [_parsed(text) for text in found[0]["permissions"]] if found else []


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> Rule:
    return parse_rule(text)


def applies(rule: Rule, definition: TableDefinition) -> bool:
    named = rule.column is None or fold(rule.column) in definition.by_name
    return named and rule.matches(definition.namespace, definition.name)


def row_filter(rule: Rule, definition: TableDefinition, user: str) -> str | None:
    """The rule's condition as SQL over the table's columns; None: it holds for all rows."""
    if rule.condition is None or rule.column is None:
        return None
    column = definition.by_name[fold(rule.column)]

    def bound(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.CurrentUser):
            return exp.Literal.string(user)
        if isinstance(node, exp.Column):
            return exp.column(exp.to_identifier(column.name, quoted=True))
        return node

    return f"coalesce({rule.condition.transform(bound).sql(dialect='duckdb')}, false)"
