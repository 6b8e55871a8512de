"""What the catalog knows of a copy: written by runs, read by whoever asks. Thin Python over functions/copy.sql."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import ConflictError, InvalidInputError, NotFoundError
from lakefork.model.params import PostgresCopyParams
from lakefork.transfer.postgres_copy.plan import Step, Table
from lakefork.transfer.postgres_copy.sessions import SQL

# A copy that goes on must not mix what was asked for before with something else.
SETUP = (
    "include", "exclude", "exclude_data", "exclude_indexes", "split_larger_than", "skip", "roles", "owner_columns",
    "unsupported_types",
)  # fmt: skip


@dataclass(frozen=True)
class Copy:
    """A copy as lakefork.copy has it."""

    copy_id: str
    source: str
    target: str | None
    into_catalog: str | None
    source_identity: str
    target_identity: str | None
    setup: Mapping[str, Any]
    status: str
    phase: str
    phases_done: Sequence[str]
    run_id: str
    snapshot_name: str | None
    snapshot_lsn: str | None
    snapshot_at: datetime.datetime | None
    slot_name: str | None
    snapshots: int
    started_at: datetime.datetime
    finished_at: datetime.datetime | None
    snapshot_id: int | None
    notes: Sequence[str]
    differences: Sequence[str] | None
    error: str | None

    def is_done(self, phase: str) -> bool:
        return phase in self.phases_done


def copy_lease(copy_id: str) -> str:
    return f"copy/{copy_id}"


def setup_of(params: PostgresCopyParams) -> dict[str, Any]:
    found = params.model_dump(mode="json")
    return {name: found[name] for name in SETUP} | {"split_larger_than": params.split_bytes}


def find_copy(connection: Connection, copy_id: str) -> Copy:
    row = connection.execute(SQL["find_copy"], {"copy_id": copy_id}).fetchone()
    if row is None:
        raise NotFoundError(f"copy {copy_id!r} does not exist; `lakefork copy status` lists them")
    return Copy(**row)


def list_copies(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute("SELECT * FROM system.copies ORDER BY started_at DESC").fetchall()


def start_copy(connection: Connection, **values: Any) -> None:
    existing = connection.execute("SELECT FROM lakefork.copy WHERE copy_id = %s", (values["copy_id"],)).fetchone()
    if existing is not None:
        raise ConflictError(f"copy {values['copy_id']!r} already exists: resume it, or choose another copy_id")
    connection.execute(SQL["start_copy"], {**values, "setup": Jsonb(values["setup"])})


def require_same_setup(
    copy: Copy, params: PostgresCopyParams, source_identity: str, target_identity: str | None
) -> None:
    """A resumed copy is about the same databases and the same objects as before."""
    if copy.status == "abandoned":
        raise InvalidInputError(f"copy {copy.copy_id} was abandoned: begin a new one")
    pairs = [
        ("source", copy.source_identity, source_identity),
        ("target", copy.target_identity, target_identity),
        ("into", copy.into_catalog, params.into),
        *((name, copy.setup.get(name), value) for name, value in setup_of(params).items()),
    ]
    for name, before, now in pairs:
        if before != now:
            raise InvalidInputError(
                f"copy {copy.copy_id} was begun with another {name} ({before!r}, and now {now!r}): begin a new copy, "
                "or resume this one as it was begun"
            )


def update_copy(connection: Connection, copy_id: str, **values: Any) -> None:
    """Columns of lakefork.copy; lists and dates as Postgres takes them."""
    columns = ", ".join(f"{name} = %({name})s" for name in values)
    connection.execute(
        f"UPDATE lakefork.copy SET {columns} WHERE copy_id = %(copy_id)s",
        {**values, "copy_id": copy_id},
    )


def finish_phase(connection: Connection, copy_id: str, phase: str) -> None:
    connection.execute(
        "UPDATE lakefork.copy SET phases_done = array_append(array_remove(phases_done, %(phase)s), %(phase)s) "
        "WHERE copy_id = %(copy_id)s",
        {"copy_id": copy_id, "phase": phase},
    )


def save_plan(
    connection: Connection, copy_id: str, tables: Iterable[Table], steps: Sequence[Step], notes: Sequence[str]
) -> None:
    """All of it, or nothing: a plan that is cut off is made again."""
    rows = [
        {
            "oid": table.oid, "namespace": table.namespace, "name": table.name, "size_bytes": table.size_bytes,
            "definition": {"shape": table.shape},
        }
        for table in tables
    ]  # fmt: skip
    with connection.transaction():
        for relation in ("copy_table", "copy_step"):
            connection.execute(f"DELETE FROM lakefork.{relation} WHERE copy_id = %s", (copy_id,))
        connection.execute(SQL["add_tables"], {"copy_id": copy_id, "tables": Jsonb(rows)})
        add_steps(connection, copy_id, steps, 1)
        update_copy(connection, copy_id, notes=list(notes))
        finish_phase(connection, copy_id, "plan")


def add_steps(connection: Connection, copy_id: str, steps: Sequence[Step], first_id: int) -> None:
    rows = [step.as_row(number) for number, step in enumerate(steps, first_id)]
    connection.execute(SQL["add_steps"], {"copy_id": copy_id, "steps": Jsonb(rows)})


def planned_shapes(connection: Connection, copy_id: str) -> dict[int, list[list[Any]]]:
    rows = connection.execute(
        "SELECT table_oid, definition -> 'shape' AS shape FROM lakefork.copy_table WHERE copy_id = %s", (copy_id,)
    )
    return {row["table_oid"]: row["shape"] for row in rows}


def count_steps(connection: Connection, copy_id: str, *kinds: str) -> int:
    row = connection.execute(
        "SELECT count(*) AS steps FROM lakefork.copy_step WHERE copy_id = %s AND status <> 'done' AND kind = ANY (%s)",
        (copy_id, list(kinds)),
    ).fetchone()
    return int(row["steps"]) if row else 0


def restart_steps(connection: Connection, copy_id: str, job_id: str, done: Sequence[Mapping[str, Any]] | None) -> None:
    """done: what the target is known to have; None: there is no target that could tell."""
    with domain_errors():
        connection.execute(
            "SELECT lakefork.restart_copy_steps(%s, %s, %s, %s)",
            (copy_id, job_id, Jsonb(list(done or ())), done is not None),
        )


def next_steps(
    connection: Any,
    copy_id: str,
    job_id: str,
    worker: str,
    done: Sequence[Mapping[str, Any]],
    limits: Mapping[str, int],
    small_bytes: int,
    most: int,
) -> tuple[list[dict[str, Any]], bool]:
    """The steps to do next, and whether any are left at all."""
    with domain_errors():
        row = connection.execute(
            "SELECT steps, steps_left FROM lakefork.next_copy_steps(%s, %s, %s, %s, %s, %s, %s)",
            (copy_id, job_id, worker, Jsonb(list(done)), Jsonb(dict(limits)), small_bytes, most),
            prepare=True,
        ).fetchone()
    return row["steps"] or [], row["steps_left"] > 0
