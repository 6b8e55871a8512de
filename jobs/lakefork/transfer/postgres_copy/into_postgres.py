"""Steps of a copy into another Postgres. Each leaves a mark in the target with what it did, in the same transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from lakefork.errors import LakeforkError
from lakefork.transfer.postgres_copy.inventory import OwnedSequence
from lakefork.transfer.postgres_copy.plan import MB, Table, copy_in, copy_out, quote
from lakefork.transfer.postgres_copy.psql import is_available, read_by_psql
from lakefork.transfer.postgres_copy.sessions import SQL, Endpoint, Session, foreign_error
from lakefork.transfer.postgres_copy.streams import Copied, stream_from, stream_rows
from lakefork.transfer.postgres_copy.task import Done, Step, TaskEnvironment, Worker, timed

# A mark that somebody else is about to commit is waited for: so two workers never do one step twice, dead or alive.
MARKS = """
CREATE SCHEMA IF NOT EXISTS lakefork_copy;
CREATE TABLE IF NOT EXISTS lakefork_copy.mark (
    copy_id text NOT NULL, step_id bigint NOT NULL, rows bigint, bytes bigint, digest text, seconds double precision,
    PRIMARY KEY (copy_id, step_id)
)"""
PHASES = {"pre_data": -1, "post_data": -2, "foreign_keys": -3, "roles": -4}
LO_BYTES = 1 << 20
SEQUENCES_AT_ONCE = 500
LARGE_BYTES = 4 * MB  # beyond that, psql is started sooner than Python has read


@dataclass(frozen=True)
class IntoPostgres:
    target: Endpoint
    source_name: str

    def do(self, worker: Worker, kind: str, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
        action: Callable[[Worker, Sequence[Step], Mapping[int, Table]], list[Done]] = {
            "part": self._copy_parts, "vacuum": self._vacuum, "large_objects": self._copy_large_objects,
        }.get(kind, self._run_statements)  # fmt: skip
        return action(worker, steps, tables)

    def session(self, worker: Worker) -> Session:
        session: Session = worker.kept("target", self.target.open_target)
        return session

    def _copy_parts(self, worker: Worker, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
        """Small tables together in one transaction: most of their time would go to commits."""
        copy_id, source, target = worker.environment.copy_id, worker.source, self.session(worker)
        name = steps[0]["name"]
        try:
            with target.transaction():
                fresh = take_marks(target, copy_id, [step["step_id"] for step in steps])
                todo = [step for step in steps if step["step_id"] in fresh]
                whole = [tables[step["table_oid"]].qualified for step in todo if step["detail"]["parts"] == 1]
                if whole:  # only what this transaction has emptied can be written as frozen
                    target.execute("TRUNCATE " + ", ".join(f"ONLY {table}" for table in whole))
                done = []
                for step in todo:
                    name = step["name"]
                    done.append(self._copy_part(worker.environment, source, target, step, tables[step["table_oid"]]))
                write_marks(target, copy_id, done)
        except psycopg.Error as error:
            raise self._error(error, name, source) from error
        return [{"step_id": step["step_id"]} for step in steps if step["step_id"] not in fresh] + done

    def _copy_part(
        self, environment: TaskEnvironment, source: Session, target: Session, step: Step, table: Table
    ) -> Done:
        with timed() as seconds:
            freeze = step["detail"]["parts"] == 1
            out, into = copy_out(table, step["detail"]["condition"]), copy_in(table, freeze=freeze)
            if step["size_bytes"] >= LARGE_BYTES and is_available():
                send = partial(read_by_psql, environment.source, environment.snapshot)
                copied = stream_from(send, out, target, into)
            else:
                copied = stream_rows(source, out, target, into)
        return {"step_id": step["step_id"], **vars(copied), "seconds": seconds()}

    def _run_statements(self, worker: Worker, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
        """Those of small tables in one transaction; where one fails, one by one, to tell which."""
        copy_id, target = worker.environment.copy_id, self.session(worker)
        try:
            with timed() as seconds, target.transaction():
                fresh = take_marks(target, copy_id, [step["step_id"] for step in steps])
                todo = [one for step in steps if step["step_id"] in fresh for one in step["detail"]["statements"]]
                if todo:
                    target.execute(";\n".join(todo).encode())
        except psycopg.Error as error:
            if len(steps) > 1 and error.sqlstate:
                return [done for step in steps for done in self._run_statements(worker, [step], tables)]
            raise self._error(error, steps[0]["name"]) from error
        return [{"step_id": step["step_id"], "seconds": seconds() / len(steps)} for step in steps]

    def _vacuum(self, worker: Worker, steps: Sequence[Step], tables: Mapping[int, Table]) -> list[Done]:
        target = self.session(worker)
        with timed() as seconds:
            try:
                target.execute("VACUUM (ANALYZE) " + ", ".join(tables[step["table_oid"]].qualified for step in steps))
            except psycopg.Error as error:
                raise self._error(error, steps[0]["name"]) from error
        return [{"step_id": step["step_id"], "seconds": seconds()} for step in steps]

    def _copy_large_objects(self, worker: Worker, steps: Sequence[Step], _tables: Mapping[int, Table]) -> list[Done]:
        copy_id, target = worker.environment.copy_id, self.session(worker)
        done = []
        for step in steps:
            try:
                with target.transaction():
                    if take_marks(target, copy_id, [step["step_id"]]):
                        with timed() as seconds:
                            copied = copy_large_objects(worker.source, target, step["detail"])
                        done.append({"step_id": step["step_id"], **vars(copied), "seconds": seconds()})
                        write_marks(target, copy_id, done[-1:])
                    else:
                        done.append({"step_id": step["step_id"]})
            except psycopg.Error as error:
                raise self._error(error, step["name"], worker.source) from error
        return done

    def _error(self, error: psycopg.Error, what: str, source: Session | None = None) -> LakeforkError:
        """A connection that broke closes itself: by this the one at fault is told."""
        broken_source = source is not None and source.pgconn.status != psycopg.pq.ConnStatus.OK
        return foreign_error(self.source_name if broken_source else self.target.name, error, what)


def take_marks(target: Session, copy_id: str, steps: Sequence[int]) -> set[int]:
    """Returns the steps that are not done; whoever wants the same ones waits for this transaction."""
    rows = target.execute(
        "INSERT INTO lakefork_copy.mark (copy_id, step_id) SELECT %s, s FROM unnest(%s::bigint[]) s ORDER BY s "
        "ON CONFLICT DO NOTHING RETURNING step_id",
        (copy_id, sorted(steps)),
    )
    return {row["step_id"] for row in rows}


def write_marks(target: Session, copy_id: str, done: Sequence[Done]) -> None:
    target.execute(
        "UPDATE lakefork_copy.mark m SET rows = d.rows, bytes = d.bytes, digest = d.digest, seconds = d.seconds "
        "FROM jsonb_to_recordset(%s) "
        "AS d (step_id bigint, rows bigint, bytes bigint, digest text, seconds double precision) "
        "WHERE m.copy_id = %s AND m.step_id = d.step_id",
        (Jsonb(list(done)), copy_id),
    )


def read_marks(target: Session, copy_id: str) -> list[dict[str, Any]]:
    return target.execute(
        "SELECT step_id, rows, bytes, digest, seconds FROM lakefork_copy.mark WHERE copy_id = %s", (copy_id,)
    ).fetchall()


def run_once(target: Session, copy_id: str, phase: str, script: str) -> bool:
    """A script in one transaction with its mark; False if it was run before."""
    with target.transaction():
        if not take_marks(target, copy_id, [PHASES[phase]]):
            return False
        if script.strip():
            target.execute(script.encode())  # without parameters: all statements in one message
        target.execute("SET search_path = ''")
    return True


def set_sequences(source: Session, target: Session, sequences: Sequence[OwnedSequence]) -> None:
    """As they stand now, which is past whatever the snapshot has seen of them."""
    for start in range(0, len(sequences), SEQUENCES_AT_ONCE):
        some = sequences[start : start + SEQUENCES_AT_ONCE]
        union = " UNION ALL ".join(
            f"SELECT {place} AS place, last_value, is_called FROM {one.qualified}" for place, one in enumerate(some)
        )
        rows = source.execute(union.encode()).fetchall()
        target.execute(
            "SELECT count(setval(n::regclass, v, c)) "
            "FROM unnest(%s::text[], %s::bigint[], %s::boolean[]) AS s (n, v, c)",
            (
                [some[row["place"]].qualified for row in rows],
                [row["last_value"] for row in rows],
                [row["is_called"] for row in rows],
            ),
        )


def copy_large_objects(source: Session, target: Session, detail: Mapping[str, Any]) -> Copied:
    """Ids from first to last, in pieces of a megabyte: the largest may have terabytes."""
    first, last = int(detail["first"]), int(detail["last"])
    target.execute(
        "CREATE TEMPORARY TABLE IF NOT EXISTS lakefork_pieces (oid oid, place bigint, piece bytea) "
        "ON COMMIT DELETE ROWS"
    )
    target.execute("SELECT lo_create(m) FROM unnest(%s::oid[]) m", (detail["oids"],))
    sizes = (
        "SELECT s.oid, lo_lseek64(s.descriptor, 0, 2) AS size, lo_close(s.descriptor) AS closed FROM "
        "(SELECT m.oid, lo_open(m.oid, 262144) AS descriptor FROM pg_largeobject_metadata m "
        f"WHERE m.oid BETWEEN {first} AND {last} OFFSET 0) s OFFSET 0"
    )
    copied = stream_rows(
        source,
        f"COPY (SELECT s.oid, p, lo_get(s.oid, p * {LO_BYTES}, {LO_BYTES}) FROM ({sizes}) s "
        f"CROSS JOIN generate_series(0, (s.size - 1) / {LO_BYTES}) p WHERE s.size > 0 AND s.closed = 0) "
        "TO STDOUT (FORMAT binary)",
        target,
        "COPY pg_temp.lakefork_pieces FROM STDIN (FORMAT binary)",
    )
    target.execute(f"SELECT count(lo_put(p.oid, p.place * {LO_BYTES}, p.piece)) FROM pg_temp.lakefork_pieces p")
    target.execute("TRUNCATE pg_temp.lakefork_pieces")
    _copy_rights(source, target, first, last)
    return Copied(len(detail["oids"]), copied.bytes, copied.digest)


def _copy_rights(source: Session, target: Session, first: int, last: int) -> None:
    """Owners, comments and grants; Postgres has no way to set them for many objects by one statement."""
    statements = []
    for row in source.execute(SQL["large_object_rights"], {"first": first, "last": last}):
        about = f"LARGE OBJECT {row['oid']}"
        statements.append(f"ALTER {about} OWNER TO {quote(row['owner'])}")
        if row["comment"] is not None:
            statements.append(f"COMMENT ON {about} IS {sql.Literal(row['comment']).as_string(target)}")
        for grantee, privilege, grantable in row["grants"] or ():
            to = "PUBLIC" if grantee is None else quote(grantee)
            statements.append(f"GRANT {privilege} ON {about} TO {to}{' WITH GRANT OPTION' if grantable else ''}")
    if statements:
        target.execute("; ".join(statements).encode())
