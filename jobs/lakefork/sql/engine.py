"""The SQL engine: a session and a text in, results or one clear error out. Threads may share it."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa
from sqlglot import exp

from lakefork.catalog.catalogs import find_catalog
from lakefork.database_errors import all_domain_errors, saving
from lakefork.errors import (
    DatabaseError,
    InvalidInputError,
    LakeforkError,
    PermissionDeniedError,
    StorageError,
    os_reason,
)
from lakefork.settings import Settings
from lakefork.sql import statements as st
from lakefork.sql.expressions import bind, highest_parameter
from lakefork.sql.grammar import parse
from lakefork.sql.namespaces import Namespaces
from lakefork.sql.quick_insert import QuickInserter
from lakefork.sql.resources import Resources
from lakefork.sql.results import Affected, Done, Result, Rows, from_columns
from lakefork.sql.schemas import SchemaWriter
from lakefork.sql.select import Prepared, Reader
from lakefork.sql.session import Role, Session
from lakefork.sql.show import Shower
from lakefork.sql.system import SYSTEM_NAMESPACES
from lakefork.sql.system_writes import SystemWriter
from lakefork.sql.tables import Tables
from lakefork.sql.versions import Found
from lakefork.sql.workers.pool import Cancellation, statement_limits
from lakefork.sql.write import Writer
from lakefork.tables import fold

KEPT_TEXTS = 1_000


@dataclass(frozen=True)
class Outcome:
    """What was done before an error, and the error."""

    results: list[Result] = field(default_factory=list)
    error: LakeforkError | None = None


class Engine:
    """One per process and database: it holds connections, so close it."""

    def __init__(self, settings: Settings, dsn: str) -> None:
        self._resources = Resources(settings, dsn)
        self._writer = Writer(self._resources)
        self._quick = QuickInserter(self._resources)
        self._system = SystemWriter(self._resources)
        self._schemas = SchemaWriter(self._resources)
        self._namespaces = Namespaces(self._resources)
        self._tables = Tables(self._resources, self._schemas)
        self._shower = Shower(self._resources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases what can be released, within seconds; raises nothing, whatever became of Postgres."""
        self._resources.close()

    def execute(self, session: Session, text: str, parameters: Sequence[Any] = ()) -> list[Result]:
        """All statements in order; the first error ends it, and what came before stays done."""
        outcome = self.run(session, text, parameters)
        if outcome.error:
            raise outcome.error
        return outcome.results

    def run(
        self, session: Session, text: str, parameters: Sequence[Any] = (), cancellation: Cancellation | None = None
    ) -> Outcome:
        """Like execute, but tells what was done before an error; cancellation: with which others can end it."""
        results: list[Result] = []
        seconds = self._resources.settings.statement_timeout_seconds
        try:
            statements = parsed(text)
            if parameters:
                refuse_unused(statements, len(parameters))
            for statement in statements:
                with self._domain_errors(), statement_limits(seconds, cancellation):
                    results.append(self._execute(session, statement, parameters))
        except LakeforkError as error:
            return Outcome(results, error)
        return Outcome(results)

    @contextmanager
    def _domain_errors(self) -> Iterator[None]:
        """Whatever a driver reports becomes an error of Lakefork."""
        try:
            with all_domain_errors():
                yield
        except DatabaseError:
            self._resources.drop_idle_connections()  # after a restart of Postgres none of them is any good
            raise
        except UnicodeEncodeError as error:
            raise InvalidInputError("a text has half of a surrogate pair, which is no UTF-8: leave it out") from error
        except pa.ArrowException as error:
            raise InvalidInputError(f"the rows cannot be converted: {str(error).partition(chr(10))[0]}") from error
        except OSError as error:
            raise StorageError(f"a file cannot be read or written: {os_reason(error)}") from error

    def load(self, session: Session, table: str, rows: pa.Table, *, as_user: str | None = None) -> int:
        """Appends many rows at once; their columns are those of the table, by name."""
        statement, *others = parsed(f"DESCRIBE TABLE {table}")
        if others or not isinstance(statement, st.DescribeTable):
            raise InvalidInputError(f"{table} is not the name of a table")
        with self._domain_errors():
            return self._writer.load(session, statement.name, rows, as_user)

    def role_of(self, catalog: str, user: str) -> Role:
        """What system.users says; user, if it does not know them."""
        with self._domain_errors(), self._resources.catalog.connection() as connection:
            row = connection.execute(
                "SELECT role, deleted_at FROM system.users WHERE catalog_name = %s AND user_id = %s", (catalog, user)
            ).fetchone()
        if row and row["deleted_at"]:
            raise PermissionDeniedError(f"user {user!r} was deleted")
        return Role.named(row["role"]) if row else Role.USER

    def rewrite_schemas(self, session: Session) -> int:
        """Writes all schema files of the catalog again; returns the number of namespaces."""
        session.require(Role.ADMIN, "rewriting schema files")
        with self._domain_errors(), self._resources.catalog.connection() as connection:
            catalog = find_catalog(connection, session.catalog)
            tables: dict[str, list[str]] = {}
            for row in connection.execute(
                "SELECT schema_name, table_name FROM lakefork.visible_schema(%(c)s) "
                "LEFT JOIN lakefork.visible_table(%(c)s) USING (schema_id)",
                {"c": catalog.catalog_id},
            ):
                tables.setdefault(row["schema_name"], []).extend([row["table_name"]] if row["table_name"] else [])
            for namespace, names in tables.items():
                self._schemas.write(connection, catalog, namespace, names, newest_only=False)
        return len(tables)

    def _execute(self, session: Session, statement: st.Statement, parameters: Sequence[Any]) -> Result:
        if isinstance(statement, st.Insert | st.Update | st.Delete):
            return Affected(statement.text, self._write(session, statement, parameters))
        if isinstance(statement, st.Select):
            return self._select(session, statement, parameters)
        if isinstance(statement, st.Explain):
            return self._explain(session, statement, parameters)
        shown = self._shows().get(type(statement))
        if shown is not None:
            return shown(session, statement)
        change = self._changes().get(type(statement))
        if change is None:
            raise InvalidInputError(
                f"{statement.text.split()[0].upper()} … is understood, but this version cannot do it yet"
            )
        with saving():
            change(session, statement)
        return Done(statement.text)

    def _write(self, session: Session, statement: st.Insert | st.Update | st.Delete, parameters: Sequence[Any]) -> int:
        namespace = fold(statement.name.namespace or session.namespace or "")
        if namespace in SYSTEM_NAMESPACES:
            with saving():
                return self._write_with(self._system, session, statement, parameters)
        if isinstance(statement, st.Insert):
            if self._quick.insert(session, statement, parameters):
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

    def _select(self, session: Session, statement: st.Select, parameters: Sequence[Any]) -> Rows:
        resources = self._resources
        prepared = self._prepare(session, bind(statement.query, parameters, session), with_views=True)
        return Rows(statement.text, resources.workers.run(prepared.request(max_rows=resources.settings.max_rows)))

    def _prepare(self, session: Session, query: exp.Expr, *, with_views: bool) -> Prepared:
        resources = self._resources
        with resources.readers.transaction() as connection:
            reader = Reader(
                connection, resources.workers, resources.lookup, session, resources.manifests, resources.hot_cache
            )
            return reader.prepare(query, with_views=with_views)

    def _explain(self, session: Session, statement: st.Explain, parameters: Sequence[Any]) -> Rows:
        """What would be read, and why not more; counts tell of all rows, so they are not for those who see some."""
        prepared = self._prepare(session, bind(statement.query, parameters, session), with_views=False)
        rows = [
            (
                scan.table, *(_counts(scan.found) if scan.found.wanted.row_filter is None else (None,) * 5),
                ", ".join(map(str, (*scan.found.wanted.predicates, *scan.found.wanted.filters))) or None,
                scan.found.wanted.row_filter, count,
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
        }

    def _changes(self) -> dict[type, Callable[..., None]]:
        namespaces, tables = self._namespaces, self._tables
        return {
            st.CreateNamespace: namespaces.create,
            st.AlterNamespace: namespaces.alter,
            st.DropNamespace: namespaces.drop,
            st.CreateTable: tables.create,
            st.AlterTable: tables.alter,
            st.DropTable: tables.drop,
            st.FlushTable: tables.flush,
        }


def _counts(found: Found) -> tuple[int, int, int, int, str | None]:
    """batches_grouped: those in which a key may have several versions; skipped: how many batches were, and by what."""
    plan = found.plan
    skipped = "; ".join(f"{count} by {reason}" for reason, count in plan.skipped.items())
    return found.hot_versions, found.batches, len(plan.batches), len(plan.grouped), skipped or None


@functools.lru_cache(maxsize=KEPT_TEXTS)
def _short_text(text: str) -> tuple[st.Statement, ...]:
    return tuple(parse(text))


def refuse_unused(statements: Sequence[st.Statement], count: int) -> None:
    """More values than parameters are a mistake that would go unnoticed."""
    highest = max((highest_parameter(vars(statement)) for statement in statements), default=0)
    if count > highest:
        raise InvalidInputError(f"{count} parameters were given, and the text uses {highest}")


def parsed(text: str) -> Sequence[st.Statement]:
    """Texts come again and again; long ones hold data and do not."""
    return _short_text(text) if len(text) <= 10_000 else parse(text)
