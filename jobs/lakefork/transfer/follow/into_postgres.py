"""Applies changes to another Postgres: whole transactions, with the position in the same one."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from lakefork.database_errors import said
from lakefork.errors import ConflictError, SetupError, TargetDiffersError
from lakefork.transfer.follow.changes import (
    RowChange,
    Run,
    TableChange,
    Truncation,
    key_places,
    runs,
    segments,
    single_runs,
)
from lakefork.transfer.follow.pgoutput import Delete, Insert, Relation, Update, Value
from lakefork.transfer.follow.statements import NamedType, change_by_key, change_whole_row
from lakefork.transfer.postgres_copy.plan import quote
from lakefork.transfer.postgres_copy.sessions import Endpoint, Session, foreign_error
from lakefork.transfer.postgres_copy.streams import send_rows

POSITION = """
CREATE SCHEMA IF NOT EXISTS lakefork_follow;
CREATE TABLE IF NOT EXISTS lakefork_follow.position (
    copy_id text PRIMARY KEY, lsn pg_lsn NOT NULL, committed_at timestamptz, applied_at timestamptz
)"""
_ESCAPED = re.compile(rb"[\\\t\n\r]")
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"}
_GO_ON = "put the target right, and the next run goes on here; or begin a new copy"


class _OtherRowsError(Exception):
    """A statement met more or fewer rows than it has changes."""


@dataclass(frozen=True)
class TargetColumn:
    type: str
    always_identity: bool


class PostgresTarget:
    """One transaction of the target at a time: begin, apply (as often as needed), finish."""

    def __init__(self, endpoint: Endpoint, copy_id: str, explain: Callable[[Relation, str], str]) -> None:
        """explain: how a column of the source that the target lacks is added there."""
        self._name, self._copy_id, self._explain = endpoint.name, copy_id, explain
        self._session: Session = endpoint.open_target()
        self._tables: dict[Relation, dict[str, TargetColumn]] = {}
        self._prepared: dict[str, bytes] = {}
        self._require_no_triggers()
        self._session.execute("SET synchronous_commit = on")

    def close(self) -> None:
        self._session.close()

    def position(self, first: int) -> int:
        """Where the target is; first: where it is if it has not been followed yet."""
        self._session.execute(POSITION.encode())
        self._session.execute(
            "INSERT INTO lakefork_follow.position (copy_id, lsn) VALUES (%s, '0/0'::pg_lsn + %s::numeric) "
            "ON CONFLICT DO NOTHING",
            (self._copy_id, first),
        )
        row = self._session.execute(
            "SELECT (lsn - '0/0'::pg_lsn)::bigint AS lsn FROM lakefork_follow.position WHERE copy_id = %s",
            (self._copy_id,),
        ).fetchone()
        assert row is not None  # noqa: S101 - just written
        return int(row["lsn"])

    def begin(self) -> None:
        self._session.execute("BEGIN")

    def apply(self, changes: Sequence[TableChange | Truncation]) -> None:
        """In few statements; where one of them fails, one by one, so that the row at fault is named."""
        session = self._session
        session.execute("SAVEPOINT lakefork_piece")
        try:
            self._apply(changes, runs)
        except (psycopg.Error, _OtherRowsError) as error:
            if isinstance(error, psycopg.Error) and _is_broken(session, error):
                raise foreign_error(self._name, error) from error
            session.execute("ROLLBACK TO SAVEPOINT lakefork_piece")
            self._apply(changes, single_runs, explained=True)
        session.execute("RELEASE SAVEPOINT lakefork_piece")

    def finish(self, before: int, position: int, committed_at: int | None) -> None:
        """Commits everything since begin, with the position; before: where this run found the target."""
        found = self._session.execute(
            "UPDATE lakefork_follow.position SET lsn = '0/0'::pg_lsn + %s::numeric, "
            "committed_at = coalesce(timestamptz '2000-01-01 00:00:00+00' + %s::bigint * interval '1 microsecond', "
            "committed_at), "
            "applied_at = clock_timestamp() WHERE copy_id = %s AND lsn = '0/0'::pg_lsn + %s::numeric",
            (position, committed_at, self._copy_id, before),
            prepare=True,
        )
        if found.rowcount != 1:
            raise ConflictError(f"copy {self._copy_id} is followed by somebody else, too: nothing was applied twice")
        self._session.execute("COMMIT")

    def _apply(
        self,
        changes: Sequence[TableChange | Truncation],
        grouped: Callable[[Sequence[TableChange]], Iterable[Run]],
        *,
        explained: bool = False,
    ) -> None:
        for segment in segments(changes):
            if isinstance(segment, Truncation):
                self._truncate(segment)
                continue
            for run in grouped(segment):
                try:
                    self._execute(run)
                except _OtherRowsError:
                    if not explained:
                        raise
                    raise TargetDiffersError(self._missing(run)) from None
                except psycopg.Error as error:
                    if not explained or _is_broken(self._session, error):
                        raise
                    raise TargetDiffersError(self._refused(run, error)) from error

    def _truncate(self, one: Truncation) -> None:
        names = ", ".join(f"ONLY {_qualified(relation)}" for relation in one.relations)
        restart = " RESTART IDENTITY" if one.truncate.restart_sequences else ""
        cascade = " CASCADE" if one.truncate.cascade else ""
        self._session.execute(f"TRUNCATE {names}{restart}{cascade}".encode())

    def _execute(self, run: Run) -> None:
        columns = self._columns(run.relation)
        if run.kind is Insert:
            self._insert(run, columns)
        elif run.relation.identity == "f":
            self._change_whole_row(run, columns)
        else:
            self._change_by_key(run, columns)

    def _insert(self, run: Run, columns: dict[str, TargetColumn]) -> None:
        places = _known(run.relation, columns)
        if not places:
            for _ in run.changes:
                self._session.execute(f"INSERT INTO {_qualified(run.relation)} DEFAULT VALUES".encode())
            return
        names = ", ".join(quote(run.relation.columns[place].name) for place in places)
        content = b"".join(_line(change, places) for change in run.changes)
        send_rows(self._session, f"COPY {_qualified(run.relation)} ({names}) FROM STDIN", content)

    def _change_by_key(self, run: Run, columns: dict[str, TargetColumn]) -> None:
        relation, keys = run.relation, key_places(run.relation)
        if not keys:
            raise TargetDiffersError(f"{relation} has no replica identity: its rows cannot be found on the target")
        given, always = _settable(relation, run.columns, columns)
        statement = change_by_key(
            _qualified(relation), _typed(relation, given, columns), _typed(relation, [*always, *keys], columns),
            is_delete=run.kind is Delete,
        )  # fmt: skip
        rows = [change.new for change in run.changes if isinstance(change, Update)]
        parameters = [_array(row[place] for row in rows) for place in [*given, *always]]
        parameters += [_array(key[number] for key in run.keys) for number in range(len(keys))]
        self._expect(len(run.changes), statement, parameters)

    def _change_whole_row(self, run: Run, columns: dict[str, TargetColumn]) -> None:
        """REPLICA IDENTITY FULL."""
        relation = run.relation
        (change,) = run.changes
        assert not isinstance(change, Insert)  # noqa: S101 - those are no changes of a row
        if change.old is None:
            raise TargetDiffersError(f"{relation}: a change came without the old row, so that it cannot be found")
        given, _ = _settable(relation, run.columns, columns)
        old = _known(relation, columns)
        statement = change_whole_row(
            _qualified(relation), _typed(relation, given, columns), _typed(relation, old, columns),
            is_delete=run.kind is Delete,
        )  # fmt: skip
        new = change.new if isinstance(change, Update) else ()
        parameters = [_text(new[place]) for place in given] + [_text(change.old[place]) for place in old]
        self._expect(1, statement, parameters)

    def _expect(self, rows: int, statement: str, parameters: Sequence[bytes | None]) -> None:
        connection = self._session.pgconn
        name = self._prepared.get(statement)
        if name is None:
            name = f"lakefork_{len(self._prepared)}".encode()
            self._check(connection.prepare(name, statement.encode(self._session.info.encoding)))
            self._prepared[statement] = name
        result = self._check(connection.exec_prepared(name, list(parameters)))  # type: ignore[arg-type]  # None is NULL
        found = result.ntuples if result.status == ExecStatus.TUPLES_OK else result.command_tuples
        if found != rows:
            raise _OtherRowsError

    def _check(self, result: Any) -> Any:
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise error_from_result(result, self._session.info.encoding)
        return result

    def _columns(self, relation: Relation) -> dict[str, TargetColumn]:
        """Those of the target's table, without generated ones; the source may have no others."""
        if relation in self._tables:
            return self._tables[relation]
        rows = self._session.execute(
            "SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, "
            "a.attidentity = 'a' AS always_identity, a.attgenerated <> '' AS is_generated "
            "FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped",
            (_qualified(relation),),
        ).fetchall()
        if not rows and not self._exists(relation):
            raise TargetDiffersError(f"table {relation} is not on target {self._name!r}: {_GO_ON}")
        names = {row["name"] for row in rows}
        for column in relation.columns:
            if column.name not in names:
                raise TargetDiffersError(
                    f"the source has added column {column.name} to {relation}: run "
                    f"{self._explain(relation, column.name)} on {self._name!r}, and the next run goes on"
                )
        found = {
            row["name"]: TargetColumn(row["type"], row["always_identity"]) for row in rows if not row["is_generated"]
        }
        self._tables[relation] = found
        return found

    def _exists(self, relation: Relation) -> bool:
        row = self._session.execute("SELECT to_regclass(%s) IS NOT NULL AS found", (_qualified(relation),)).fetchone()
        return bool(row and row["found"])

    def _require_no_triggers(self) -> None:
        try:
            self._session.execute("SET session_replication_role = replica")
        except psycopg.errors.InsufficientPrivilege:
            self.close()
            raise SetupError(
                f"the role of connection {self._name!r} may not set session_replication_role, which keeps triggers "
                "from running twice: grant it (GRANT SET ON PARAMETER, from Postgres 15), or use a superuser"
            ) from None

    def _missing(self, run: Run) -> str:
        what = "updated" if run.kind is Update else "deleted"
        return (
            f"{run.relation}: the row with {_key_text(run)}, which the source has {what}, is not on target "
            f"{self._name!r}: {_GO_ON}"
        )

    def _refused(self, run: Run, error: psycopg.Error) -> str:
        what = {"Insert": "inserted", "Update": "updated"}.get(run.kind.__name__, "deleted")
        return (
            f"{run.relation}: the row with {_key_text(run)}, which the source has {what}, is refused by target "
            f"{self._name!r} ({said(error)}): {_GO_ON}"
        )


def _key_text(run: Run) -> str:
    (change,) = run.changes
    row = change.new if isinstance(change, Insert) else change.old if change.old is not None else change.new
    places = key_places(run.relation) or range(len(run.relation.columns))
    parts = []
    for place in places:
        value = row[place]
        text = value.decode(errors="replace") if isinstance(value, bytes) else "NULL"
        parts.append(f"{run.relation.columns[place].name} = {text[:100]}")
    return ", ".join(parts)


def _is_broken(session: Session, error: psycopg.Error) -> bool:
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57") or session.closed


def _qualified(relation: Relation) -> str:
    return f"{quote(relation.namespace)}.{quote(relation.name)}"


def _known(relation: Relation, columns: dict[str, TargetColumn]) -> list[int]:
    return [place for place, column in enumerate(relation.columns) if column.name in columns]


def _typed(relation: Relation, places: Sequence[int], columns: dict[str, TargetColumn]) -> list[NamedType]:
    names = [relation.columns[place].name for place in places]
    return [NamedType(name, columns[name].type) for name in names]


def _settable(
    relation: Relation, places: Sequence[int], columns: dict[str, TargetColumn]
) -> tuple[list[int], list[int]]:
    """Columns that an UPDATE can set, and those that it cannot: they must be the same already."""
    known = [place for place in places if relation.columns[place].name in columns]
    always = [place for place in known if columns[relation.columns[place].name].always_identity]
    return [place for place in known if place not in always], always


def _line(change: RowChange, places: Sequence[int]) -> bytes:
    """A row in the text format of COPY."""
    row = change.new  # type: ignore[union-attr]
    return b"\t".join([_copied(row[place]) for place in places]) + b"\n"


def _copied(value: Value) -> bytes:
    if not isinstance(value, bytes):
        return b"\\N"
    if _ESCAPED.search(value):
        return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value)
    return value


def _text(value: Value) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _array(values: Iterable[Value]) -> bytes:
    """An array of text, as Postgres reads it."""
    return b"{" + b",".join([_element(value) for value in values]) + b"}"


def _element(value: Value) -> bytes:
    if not isinstance(value, bytes):
        return b"NULL"
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
