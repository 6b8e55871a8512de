"""The SQL engine: executes a text for a session, and returns results or one error. Threads may share it."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa
from sqlglot import exp

from lakefork.catalog.catalogs import find_catalog
from lakefork.cold.schema_writer import SchemaWriter
from lakefork.database_errors import all_domain_errors, saving
from lakefork.errors import (
    CancelledError,
    DatabaseError,
    InvalidInputError,
    LakeforkError,
    OutcomeUnknownError,
    PermissionDeniedError,
    StorageError,
    os_reason,
)
from lakefork.model.tables import fold
from lakefork.read.requests import ScanResult
from lakefork.settings import Settings
from lakefork.sql.ddl.namespaces import Namespaces
from lakefork.sql.ddl.tables import Tables
from lakefork.sql.expressions import bind, highest_parameter
from lakefork.sql.parse import statements as st
from lakefork.sql.parse.grammar import SqlSyntaxError, parse, parse_until_error
from lakefork.sql.points.shortcuts import Shortcuts
from lakefork.sql.read.select import Prepared, Reader
from lakefork.sql.resources import Resources
from lakefork.sql.results import Affected, Collected, Done, FewRows, Result, Rows, Sink, from_columns
from lakefork.sql.session import Role, Session
from lakefork.sql.system.backups import Backups
from lakefork.sql.system.live_queries import LiveQueries
from lakefork.sql.system.relations import SYSTEM_NAMESPACES
from lakefork.sql.system.show import ShowStatements
from lakefork.sql.system.writes import SystemWriter
from lakefork.sql.workers.pool import Cancellation, statement_limits
from lakefork.sql.write import receipts
from lakefork.sql.write.quick_insert import QuickInserter
from lakefork.sql.write.receipts import Receipt, Receipts
from lakefork.sql.write.write import Writer
from lakefork.storage.installation import Installation

CACHED_TEXTS = 1_000
QUERIES = (st.Explain, st.ShowNamespaces, st.ShowTables, st.DescribeTable, st.ShowTableStats, st.ShowManifestCache)


@dataclass(frozen=True)
class Outcome:
    """The results before an error, and the error."""

    results: list[Result] = field(default_factory=list)
    error: LakeforkError | None = None


@dataclass(frozen=True)
class _Taken:
    """What became of a shortcut: whether its statement was announced, and answered."""

    is_begun: bool = False
    is_done: bool = False


class Engine:
    """One per process and database: it holds connections, so close it."""

    def __init__(self, settings: Settings, dsn: str) -> None:
        self._resources = Resources(Installation(dsn, settings))
        self._writer = Writer(self._resources)
        self._quick = QuickInserter(self._resources)
        self._shortcuts = Shortcuts(self._resources)
        self._system = SystemWriter(self._resources)
        self._schemas = SchemaWriter(self._resources.storage)
        self._namespaces = Namespaces(self._resources, self._schemas)
        self._tables = Tables(self._resources, self._schemas)
        self._shower = ShowStatements(self._resources, self._schemas)
        self._backups = Backups(self._resources)
        self._live_queries = LiveQueries(self._resources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases everything within seconds; never raises, whatever the state of Postgres."""
        self._resources.close()

    @property
    def resources(self) -> Resources:
        """What live queries share with statements."""
        return self._resources

    def start_eviction(self) -> None:
        """Removes old events of STREAM tables from now on; an engine that writes some does so anyway."""
        self._resources.eviction.start()

    def execute(self, session: Session, text: str, parameters: Sequence[Any] = ()) -> list[Result]:
        """Executes all statements in order; the first error ends the text, and earlier statements stay executed."""
        outcome = self.run(session, text, parameters)
        if outcome.error:
            raise outcome.error
        return outcome.results

    def run(
        self, session: Session, text: str, parameters: Sequence[Any] = (), cancellation: Cancellation | None = None
    ) -> Outcome:
        """Like execute, but also returns the results before an error; another thread can end it by `cancellation`."""
        sink = Collected()
        error = self.run_into(sink, session, text, parameters, cancellation)
        return Outcome(sink.results, error)

    def run_into(
        self,
        sink: Sink,
        session: Session,
        text: str,
        parameters: Sequence[Any] = (),
        cancellation: Cancellation | None = None,
        receipt: Receipt | None = None,
    ) -> LakeforkError | None:
        """Hands over each answer as soon as it is there, rows in chunks; returns the error that ended it.

        receipt: names the request; what an earlier attempt at it did is not done again.
        """
        seconds = self._resources.settings.statement_timeout_seconds
        try:
            taken = self._take_shortcut(sink, session, text, parameters, cancellation) if receipt is None else _Taken()
            if taken.is_done:
                return None
            statements, mistake = _parsed_until_error(text)
            if parameters and mistake is None:
                reject_unused(statements, len(parameters))
            with self._domain_errors():
                past = Receipts(self._resources.catalog, receipt) if receipt else None
            for place, statement in enumerate(statements):
                if cancellation is not None:
                    cancellation.check()
                if place or not taken.is_begun:
                    sink.begin(statement)
                with self._domain_errors(), statement_limits(seconds, cancellation):
                    if isinstance(statement, st.Select):
                        self._select(sink, session, statement, parameters)
                    elif past is None or isinstance(statement, QUERIES):
                        sink.add(self._execute(session, statement, parameters))
                    else:
                        execute = functools.partial(self._execute, session, statement, parameters)
                        sink.add(past.once(place, statement.text, execute))
        except LakeforkError as error:
            is_cancelled = cancellation is not None and cancellation.is_cancelled
            if is_cancelled and not isinstance(error, OutcomeUnknownError):
                return CancelledError("the statement was cancelled")
            return error
        return mistake

    def _take_shortcut(
        self,
        sink: Sink,
        session: Session,
        text: str,
        parameters: Sequence[Any],
        cancellation: Cancellation | None,
    ) -> "_Taken":
        """Executes a statement by key without parsing or planning it again, if that suffices."""
        if not self._resources.settings.shortcuts:
            return _Taken()
        seconds = self._resources.settings.statement_timeout_seconds
        if cancellation is not None:
            cancellation.check()
        with self._domain_errors(), statement_limits(seconds, cancellation):
            shortcut = self._shortcuts.find(session, text, parameters)
            if shortcut is None:
                return _Taken()
            sink.begin(shortcut.statement)
            answer = self._shortcuts.execute(session, shortcut)
        most = self._resources.settings.max_rows if sink.max_rows is None else sink.max_rows
        if answer is None or (isinstance(answer, FewRows) and len(answer.rows) > most):
            return _Taken(is_begun=True)
        sink.add(answer)
        return _Taken(is_begun=True, is_done=True)

    @contextmanager
    def _domain_errors(self) -> Iterator[None]:
        """Translates errors of drivers."""
        try:
            with all_domain_errors():
                yield
        except DatabaseError:
            self._resources.drop_idle_connections()  # after a restart of Postgres all of them are broken
            raise
        except UnicodeEncodeError as error:
            raise InvalidInputError("a text contains half of a surrogate pair, which is not valid UTF-8") from error
        except pa.ArrowException as error:
            raise InvalidInputError(f"the rows cannot be converted: {str(error).partition(chr(10))[0]}") from error
        except OSError as error:
            raise StorageError(f"a file cannot be read or written: {os_reason(error)}") from error

    def load(self, session: Session, table: str, rows: pa.Table, *, as_user: str | None = None) -> int:
        """Appends an Arrow table; columns are matched by name."""
        statement, *others = parsed(f"DESCRIBE TABLE {table}")
        if others or not isinstance(statement, st.DescribeTable):
            raise InvalidInputError(f"{table} is not the name of a table")
        with self._domain_errors():
            return self._writer.load(session, statement.name, rows, as_user)

    def role_of(self, catalog: str, user: str) -> Role:
        """Returns the user's role in system.users; `user` if not listed."""
        with self._domain_errors(), self._resources.catalog.connection() as connection:
            row = connection.execute(
                "SELECT role, deleted_at FROM system.users WHERE catalog_name = %s AND user_id = %s", (catalog, user)
            ).fetchone()
        if row and row["deleted_at"]:
            raise PermissionDeniedError(f"user {user!r} was deleted")
        return Role.named(row["role"]) if row else Role.USER

    def rewrite_schemas(self, session: Session) -> int:
        """Rewrites all schema files of the catalog; returns the number of namespaces."""
        session.require(Role.ADMIN, "rewriting schema files")
        with self._domain_errors(), self._resources.catalog.connection() as connection:
            catalog = find_catalog(connection, session.catalog)
            return self._schemas.rewrite(connection, catalog)

    def _execute(self, session: Session, statement: st.Statement, parameters: Sequence[Any]) -> Result:
        if isinstance(statement, st.Insert | st.Update | st.Delete):
            return Affected(statement.text, self._write(session, statement, parameters))
        if isinstance(statement, st.Explain):
            return self._explain(session, statement, parameters)
        shown = self._shows().get(type(statement))
        if shown is not None:
            return shown(session, statement)
        change = self._changes().get(type(statement))
        if change is None:
            raise InvalidInputError(f"{statement.text.split()[0].upper()} … is not implemented yet")
        with saving():
            warning = change(session, statement)
        return Done(statement.text, warning)

    def _write(self, session: Session, statement: st.Insert | st.Update | st.Delete, parameters: Sequence[Any]) -> int:
        namespace = fold(statement.name.namespace or session.namespace or "")
        if namespace in SYSTEM_NAMESPACES:
            with saving():
                return self._write_with(self._system, session, statement, parameters)
        if isinstance(statement, st.Insert):
            if not receipts.is_wanted() and self._quick.insert(session, statement, parameters):
                return 1
            return self._writer.insert(session, statement, parameters, learn=self._quick.learn)
        return self._write_with(self._writer, session, statement, parameters)

    def _write_with(
        self,
        writer: Writer | SystemWriter,
        session: Session,
        statement: st.Insert | st.Update | st.Delete,
        parameters: Sequence[Any],
    ) -> int:
        if isinstance(statement, st.Update):
            return writer.update(session, statement, parameters)
        if isinstance(statement, st.Delete):
            return writer.delete(session, statement, parameters)
        return writer.insert(session, statement, parameters)

    def _select(self, sink: Sink, session: Session, statement: st.Select, parameters: Sequence[Any]) -> None:
        resources = self._resources
        prepared = self._prepare(session, bind(statement.query, parameters, session))
        if sink.max_rows is None:
            request = prepared.request(max_rows=resources.settings.max_rows)
        else:
            request = prepared.request(max_rows=sink.max_rows + 1, cut=True)
        with closing(resources.workers.stream(request)) as chunks:
            sink.stream(statement.text, chunks)

    def _prepare(self, session: Session, query: exp.Expr) -> Prepared:
        resources = self._resources
        with resources.readers.transaction() as connection:
            reader = Reader(
                connection, resources.workers, resources.lookup, session, resources.manifests, resources.hot_cache
            )
            return reader.prepare(query, with_views=True)

    def _explain(self, session: Session, statement: st.Explain, parameters: Sequence[Any]) -> Rows:
        """Explains what would be read and skipped; users who see only some rows get no counts."""
        prepared = self._prepare(session, bind(statement.query, parameters, session))
        rows = [
            (
                scan.table, *(_counts(scan.found) if scan.found.request.row_filter is None else (None,) * 5),
                ", ".join(map(str, (*scan.found.request.predicates, *scan.found.request.filters))) or None,
                scan.found.request.row_filter, count,
            )
            for scan, count in zip(prepared.scans, self._count_rows(prepared), strict=True)
        ]  # fmt: skip
        names = [
            "table", "hot_versions", "batches", "batches_read", "batches_grouped", "skipped", "predicates",
            "row_filter", "rows",
        ]  # fmt: skip
        return from_columns(statement.text, names, rows)

    def _count_rows(self, prepared: Prepared) -> list[int]:
        if not prepared.scans:
            return []
        counts = ", ".join(f"(SELECT count(*) FROM {scan.relation})" for scan in prepared.scans)
        counted = self._resources.workers.run(replace(prepared, sql=f"SELECT [{counts}] AS rows").request())
        return list(counted["rows"][0].as_py())

    def _shows(self) -> dict[type, Callable[..., Rows]]:
        show = self._shower
        return {
            st.ShowNamespaces: show.namespaces,
            st.ShowTables: show.tables,
            st.DescribeTable: show.describe,
            st.ShowTableStats: show.statistics,
            st.ShowManifestCache: show.manifest_cache,
            st.ShowBackup: self._backups.show,
            st.BackupDatabase: self._backups.backup,
            st.RestoreDatabase: self._backups.restore,
        }

    def _changes(self) -> dict[type, Callable[..., str | None]]:
        namespaces, tables = self._namespaces, self._tables
        return {
            st.CreateNamespace: namespaces.create,
            st.AlterNamespace: namespaces.alter,
            st.DropNamespace: namespaces.drop,
            st.CreateTable: tables.create,
            st.AlterTable: tables.alter,
            st.DropTable: tables.drop,
            st.FlushTable: tables.flush,
            st.KillLiveQuery: self._live_queries.kill,
        }


def _counts(found: ScanResult) -> tuple[int, int, int, int, str | None]:
    """Returns counts. batches_grouped: batches whose keys may have several versions; skipped: batches by reason."""
    plan = found.plan
    skipped = "; ".join(f"{count} by {reason}" for reason, count in plan.skipped.items())
    return found.hot_versions, found.batches, len(plan.batches), len(plan.grouped), skipped or None


@functools.lru_cache(maxsize=CACHED_TEXTS)
def _short_text(text: str) -> tuple[st.Statement, ...]:
    return tuple(parse(text))


def reject_unused(statements: Sequence[st.Statement], count: int) -> None:
    """Refuses surplus parameters, a mistake that would otherwise go unnoticed."""
    highest = max((highest_parameter(vars(statement)) for statement in statements), default=0)
    if count > highest:
        raise InvalidInputError(f"{count} parameters were given, and the text uses {highest}")


def parsed(text: str) -> Sequence[st.Statement]:
    """Parses a text, with a cache for short texts; long ones contain data and are not repeated."""
    return _short_text(text) if len(text) <= 10_000 else parse(text)


def _parsed_until_error(text: str) -> tuple[Sequence[st.Statement], SqlSyntaxError | None]:
    """Parses a text up to its first error. Errors are not cached, because a re-raised exception keeps tracebacks."""
    try:
        return parsed(text), None
    except SqlSyntaxError:
        return parse_until_error(text)
