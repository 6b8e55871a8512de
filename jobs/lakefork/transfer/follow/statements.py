"""Statements that bring changes to a table: parameters are values as text, or arrays of them. No I/O."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakefork.transfer.postgres_copy.plan import quote

_WITHOUT_EQUALITY = re.compile(r"(json|xml|point|line|lseg|box|path|polygon|circle)\b")


@dataclass(frozen=True)
class NamedType:
    """A column of the target, with its type as format_type writes it."""

    name: str
    type: str

    def cast(self, value: str) -> str:
        return f"{value}::{self.type}"


def change_by_key(table: str, given: Sequence[NamedType], equal: Sequence[NamedType], *, is_delete: bool) -> str:
    """Many rows at once. Parameters: an array for each column that is given, then for each that must be equal."""
    count = len(given) + len(equal)
    arrays = ", ".join(f"${number}::text[]" for number in range(1, count + 1))
    values = ", ".join(f"v{number}" for number in range(1, count + 1))
    rows = f"unnest({arrays}) AS u ({values})"
    conditions = " AND ".join(
        f"t.{quote(column.name)} = {column.cast(f'u.v{number}')}" for number, column in enumerate(equal, len(given) + 1)
    )
    if is_delete:
        return f"DELETE FROM ONLY {table} AS t USING {rows} WHERE {conditions}"
    if not given:
        return f"SELECT FROM ONLY {table} AS t, {rows} WHERE {conditions}"
    sets = ", ".join(f"{quote(column.name)} = {column.cast(f'u.v{number}')}" for number, column in enumerate(given, 1))
    return f"UPDATE ONLY {table} AS t SET {sets} FROM {rows} WHERE {conditions}"


def change_whole_row(table: str, given: Sequence[NamedType], old: Sequence[NamedType], *, is_delete: bool) -> str:
    """One of the rows that are equal in all columns. Parameters: as for change_by_key, values instead of arrays."""
    conditions = " AND ".join(_is_same(column, number) for number, column in enumerate(old, len(given) + 1))
    found = f"ctid = (SELECT ctid FROM ONLY {table} WHERE {conditions or 'true'} LIMIT 1)"
    if is_delete:
        return f"DELETE FROM ONLY {table} WHERE {found}"
    if not given:
        return f"SELECT FROM ONLY {table} WHERE {found}"
    sets = ", ".join(
        f"{quote(column.name)} = {column.cast(f'${number}::text')}" for number, column in enumerate(given, 1)
    )
    return f"UPDATE ONLY {table} SET {sets} WHERE {found}"


def _is_same(column: NamedType, number: int) -> str:
    if _WITHOUT_EQUALITY.match(column.type):
        return f"{quote(column.name)}::text IS NOT DISTINCT FROM ${number}::text"
    return f"{quote(column.name)} IS NOT DISTINCT FROM {column.cast(f'${number}::text')}"
