"""Postgres snapshots as values: which transactions each one sees."""

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class PgSnapshot:
    """A snapshot as pg_current_snapshot() shows it: xmin:xmax:xip."""

    text: str

    @functools.cached_property
    def end(self) -> int:
        """The first transaction id that had not begun."""
        return int(self.text.split(":")[1])

    @functools.cached_property
    def under_way(self) -> frozenset[int]:
        """The transactions before the end that were in progress."""
        return frozenset(int(one) for one in self.text.split(":")[2].split(",") if one)

    def sees(self, xid: int) -> bool:
        """Tells whether a transaction had ended; if it committed, its rows are visible."""
        return xid < self.end and xid not in self.under_way

    def includes(self, other: "PgSnapshot") -> bool:
        """Tells whether everything that the other one sees is visible here too."""
        return other.end <= self.end and not any(
            one < other.end and one not in other.under_way for one in self.under_way
        )

    def unseen(self) -> str:
        """Returns the condition that this snapshot does not see a row."""
        return f"({' OR '.join(self.unseen_parts())})"

    def unseen_parts(self) -> list[str]:
        """Returns its parts, each of which an index on _xid answers."""
        later = f"_xid >= '{self.end}'::xid8"
        if not self.under_way:
            return [later]
        return [later, f"_xid = ANY ('{{{','.join(map(str, sorted(self.under_way)))}}}'::xid8[])"]
