"""Compares source and target of a copy: definitions by name, rows by count and a digest that no order changes.

The databases compute the digests; the rows do not leave them.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lakefork.transfer.postgres_copy.inventory import Inventory
from lakefork.transfer.postgres_copy.plan import MB, Table, select_statement
from lakefork.transfer.postgres_copy.sessions import SQL, Endpoint, Session, source_errors

SMALL_TABLES = 100
SMALL_BYTES = 16 * MB
MOST_SHOWN = 1_000
MISSING = " is missing on the target"
# Whole rows as text: a name that no column of a table has, or its column would be meant.
_ROW = '"lakefork: the row"'
_DIGEST = f"count(*) AS rows, coalesce(sum(hashtextextended(ROW({_ROW}.*)::text, 0)), 0)::text AS digest"


@dataclass(frozen=True)
class Piece:
    """Rows that are compared as one: of a table, or of a part of it."""

    table: Table
    condition: str | None
    name: str
    size_bytes: int

    def select(self, place: int) -> str:
        return f"SELECT {place} AS place, {_DIGEST} FROM ({select_statement(self.table, self.condition, '*')}) {_ROW}"


def compare_databases(
    open_source: Callable[[], Session], source_name: str, target: Endpoint, inventory: Inventory, jobs: int
) -> list[str]:
    """What differs, one line each; nothing if the target is what the source was."""
    with contextlib.closing(open_source()) as source, contextlib.closing(target.open_target()) as session:
        differences = list(_definitions_differ(source, source_name, session, target.name, inventory))
    missing = {line.removeprefix("table ").removesuffix(MISSING) for line in differences if line.endswith(MISSING)}
    groups = list(_groups([piece for piece in pieces(inventory) if str(piece.table) not in missing]))
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda some: _compare_rows(open_source, source_name, target, some), groups)
        differences += [line for lines in found for line in lines]
    return differences[:MOST_SHOWN]


def pieces(inventory: Inventory) -> list[Piece]:
    """By key a part is the same on both sides; blocks are not, so such tables are compared as a whole."""
    found = []
    for table in inventory.tables:
        parts = inventory.parts[table.oid]
        if not table.with_data:
            continue
        if len(parts) > 1 and parts[0].kind == "key":
            found += [
                Piece(
                    table,
                    part.condition,
                    f"{table} part {part.number + 1} of {len(parts)}",
                    table.size_bytes // len(parts),
                )
                for part in parts
            ]
        else:
            found.append(Piece(table, None, str(table), table.size_bytes))
    return sorted(found, key=lambda piece: -piece.size_bytes)


def _groups(found: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Small tables are asked about together."""
    group: list[Piece] = []
    size = 0
    for piece in found:
        if group and (size + piece.size_bytes > SMALL_BYTES or len(group) >= SMALL_TABLES):
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.size_bytes
    if group:
        yield group


def _compare_rows(
    open_source: Callable[[], Session], source_name: str, target: Endpoint, some: Sequence[Piece]
) -> list[str]:
    query = " UNION ALL ".join(piece.select(place) for place, piece in enumerate(some)).encode()
    with (
        ThreadPoolExecutor(1) as beside,
        contextlib.closing(open_source()) as source,
        contextlib.closing(target.open_target()) as session,
    ):
        on_target = beside.submit(lambda: _digests(session, target.name, query))
        before = _digests(source, source_name, query)
        after = on_target.result()
    return [
        f"{piece.name} has {before[place][0]:,} row(s) on the source and {after[place][0]:,} on the target"
        if before[place][0] != after[place][0]
        else f"{piece.name} has {before[place][0]:,} row(s) on both sides, but not the same ones"
        for place, piece in enumerate(some)
        if before[place] != after[place]
    ]


def _digests(session: Session, name: str, query: bytes) -> dict[int, tuple[int, str]]:
    with source_errors(name):
        return {row["place"]: (row["rows"], row["digest"]) for row in session.execute(query)}


Item = tuple[str, str, str, str, str]  # namespace, table, kind, name, definition
# How Postgres shows IN over varchar before it was dumped and restored, and afterwards.
_CAST_ARRAY = re.compile(r"\(ARRAY\[((?:'(?:[^']|'')*'::[a-z ]+(?:, )?)+)\]\)::text\[\]")
_ELEMENT = re.compile(r"'(?:[^']|'')*'::[a-z ]+")


def canonical(definition: Any) -> Any:
    """The same for definitions that mean the same before and after pg_dump."""
    if not isinstance(definition, str):
        return definition
    return _CAST_ARRAY.sub(lambda found: "ARRAY[" + _ELEMENT.sub(r"(\g<0>)::text", found[1]) + "]", definition)


def _definitions_differ(
    source: Session, source_name: str, target: Session, target_name: str, inventory: Inventory
) -> Iterator[str]:
    names = [(table.namespace, table.name) for table in inventory.tables]
    unbuilt = {(one.namespace, one.name) for one in inventory.unbuilt}
    with source_errors(source_name):
        before = _items(source, names, unbuilt)
    with source_errors(target_name):
        after = _items(target, names, unbuilt)
    gone = {key[:2] for key in before.keys() - after.keys() if key[2] == "table"}
    for key in sorted(before.keys() | after.keys()):
        namespace, table, kind, name = key
        if before.get(key) == after.get(key) or (kind != "table" and key[:2] in gone):
            continue
        about = f"{kind} {name} of {namespace}.{table}" if kind != "table" else f"table {namespace}.{table}"
        if key not in after:
            yield f"{about}{MISSING}"
        elif key not in before:
            yield f"{about} is only on the target"
        else:
            yield f"{about} differs: {before[key]!r} on the source, {after[key]!r} on the target"


def _items(
    session: Session, names: Iterable[tuple[str, str]], unbuilt: set[tuple[str, str]]
) -> dict[tuple[str, str, str, str], Any]:
    listed = list(names)
    rows = session.execute(
        SQL["definitions"], {"namespaces": [one for one, _ in listed], "names": [one for _, one in listed]}
    )
    return {
        (row["namespace"], row["table_name"], row["kind"], row["name"]): canonical(row["definition"])
        for row in rows
        if row["kind"] not in ("index", "constraint") or (row["namespace"], row["name"]) not in unbuilt
    }
