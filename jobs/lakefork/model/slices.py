"""Slices of hot rows: what a Spark task reads at once."""

from dataclasses import dataclass

Key = tuple[str, ...]  # values of the key columns, as Postgres writes them


@dataclass(frozen=True)
class Slice:
    """Rows that are read at once: of some users, or with keys from low (inclusive) to high (exclusive).

    table: its index in the run.
    """

    table: int
    users: tuple[str, ...] | None
    low: Key | None = None
    high: Key | None = None
