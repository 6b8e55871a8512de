"""SELECT: finds the tables of a query, reads what it needs of them, and lets DuckDB do the rest on exactly that."""

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.predicates import Predicate, quoted
from lakefork.seqid import EPOCH, NODE_BITS, SEQUENCE_BITS
from lakefork.sql.grammar import table_name, time_travel
from lakefork.sql.hot_cache import HotCache
from lakefork.sql.lookup import Lookup, namespace_of
from lakefork.sql.manifest_cache import ManifestCache
from lakefork.sql.permissions import read_access
from lakefork.sql.predicates import asks_for_changes, filters_of, predicates_of
from lakefork.sql.session import Role, Session
from lakefork.sql.system import SYSTEM_NAMESPACES, read_system_table
from lakefork.sql.versions import Found, Wanted, find_latest
from lakefork.sql.workers.messages import Read, Request
from lakefork.sql.workers.pool import SECONDS_IN_TRANSACTION, QueryWorkers, check_time
from lakefork.tables import DELETED, SEQ, UPDATED, USER_ID, Column, fold

EPOCH_MILLISECONDS = int(EPOCH.timestamp() * 1000)
RELATION = f"relation_{secrets.token_hex(8)}"  # no text can name it
SHIFT = NODE_BITS + SEQUENCE_BITS
WORTH_A_VIEW = 8  # batches; fewer are read as quickly as DuckDB is set up to read them
WORTH_A_VIEW_TOO = 10_000  # hot rows; fewer are copied as quickly
_HIDDEN = (UPDATED, USER_ID)  # there for those who name them, not part of *


@dataclass(frozen=True)
class Use:
    """One place in a query where a table is named, and the SELECT that names it."""

    node: exp.Table
    select: exp.Expr


@dataclass(frozen=True)
class Mentioned:
    """Folded names that occur anywhere in a query, and whether * asks for all columns."""

    names: frozenset[str]
    everything: bool

    def needs(self, column: Column) -> bool:
        return self.everything or fold(column.name) in self.names


@dataclass(frozen=True)
class Scan:
    """One use of a table: the relation that stands for it, and what is there to read."""

    relation: str
    found: Found

    @property
    def table(self) -> str:
        return str(self.found.wanted.table.definition)


@dataclass(frozen=True)
class Prepared:
    """A query over relations only; all that Postgres knows of them is there."""

    sql: str
    relations: Mapping[str, pa.Table]
    reads: tuple[Read, ...]
    scans: tuple[Scan, ...]
    views: Mapping[str, str] = field(default_factory=dict)  # relations that are read while the query runs …
    paths: frozenset[str] = frozenset()  # … from these files

    def request(
        self,
        *,
        max_rows: int | None = None,
        setting: str = "sql.max_rows",
        given: Mapping[str, pa.Table] | None = None,
        row_filters: Mapping[str, str] | None = None,
    ) -> Request:
        """given: the rows of relations that were only named so far."""
        relations = {**self.relations, **(given or {})}
        return Request(
            self.sql, relations, self.reads, row_filters or {}, self.views, tuple(self.paths), max_rows, setting
        )


@dataclass
class _Sources:
    """What the relations of a query are read from, while it is prepared."""

    relations: dict[str, pa.Table] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def add_read(self, name: str, found: Found, names: frozenset[str]) -> None:
        resolved = found.resolve()
        if resolved.sql is None:
            self.relations[name] = exposed(pa.Table.from_batches([], resolved.schema), names)
            return
        read, relations = resolved.as_read(name, found.wanted)
        self.reads.append(replace(read, sql=_exposed(read.sql, found.wanted, names)))
        self.relations |= relations

    def prepared(self, sql: str) -> Prepared:
        return Prepared(sql, self.relations, tuple(self.reads), tuple(self.scans), self.views, frozenset(self.paths))


class Reader:
    """Plans queries for one session in one repeatable-read transaction; they run when it has ended."""

    def __init__(
        self,
        connection: ArrowConnection,
        workers: QueryWorkers,
        lookup: Lookup,
        session: Session,
        manifests: ManifestCache | None = None,
        hot_cache: HotCache | None = None,
    ) -> None:
        self._connection, self._workers, self._lookup, self._session = connection, workers, lookup, session
        self._manifests, self._hot_cache = manifests, hot_cache

    def prepare(self, query: exp.Expr, given: Collection[str] = (), *, with_views: bool = False) -> Prepared:
        """The query with every table replaced by a relation, and how a worker gets the rows of each.

        given: names of relations that come later. with_views: large tables may be views.
        """
        query = query.copy()
        _name_ctes_alike(query)
        _refuse_ambiguous_columns(query)
        _title_columns(query)
        uses = list(_table_uses(query, set(given)))
        mentioned = _mentioned(query)
        self._require_one_namespace([use for use in uses if not _is_system(use.node)])
        sources = _Sources()
        for place, use in enumerate(uses):
            name = f"{RELATION}_{place}"
            if _is_system(use.node):
                sources.relations[name] = read_system_table(
                    self._connection, self._session, self._lookup, table_name(use.node), self._manifests
                )
            else:
                self._add_table(sources, name, use, mentioned, with_views=with_views)
            _replace(use.node, name)
        _drop_namespaces(query)
        return sources.prepared(query.sql(dialect="duckdb"))

    def prepare_over(self, query: exp.Expr, name: str, wanted: Wanted, names: frozenset[str]) -> Prepared:
        """The same for a query over one more relation, of which it is known what is wanted."""
        prepared = self.prepare(query, given=[name])
        sources = _Sources(dict(prepared.relations), list(prepared.reads), list(prepared.scans))
        sources.add_read(name, find_latest(self._connection, self._workers, wanted), names)
        return sources.prepared(prepared.sql)

    def _add_table(self, sources: "_Sources", name: str, use: Use, mentioned: Mentioned, *, with_views: bool) -> None:
        check_time()
        wanted = self._wanted(use, mentioned)
        self._touch_manifest(wanted)
        found = find_latest(self._connection, self._workers, wanted, self._hot_cache)
        is_large = len(found.plan.clean) >= WORTH_A_VIEW or found.hot_versions >= WORTH_A_VIEW_TOO
        view = found.as_view(f"{name}_hot") if with_views and is_large else None
        if view:
            sources.views[name] = _exposed(view[0], wanted, mentioned.names)
            sources.relations |= view[1]
            sources.paths |= {batch.path for batch in found.plan.clean}
        else:
            sources.add_read(name, found, mentioned.names)
        sources.scans.append(Scan(name, found))
        _hide_from_star(use, _hidden(wanted, mentioned.names))

    def _wanted(self, use: Use, mentioned: Mentioned) -> Wanted:
        snapshot = self._snapshot(use.node)
        found = self._lookup.find(self._connection, self._session, table_name(use.node), snapshot)
        definition = found.definition
        if definition.kind == "STREAM":
            raise InvalidInputError(
                f"{definition} is a STREAM table: its events cannot be selected, only delivered to subscribers"
            )
        access = read_access(self._connection, self._session, definition)
        if USER_ID in mentioned.names and self._session.role < Role.SERVICE:
            raise PermissionDeniedError(f"permission denied: {USER_ID} needs role service")
        columns = tuple(
            column for column in definition.columns if mentioned.needs(column) or column in access.filter_columns
        )
        renamed = bool(use.node.args.get("alias") and use.node.args["alias"].args.get("columns"))
        name = use.node.alias_or_name
        predicates = () if renamed else tuple(predicates_of(definition, use.select, name))
        filters = () if renamed else tuple(filters_of(definition, use.select, name))
        owner, predicates = _one_owner(access.user_id, predicates)
        deleted_too = not renamed and (_names_deleted(use) or asks_for_changes(use.select, name))
        return Wanted(found, columns, owner, predicates, deleted_too, access.row_filter, snapshot, filters)

    def _touch_manifest(self, wanted: Wanted) -> None:
        definition = wanted.table.definition
        of_one_owner = wanted.user_id is not None or not definition.per_user
        if self._manifests is not None and wanted.table.has_files and of_one_owner and wanted.snapshot is None:
            self._manifests.touch(definition.catalog_id, definition.table_id, wanted.user_id or "")

    def _snapshot(self, node: exp.Table) -> int | None:
        travel = time_travel(node)
        if travel is None:
            return None
        unit, expression = travel
        kind = "BIGINT" if unit == "version" else "TIMESTAMPTZ"
        sql = f"SELECT CAST(CAST({expression.sql(dialect='duckdb')} AS {kind}) AS VARCHAR) AS at"
        found = self._workers.run(Request(sql), seconds=SECONDS_IN_TRANSACTION)["at"].to_pylist()
        if len(found) != 1 or found[0] is None:
            raise InvalidInputError("AT needs one snapshot or one time")
        value = found[0]
        wanted = f"{value}, NULL" if unit == "version" else f"NULL, {quoted(value)}::timestamptz"
        catalog_id = self._lookup.catalog_id(self._connection, self._session, wanted)
        snapshot = self._connection.query(f"SELECT lakefork.snapshot_at({catalog_id}, {wanted}) AS snapshot")
        return int(snapshot["snapshot"][0].as_py())

    def _require_one_namespace(self, uses: list[Use]) -> None:
        namespaces = {fold(namespace_of(table_name(use.node), self._session)) for use in uses}
        if len(namespaces) > 1:
            raise InvalidInputError(
                f"a query can use one namespace only, this one uses {', '.join(sorted(namespaces))}"
            )


def _one_owner(user_id: str | None, predicates: tuple[Predicate, ...]) -> tuple[str | None, tuple[Predicate, ...]]:
    """Whoever may see all users' rows and asks for those of one gets them as that one does."""
    for one in predicates:
        if user_id is None and one.column.name == USER_ID and one.op == "=" and len(one.values) == 1:
            return one.values[0], tuple(other for other in predicates if other is not one)
    return user_id, predicates


def _table_uses(query: exp.Expr, given: set[str]) -> Iterator[Use]:
    """Every table that is not the name of a subquery."""
    found: dict[int, Use] = {}
    for scope in traverse_scope(query):
        for source in scope.sources.values():
            if isinstance(source, exp.Table):
                found[id(source)] = Use(source, scope.expression)
    ctes = {fold(cte.alias) for cte in query.find_all(exp.CTE)}
    for node in list(query.find_all(exp.Table)):
        if isinstance(node.this, exp.Func):
            continue
        if id(node) in found:
            if not (not node.db and node.name in given):
                yield found[id(node)]
        elif node.db or fold(node.name) not in ctes | given:
            yield Use(node, node.parent_select or query)


def _is_system(node: exp.Table) -> bool:
    return fold(node.db) in SYSTEM_NAMESPACES


def _mentioned(query: exp.Expr) -> Mentioned:
    stars = any(not isinstance(star.parent, exp.Count) for star in query.find_all(exp.Star))
    names = frozenset(fold(identifier.name) for identifier in query.find_all(exp.Identifier))
    tables = {fold(table.alias_or_name) for table in query.find_all(exp.Table)}
    return Mentioned(names, stars or names_whole_rows(query, tables))


def names_whole_rows(expression: exp.Expr, tables: set[str]) -> bool:
    """A table's name as a value is its whole row, and columns renamed by an alias go by their places."""
    values = any(not column.table and fold(column.name) in tables for column in expression.find_all(exp.Column))
    renamed = any(alias.args.get("columns") for alias in expression.find_all(exp.TableAlias))
    return values or renamed or expression.find(exp.Columns) is not None


def _name_ctes_alike(query: exp.Expr) -> None:
    """sqlglot finds a CTE only by the very name, DuckDB by any case of it."""
    names = {fold(cte.alias): cte.alias for cte in query.find_all(exp.CTE)}
    for table in query.find_all(exp.Table):
        if not table.db and isinstance(table.this, exp.Identifier) and fold(table.name) in names:
            if table.name != names[fold(table.name)] and not table.alias:
                table.set("alias", exp.TableAlias(this=table.this.copy()))
            table.this.set("this", names[fold(table.name)])


def _refuse_ambiguous_columns(query: exp.Expr) -> None:
    if query.find(exp.PositionalColumn):
        raise InvalidInputError("columns are called by their names, not by #n")
    if any(join.method == "NATURAL" for join in query.find_all(exp.Join)):
        raise InvalidInputError(f"NATURAL JOIN would compare {SEQ} and {DELETED} too: write ON or USING")


def _title_columns(query: exp.Expr) -> None:
    """DuckDB would call a column with a subquery by its text, in which relations stand for tables."""
    for select in query.find_all(exp.Select):
        for column in list(select.expressions):
            if column.find(exp.Query) and not isinstance(column, exp.Alias):
                column.replace(exp.alias_(column.copy(), column.sql(dialect="duckdb"), quoted=True))


def exposed(rows: pa.Table, names: frozenset[str]) -> pa.Table:
    """With _updated, which _seq tells, where it is named; without the owner where it is not."""
    if UPDATED in names:
        milliseconds = pc.add(pc.shift_right(rows[SEQ], SHIFT), EPOCH_MILLISECONDS)
        rows = rows.append_column(UPDATED, milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")))
    if USER_ID in rows.column_names and USER_ID not in names:
        rows = rows.drop_columns([USER_ID])
    return rows


def _exposed(query: str, wanted: Wanted, names: frozenset[str]) -> str:
    """The same for a query instead of rows."""
    updated = (
        f", to_timestamp((({SEQ} >> {SHIFT}) + {EPOCH_MILLISECONDS}) / 1000) AS {UPDATED}" if UPDATED in names else ""
    )
    owned = wanted.table.definition.per_user and USER_ID not in names
    if not owned and not updated:
        return query
    return f"SELECT *{f' EXCLUDE ({USER_ID})' if owned else ''}{updated} FROM ({query})"


def _hidden(wanted: Wanted, names: frozenset[str]) -> list[str]:
    there = {UPDATED, USER_ID} if wanted.table.definition.per_user else {UPDATED}
    return [column for column in _HIDDEN if column in there & names]


def _names_deleted(use: Use) -> bool:
    where = use.select.args.get("where")
    name = fold(use.node.alias_or_name)
    return where is not None and any(
        fold(column.table) == name or (not column.table and column.parent_select is use.select)
        for column in where.find_all(exp.Column)
        if fold(column.name) == DELETED
    )


def _hide_from_star(use: Use, hidden: list[str]) -> None:
    if not hidden or not isinstance(use.select, exp.Select):
        return
    for star in use.select.find_all(exp.Star):
        if star.parent_select is use.select and not isinstance(star.parent, exp.Count):
            table = star.parent.table if isinstance(star.parent, exp.Column) else ""
            if not table or fold(table) == fold(use.node.alias_or_name):
                known = {fold(one.name) for one in star.args.get("except_") or ()}
                star.set(
                    "except_",
                    [*(star.args.get("except_") or ()), *(exp.to_identifier(c) for c in hidden if c not in known)],
                )


def _replace(node: exp.Table, name: str) -> None:
    alias = node.args.get("alias")
    replacement = exp.Table(
        this=exp.to_identifier(name),
        alias=alias or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)),
        joins=node.args.get("joins"),
        pivots=node.args.get("pivots"),
        sample=node.args.get("sample"),
        ordinality=node.args.get("ordinality"),
    )
    node.replace(replacement)


def _drop_namespaces(query: exp.Expr) -> None:
    """namespace.table.column is known as table.column to the relations."""
    for column in query.find_all(exp.Column):
        if column.args.get("db"):
            column.set("db", None)
            column.set("catalog", None)
