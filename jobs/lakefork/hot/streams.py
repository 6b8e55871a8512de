"""Buffers of STREAM tables: an UNLOGGED Postgres table per table id, whose rows are events with an owner."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import as_stored, quoted_texts
from lakefork.hot.tables import column_definition, hot_column
from lakefork.model.durations import duration_text
from lakefork.model.predicates import postgres_text, quoted
from lakefork.model.tables import SEQ, USER_ID, Column, TableDefinition

SCHEMA = "stream"
OWNER_TYPES = {"catalog_id": "bigint", USER_ID: "text", SEQ: "bigint"}


@dataclass(frozen=True)
class StreamBuffer:
    """The events of a table in one catalog; forks have theirs in the same Postgres table."""

    definition: TableDefinition

    @property
    def name(self) -> str:
        return f"t{self.definition.table_id}"

    @property
    def qualified(self) -> str:
        return f"{SCHEMA}.{self.name}"

    def create_statements(self) -> list[str]:
        """Returns the DDL: one index in the order of eviction, one for what a snapshot did not see."""
        columns = ["catalog_id bigint NOT NULL", f'{USER_ID} text COLLATE "C" NOT NULL', f"{SEQ} bigint NOT NULL"]
        columns += ["_at timestamptz NOT NULL DEFAULT clock_timestamp()"]
        columns += ["_xid xid8 NOT NULL DEFAULT pg_current_xact_id()"]
        columns += [column_definition(column) for column in self.definition.columns]
        return [
            # Events come and go all the time: vacuum by their number, not by their share.
            f"CREATE UNLOGGED TABLE IF NOT EXISTS {self.qualified} ({', '.join(columns)}) "
            "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)",
            f"CREATE INDEX IF NOT EXISTS {self.name}_at ON {self.qualified} (catalog_id, _at, {SEQ})",
            f"CREATE INDEX IF NOT EXISTS {self.name}_xid ON {self.qualified} (_xid)",
        ]


def create_buffer(connection: Any, buffer: StreamBuffer) -> None:
    """Creates the table of a buffer and notes it; safe to race, and to repeat after a crash of Postgres."""
    connection.execute("SELECT pg_advisory_xact_lock(lakefork.hot_table_lock(%s))", (buffer.qualified,))
    for statement in buffer.create_statements():
        connection.execute(statement)
    connection.execute("SELECT lakefork.note_buffer(%s, %s)", buffer.definition.ref)


def admit_events(
    connection: ArrowConnection, definition: TableDefinition, owner: str, rules: Sequence[str] | None
) -> bool:
    """Guards a write of events; false if nobody would get them, so that they need not be kept."""
    found = connection.query(f"SELECT {_admission(definition, postgres_text(owner), quoted_texts(rules))} AS admitted")
    return bool(found["admitted"][0].as_py())


def append_events(connection: ArrowConnection, definition: TableDefinition, owner: str, rows: pa.Table) -> None:
    """Appends events that were admitted: the table's columns by name, and _seq in their order."""
    count = rows.num_rows
    columns = {
        "catalog_id": pa.repeat(pa.scalar(definition.catalog_id, pa.int64()), count),
        USER_ID: pa.repeat(pa.scalar(owner, pa.string()), count),
        SEQ: rows[SEQ],
    }
    columns |= {hot_column(column): as_stored(rows[column.name], column) for column in definition.columns}
    connection.copy_in(SCHEMA, StreamBuffer(definition).name, pa.table(columns))


def append_event_statement(definition: TableDefinition) -> str:
    """Returns a statement that guards, admits and appends one event; parameters: append_event_values."""
    buffer = StreamBuffer(definition)
    columns = [*OWNER_TYPES, *(hot_column(column) for column in definition.columns)]
    types = [*OWNER_TYPES.values(), *(column.type.postgres for column in definition.columns)]
    values = ", ".join(f"%s::{kind}" for kind in types)
    admission = _admission(definition, "%s", "%s::text[]", owner="%s")
    return f"INSERT INTO {buffer.qualified} ({', '.join(columns)}) SELECT {values} WHERE {admission}"


def append_event_values(
    definition: TableDefinition,
    owner: str | None,
    actor: str | None,
    rules: Sequence[str] | None,
    seq: int,
    values: Sequence[Any],
) -> list[Any]:
    """Returns the parameters of append_event_statement."""
    rule_list = None if rules is None else list(rules)
    return [definition.catalog_id, owner, int(seq), *values, actor, rule_list, owner]


def _admission(definition: TableDefinition, actor: str, rules: str, owner: str | None = None) -> str:
    catalog = postgres_text(definition.catalog)
    is_ephemeral = str(bool(definition.options.get("ephemeral"))).lower()
    return (
        f"lakefork.admit_events({definition.catalog_id}, {catalog}, {definition.table_id}, "
        f"{definition.definition_snapshot}, {actor}, {rules}, {is_ephemeral}, {owner or actor})"
    )


def stream_options(connection: ArrowConnection, definition: TableDefinition) -> dict[str, Any]:
    """Returns what the table keeps, defaults included."""
    (found,) = connection.query(
        "SELECT extract(epoch FROM retention)::bigint AS retention, max_buffer, ephemeral "
        f"FROM lakefork.stream_options({definition.catalog_id}, {definition.table_id})"
    ).to_pylist()
    return {**found, "retention": duration_text(found["retention"]), **definition.options}


def has_buffer(connection: ArrowConnection, buffer: StreamBuffer) -> bool:
    return bool(connection.query(f"SELECT to_regclass('{buffer.qualified}') IS NOT NULL AS there")["there"][0].as_py())


def read_events(
    connection: ArrowConnection, buffer: StreamBuffer, user_id: str | None, columns: Iterable[Column]
) -> pa.Table:
    """Returns what the buffer holds now, of one user or of all, oldest first, with their owners."""
    wanted = list(columns) or [buffer.definition.columns[0]]  # a relation has one at least
    names = [column.name for column in wanted]
    schema = pa.schema([*(buffer.definition.arrow_schema.field(name) for name in names), (USER_ID, pa.string())])
    if not has_buffer(connection, buffer):
        return schema.empty_table()
    readable = [f"e.{hot_column(column)}::{column.type.readable} AS {hot_column(column)}" for column in wanted]
    found = connection.query(
        f"SELECT {', '.join([*readable, f'e.{USER_ID}'])} FROM {_held(buffer, user_id)} ORDER BY e._at, e.{SEQ}"
    )
    return found.rename_columns(schema.names).cast(schema)


def count_events(connection: ArrowConnection, buffer: StreamBuffer, user_id: str | None) -> dict[str, int]:
    """Returns how many events the buffer holds, by owner."""
    if not has_buffer(connection, buffer):
        return {}
    found = connection.query(f"SELECT e.{USER_ID}, count(*) AS events FROM {_held(buffer, user_id)} GROUP BY 1")
    return dict(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))


def _held(buffer: StreamBuffer, user_id: str | None) -> str:
    """Returns a source of the events, called e: the newest of the table, whoever owns them, and none that expired."""
    catalog_id, table_id = buffer.definition.ref
    mine = f"e.catalog_id = {catalog_id}" + ("" if user_id is None else f" AND e.{USER_ID} = {quoted(user_id)}")
    return (
        f"{buffer.qualified} e WHERE {mine} "
        f"AND (e._at, e.{SEQ}) > (SELECT b.at, b.seq FROM lakefork.buffer_begin({catalog_id}, {table_id}) b)"
    )
