"""Plans SELECT: finds the tables of a query and the rows it needs, and has DuckDB run the query on these."""

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from lakefork.errors import InvalidInputError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.manifests.cache import ManifestCache
from lakefork.model.predicates import Predicate
from lakefork.model.seqid import EPOCH_MS, TIME_SHIFT
from lakefork.model.tables import DELETED, SEQ, SUPERSEDED, UPDATED, USER_ID, Column, fold
from lakefork.read.latest import as_view, rows_query
from lakefork.read.requests import ScanRequest, ScanResult
from lakefork.read.tables import moment_of, snapshot_at
from lakefork.sql.lookup import Lookup, namespace_of
from lakefork.sql.parse.grammar import table_name, time_travel
from lakefork.sql.permissions import read_access
from lakefork.sql.read.events import events_as_relation, filtered_read, is_stream, scan_events
from lakefork.sql.read.hot_cache import HotCache
from lakefork.sql.read.predicates import filters_of, predicates_of, selects_changes
from lakefork.sql.read.versions import as_read, find_latest
from lakefork.sql.session import Role, Session
from lakefork.sql.system.relations import SYSTEM_NAMESPACES, read_system_table
from lakefork.sql.workers.messages import Read, Request
from lakefork.sql.workers.pool import SECONDS_IN_TRANSACTION, QueryWorkers, check_time

RELATION = f"relation_{secrets.token_hex(8)}"  # not a name that users can write
MIN_BATCHES_FOR_VIEW = 8  # batches; setting up a view costs as much as reading fewer
MIN_HOT_ROWS_FOR_VIEW = 10_000  # hot rows; fewer are copied as fast
_HIDDEN = (UPDATED, USER_ID, SUPERSEDED)  # selected by name only, not part of *


@dataclass(frozen=True)
class TableUse:
    """One use of a table in a query, and the SELECT that contains it."""

    node: exp.Table
    select: exp.Expr


@dataclass(frozen=True)
class NamesInUse:
    """Folded names that occur anywhere in a query, and whether * selects all columns."""

    names: frozenset[str]
    everything: bool

    def needs(self, column: Column) -> bool:
        return self.everything or fold(column.name) in self.names


@dataclass(frozen=True)
class Scan:
    """One use of a table: the relation that replaces it, and what to read."""

    relation: str
    found: ScanResult

    @property
    def table(self) -> str:
        return str(self.found.request.table.definition)


@dataclass(frozen=True)
class Prepared:
    """A query over relations only, with everything that it needs from Postgres."""

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
        cut: bool = False,
    ) -> Request:
        """Returns the request for a worker. given: rows of relations that were only named so far."""
        relations = {**self.relations, **(given or {})}
        return Request(
            self.sql, relations, self.reads, row_filters or {}, self.views, tuple(self.paths), max_rows, setting, cut
        )


@dataclass
class _Sources:
    """Collects the sources of a query's relations while it is prepared."""

    relations: dict[str, pa.Table] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    views: dict[str, str] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def add_read(self, name: str, found: ScanResult, names: frozenset[str]) -> None:
        query = rows_query(found)
        if query.sql is None:
            self.relations[name] = exposed(pa.Table.from_batches([], query.schema), names)
            return
        read, relations = as_read(query, name, found.request)
        self.reads.append(replace(read, sql=_exposed(read.sql, found.request, names)))
        self.relations |= relations

    def add_events(self, name: str, found: ScanResult, names: frozenset[str]) -> None:
        row_filter = found.request.row_filter
        given = f"{name}.events" if row_filter else name
        self.relations[given] = events_as_relation(found, names)
        if row_filter:
            self.reads.append(filtered_read(name, given, row_filter, found.definition))

    def prepared(self, sql: str) -> Prepared:
        return Prepared(sql, self.relations, tuple(self.reads), tuple(self.scans), self.views, frozenset(self.paths))


class Reader:
    """Plans queries for a session in one repeatable-read transaction; they run after it has ended."""

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
        _unify_cte_names(query)
        _reject_ambiguous_columns(query)
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

    def prepare_over(self, query: exp.Expr, name: str, request: ScanRequest, names: frozenset[str]) -> Prepared:
        """The same for a query over one more relation, of which it is known what is asked for."""
        prepared = self.prepare(query, given=[name])
        sources = _Sources(dict(prepared.relations), list(prepared.reads), list(prepared.scans))
        sources.add_read(name, find_latest(self._connection, self._workers, request), names)
        return sources.prepared(prepared.sql)

    def _add_table(
        self, sources: "_Sources", name: str, use: TableUse, mentioned: NamesInUse, *, with_views: bool
    ) -> None:
        check_time()
        request = self._request(use, mentioned)
        if is_stream(request.table.definition):
            found = scan_events(self._connection, request)
            sources.add_events(name, found, mentioned.names)
        else:
            found = self._add_rows(sources, name, request, mentioned, with_views=with_views)
        sources.scans.append(Scan(name, found))
        _hide_from_star(use, _hidden(request, mentioned.names))

    def _add_rows(
        self, sources: "_Sources", name: str, request: ScanRequest, mentioned: NamesInUse, *, with_views: bool
    ) -> ScanResult:
        self._touch_manifest(request)
        found = find_latest(self._connection, self._workers, request, self._hot_cache)
        is_large = len(found.plan.clean) >= MIN_BATCHES_FOR_VIEW or found.hot_versions >= MIN_HOT_ROWS_FOR_VIEW
        view = as_view(found, f"{name}_hot") if with_views and is_large else None
        if view:
            sources.views[name] = _exposed(view[0], request, mentioned.names)
            sources.relations |= view[1]
            sources.paths |= {batch.path for batch in found.plan.clean}
        else:
            sources.add_read(name, found, mentioned.names)
        return found

    def _request(self, use: TableUse, mentioned: NamesInUse) -> ScanRequest:
        snapshot = self._snapshot(use.node)
        found = self._lookup.find(self._connection, self._session, table_name(use.node), snapshot)
        definition = found.definition
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
        deleted_too = not renamed and (
            _names(use, use.select.args.get("where"), DELETED) or selects_changes(use.select, name)
        )
        request = ScanRequest(found, columns, owner, predicates, deleted_too, access.row_filter, snapshot, filters)
        if _names(use, use.select, SUPERSEDED) and SUPERSEDED not in definition.by_name:
            return _with_superseded(request)
        return request

    def _touch_manifest(self, request: ScanRequest) -> None:
        definition = request.table.definition
        of_one_owner = request.user_id is not None or not definition.per_user
        if self._manifests is not None and request.table.has_files and of_one_owner and request.snapshot is None:
            self._manifests.touch(definition.catalog_id, definition.table_id, request.user_id or "")

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
        moment = moment_of(int(value) if unit == "version" else value)
        catalog_id = self._lookup.catalog_id(self._connection, self._session, moment)
        return snapshot_at(self._connection, catalog_id, moment)

    def _require_one_namespace(self, uses: list[TableUse]) -> None:
        namespaces = {fold(namespace_of(table_name(use.node), self._session)) for use in uses}
        if len(namespaces) > 1:
            raise InvalidInputError(
                f"a query can use one namespace only, this one uses {', '.join(sorted(namespaces))}"
            )


def _one_owner(user_id: str | None, predicates: tuple[Predicate, ...]) -> tuple[str | None, tuple[Predicate, ...]]:
    """Returns the user if a query that may see all users selects the rows of one."""
    for one in predicates:
        if user_id is None and one.column.name == USER_ID and one.op == "=" and len(one.values) == 1:
            return one.values[0], tuple(other for other in predicates if other is not one)
    return user_id, predicates


def _table_uses(query: exp.Expr, given: set[str]) -> Iterator[TableUse]:
    """Returns every table that is not the name of a subquery."""
    found: dict[int, TableUse] = {}
    for scope in traverse_scope(query):
        for source in scope.sources.values():
            if isinstance(source, exp.Table):
                found[id(source)] = TableUse(source, scope.expression)
    ctes = {fold(cte.alias) for cte in query.find_all(exp.CTE)}
    for node in list(query.find_all(exp.Table)):
        if isinstance(node.this, exp.Func):
            continue
        if id(node) in found:
            if not (not node.db and node.name in given):
                yield found[id(node)]
        elif node.db or fold(node.name) not in ctes | given:
            yield TableUse(node, node.parent_select or query)


def _is_system(node: exp.Table) -> bool:
    return fold(node.db) in SYSTEM_NAMESPACES


def _mentioned(query: exp.Expr) -> NamesInUse:
    stars = any(not isinstance(star.parent, exp.Count) for star in query.find_all(exp.Star))
    names = frozenset(fold(identifier.name) for identifier in query.find_all(exp.Identifier))
    tables = {fold(table.alias_or_name) for table in query.find_all(exp.Table)}
    return NamesInUse(names, stars or names_whole_rows(query, tables))


def names_whole_rows(expression: exp.Expr, tables: set[str]) -> bool:
    """Tells whether a query uses whole rows: a table's name as a value, or column aliases by position."""
    values = any(not column.table and fold(column.name) in tables for column in expression.find_all(exp.Column))
    renamed = any(alias.args.get("columns") for alias in expression.find_all(exp.TableAlias))
    return values or renamed or expression.find(exp.Columns) is not None


def _unify_cte_names(query: exp.Expr) -> None:
    """Unifies the case of CTE names: sqlglot matches them exactly, DuckDB ignoring case."""
    names = {fold(cte.alias): cte.alias for cte in query.find_all(exp.CTE)}
    for table in query.find_all(exp.Table):
        if not table.db and isinstance(table.this, exp.Identifier) and fold(table.name) in names:
            if table.name != names[fold(table.name)] and not table.alias:
                table.set("alias", exp.TableAlias(this=table.this.copy()))
            table.this.set("this", names[fold(table.name)])


def _reject_ambiguous_columns(query: exp.Expr) -> None:
    if query.find(exp.PositionalColumn):
        raise InvalidInputError("columns must be referenced by name, not by #n")
    if any(join.method == "NATURAL" for join in query.find_all(exp.Join)):
        raise InvalidInputError(f"NATURAL JOIN would also compare {SEQ} and {DELETED}: use ON or USING")


def _title_columns(query: exp.Expr) -> None:
    """Sets titles of columns with subqueries; DuckDB's would contain the names of relations."""
    for select in query.find_all(exp.Select):
        for column in list(select.expressions):
            if column.find(exp.Query) and not isinstance(column, exp.Alias):
                column.replace(exp.alias_(column.copy(), column.sql(dialect="duckdb"), quoted=True))


def exposed(rows: pa.Table, names: frozenset[str]) -> pa.Table:
    """Returns rows with _updated, derived from _seq, if it is named, and without the owner if it is not."""
    if UPDATED in names:
        milliseconds = pc.add(pc.shift_right(rows[SEQ], TIME_SHIFT), EPOCH_MS)
        rows = rows.append_column(UPDATED, milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")))
    if USER_ID in rows.column_names and USER_ID not in names:
        rows = rows.drop_columns([USER_ID])
    return rows


def _exposed(query: str, request: ScanRequest, names: frozenset[str]) -> str:
    """Does the same for a query instead of rows."""
    updated = f", to_timestamp((({SEQ} >> {TIME_SHIFT}) + {EPOCH_MS}) / 1000) AS {UPDATED}" if UPDATED in names else ""
    owned = request.table.definition.per_user and USER_ID not in names
    if not owned and not updated:
        return query
    return f"SELECT *{f' EXCLUDE ({USER_ID})' if owned else ''}{updated} FROM ({query})"


def _hidden(request: ScanRequest, names: frozenset[str]) -> list[str]:
    if is_stream(request.table.definition):
        return [USER_ID] if USER_ID in names else []
    there = {UPDATED, USER_ID} if request.table.definition.per_user else {UPDATED}
    there |= {SUPERSEDED} if request.superseded_too else set()
    return [column for column in _HIDDEN if column in there & names]


def _names(use: TableUse, within: exp.Expr | None, wanted: str) -> bool:
    """Whether a column of this table is named in a part of its SELECT."""
    name = fold(use.node.alias_or_name)
    return within is not None and any(
        fold(column.table) == name or (not column.table and column.parent_select is use.select)
        for column in within.find_all(exp.Column)
        if fold(column.name) == wanted
    )


def _with_superseded(request: ScanRequest) -> ScanRequest:
    """Conditions on other columns count when it is known which versions are the newest."""
    if request.row_filter is not None:
        raise PermissionDeniedError(
            f"permission denied: {SUPERSEDED} tells of rows of {request.table.definition} that you may not see"
        )
    return replace(request, superseded_too=True, include_deleted=True, filters=())


def _hide_from_star(use: TableUse, hidden: list[str]) -> None:
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
    """Shortens namespace.table.column to table.column for the relations."""
    for column in query.find_all(exp.Column):
        if column.args.get("db"):
            column.set("db", None)
            column.set("catalog", None)
