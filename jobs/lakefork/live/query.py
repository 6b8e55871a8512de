"""What a subscription asks for: columns of one table with a condition, bound to the table's definition and the user."""

import functools
import hashlib
from dataclasses import dataclass, replace

from sqlglot import exp

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.model.tables import DELETED, SEQ, UPDATED, USER_ID, Column, TableDefinition, TableKind, fold
from lakefork.sql.engine import parsed
from lakefork.sql.expressions import bind
from lakefork.sql.parse import statements as st
from lakefork.sql.parse.grammar import table_name, time_travel
from lakefork.sql.permissions import Access
from lakefork.sql.session import Role, Session

SYSTEM_OUTPUTS = (SEQ, DELETED, UPDATED, USER_ID)
BOUNDS = (SEQ, UPDATED)
SUPPORTED = "a live query is SELECT columns FROM one table [WHERE …]"
_CLAUSES = {
    "with_": "WITH",
    "joins": "JOIN",
    "group": "GROUP BY",
    "having": "HAVING",
    "distinct": "DISTINCT",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "laterals": "a lateral join",
    "pivots": "PIVOT",
    "sample": "USING SAMPLE",
}
# What gives another value at another time says nothing about a row.
_VOLATILE_NODES = (
    exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentDatetime, exp.Rand, exp.Uuid, exp.Localtime,
    exp.Localtimestamp,
)  # fmt: skip
_VOLATILE_NAMES = frozenset(
    [
        "age",
        "currval",
        "current_localtime",
        "current_localtimestamp",
        "gen_random_uuid",
        "get_current_time",
        "get_current_timestamp",
        "nextval",
        "now",
        "random",
        "setseed",
        "today",
        "transaction_timestamp",
        "uuid",
        "uuidv4",
        "uuidv7",
    ]
)


@dataclass(frozen=True)
class Output:
    """A column of the answer: of the table by id, or a system column by name."""

    name: str
    column_id: int | None
    system: str | None = None


@dataclass(frozen=True)
class LiveQuery:
    """A subscription's text, parsed; the condition without the bounds, which are about the initial data."""

    text: str
    table: st.TableName
    alias: str
    items: tuple[tuple[str | None, str], ...] | None  # title and column; None: *
    condition: exp.Expr | None
    bounds: tuple[exp.Expr, ...]

    def under(self, bound: "Plan", definition: TableDefinition) -> "LiveQuery":
        """Returns the query for a newer definition, in which columns may have other names."""
        items = None
        if self.items is not None:
            items = tuple(
                (title, name if one.column_id is None else _kept(bound, definition, one.column_id).name)
                for (title, name), one in zip(self.items, bound.outputs, strict=True)
            )
        own = bound.own_condition
        return replace(self, items=items, condition=None if own is None else _named(own, bound, definition))


@dataclass(frozen=True)
class Plan:
    """A live query under one definition of its table and one set of permissions.

    Conditions are over columns c<id>; condition is own_condition, that of the query, and the row filters of rules.
    owner: whose rows; None: those of all users.
    """

    query: LiveQuery
    definition: TableDefinition
    outputs: tuple[Output, ...]
    own_condition: exp.Expr | None
    row_filter: exp.Expr | None
    condition: exp.Expr | None
    condition_key: str
    owner: str | None
    column_ids: frozenset[int]

    @property
    def is_stream(self) -> bool:
        return self.definition.kind == TableKind.STREAM

    @functools.cached_property
    def digest(self) -> str:
        """What a cursor belongs to: the same rows and columns for the same user."""
        outputs = [(one.name, one.column_id, one.system) for one in self.outputs]
        text = repr((outputs, self.condition_key, self.owner, [str(one) for one in self.query.bounds]))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def initial_sql(self, last_rows: int | None) -> str:
        """Returns the query for the initial data, oldest versions first, under the current names."""
        return _initial_sql(self, last_rows)


def parse_live_query(text: str, session: Session) -> LiveQuery:
    """Parses a subscription; raises with one sentence about what is not supported."""
    statements = parsed(text)
    if len(statements) != 1 or not isinstance(statements[0], st.Select):
        raise InvalidInputError(SUPPORTED)
    select = bind(statements[0].query, (), session)
    if not isinstance(select, exp.Select):
        raise InvalidInputError(f"{SUPPORTED}, not a combination of queries")
    _check_clauses(select)
    source = (select.args.get("from_") or select.args.get("from")).this  # type: ignore[union-attr]
    alias = source.alias_or_name
    condition, bounds = _split(select.args.get("where"), alias)
    return LiveQuery(text, table_name(source), alias, _items(select, alias), condition, bounds)


def _check_clauses(select: exp.Select) -> None:
    for clause, title in _CLAUSES.items():
        if select.args.get(clause):
            more = "; use the option last_rows" if title in ("ORDER BY", "LIMIT") else ""
            raise InvalidInputError(f"{SUPPORTED}: {title} is not supported{more}")
    source = select.args.get("from_") or select.args.get("from")
    if source is None or not isinstance(source.this, exp.Table) or isinstance(source.this.this, exp.Func):
        raise InvalidInputError(f"{SUPPORTED}, and not of a function or a subquery")
    table = source.this
    if table.args.get("joins") or table.args.get("pivots") or table.args.get("sample"):
        raise InvalidInputError(f"{SUPPORTED}: JOIN, PIVOT and samples are not supported")
    if time_travel(table) is not None:
        raise InvalidInputError(f"{SUPPORTED}: AT (…) is about the past, which does not change")
    if table.args.get("alias") and table.args["alias"].args.get("columns"):
        raise InvalidInputError(f"{SUPPORTED}: the columns cannot be renamed after the table")
    for node in (exp.Query, exp.Window, exp.AggFunc):
        found = next((one for one in select.find_all(node) if one is not select), None)
        if found is not None:
            what = "subqueries" if node is exp.Query else "aggregates and window functions"
            raise InvalidInputError(f"{SUPPORTED}: {what} are not supported")


def _items(select: exp.Select, alias: str) -> tuple[tuple[str | None, str], ...] | None:
    items = select.expressions
    if len(items) == 1 and isinstance(items[0], exp.Star) and not any(items[0].args.values()):
        return None
    found: list[tuple[str | None, str]] = []
    for item in items:
        column = item.this if isinstance(item, exp.Alias) else item
        if isinstance(column, exp.Star) or (isinstance(column, exp.Column) and isinstance(column.this, exp.Star)):
            raise InvalidInputError(f"{SUPPORTED}: * stands alone")
        if not isinstance(column, exp.Column) or (column.table and fold(column.table) != fold(alias)):
            raise InvalidInputError(f"{SUPPORTED}: {item.sql(dialect='duckdb')} is not a column of the table")
        found.append((item.alias if isinstance(item, exp.Alias) else None, column.name))
    return tuple(found)


def _split(where: exp.Expr | None, alias: str) -> tuple[exp.Expr | None, tuple[exp.Expr, ...]]:
    """Returns the condition on rows, and the parts about _seq and _updated."""
    if where is None:
        return None, ()
    whole = where.this.unnest()
    kept: list[exp.Expr] = []
    bounds: list[exp.Expr] = []
    for part in whole.flatten() if isinstance(whole, exp.And) else [whole]:
        (bounds if _is_bound(part.unnest()) else kept).append(part)
    for part in kept:
        _check_condition(part, alias)
    return (exp.and_(*(part.copy() for part in kept)) if kept else None), tuple(bounds)


def _is_bound(part: exp.Expr) -> bool:
    """Tells whether a part of WHERE compares _seq or _updated with something, so that it is about the initial data."""
    if not isinstance(part, exp.GT | exp.GTE | exp.LT | exp.LTE):
        return False
    sides = (part.left, part.right)
    named = [side for side in sides if isinstance(side, exp.Column) and fold(side.name) in BOUNDS]
    return len(named) == 1 and not any(other.find(exp.Column) for other in sides if other is not named[0])


def _check_condition(part: exp.Expr, alias: str) -> None:
    for node in part.walk():
        name = fold(node.name) if isinstance(node, exp.Anonymous) else ""
        if isinstance(node, _VOLATILE_NODES) or name in _VOLATILE_NAMES:
            raise InvalidInputError(
                f"{SUPPORTED}: {node.sql(dialect='duckdb')} has another value at another time, so WHERE cannot use it"
            )
        if isinstance(node, exp.Placeholder):
            raise InvalidInputError(f"{SUPPORTED}: parameters are not supported, write the values")
        if isinstance(node, exp.Column):
            if node.table and fold(node.table) != fold(alias):
                raise InvalidInputError(f"{SUPPORTED}: there is no table {node.table} in it")
            if fold(node.name) in SYSTEM_OUTPUTS:
                raise InvalidInputError(
                    f"{SUPPORTED}: {fold(node.name)} can be selected; in WHERE only _seq > n and _updated > t are, "
                    "which are about the initial data"
                )


def plan(query: LiveQuery, session: Session, definition: TableDefinition, access: Access) -> Plan:
    """Binds a query to a definition; raises if it names something that is not there or not for this user."""
    outputs = (
        _all_outputs(definition) if query.items is None else tuple(_output(one, definition) for one in query.items)
    )
    names = [one.name for one in outputs]
    if len(set(map(fold, names))) < len(names):
        raise InvalidInputError(f"{SUPPORTED}: a column is selected twice; give one of them another name with AS")
    if any(one.system == USER_ID for one in outputs) and session.role < Role.SERVICE:
        raise PermissionDeniedError(f"permission denied: {USER_ID} needs role service")
    own = None if query.condition is None else _by_id(query.condition, definition)
    row_filter = None
    if access.row_filter is not None:
        written = parsed(f"SELECT {access.row_filter}")[0]
        assert isinstance(written, st.Select)  # noqa: S101 - it was written as one
        row_filter = _by_id(written.query.selects[0], definition)
    parts = [exp.paren(part) for part in (own, row_filter) if part is not None]
    condition = exp.and_(*parts) if parts else None
    used = {one.column_id for one in outputs if one.column_id is not None}
    used |= {int(node.name[1:]) for part in parts for node in part.find_all(exp.Column)}
    key = "" if condition is None else condition.sql(dialect="duckdb")
    return Plan(query, definition, outputs, own, row_filter, condition, key, access.user_id, frozenset(used))


def _all_outputs(definition: TableDefinition) -> tuple[Output, ...]:
    system = () if definition.kind == TableKind.STREAM else (SEQ, DELETED)
    return (
        *(Output(column.name, column.column_id) for column in definition.columns),
        *(Output(name, None, name) for name in system),
    )


def _output(item: tuple[str | None, str], definition: TableDefinition) -> Output:
    title, name = item
    column = definition.by_name.get(fold(name))
    if column is not None:
        return Output(title or column.name, column.column_id)
    allowed = (USER_ID,) if definition.kind == TableKind.STREAM else SYSTEM_OUTPUTS
    if fold(name) in allowed and (fold(name) != USER_ID or definition.per_user):
        return Output(title or fold(name), None, fold(name))
    raise _no_column(definition, name)


def _no_column(definition: TableDefinition, name: str) -> InvalidInputError:
    known = ", ".join(column.name for column in definition.columns)
    return InvalidInputError(f"{definition} has no column {name}; it has {known}")


def _by_id(condition: exp.Expr, definition: TableDefinition) -> exp.Expr:
    """Returns a condition over columns named c<id>, which outlives renames."""

    def renamed(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        column = definition.by_name.get(fold(node.name))
        if column is None:
            raise _no_column(definition, node.name)
        return exp.column(f"c{column.column_id}")

    return condition.copy().transform(renamed)


def _initial_sql(plan: Plan, last_rows: int | None) -> str:
    definition = plan.definition
    table = f"{_quoted(definition.namespace)}.{_quoted(definition.name)}"
    outputs = ", ".join(
        f"{_quoted(one.system or definition.by_id[one.column_id or 0].name)} AS {_quoted(one.name)}"
        for one in plan.outputs
    )
    conditions = (
        [] if plan.own_condition is None else [_named(plan.own_condition, plan, definition).sql(dialect="duckdb")]
    )
    conditions += [_unqualified(bound).sql(dialect="duckdb") for bound in plan.query.bounds]
    where = f" WHERE {' AND '.join(f'({one})' for one in conditions)}" if conditions else ""
    if plan.is_stream:
        found = f"SELECT {outputs} FROM {table}{where}"
        return found if last_rows is None else _last_events(found, last_rows)
    ordered = f"SELECT {outputs} FROM {table}{where} ORDER BY {SEQ}"
    if last_rows is None:
        return ordered
    newest = f"SELECT {outputs}, {SEQ} AS _newest FROM {table}{where} ORDER BY {SEQ} DESC LIMIT {last_rows}"
    return f"SELECT * EXCLUDE (_newest) FROM ({newest}) newest ORDER BY _newest"


def _last_events(found: str, last_rows: int) -> str:
    """Events are read in their order."""
    numbered = f"SELECT *, row_number() OVER () AS _place FROM ({found}) events"
    return (
        f"SELECT * EXCLUDE (_place) FROM (SELECT * FROM ({numbered}) numbered ORDER BY _place DESC LIMIT {last_rows}) "
        "newest ORDER BY _place"
    )


def _named(condition: exp.Expr, bound: Plan, definition: TableDefinition) -> exp.Expr:
    """Returns a condition over columns c<id> under the names of a definition."""

    def named(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column):
            return exp.column(exp.to_identifier(_kept(bound, definition, int(node.name[1:])).name, quoted=True))
        return node

    return condition.copy().transform(named)


def _kept(bound: Plan, definition: TableDefinition, column_id: int) -> Column:
    column = definition.by_id.get(column_id)
    if column is None:
        raise InvalidInputError(f"column {bound.definition.by_id[column_id].name} of {definition} was dropped")
    return column


def _unqualified(bound: exp.Expr) -> exp.Expr:
    def bare(node: exp.Expr) -> exp.Expr:
        return exp.column(fold(node.name)) if isinstance(node, exp.Column) else node

    return bound.copy().transform(bare)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
