"""The steps of a copy into Postgres, as statements: parts, then indexes, then constraints, then VACUUM. No I/O."""

from collections.abc import Iterator, Sequence

from lakefork.transfer.postgres_copy.inventory import ForeignKey, Index, Inventory
from lakefork.transfer.postgres_copy.plan import Step, Table, part_steps, quote

LARGE_OBJECTS_AT_ONCE = 500
PG_CLASS, PG_CONSTRAINT = 1259, 2606


def data_steps(inventory: Inventory, *, vacuum: bool) -> list[Step]:
    """Foreign keys are not among them: they come when all tables are complete."""
    tables = {table.oid: table for table in inventory.tables}
    steps = [step for table in inventory.tables for step in part_steps(table, inventory.parts[table.oid])]
    steps += [step for index in inventory.indexes for step in _index_steps(index, tables[index.table_oid])]
    if vacuum:
        steps += [
            Step("vacuum", table.oid, str(table), table.size_bytes, {})
            for table in inventory.tables
            if inventory.parts[table.oid]
        ]
    oids = inventory.large_objects
    for start in range(0, len(oids), LARGE_OBJECTS_AT_ONCE):
        some = oids[start : start + LARGE_OBJECTS_AT_ONCE]
        name = f"large objects {some[0]} to {some[-1]}"
        steps.append(
            Step("large_objects", -some[0], name, len(some), {"first": some[0], "last": some[-1], "oids": some})
        )
    return steps


def _index_steps(index: Index, table: Table) -> Iterator[Step]:
    """Yields a unique index beside all others, and the constraint on it for when all are built."""
    name, size = f"{index.namespace}.{index.name}", index.size_bytes
    after = []
    if index.is_clustered:
        after.append(f"ALTER TABLE {table.qualified} CLUSTER ON {quote(index.name)}")
    if index.is_replica_identity:
        after.append(f"ALTER TABLE ONLY {table.qualified} REPLICA IDENTITY USING INDEX {quote(index.name)}")
    if index.constraint_oid is None:
        yield Step("index", table.oid, name, size, {"statements": [index.definition]})
    elif is_on_index(index):
        yield Step("index", table.oid, name, size, {"statements": [index.definition]})
        after.insert(0, _constraint_on_index(index, table))
    else:
        after.insert(
            0,
            f"{_add_constraint(index, table)} {index.constraint_definition}",
        )
    if after:
        yield Step("constraint", table.oid, index.constraint_name or index.name, size, {"statements": after})


def is_on_index(index: Index) -> bool:
    """Exclusion constraints, and keys over periods, cannot be put on an index that is there."""
    return index.constraint_kind in ("p", "u") and "WITHOUT OVERLAPS" not in (index.constraint_definition or "")


def _constraint_on_index(index: Index, table: Table) -> str:
    kind = "PRIMARY KEY" if index.constraint_kind == "p" else "UNIQUE"
    deferrable = " DEFERRABLE" if index.is_deferrable else ""
    deferred = " INITIALLY DEFERRED" if index.is_deferred else ""
    return f"{_add_constraint(index, table)} {kind} USING INDEX {quote(index.name)}{deferrable}{deferred}"


def _add_constraint(index: Index, table: Table) -> str:
    return f"ALTER TABLE ONLY {table.qualified} ADD CONSTRAINT {quote(index.constraint_name or '')}"


def foreign_key_script(keys: Sequence[ForeignKey], tables: Sequence[Table]) -> str:
    """Adds them without a look at the rows."""
    by_oid = {table.oid: table for table in tables}
    lines = []
    for key in keys:
        definition = key.definition if key.definition.endswith(" NOT VALID") else f"{key.definition} NOT VALID"
        lines.append(f"ALTER TABLE {by_oid[key.table_oid].qualified} ADD CONSTRAINT {quote(key.name)} {definition};")
    return "\n".join(lines)


def foreign_key_steps(keys: Sequence[ForeignKey], tables: Sequence[Table]) -> list[Step]:
    """The look at the rows: of many tables at the same time."""
    by_oid = {table.oid: table for table in tables}
    return [
        Step(
            "foreign_key", key.table_oid, f"{key.name} of {by_oid[key.table_oid]}", by_oid[key.table_oid].size_bytes,
            {"statements": [f"ALTER TABLE {by_oid[key.table_oid].qualified} VALIDATE CONSTRAINT {quote(key.name)}"]},
        )
        for key in keys
        if key.is_valid
    ]  # fmt: skip


def built_here(inventory: Inventory) -> set[tuple[int, int]]:
    """Objects that pg_restore is to leave alone: they are steps of the copy, or left out."""
    found = {(PG_CLASS, index.oid) for index in inventory.indexes if index.constraint_oid is None}
    found |= {(PG_CONSTRAINT, index.constraint_oid) for index in inventory.indexes if index.constraint_oid is not None}
    found |= {(PG_CONSTRAINT, key.oid) for key in inventory.foreign_keys}
    return found | {(PG_CONSTRAINT if one.is_constraint else PG_CLASS, one.oid) for one in inventory.unbuilt}
