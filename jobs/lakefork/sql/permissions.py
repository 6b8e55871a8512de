"""Decides who may see and change which rows: own rows of USER tables, and rows that rules of system.users allow."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp

from lakefork.errors import PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.model.predicates import postgres_text
from lakefork.model.tables import Column, TableDefinition, TableKind, fold
from lakefork.sql.parse.grammar import Rule, parse_rule
from lakefork.sql.session import Role, Session

CACHED_RULES = 100_000


@dataclass(frozen=True)
class Access:
    """The rows that a session may reach: of one user (None: all), and those that satisfy a condition in SQL.

    rules: those of the user, where they decided; whoever writes has lakefork.guard_write compare them.
    """

    user_id: str | None
    row_filter: str | None = None
    filter_columns: tuple[Column, ...] = ()
    rules: tuple[str, ...] | None = None


class KnownRules:
    """Rules of users that leave all own rows open, as last read; whoever relies on them checks that they still hold."""

    def __init__(self) -> None:
        self._rules: dict[tuple[int, int, int, str, str], tuple[str, ...]] = {}

    def access(self, session: Session, definition: TableDefinition) -> Access | None:
        """Returns access to all own rows of a USER table if known rules allow it; None: the rules must be read."""
        user = session.own_user()
        if session.role >= Role.SERVICE:
            return Access(user)
        rules = self._rules.get(_known_by(definition, user))
        return None if rules is None else Access(user, rules=rules)

    def remember(self, definition: TableDefinition, access: Access) -> None:
        if access.user_id is not None and access.rules is not None and access.row_filter is None:
            if len(self._rules) >= CACHED_RULES:
                self._rules.clear()
            self._rules[_known_by(definition, access.user_id)] = access.rules


def _known_by(definition: TableDefinition, user: str) -> tuple[int, int, int, str, str]:
    """Returns the definition's parts that rules depend on; a new column or name may make a rule apply."""
    return definition.catalog_id, definition.table_id, definition.definition_snapshot, str(definition), user


def read_access(connection: ArrowConnection, session: Session, definition: TableDefinition) -> Access:
    """Returns the access for reading; services and admins read the rows of all users."""
    if session.role >= Role.SERVICE:
        return Access(None)
    return _user_access(connection, session.own_user(), definition)


def write_access(
    connection: ArrowConnection, session: Session, definition: TableDefinition, as_user: str | None
) -> Access:
    """Returns the access for writing; rows of USER tables are written for the session's user or that of AS USER."""
    if as_user is not None:
        return _user_access(connection, _subject(connection, session, definition, as_user), definition)
    if session.role >= Role.SERVICE:
        return Access(session.own_user() if definition.per_user else None)
    return _user_access(connection, session.own_user(), definition)


def _subject(connection: ArrowConnection, session: Session, definition: TableDefinition, as_user: str) -> str:
    if session.role < Role.SERVICE:
        raise PermissionDeniedError("permission denied: AS USER requires service/admin role")
    if definition.kind == TableKind.SHARED:
        raise PermissionDeniedError("AS USER clause not supported for SHARED tables: their rows belong to nobody")
    found = connection.query(
        f"SELECT 1 FROM lakefork.app_user WHERE catalog_id = {definition.catalog_id} AND deleted_at IS NULL "
        f"AND user_id = {postgres_text(as_user)}"
    )
    if not found.num_rows:
        # The same message for unknown and deleted users, so that it does not reveal who exists.
        raise PermissionDeniedError("Invalid user_id for AS USER operation: name a user of system.users")
    return as_user


def _user_access(connection: ArrowConnection, user: str, definition: TableDefinition) -> Access:
    return access_under(_rule_texts(connection, definition.catalog_id, user), definition, user)


def access_under(texts: tuple[str, ...], definition: TableDefinition, user: str) -> Access:
    """Returns the access under rules, which narrow a user's own rows in USER tables and open SHARED tables."""
    owner = user if definition.per_user else None
    rules = usable_rules(
        [_parsed(text) for text in texts], definition.kind, definition.namespace, definition.name, definition.by_name
    )
    if rules is None:
        return Access(owner, rules=texts)
    if not rules:
        raise PermissionDeniedError(
            f"permission denied: no rule lets user {user!r} use {definition}; an admin can add one to system.users"
        )
    filters = [row_filter(rule, definition, user) for rule in rules]
    if None in filters:
        return Access(owner, rules=texts)
    columns = tuple(definition.by_name[fold(rule.column)] for rule in rules if rule.column)
    return Access(owner, " OR ".join(f"({one})" for one in filters), columns, texts)


def plain_conditions(
    texts: tuple[str, ...], definition: TableDefinition, user: str
) -> tuple[tuple[Column, str], ...] | None:
    """Returns columns with a text, one of which a row that the user may see has; empty: all rows.

    None: the rules say more than that, or do not let the user use the table.
    """
    rules = usable_rules(
        [_parsed(text) for text in texts], definition.kind, definition.namespace, definition.name, definition.by_name
    )
    if rules is None or any(rule.condition is None for rule in rules):
        return ()
    found = tuple(_plain_condition(rule, definition, user) for rule in rules)
    known = tuple(one for one in found if one is not None)
    return known if known and len(known) == len(found) else None


def _plain_condition(rule: Rule, definition: TableDefinition, user: str) -> tuple[Column, str] | None:
    condition, column = rule.condition, definition.by_name[fold(rule.column or "")]
    if not isinstance(condition, exp.EQ) or column.type.name != "varchar" or not isinstance(condition.left, exp.Column):
        return None
    if isinstance(condition.right, exp.CurrentUser):
        return column, user
    is_text = isinstance(condition.right, exp.Literal) and condition.right.is_string
    return (column, str(condition.right.this)) if is_text else None


def usable_rules(
    rules: Iterable[Rule], kind: str, namespace: str, table: str, columns: Container[str]
) -> list[Rule] | None:
    """The rules by which a user may use a table, none of them if it is closed; None: it is open without any.

    A pattern with a row filter is about tables that have the column. A rule for just this table closes it when the
    column is gone, because it is unknown what it should hide.
    """
    named = [rule for rule in rules if rule.matches(namespace, table)]
    usable = [rule for rule in named if rule.column is None or fold(rule.column) in columns]
    if not usable and kind != TableKind.SHARED and all(rule.is_pattern for rule in named):
        return None
    return usable


def rules_of(connection: ArrowConnection, catalog_id: int, user: str) -> list[Rule]:
    return [_parsed(text) for text in _rule_texts(connection, catalog_id, user)]


def _rule_texts(connection: ArrowConnection, catalog_id: int, user: str) -> tuple[str, ...]:
    found = connection.query(
        "SELECT permissions, deleted_at IS NOT NULL AS deleted FROM lakefork.app_user "
        f"WHERE catalog_id = {catalog_id} AND user_id = {postgres_text(user)}"
    ).to_pylist()
    if found and found[0]["deleted"]:
        raise PermissionDeniedError(f"user {user!r} was deleted")
    return tuple(found[0]["permissions"]) if found else ()


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> Rule:
    return parse_rule(text)


def row_filter(rule: Rule, definition: TableDefinition, user: str) -> str | None:
    """Returns the rule's condition as SQL over the table's columns; None: all rows."""
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
