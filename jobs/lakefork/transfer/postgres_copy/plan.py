"""Decides what is copied in which parts and in which order. No I/O."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

STAGES = {"part": 1, "index": 2, "constraint": 3, "vacuum": 4, "large_objects": 1, "foreign_key": 1}
POOLS = {
    "part": "table", "vacuum": "table", "large_objects": "large_object", "index": "index", "constraint": "index",
    "foreign_key": "index",
}  # fmt: skip
# Constraints take no time once their index is there; an index of a large table is what others wait for in the end.
RANKS = {"constraint": 3, "foreign_key": 3, "index": 2, "part": 1, "large_objects": 1, "vacuum": 0}
RANK = 1 << 60
MB = 1 << 20
SAMPLES_PER_PART = 200
MOST_PARTS = 10_000


def quote(name: str) -> str:
    """An identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # as format_type writes it
    type_oid: int
    not_null: bool
    is_generated: bool
    in_binary: bool  # its binary form means the same on the target


@dataclass(frozen=True)
class Table:
    """A table of the source whose rows are copied."""

    oid: int
    namespace: str
    name: str
    size_bytes: int
    blocks: int
    estimated_rows: int
    columns: tuple[Column, ...]
    split_key: str | None = None  # an integer column with a unique index
    can_split_by_block: bool = False
    with_data: bool = True
    primary_key: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def qualified(self) -> str:
        return f"{quote(self.namespace)}.{quote(self.name)}"

    @property
    def copied_columns(self) -> tuple[Column, ...]:
        """Generated ones are computed by the target."""
        return tuple(column for column in self.columns if not column.is_generated)

    @property
    def column_list(self) -> str:
        return ", ".join(quote(column.name) for column in self.copied_columns)

    @property
    def in_binary(self) -> bool:
        return all(column.in_binary for column in self.copied_columns)

    @property
    def shape(self) -> list[list[Any]]:
        """What must be the same for a copy to go on."""
        return [[column.name, column.type, column.is_generated] for column in self.columns]


@dataclass(frozen=True)
class Part:
    """Rows of a table that meet a condition; None: all of them."""

    number: int
    condition: str | None
    kind: str  # whole, key or ctid


@dataclass(frozen=True)
class Step:
    """A piece of work; detail: what whoever does it needs to know."""

    kind: str
    table_oid: int
    name: str
    size_bytes: int
    detail: Mapping[str, Any]

    def as_row(self, step_id: int) -> dict[str, Any]:
        size = min(self.size_bytes, RANK - 1)
        return {
            "step_id": step_id, "kind": self.kind, "pool": POOLS[self.kind], "table_oid": self.table_oid,
            "stage": STAGES[self.kind], "priority": RANKS[self.kind] * RANK + size, "name": self.name,
            "size_bytes": size, "detail": dict(self.detail),
        }  # fmt: skip


class Patterns:
    """schema.table patterns in which * stands for any characters; none at all: what `without` says."""

    def __init__(self, patterns: Sequence[str] | None, *, without: bool) -> None:
        self._without = without
        self._patterns = list(patterns or ())
        self._all = re.compile("|".join(f"(?:{_as_regex(one)})" for one in self._patterns), re.DOTALL)

    def match(self, namespace: str, name: str) -> bool:
        if not self._patterns:
            return self._without
        return self._all.fullmatch(f"{namespace}.{name}") is not None

    def without_match(self, names: Iterable[tuple[str, str]]) -> list[str]:
        """Patterns that are about nothing: most likely mistyped."""
        known = [f"{namespace}.{name}" for namespace, name in names]
        return [
            one for one in self._patterns if not any(re.fullmatch(_as_regex(one), name, re.DOTALL) for name in known)
        ]


def _as_regex(pattern: str) -> str:
    return ".*".join(re.escape(part) for part in pattern.split("*"))


def wanted_parts(table: Table, split_bytes: int) -> int:
    """Size divided by the threshold, rounded up; 1 where a table cannot be split."""
    if not split_bytes or table.size_bytes <= split_bytes or not (table.split_key or table.can_split_by_block):
        return 1
    return min(-(-table.size_bytes // split_bytes), MOST_PARTS)


def sample_percent(table: Table, parts: int) -> float:
    """Of the blocks: so many that each part has enough sampled keys to be of about equal count."""
    wanted = parts * SAMPLES_PER_PART
    rows = max(table.estimated_rows, 1)
    blocks = max(table.blocks, 1)
    # A block is taken as a whole, so a few of them would all be from one end.
    return min(100.0, max(100.0 * wanted / rows, 100.0 * min(parts * 20, blocks) / blocks))


def split_by_key(key: str, sample: Sequence[int], parts: int) -> list[Part]:
    """Ranges of equal count by a sorted sample of the key; the first has NULLs too, the ends are open."""
    bounds = sorted({sample[place * len(sample) // parts] for place in range(1, parts)} - {sample[0]}) if sample else []
    if not bounds:
        return [Part(0, None, "whole")]
    column = quote(key)
    conditions = [f"({column} < {bounds[0]} OR {column} IS NULL)"]
    conditions += [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(bounds)]
    conditions.append(f"{column} >= {bounds[-1]}")
    return [Part(number, condition, "key") for number, condition in enumerate(conditions)]


def split_by_block(blocks: int, parts: int) -> list[Part]:
    """Ranges of blocks; the last is open, as rows may have been added behind since the size was looked at."""
    parts = min(parts, blocks)
    if parts <= 1:
        return [Part(0, None, "whole")]
    bounds = [place * blocks // parts for place in range(1, parts)]
    conditions = [f"ctid < '({bounds[0]},0)'::tid"]
    conditions += [f"ctid >= '({low},0)'::tid AND ctid < '({high},0)'::tid" for low, high in pairwise(bounds)]
    conditions.append(f"ctid >= '({bounds[-1]},0)'::tid")
    return [Part(number, condition, "ctid") for number, condition in enumerate(conditions)]


def part_steps(table: Table, parts: Sequence[Part]) -> list[Step]:
    many = len(parts) > 1
    return [
        Step(
            "part", table.oid, f"{table} part {part.number + 1} of {len(parts)}" if many else str(table),
            table.size_bytes // len(parts),
            {"part": part.number, "parts": len(parts), "condition": part.condition, "kind": part.kind},
        )
        for part in parts
    ]  # fmt: skip


def select_statement(table: Table, condition: str | None, columns: str | None = None) -> str:
    """ONLY: what inherits from it is a table of its own."""
    where = f" WHERE {condition}" if condition else ""
    return f"SELECT {table.column_list if columns is None else columns} FROM ONLY {table.qualified}{where}"


def copy_out(table: Table, condition: str | None) -> str:
    return f"COPY ({select_statement(table, condition)}) TO STDOUT (FORMAT {_format(table)})"


def copy_in(table: Table, *, freeze: bool) -> str:
    names = f" ({table.column_list})" if table.copied_columns else ""
    return f"COPY {table.qualified}{names} FROM STDIN (FORMAT {_format(table)}{', FREEZE' if freeze else ''})"


def _format(table: Table) -> str:
    return "binary" if table.in_binary else "text"


def workers_of(limits: Mapping[str, int], slots: int) -> list[int]:
    """How many threads each Spark task runs, so that all pools can be full at the same time."""
    threads = max(1, sum(limits.values()))
    tasks = max(1, min(slots, threads))
    return [threads // tasks + (place < threads % tasks) for place in range(tasks)]
