"""Finds out what a source holds, in a handful of queries however many tables it has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lakefork.errors import InvalidInputError, SetupError
from lakefork.model.params import PostgresCopyParams
from lakefork.transfer.postgres_copy.plan import (
    Column,
    Part,
    Patterns,
    Table,
    quote,
    sample_percent,
    split_by_block,
    split_by_key,
    wanted_parts,
)
from lakefork.transfer.postgres_copy.sessions import SQL, Session

LOCKS_PER_TABLE = 1
CTID_VERSION = 140_000  # older ones read the whole table for each range


@dataclass(frozen=True)
class Relation:
    oid: int
    namespace: str
    name: str
    kind: str
    is_partition: bool
    row_security: bool
    is_heap: bool | None

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def qualified(self) -> str:
        return f"{quote(self.namespace)}.{quote(self.name)}"


@dataclass(frozen=True)
class Index:
    oid: int
    table_oid: int
    namespace: str
    name: str
    definition: str
    size_bytes: int
    is_valid: bool
    is_clustered: bool
    is_replica_identity: bool
    constraint_oid: int | None
    constraint_name: str | None
    constraint_kind: str | None
    constraint_definition: str | None
    is_deferrable: bool | None
    is_deferred: bool | None


@dataclass(frozen=True)
class Unbuilt:
    """An index or a constraint that is left out."""

    oid: int
    namespace: str
    name: str
    table: str
    is_constraint: bool


@dataclass(frozen=True)
class ForeignKey:
    oid: int
    table_oid: int
    referenced_oid: int
    name: str
    definition: str
    is_valid: bool


@dataclass(frozen=True)
class OwnedSequence:
    oid: int
    namespace: str
    name: str
    owner_oid: int | None

    @property
    def qualified(self) -> str:
        return f"{quote(self.namespace)}.{quote(self.name)}"


@dataclass
class Inventory:
    """What is copied: tables with rows, and all that follows them. notes: what is left out, and why."""

    tables: list[Table]
    excluded: list[Relation] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    foreign_keys: list[ForeignKey] = field(default_factory=list)
    sequences: list[OwnedSequence] = field(default_factory=list)
    large_objects: list[int] = field(default_factory=list)
    unbuilt: list[Unbuilt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: dict[int, list[Part]] = field(default_factory=dict)

    @property
    def unbuilt_entries(self) -> list[str]:
        """How lines of pg_restore's list begin that are about what is not built."""
        return [
            text
            for one in self.unbuilt
            for text in (
                f"COMMENT {one.namespace} INDEX {one.name} ", f"INDEX ATTACH {one.namespace} {one.name} ",
                f"COMMENT {one.namespace} CONSTRAINT {one.name} ON {one.table} ",
            )
        ]  # fmt: skip

    @property
    def size_bytes(self) -> int:
        return sum(table.size_bytes for table in self.tables if table.with_data)


def select_relations(session: Session, params: PostgresCopyParams) -> tuple[list[Relation], list[Relation]]:
    """Those that are copied, and those that are left out."""
    relations = [Relation(**row) for row in session.execute(SQL["relations"])]
    include, exclude = Patterns(params.include, without=True), Patterns(params.exclude, without=False)
    names = [(one.namespace, one.name) for one in relations]
    for patterns, about in ((include, "include"), (exclude, "exclude")):
        if unmatched := patterns.without_match(names):
            raise InvalidInputError(f"{about}: nothing matches the pattern {unmatched[0]!r}")
    copied: list[Relation] = []
    left_out: list[Relation] = []
    for one in relations:
        is_copied = include.match(one.namespace, one.name) and not exclude.match(one.namespace, one.name)
        (copied if is_copied or one.kind == "S" else left_out).append(one)
    return copied, left_out


def require_lock_room(session: Session, name: str, tables: int) -> None:
    """One lock for each table, at the same time."""
    row = session.execute(SQL["lock_room"]).fetchone()
    assert row is not None  # noqa: S101 - a query without FROM
    free = row["room"] - row["taken"]
    if tables * LOCKS_PER_TABLE > free:
        per_transaction = -(-row["per_transaction"] * tables * 11 // (10 * row["room"]))
        raise SetupError(
            f"{name!r} has room for {free:,} locks, and {tables:,} tables need one each at the same time: "
            f"set its max_locks_per_transaction to {max(per_transaction, row['per_transaction'] + 1):,} or more, and "
            "restart it"
        )


def take_inventory(session: Session, params: PostgresCopyParams, version: int) -> Inventory:
    """session: a transaction under the snapshot of the copy, whose tables are locked."""
    copied, left_out = select_relations(session, params)
    inventory = Inventory([], left_out)
    _add_tables(session, params, inventory, [one for one in copied if one.kind == "r"], version)
    _leave_out_sequences(session, params, inventory, [one for one in copied if one.kind == "S"])
    if params.target is not None:  # the lake gets tables only
        _leave_out_dependents(session, inventory)
    tables = {table.oid for table in inventory.tables}
    _add_indexes(session, params, inventory, sorted(tables))
    _add_foreign_keys(session, params, inventory, copied)
    if "large_objects" not in params.skip and params.target is not None:
        inventory.large_objects = [row["oid"] for row in session.execute(SQL["large_objects"])]
    _note_extensions(session, inventory)
    inventory.notes += [
        f"foreign table {one}: its definition is copied, its rows are elsewhere" for one in copied if one.kind == "f"
    ]
    return inventory


def _add_tables(
    session: Session, params: PostgresCopyParams, inventory: Inventory, relations: Sequence[Relation], version: int
) -> None:
    oids = [one.oid for one in relations]
    sizes = {row["oid"]: row for row in session.execute(SQL["sizes"], {"oids": oids})}
    columns = {row["oid"]: row["columns"] for row in session.execute(SQL["columns"], {"oids": oids})}
    keys = {row["oid"]: row for row in session.execute(SQL["keys"], {"oids": oids})}
    without_data = Patterns(params.exclude_data, without=False)
    if unmatched := without_data.without_match((one.namespace, one.name) for one in relations):
        raise InvalidInputError(f"exclude_data: nothing matches the pattern {unmatched[0]!r}")
    for one in relations:
        size, key = sizes[one.oid], keys.get(one.oid, {})
        inventory.tables.append(
            Table(
                one.oid, one.namespace, one.name, size["size_bytes"], size["blocks"], size["estimated_rows"],
                tuple(Column(*column) for column in columns.get(one.oid, ())),
                key.get("split_key"), bool(one.is_heap) and version >= CTID_VERSION,
                not without_data.match(one.namespace, one.name), tuple((key.get("primary_keys") or [()])[0]),
            )
        )  # fmt: skip


def _leave_out_sequences(
    session: Session, params: PostgresCopyParams, inventory: Inventory, sequences: Sequence[Relation]
) -> None:
    """Those that an excluded table owns go with it; others may be used by anything."""
    gone = {one.oid for one in inventory.excluded}
    by_oid = {one.oid: one for one in sequences}
    for found in (OwnedSequence(**row) for row in session.execute(SQL["sequences"], {"oids": list(by_oid)})):
        if found.owner_oid in gone:
            inventory.excluded.append(by_oid[found.oid])
        elif "sequences" not in params.skip:
            inventory.sequences.append(found)


def _leave_out_dependents(session: Session, inventory: Inventory) -> None:
    """A view on a table that is not copied cannot be made; it is left out, and that is said."""
    if not inventory.excluded:
        return
    by_oid = {one.oid: one for one in (Relation(**row) for row in session.execute(SQL["relations"]))}
    rows = session.execute(SQL["dependents"], {"oids": [one.oid for one in inventory.excluded]}).fetchall()
    for row in rows:
        if row["catalog"] != "pg_class":
            raise InvalidInputError(
                f"{row['description']} needs something that is excluded: exclude less, or drop it first"
            )
        if (one := by_oid.get(row["oid"])) is not None:
            inventory.excluded.append(one)
            inventory.notes.append(f"{row['description']} is left out, because it needs something that is excluded")
    gone = {one.oid for one in inventory.excluded}
    inventory.tables = [table for table in inventory.tables if table.oid not in gone]


def _add_indexes(session: Session, params: PostgresCopyParams, inventory: Inventory, oids: Sequence[int]) -> None:
    left_out = Patterns(params.exclude_indexes, without=False)
    names = {table.oid: table.name for table in inventory.tables}
    for index in (Index(**row) for row in session.execute(SQL["indexes"], {"oids": list(oids)})):
        is_constraint = index.constraint_oid is not None
        skipped = ("constraints" if is_constraint else "indexes") in params.skip
        if skipped or left_out.match(index.namespace, index.name) or not index.is_valid:
            inventory.unbuilt.append(
                Unbuilt(
                    index.constraint_oid or index.oid,
                    index.namespace,
                    index.name,
                    names[index.table_oid],
                    is_constraint,
                )
            )
            if not skipped:
                why = "is excluded" if index.is_valid else "is invalid on the source"
                inventory.notes.append(f"index {index.namespace}.{index.name} {why} and is not built")
            continue
        inventory.indexes.append(index)


def _add_foreign_keys(
    session: Session, params: PostgresCopyParams, inventory: Inventory, relations: Sequence[Relation]
) -> None:
    """Those of partitioned tables are pg_restore's business, as long as they are wanted."""
    gone = {one.oid for one in inventory.excluded}
    by_oid = {one.oid: one for one in relations if one.kind in ("r", "p") and one.oid not in gone}
    for row in session.execute(SQL["foreign_keys"], {"oids": sorted(by_oid)}):
        is_step = row.pop("is_step")
        key, table = ForeignKey(**row), by_oid[row["table_oid"]]
        if key.referenced_oid in gone or "constraints" in params.skip:
            inventory.unbuilt.append(Unbuilt(key.oid, table.namespace, key.name, table.name, is_constraint=True))
            if key.referenced_oid in gone:
                inventory.notes.append(
                    f"foreign key {key.name} of {table} is left out, because it references a table that is excluded"
                )
        elif is_step:
            inventory.foreign_keys.append(key)


def _note_extensions(session: Session, inventory: Inventory) -> None:
    for row in session.execute(SQL["extensions"]):
        if row["configuration_tables"]:
            inventory.notes.append(
                f"extension {row['name']} has tables of its own: what users changed in them is not copied"
            )


def split_tables(session: Session, inventory: Inventory, split_bytes: int) -> None:
    """Only large tables are looked into."""
    for table in inventory.tables:
        if not table.with_data or table.blocks == 0:
            inventory.parts[table.oid] = []  # locked since before the snapshot: it has no row that the snapshot sees
            continue
        inventory.parts[table.oid] = split_table(session, table, wanted_parts(table, split_bytes))


def split_table(session: Session, table: Table, parts: int) -> list[Part]:
    if parts == 1:
        return [Part(0, None, "whole")]
    if table.split_key is None:
        return split_by_block(table.blocks, parts)
    key = quote(table.split_key)
    rows = session.execute(
        f"SELECT array_agg(k ORDER BY k) AS keys FROM (SELECT {key} AS k FROM {table.qualified} "
        f"TABLESAMPLE SYSTEM ({sample_percent(table, parts)}) WHERE {key} IS NOT NULL) s"
    ).fetchone()
    sample: list[Any] = (rows or {}).get("keys") or []
    return split_by_key(table.split_key, sample, parts)
