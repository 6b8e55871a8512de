"""Applies changes to tables of the lake: each is a version in the hot store; the position is committed with them."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lakefork.errors import ConflictError, LakeforkError, NotFoundError, TargetDiffersError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.rows import append_version, lock_rows
from lakefork.model.column_types import TEXT
from lakefork.model.predicates import postgres_array, quoted
from lakefork.model.tables import DELETED, SEQ, TableDefinition, fold
from lakefork.read.tables import FoundTable
from lakefork.spark.job import JobContext
from lakefork.sql.parse.statements import TableName
from lakefork.sql.read.select import Reader
from lakefork.sql.read.versions import read_by_key
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.sql.write.rows import check_values, key_hashes
from lakefork.sql.write.targets import Targets, none_between
from lakefork.transfer.follow.changes import TableChange, Truncation, rounds, segments
from lakefork.transfer.follow.pgoutput import UNCHANGED, Delete, Insert, Relation, Update, Value, Values
from lakefork.transfer.follow.state import Follow
from lakefork.transfer.postgres_copy.lake_types import NOT_HELD, not_held

BLANK_PADDED = 1042  # char(n): its text has the blanks, its value does not
LOCKED_KEYS = 200  # above this, all rows of the table are locked
MEMORY = 1 << 30
GO_ON = "put the table right, and the next run goes on here; or begin a new copy"


@dataclass(frozen=True)
class Version:
    """A version to write: values by the relation's columns, or those of the row that is there."""

    key: Values
    values: Values
    is_deleted: bool
    replaces: bool  # a row must be there; else none may be


@dataclass(frozen=True)
class LakeRelation:
    """A table of the lake, and at which place of the source's row each of its columns is."""

    found: FoundTable
    places: tuple[int, ...]
    key_places: tuple[int, ...]

    @property
    def definition(self) -> TableDefinition:
        return self.found.definition


class LakeTarget:
    """One transaction at a time, as the target of a follow is used; tables are found once per transaction."""

    def __init__(self, context: JobContext, follow: Follow) -> None:
        self._copy_id, self._first = follow.copy.copy_id, follow.position
        self._session = Session(follow.copy.into_catalog or "", role=Role.ADMIN)
        self._resources = Resources(context.installation)
        self._targets = Targets(self._resources)
        self._connection = ArrowConnection(context.dsn, read_only=False, timeout_seconds=0, max_bytes=MEMORY)
        self._transaction = contextlib.ExitStack()
        self._tables: dict[Relation, LakeRelation] = {}

    def close(self) -> None:
        """Without finish nothing has happened."""
        self._connection.close()
        self._resources.close()

    def position(self, first: int) -> int:
        """The catalog's own row decides."""
        return first

    def begin(self) -> None:
        self._tables = {}
        self._transaction.enter_context(self._connection.transaction())

    def apply(self, changes: Sequence[TableChange | Truncation]) -> None:
        for segment in segments(changes):
            if isinstance(segment, Truncation):
                for relation in segment.relations:
                    self._truncate(relation)
                continue
            for relation, some in rounds(segment):
                self._write(self._table(relation), relation, list(_versions(self._table(relation), relation, some)))

    def finish(self, before: int, position: int, committed_at: int | None) -> None:
        at = (
            "committed_at"
            if committed_at is None
            else f"timestamptz '2000-01-01 00:00:00+00' + {committed_at} * interval '1 microsecond'"
        )
        updated = self._connection.query(
            f"UPDATE lakefork.follow SET position = ('0/0'::pg_lsn + {position}::numeric)::text, committed_at = {at} "
            f"WHERE copy_id = {quoted(self._copy_id)} AND position::pg_lsn = '0/0'::pg_lsn + {before}::numeric "
            "RETURNING 1 AS done"
        )
        if updated.num_rows != 1:
            raise ConflictError(f"copy {self._copy_id} is followed by somebody else, too: nothing was applied twice")
        self._transaction.close()

    def _table(self, relation: Relation) -> LakeRelation:
        if relation not in self._tables:
            try:
                found, _ = self._targets.find(self._session, TableName(relation.namespace, relation.name), None)
            except NotFoundError as error:
                raise TargetDiffersError(f"{error}: {GO_ON}") from error
            self._tables[relation] = _match(found, relation)
        return self._tables[relation]

    def _write(self, table: LakeRelation, relation: Relation, versions: Sequence[Version]) -> None:
        """Rows with different keys: reads those that are there, and appends the new versions."""
        definition, connection = table.definition, self._connection
        given = self._typed(table, relation, versions)
        keys = given.select([column.name for column in definition.key])
        hashes = key_hashes(definition, keys) if len(versions) <= LOCKED_KEYS else None
        lock_rows(connection, definition, None, hashes)
        existing = self._existing(table, keys, versions)
        places = {key: number for number, key in enumerate(_key_rows(definition, existing))}
        live = existing[DELETED].to_pylist()
        there = [places.get(key) for key in _key_rows(definition, keys)]
        for version, key, place in zip(versions, _key_rows(definition, keys), there, strict=True):
            is_live = place is not None and not live[place]
            if is_live != version.replaces:
                raise TargetDiffersError(_difference(definition, key, version))
        rows = _completed(table, given, existing, there, versions)
        check_values(definition, rows)
        after = int(pc.max(existing[SEQ]).as_py() or 0) if existing.num_rows else 0
        self._append(definition, rows, [version.is_deleted for version in versions], after)

    def _append(self, definition: TableDefinition, rows: pa.Table, deleted: Sequence[bool], after: int) -> None:
        seqs = self._resources.seqids.next_many(rows.num_rows, after=after)
        rows = rows.append_column(SEQ, pa.array(seqs, pa.int64())).append_column(DELETED, pa.array(deleted))
        append_version(self._connection, definition, None, rows)

    def _existing(self, table: LakeRelation, keys: pa.Table, versions: Sequence[Version]) -> pa.Table:
        found, workers = table.found, self._resources.own_workers
        if not any(version.replaces for version in versions) and none_between(self._connection, found, None, keys):
            keys = keys.slice(0, 0)
        return read_by_key(self._connection, workers, found, None, keys)

    def _typed(self, table: LakeRelation, relation: Relation, versions: Sequence[Version]) -> pa.Table:
        """The given values as the lake has them: Postgres converts the text, as it does for a copy."""
        definition = table.definition
        arrays, casts, tests = [], [], []
        for number, (column, place) in enumerate(zip(definition.columns, table.places, strict=True)):
            arrays.append(_array([_value(version, table, place) for version in versions]))
            is_padded = relation.columns[place].type_oid == BLANK_PADDED
            value = f"u.v{number}::{'bpchar' if is_padded else column.type.postgres}"
            casts.append(f"({value})::{column.type.readable} AS c{number}")
            if test := not_held(column.type, f"({value})"):
                tests.append(f"WHEN {test} THEN {number}")
        refused = f"(CASE {' '.join(tests)} END)::smallint" if tests else "NULL::smallint"
        names = ", ".join(f"v{number}" for number in range(len(arrays)))
        with _in_words(str(definition)):
            rows = self._connection.query(
                f"SELECT {', '.join(casts)}, {refused} AS refused FROM unnest({', '.join(arrays)}) WITH ORDINALITY "
                f"AS u ({names}, n) ORDER BY u.n"
            )
        if rows["refused"].null_count < rows.num_rows:
            name = definition.columns[pc.min(rows["refused"]).as_py()].name
            raise TargetDiffersError(
                f"a row of {definition} has in {name} a value that its type in the lake cannot hold ({NOT_HELD}): "
                "change it on the source, or begin a new copy without the table"
            )
        plain = rows.drop_columns(["refused"]).rename_columns([column.name for column in definition.columns])
        return plain.cast(definition.row_schema)

    def _truncate(self, relation: Relation) -> None:
        """Every live row gets a tombstone."""
        table = self._table(relation)
        definition, resources = table.definition, self._resources
        lock_rows(self._connection, definition, None, None)
        columns = [exp.column(column.name, quoted=True) for column in definition.columns]
        query = exp.select(*columns, exp.column(SEQ, quoted=True)).from_(
            exp.table_(definition.name, db=definition.namespace, quoted=True)
        )
        reader = Reader(self._connection, resources.own_workers, resources.lookup, self._session)
        rows = resources.own_workers.run(reader.prepare(query).request())
        if rows.num_rows:
            after = int(pc.max(rows[SEQ]).as_py())
            live = rows.drop_columns([SEQ]).rename_columns([column.name for column in definition.columns])
            self._append(definition, live.cast(definition.row_schema), [True] * rows.num_rows, after)


def _match(found: FoundTable, relation: Relation) -> LakeRelation:
    definition = found.definition
    by_name = {fold(column.name): place for place, column in enumerate(relation.columns)}
    for column in relation.columns:
        if fold(column.name) not in definition.by_name:
            raise TargetDiffersError(
                f"the source has added column {column.name} to {relation}: run ALTER TABLE {definition.namespace}."
                f"{definition.name} ADD COLUMN {column.name} with its type in catalog {definition.catalog}, and the "
                "next run goes on"
            )
    if lost := [column.name for column in definition.columns if fold(column.name) not in by_name]:
        raise TargetDiffersError(f"the source does not send column {lost[0]} of {definition}: begin a new copy")
    if relation.identity not in ("d", "f"):
        raise TargetDiffersError(f"{relation} has another replica identity than its primary key: rows cannot be found")
    places = tuple(by_name[fold(column.name)] for column in definition.columns)
    return LakeRelation(found, places, tuple(by_name[fold(column.name)] for column in definition.key))


def _versions(table: LakeRelation, relation: Relation, changes: Sequence[Any]) -> Iterator[Version]:
    """A key change is a delete and an insert."""

    def key_of(row: Values) -> Values:
        return tuple(row[place] for place in table.key_places)

    for change in changes:
        if isinstance(change, Insert):
            yield Version(key_of(change.new), change.new, is_deleted=False, replaces=False)
        elif isinstance(change, Delete):
            yield Version(key_of(change.old), (), is_deleted=True, replaces=True)
        elif isinstance(change, Update):
            old = key_of(change.old) if change.old is not None else key_of(change.new)
            new = _with_old(change, relation)
            if key_of(new) != old:
                if UNCHANGED in new:
                    raise TargetDiffersError(f"{relation}: a key changed in a row with values that were not sent")
                yield Version(old, (), is_deleted=True, replaces=True)
                yield Version(key_of(new), new, is_deleted=False, replaces=False)
            else:
                yield Version(old, new, is_deleted=False, replaces=True)


def _with_old(change: Update, relation: Relation) -> Values:
    """REPLICA IDENTITY FULL sends unchanged values with the old row."""
    if relation.identity != "f" or change.old is None:
        return change.new
    return tuple(old if new is UNCHANGED else new for new, old in zip(change.new, change.old, strict=True))


def _value(version: Version, table: LakeRelation, place: int) -> Value:
    if place in table.key_places:
        return version.key[table.key_places.index(place)]
    return version.values[place] if version.values else None


def _completed(
    table: LakeRelation, given: pa.Table, existing: pa.Table, there: Sequence[int | None], versions: Sequence[Version]
) -> pa.Table:
    """Values that were not sent are those of the row that is there."""
    columns = {}
    for column, place in zip(table.definition.columns, table.places, strict=True):
        kept = [
            place not in table.key_places and (not version.values or version.values[place] is UNCHANGED)
            for version in versions
        ]
        values = given[column.name]
        if any(kept):
            both = pa.chunked_array([*values.chunks, *existing[column.name].cast(values.type).chunks], values.type)
            indices = [
                given.num_rows + (at or 0) if keep else number
                for number, (keep, at) in enumerate(zip(kept, there, strict=True))
            ]
            values = both.take(pa.array(indices))
        columns[column.name] = values
    return pa.table(columns).cast(table.definition.row_schema)


def _key_rows(definition: TableDefinition, rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[column.name].to_pylist() for column in definition.key), strict=True))


def _difference(definition: TableDefinition, key: tuple[Any, ...], version: Version) -> str:
    named = ", ".join(f"{column.name} = {value!s:.100}" for column, value in zip(definition.key, key, strict=True))
    what = "has changed, is not there" if version.replaces else "has inserted, already exists"
    return f"{definition}: the row with {named}, which the source {what}: {GO_ON}"


def _array(values: Sequence[Value]) -> str:
    texts = [value.decode() if isinstance(value, bytes) else None for value in values]
    return postgres_array(texts, TEXT)


@contextlib.contextmanager
def _in_words(table: str) -> Iterator[None]:
    try:
        yield
    except LakeforkError as error:
        raise TargetDiffersError(f"{table}: {error}") from error
